"""Batches that clients ask for over HTTP: stored files, and the life of a batch from its validation to its output."""
