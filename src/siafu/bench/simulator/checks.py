"""Schemas that cannot be used, refused as providers refuse them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

DEEPEST = 64
TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e15


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100_000


def _is_type(value: Any) -> bool:
    return value in TYPES if isinstance(value, str) else _is_list(value) and all(kind in TYPES for kind in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_RULES: dict[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": _is_list,
    "required": _is_names,
    "properties": lambda value: isinstance(value, dict),
    "items": lambda value: isinstance(value, dict | bool),
    "pattern": lambda value: isinstance(value, str),
    "format": lambda value: isinstance(value, str),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _is_list),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_size),
}


def schema_error(schema: Any, where: str = "schema", depth: int = 0) -> str | None:
    """What is wrong with a JSON Schema, in words; None when it can be used."""
    if isinstance(schema, bool) and depth:
        return None
    if not isinstance(schema, dict):
        return f"{where} is no JSON Schema"
    if depth > DEEPEST:
        return f"{where} is nested too deep"
    for key, allowed in _RULES.items():
        if key in schema and not allowed(schema[key]):
            return f"{where}.{key} is not valid"
    choices = [(key, part) for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, [])]
    inner = [(f"{where}.{key}", part) for key, part in choices]
    inner += [(f"{where}.{key}.{name}", part) for key in ("properties", "$defs") for name, part in _named(schema, key)]
    inner += [(f"{where}.items", schema["items"])] if "items" in schema else []
    return next(filter(None, (schema_error(part, place, depth + 1) for place, part in inner)), None)


def _named(schema: dict[str, Any], key: str) -> list[tuple[str, Any]]:
    found = schema.get(key)
    return list(found.items()) if isinstance(found, dict) else []
