"""What happened: the words for it, and who is told. It never changes what happens."""
