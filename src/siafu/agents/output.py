"""The declared form of a final answer: the schema that is sent, and the check of what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from siafu.agents.arguments import CUT_REASONS
from siafu.border.canonical import dumps
from siafu.border.text import preview
from siafu.errors import ConfigError, OutputInvalid, ReplyTruncated
from siafu.gateway.chat import ChatAnswer
from siafu.tools.schema import check_schema, validate

MAX_SCHEMA_CHARS = 4_000  # a longer schema is not repeated in a repair turn
_NOT_SENT = frozenset({"$ref", "$defs", "title", "default", "discriminator"})


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """`schema`: JSON Schema of the answer. `type`: what it is converted to, None = it stays plain JSON."""

    schema: Mapping[str, Any]
    type: Any = None

    def response_format(self) -> dict[str, Any]:
        """The request field. `strict` where the schema is closed, as strict modes refuse open ones."""
        named = {"name": "answer", "strict": _closed(self.schema), "schema": self.schema}
        return {"type": "json_schema", "json_schema": named}

    def convert(self, value: Any) -> Any:
        """`value` (plain JSON) as the declared type. Keys that a declared type does not have are dropped.

        Raises: OutputInvalid, with a short text that says what is wrong.
        """
        if self.type is not None:
            try:
                return msgspec.convert(value, self.type)
            except msgspec.ValidationError as error:
                raise OutputInvalid(f"the answer does not fit its schema: {preview(str(error))}") from None
        faults = validate(self.schema, value)
        if faults:
            raise OutputInvalid(f"the answer does not fit its schema: {preview(faults[0])}")
        return value


def declared(output: type[Any] | Mapping[str, Any]) -> Output:
    """The Output for a msgspec Struct, dataclass or TypedDict type, or for a JSON Schema, which is sent as it is.

    In the schema made from a type every field is required, as strict modes want it: write `X | None` for what may be
    absent. Nothing in it refers to another place, as not every server resolves references.

    Raises: ConfigError when it is no JSON object, no usable schema, or a type that contains itself.
    """
    if isinstance(output, Mapping):
        check_schema(output)
        made = Output(schema=output)
    else:
        try:
            whole = msgspec.json.schema(output)
        except TypeError as error:
            raise ConfigError(f"output {preview(repr(output))} cannot be turned into a JSON Schema: {error}") from None
        made = Output(schema=_inlined(whole, whole.get("$defs", {})), type=output)
    if made.schema.get("type") != "object":
        raise ConfigError(f"output {preview(repr(output))} must describe a JSON object")
    return made


def read(answer: ChatAnswer, output: Output | None) -> Any:
    """The value of a final answer; None when no output is declared and the text is all there is.

    Raises: ReplyTruncated when it was cut, OutputInvalid when it is empty or does not fit.
    """
    if answer.finish_reason in CUT_REASONS:
        raise ReplyTruncated(f"the answer was cut (finish_reason {answer.finish_reason!r})")
    if not answer.text.strip():
        raise OutputInvalid("the answer was empty")
    return None if output is None else output.convert(answer.json())


def repair_request(problem: str, output: Output | None) -> str:
    """What the model is asked after a final answer that cannot be used."""
    if output is None:
        return f"Your last message cannot be used: {problem}. Write a shorter, complete answer."
    schema = dumps(output.schema).decode()
    fits = f"fits this JSON Schema: {schema}" if len(schema) <= MAX_SCHEMA_CHARS else "fits the schema"
    return f"Your last message cannot be used: {problem}. Answer with nothing but one JSON object that {fits}"


def _inlined(node: Any, defs: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """A subschema with its references replaced by what they name, and its objects closed."""
    if not isinstance(node, dict):
        return node
    ref = node.get("$ref")
    if ref is not None:
        name = ref.removeprefix("#/$defs/")
        if name in inside:
            raise ConfigError(f"output type {name} contains itself; an answer's schema must be finite")
        node = {**defs[name], **node}
        inside = (*inside, name)
    out = {key: value for key, value in node.items() if key not in _NOT_SENT}
    for key in ("items", "additionalProperties"):
        if key in out:
            out[key] = _inlined(out[key], defs, inside)
    for key in ("anyOf", "prefixItems"):
        if key in out:
            out[key] = [_inlined(part, defs, inside) for part in out[key]]
    if "enum" in out and "type" not in out and all(isinstance(value, str) for value in out["enum"]):
        out["type"] = "string"  # strict modes want a type everywhere
    if "properties" in out:
        out["properties"] = {name: _inlined(part, defs, inside) for name, part in out["properties"].items()}
        out["required"] = list(out["properties"])
        out["additionalProperties"] = False
    return out


def _closed(node: Any) -> bool:
    """Whether every object in a schema names all its keys, requires them and allows no others."""
    if isinstance(node, list):
        return all(map(_closed, node))
    if not isinstance(node, Mapping):
        return True
    if not node:
        return False  # anything at all
    if node.get("type") == "object":
        names = node.get("properties", {})
        closed = node.get("additionalProperties") is False and set(node.get("required", ())) == set(names)
        return closed and all(map(_closed, names.values()))
    return all(map(_closed, node.values()))
