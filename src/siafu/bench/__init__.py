"""How good it is: the simulated endpoint, load, scenarios, reports."""
