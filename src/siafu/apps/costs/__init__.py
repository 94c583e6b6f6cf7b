"""What work has cost, will cost, and would cost on other models."""
