"""What a model call costs: siafu beside bare aiohttp and the OpenAI SDK, in one run against one server."""
