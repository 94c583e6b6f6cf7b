"""What thousands of agents cost that wait for their turn: memory, and how long they hold the event loop up."""
