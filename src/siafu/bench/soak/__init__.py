"""The same load for hours: whether memory, descriptors and tables stay as they are."""
