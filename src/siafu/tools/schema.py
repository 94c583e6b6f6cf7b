"""Arguments of tools: parsed strictly, then checked against the tool's JSON Schema.

The dialect is 2020-12 unless the schema names an older one. Nothing is coerced: `"10"`, `true` and `1.0` are no
integers, NaN and Infinity are no numbers. `$ref` stays inside the schema, nothing is looked up, and `format` is a
remark. A `pattern` that could take long to match is left to the server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import unquote

import jsonschema
from jsonschema import exceptions, validators
from jsonschema.protocols import Validator

from siafu.border.canonical import canonical, loads
from siafu.border.secrets import redact
from siafu.border.text import preview
from siafu.errors import BoundaryError, ConfigError, ToolArgumentsInvalid

MAX_ARGUMENT_BYTES = 256 * 1024
MAX_SCHEMA_BYTES = 128 * 1024
MAX_SCHEMA_DEPTH = 32
MAX_PROBLEMS = 5
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# A group that repeats without an upper bound, or a reference back to one: what makes Python's `re` exponential.
_COSTLY = re.compile(r"(?<!\\)\)(?:[*+]|\{\d*,\d*\})|\\[1-9]|\(\?P=")
_REPEAT = re.compile(r"(?<!\\)(?:[*+]|\{\d*,\})")
_MOST_STEPS = 10_000_000  # of matching one pattern: some tenths of a second
_KINDS = {type(None): "null", bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
_NO_FORMATS = jsonschema.FormatChecker(formats=())  # or patterns for other regex engines would be refused
_DIALECTS = (
    jsonschema.Draft202012Validator,
    jsonschema.Draft201909Validator,
    jsonschema.Draft7Validator,
    jsonschema.Draft6Validator,
)


def parse_arguments(text: str, *, tool: str = "") -> dict[str, Any]:
    """The arguments of a tool call from the JSON text a model wrote. Empty or blank text means none.

    Raises: ToolArgumentsInvalid, with a message for the model, when the text is cut, no JSON, repeats a key, holds
    NaN, is no object, is an object inside a string, or is larger than 256 KiB.
    """
    if not text.strip():
        return {}
    try:
        value = loads(text, max_bytes=MAX_ARGUMENT_BYTES, what="the text of the arguments")
    except BoundaryError as error:
        raise _refused(f"{error.message}; nothing was called. They began with: {_shown(text)}", tool) from None
    if isinstance(value, str):
        raise _refused(f"the arguments are a string; send the JSON object itself. Got: {_shown(text)}", tool)
    if not isinstance(value, dict):
        raise _refused(f"the arguments must be a JSON object. Got: {_shown(text)}", tool)
    return value


def check_schema(schema: Mapping[str, Any]) -> None:
    """See that `schema` can be used.

    Raises: ConfigError when it is larger than 128 KiB, deeper than 32, no valid JSON Schema, of an unknown dialect,
    or refers to another document.
    """
    _compiled(_key(schema))


def validate(schema: Mapping[str, Any], value: Any) -> list[str]:
    """What is wrong with `value`, in at most five short sentences that a model can act on; empty when it fits.

    Each schema is compiled once.

    Raises: ConfigError when the schema itself cannot be used.
    """
    validator = _compiled(_key(schema))
    try:
        return [_sentence(error) for error in islice(validator.iter_errors(value), MAX_PROBLEMS)]
    except RecursionError:
        raise ConfigError("the schema refers to itself without end") from None


def require(schema: Mapping[str, Any], arguments: Mapping[str, Any], tool: str) -> None:
    """See that `arguments` fit.

    Raises: ToolArgumentsInvalid with what `validate` finds, ConfigError as it does.
    """
    problems = validate(schema, arguments)
    if problems:
        raise _refused(f"the arguments do not fit {tool}: {'; '.join(problems)}", tool)


def _refused(message: str, tool: str) -> ToolArgumentsInvalid:
    return ToolArgumentsInvalid(message, tool=tool)


def _shown(text: str) -> str:
    return preview(redact(text[:2000]), 200)


def _key(schema: Mapping[str, Any]) -> bytes:
    try:
        key = canonical(schema)
    except BoundaryError as error:
        raise ConfigError(f"the schema is {error.message}") from None
    if len(key) > MAX_SCHEMA_BYTES:
        raise ConfigError(f"the schema has {len(key):,} bytes; the limit is {MAX_SCHEMA_BYTES:,}")
    return key


@lru_cache(maxsize=2048)
def _compiled(key: bytes) -> Validator:
    try:
        schema = loads(key, max_bytes=MAX_SCHEMA_BYTES, what="the schema")
    except BoundaryError as error:
        raise ConfigError(error.message) from None
    _check_nodes(schema)
    dialect = _dialect(schema)
    try:
        dialect.check_schema(schema, format_checker=_NO_FORMATS)
    except exceptions.SchemaError as error:
        raise ConfigError(f"the schema is no valid JSON Schema: {preview(error.message)}") from None
    validator: Validator = dialect(schema)
    return validator


def _check_nodes(schema: Any) -> None:
    nodes = list(_nodes(schema, 0))
    anchors = {f"#{node.get(word)}" for node, _ in nodes for word in ("$anchor", "$dynamicAnchor")}
    for node, depth in nodes:
        if depth > MAX_SCHEMA_DEPTH:
            raise ConfigError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}")
        if depth and isinstance(node.get("$id"), str):
            raise ConfigError("the schema holds another schema with an $id of its own")
        for target in (node.get(word) for word in _REFERENCES):
            if isinstance(target, str) and target not in anchors and not _points_inside(schema, target):
                raise ConfigError(f"the schema refers to {preview(target, 80)!r}, which it does not hold")
        for pattern in node.get("patternProperties") or ():
            if _COSTLY.search(pattern):
                raise ConfigError("the schema has a patternProperties pattern that could take exponential time")


def _points_inside(schema: Any, target: str) -> bool:
    """Whether the JSON Pointer in `target` (`#/$defs/x`) leads somewhere in `schema`."""
    head, *steps = unquote(target).split("/")
    node = schema
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list):
            node = node[int(name)] if name.isdecimal() and int(name) < len(node) else None
        else:
            node = node.get(name) if isinstance(node, dict) else None
    return head == "#" and node is not None


def _nodes(value: Any, depth: int) -> Iterator[tuple[dict[str, Any], int]]:
    if isinstance(value, dict):
        yield value, depth
        for item in value.values():
            yield from _nodes(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _nodes(item, depth + 1)


def _dialect(schema: Any) -> Any:
    if not isinstance(schema, dict):
        raise ConfigError("the schema must be a JSON object")
    named = str(schema.get("$schema", _DIALECTS[0].META_SCHEMA["$schema"])).rstrip("#")
    for known in _DIALECTS:
        if named == known.META_SCHEMA["$schema"].rstrip("#"):
            types = known.TYPE_CHECKER.redefine_many({"integer": _is_integer, "number": _is_number})
            return validators.extend(known, {"pattern": _pattern}, type_checker=types)  # type: ignore[no-untyped-call]
    raise ConfigError(f"the schema is written in a dialect that is not known here: {preview(named, 80)!r}")


def _is_integer(_: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: Any, value: Any) -> bool:
    return _is_integer(_, value) or (isinstance(value, float) and math.isfinite(value))


def _pattern(validator: Any, pattern: str, value: Any, _: Any) -> Iterator[exceptions.ValidationError]:
    if not validator.is_type(value, "string") or _COSTLY.search(pattern) or _steps(pattern, value) > _MOST_STEPS:
        return
    try:
        found = re.search(pattern, value)
    except re.error:  # written for another regex engine
        return
    if found is None:
        yield exceptions.ValidationError(f"must match {pattern}")


def _steps(pattern: str, value: str) -> int:
    """At most so many steps: each part that repeats without an upper bound, and a start anywhere, is one more power."""
    anchored = pattern.startswith("^") and "|" not in pattern
    return int(len(value) ** (len(_REPEAT.findall(pattern)) + (not anchored)))


def _sentence(error: Any) -> str:
    where = _path(error)
    if error.validator == "required":
        # jsonschema reports each missing name apart, and names it in its message only
        name = next(name for name in error.validator_value if error.message.startswith(repr(name)))
        return f"{where}{'.' if where else ''}{name} is missing"
    if error.validator in ("additionalProperties", "unevaluatedProperties"):
        known = error.schema.get("properties", {})
        extra = ", ".join(name for name in error.instance if name not in known)
        inside = f" in {where}" if where else ""
        return f"unknown {preview(extra, 100)}{inside}; known: {preview(', '.join(known) or 'none', 200)}"
    where = where or "the whole"
    if error.validator == "type":
        return f"{where} must be {_words(error.validator_value)}, not {_kind(error.instance)} {_value(error.instance)}"
    if error.validator == "enum":
        return f"{where} must be one of {_value(error.validator_value, 200)}, not {_value(error.instance)}"
    if error.validator in ("anyOf", "oneOf", "allOf", "not"):
        return f"{where} fits none of the allowed forms: {_value(error.instance)}"
    return f"{where}: {preview(error.message, 160)}"


def _path(error: Any) -> str:
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path]
    return preview("".join(steps).removeprefix("."), 120)


def _words(types: Any) -> str:
    return " or ".join(types) if isinstance(types, list) else str(types)


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "number")


def _value(value: Any, limit: int = 60) -> str:
    return preview(redact(repr(value)[:2000]), limit)
