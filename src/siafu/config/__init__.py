"""How a siafu is put together: settings and assembly; the only place that knows all classes."""
