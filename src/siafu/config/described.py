"""What each setting means, in one place: for editors (the JSON Schema) and for docs/configuration.md. `*` stands for a
name that the user chooses; a setting of `upstreams.*` that is not here means what it does in `endpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping

DESCRIBED: Mapping[str, str] = {
    "": "Settings of siafu. Flags win over the environment, the environment over this file.",
    "home": "The folder for journals and state; keep it on a disk of this machine (SIAFU_HOME)",
    "database_url": "Where effects, conversations, client keys, budgets and canaries are kept: a path, "
    "sqlite:///PATH or postgresql://..., with a password as env:NAME; none = files in home (SIAFU_DATABASE_URL)",
    "redis_url": "Where processes of one key share the limits; none = each has them for itself (SIAFU_REDIS_URL, "
    "REDIS_URL)",
    "endpoint": "The one endpoint, when there are no upstreams; without base_url and api_key a SIMULATED one answers",
    "endpoint.base_url": "The part of the address before /chat/completions, such as https://host/v1; https except on "
    "this machine; none = OpenAI (SIAFU_BASE_URL, OPENAI_BASE_URL)",
    "endpoint.api_key": "The key, as env:NAME or file:/path, never itself (SIAFU_API_KEY, OPENAI_API_KEY)",
    "endpoint.headers": "Headers sent with every request; a secret value as env:NAME or file:/path",
    "endpoint.connect_seconds": "The longest time until a connection is made",
    "endpoint.idle_seconds": "The longest silence within an answer",
    "endpoint.total_seconds": "The longest time for one answer",
    "upstreams": "Several endpoints instead of [endpoint], by names of yours",
    "upstreams.*": "One of several endpoints",
    "upstreams.*.base_url": "The part of the address before /chat/completions, such as https://host/v1; https except "
    "on this machine",
    "upstreams.*.api_key": "The key, as env:NAME or file:/path, never itself",
    "upstreams.*.api_keys": "Several keys that take turns; each has the limits for itself",
    "upstreams.*.models": "The names it offers, or a table of names and what it calls them itself; none = every name",
    "upstreams.*.tier": "1 is asked first, a higher one when no upstream of a lower takes the call",
    "upstreams.*.weight": "Its share of the calls within its tier",
    "upstreams.*.first_byte_seconds": "A call without an answer by then goes elsewhere; none = total_seconds, for "
    "streams idle_seconds",
    "upstreams.*.key_header": "The header that carries the key; Authorization carries it as a bearer token",
    "upstreams.*.query": 'Parameters of each address, such as { api-version = "2024-10-21" }',
    "upstreams.*.proxy": "The way to it, such as http://host:3128, or env:NAME when it has a password; none = "
    "HTTPS_PROXY and NO_PROXY",
    "upstreams.*.ca_file": "A file of certificates to trust beside the system's",
    "upstreams.*.concurrency": "Calls at once, for each key; none = limits.concurrency",
    "upstreams.*.rpm": "Requests a minute, for each key; none = limits.rpm",
    "upstreams.*.tpm": "Tokens a minute, for each key; none = limits.tpm",
    "routes": "Which calls go where; the first route that fits a call counts",
    "routes[]": "Calls that fit every condition given here go to `use`",
    "routes[].use": "Models, MODEL or MODEL@UPSTREAM: the first is wanted, the others stand in for it",
    "routes[].model": "Only calls that name one of these models",
    "routes[].role": "Only calls of these roles of agents",
    "routes[].category": "Only calls for requests of these categories",
    "routes[].tenant": "Only calls for these tenants",
    "routes[].priority": "Only calls of these priorities, 1 to 3",
    "routes[].min_input_tokens": "Only calls of at least so many tokens, at 4 bytes of the request a token",
    "routes[].max_input_tokens": "Only calls of at most so many tokens, at 4 bytes of the request a token",
    "models": "Which models are asked; one that is not set falls back on another that is",
    "models.default": "For siafu.map, and for lines of batches that name none (SIAFU_MODEL)",
    "models.strong": "For support: sorts requests, answers delicate ones (SIAFU_STRONG_MODEL)",
    "models.cheap": "For support: answers most requests (SIAFU_CHEAP_MODEL)",
    "limits": "How much is asked of each upstream and key",
    "limits.concurrency": "Calls at once; the most that a learning policy lets through (SIAFU_CONCURRENCY)",
    "limits.policy": "How calls at once are held: fixed never changes, the others learn up to concurrency",
    "limits.ramp_seconds": "How long the first calls take to rise from 4 at once to concurrency; for fixed",
    "limits.interactive": "The part of the concurrency that only calls of priority 1 may use",
    "limits.rpm": "Requests a minute, one second's worth at once; none = learned from headers and 429s (SIAFU_RPM)",
    "limits.tpm": "Tokens a minute, five seconds' worth at once; none = learned from headers and 429s (SIAFU_TPM)",
    "limits.processes": "How many processes share the limits at least, for the time when Redis cannot say it",
    "limits.max_wait_seconds": "The longest wait an endpoint may ask for before the call fails instead",
    "budgets": 'Amounts like "20 USD" or "$0.50"',
    "budgets.day": "For all runs of this home together, in all processes, for a day of UTC; none = no limit",
    "budgets.per_item": "An item that would pass it fails; none = no limit",
    "budgets.per_agent": "The same for one agent of an item; none = no limit",
    "budgets.soft": "From this share of any budget on, cheaper models are asked",
    "budgets.cheaper": "The model to ask instead of each, from the soft limit on",
    "prices": "Your prices, by exact model id; a model without one has its list price",
    "prices.*": "US dollars per million tokens",
    "prices.*.input": "Of input tokens",
    "prices.*.output": "Of output tokens",
    "prices.*.cached": "Of input tokens read from the provider's cache; none = as input",
    "prices.*.cache_write": "Of input tokens written to the provider's cache; none = as input",
    "prices.*.date": "The first day on which they are valid, such as 2026-01-31",
    "mcp_servers": "MCP servers whose tools agents use, by names of yours; none = the example shop",
    "mcp_servers.*": "One server: a command to start (stdio), or a url (Streamable HTTP)",
    "mcp_servers.*.command": "The program, started without a shell",
    "mcp_servers.*.args": "Its arguments",
    "mcp_servers.*.env": "Variables it gets beside PATH, HOME, LANG, LC_* and TZ; a secret as env:NAME or file:/path",
    "mcp_servers.*.cwd": "The folder in which it starts; none = this one",
    "mcp_servers.*.url": "The address of a server that runs; https except on this machine",
    "mcp_servers.*.headers": "Headers sent with every request; a secret value as env:NAME or file:/path",
    "mcp_servers.*.timeout_seconds": "The longest time for opening the connection, and for one call",
    "mcp_servers.*.identity": "siafu = calls carry a signed token that proves the customer; none = they never do",
    "tools": "How tools may act on the world",
    "tools.effects": 'The contract of each tool, by "SERVER.TOOL" in quotes, or the name of a Python function',
    "tools.effects.*": "The contract of one tool: each effect once",
    "tools.effects.*.key": "What makes it the same effect: step, request, or one of them with names of arguments",
    "tools.effects.*.ignore": "Arguments in which two calls of one effect may differ, such as free text",
    "tools.effects.*.unclear": "Codes of the tool's errors that leave open whether it has acted",
    "tools.effects.*.honours_key": "The tool acts once a key, which it gets in _meta: asking again is safe",
    "tools.effects.*.lookup": "A tool of the same server that tells whether the effect has happened",
    "tools.effects.*.lookup.tool": "The tool to ask; it changes nothing",
    "tools.effects.*.lookup.arguments": "Its arguments: values, $key and $argument.NAME",
    "tools.effects.*.lookup.found": "The place in its result that holds something when the effect has happened",
    "tools.effects.*.unknown": "After an unclear outcome: repeat under the same key, or leave it to a person; none = "
    "repeat when the key is honoured",
    "tools.effects.*.approval": "Whether a person decides first: never, always, or above an amount",
    "tools.effects.*.approval.argument": "The argument that holds the amount",
    "tools.effects.*.approval.above": "A person is asked above this",
    "tools.effects.*.pending": "While a person has not decided: tell the one who asked, or let the item wait",
    "tools.effects.*.daily_calls": "The most effects a day (UTC), for one tenant; none = no cap",
    "tools.effects.*.daily_total": "The most that an argument may sum up to in a day, for one tenant; none = no cap",
    "tools.effects.*.daily_total.argument": "The argument that is summed up",
    "tools.effects.*.daily_total.max": "The most of its sum",
    "tools.effects.*.lease_seconds": "How long one process has an effect for itself; a call may take 0.7 of it",
}


def described(place: str) -> str:
    """What the setting at `place` means. Raises: KeyError when nobody has said it."""
    found = DESCRIBED.get(place)
    return DESCRIBED[place.replace("upstreams.*", "endpoint")] if found is None else found
