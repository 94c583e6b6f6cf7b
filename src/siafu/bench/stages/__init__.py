"""A burst of tasks on more and more workers, in front of an endpoint with a limit: how near the limit they come."""
