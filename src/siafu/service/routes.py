"""All that is served."""

from __future__ import annotations

from typing import Any

import msgspec

from siafu.service import shapes
from siafu.service.metrics import SCRAPED
from siafu.service.route import Route
from siafu.service.shapes import word
from siafu.service.stored import ROUTES as STORED
from siafu.service.tasks.api import ROUTES as TASKS

CHAT, MODELS, DESCRIPTION = "/v1/chat/completions", "/v1/models", "/openapi.json"
ALIVE, READY = "/health/liveness", "/health/readiness"
_WELL = {200: shapes.Health}
_PRIORITY = {
    "x-siafu-priority": word("1 is first, 3 last; 2 without it, or the best that the key has", pattern="^[123]?$")
}
_WORK = (  # they take places among the requests that are worked on
    Route(
        method="POST", path=CHAT, name="createChatCompletion", body=shapes.ChatBody, says={200: dict[str, Any]},
        summary="Complete a chat; all but the model is passed on to the endpoint behind", stream="may",
        headers={
            "idempotency-key": word("A swarm's effects happen once, however often it is asked under the same key"),
            "x-siafu-customer": word("For siafu/support: a signed token that proves for which customer"),
            **shapes.TRACED,
        },
    ),
    *STORED,
    *TASKS,
)  # fmt: skip
ROUTES = (
    *(msgspec.structs.replace(each, headers={**each.headers, **_PRIORITY}) for each in _WORK),
    Route(method="GET", path=MODELS, name="listModels", summary="List models and swarms", says={200: shapes.Models}),
    Route(method="GET", path=MODELS + "/{model}", name="getModel", summary="Look at a model", says={200: shapes.Model}),
    SCRAPED,
    Route(method="GET", path=DESCRIPTION, name="describe", summary="This document", says={200: dict[str, Any]}),
    Route(method="GET", path=ALIVE, name="live", summary="Whether it runs", says=_WELL, open=True),
    Route(method="GET", path=READY, name="ready", summary="Whether it takes requests", says=_WELL, open=True),
)  # fmt: skip
