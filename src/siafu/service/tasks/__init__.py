"""Tasks over HTTP: submitted, looked at, cancelled, followed; and webhooks that tell how they ended."""
