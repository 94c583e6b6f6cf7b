"""The shop behind the support swarm, as an MCP server with its own database. Knows nothing of agents."""
