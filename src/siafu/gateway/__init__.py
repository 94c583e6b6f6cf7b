"""How we talk to models: one Endpoint seam, wrapped. It owns how a model is called, never why."""
