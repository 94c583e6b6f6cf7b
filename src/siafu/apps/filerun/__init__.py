"""Runs over files: JSON Lines in, `map` in the middle, JSON Lines out; resumed by running the same command again."""
