"""One ant: a context to work in, a step, a run loop, a role."""
