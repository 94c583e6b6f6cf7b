"""`/openapi.json`: written from the routes, and from the types by which requests are read and answers made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from siafu import __version__
from siafu.service.route import Route
from siafu.service.routes import ROUTES
from siafu.service.shapes import ErrorBody

_JSON, _EVENTS, _FORM = "application/json", "text/event-stream", "multipart/form-data"
_BYTES = "application/octet-stream"
_WAIT = {
    "Retry-After": {
        "description": "Seconds until asking again makes sense",
        "schema": {"type": "integer", "minimum": 1},
    }
}


def document(routes: Sequence[Route] = ROUTES) -> dict[str, Any]:
    """The description in OpenAPI 3.2, the first that can say what events of a stream are."""
    kinds = [kind for route in routes for kind in (route.body, route.form, *route.says.values())]
    types = [kind for kind in kinds if kind not in (None, bytes)]
    schemas, named = _components([ErrorBody, *types])
    found = dict(zip(map(repr, [ErrorBody, *types]), schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, found)
    return {
        "openapi": "3.2.0",
        "info": {
            "title": "siafu",
            "version": __version__,
            "description": "An OpenAI-compatible endpoint with limits, budgets and tasks. On loopback no key is needed "
            "until one was made.",
        },
        "paths": paths,
        "components": {
            "schemas": named,
            "securitySchemes": {"clientKey": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Refused": {
                    "description": "Refused",
                    "headers": _WAIT,
                    "content": {_JSON: {"schema": found[repr(ErrorBody)]}},
                }
            },
        },
        "security": [{"clientKey": []}],
    }


def _components(types: Sequence[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """The JSON Schemas of `types`, and of what they refer to, by name."""
    return msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, kind in route.says.items():
        answers[str(status)] = {"description": route.summary}
        if kind is str:
            answers[str(status)]["content"] = {"text/plain": {"schema": {"type": "string"}}}
        elif kind is bytes:
            answers[str(status)]["content"] = {_BYTES: {}}
        elif kind is not None:
            content = {} if route.stream == "only" else {_JSON: {"schema": schemas[repr(kind)]}}
            if route.stream:
                content[_EVENTS] = {"itemSchema": _event(schemas[repr(kind)] if route.stream == "only" else {})}
            answers[str(status)]["content"] = content
    refused = {"$ref": "#/components/responses/Refused"}
    told: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": answers | {"4XX": refused, "5XX": refused},
    }
    sent = route.body if route.form is None else route.form
    if sent is not None:
        kind = _JSON if route.form is None else _FORM
        told["requestBody"] = {"required": True, "content": {kind: {"schema": schemas[repr(sent)]}}}
    if route.open:
        told["security"] = []
    return told


def _parameters(route: Route) -> list[dict[str, Any]]:
    kinds = {"id": route.id, "model": str}
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": msgspec.json.schema(kind)}
        for name, kind in kinds.items()
        if f"{{{name}}}" in route.path
    ]
    if route.query is not None:
        _, inner = _components([route.query])
        for name, schema in inner[route.query.__name__]["properties"].items():
            choices = [each for each in schema.get("anyOf", [schema]) if each != {"type": "null"}]
            found.append({"name": name, "in": "query", "required": False, "schema": choices[0]})
    for name, kind in route.headers.items():
        found.append({"name": name, "in": "header", "required": False, "schema": msgspec.json.schema(kind)})
    return found


def _event(data: dict[str, Any]) -> dict[str, Any]:
    """One event of a stream, whose data are JSON text."""
    text = {"type": "string"} | ({"contentMediaType": _JSON, "contentSchema": data} if data else {})
    properties = {"data": text, "event": {"type": "string"}, "id": {"type": "string"}}
    return {"type": "object", "properties": properties}
