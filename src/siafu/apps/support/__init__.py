"""The customer-support swarm: classify, look up, answer."""
