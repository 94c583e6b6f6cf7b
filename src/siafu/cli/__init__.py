"""The front door: one file per command; parse, call, print."""
