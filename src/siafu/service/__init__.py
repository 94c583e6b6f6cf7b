"""How the world talks to siafu: the OpenAI-compatible API over HTTP."""
