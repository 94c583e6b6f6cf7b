"""The JSON Schema of `siafu.toml`, for editors: made from the types that read the file, with what settings mean.

It has no references, which editors follow in different ways, and says less than the reader checks: whether a variable
is set, a route leads somewhere or an address is safe stands in no schema.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticOmit, core_schema

from siafu.config.described import described
from siafu.config.settings import Settings
from siafu.tools.effect_rules import EffectRule

DRAFT = "http://json-schema.org/draft-07/schema#"  # which editors know
# What the types do not say of a place.
_MORE: dict[str, dict[str, Any]] = {
    "upstreams": {"propertyNames": {"pattern": "^[^@#]+$"}},
    "upstreams.*": {"not": {"required": ["api_key", "api_keys"]}},
    "mcp_servers.*": {"oneOf": [{"required": ["command"]}, {"required": ["url"]}]},
    "endpoint.base_url": {"pattern": r"^https?://\S+$"},
    "upstreams.*.base_url": {"pattern": r"^https?://\S+$"},
    "mcp_servers.*.url": {"pattern": r"^https?://\S+$"},
}
_DECIMAL = {"type": "string", "pattern": r"^\s*[0-9_]*\.?[0-9_]+([eE][-+]?[0-9]+)?\s*$"}


def json_schema() -> dict[str, Any]:
    """The schema."""
    made = Settings.model_json_schema(schema_generator=_Generator)
    (rule,), more = msgspec.json.schema_components([EffectRule], ref_template="#/$defs/{name}")
    made["$defs"] |= more
    effects = made["$defs"]["ToolSettings"]["properties"]["effects"]
    effects["additionalProperties"] = rule
    whole = _at("", made, made["$defs"])
    return {"$schema": DRAFT, "title": "siafu.toml", **whole}


def schema_text() -> str:
    """The schema as a file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


class _Generator(GenerateJsonSchema):
    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> Any:
        raise PydanticOmit  # a Secret, which no file holds

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> Any:
        number, *_ = super().decimal_schema(schema)["anyOf"]
        return {"anyOf": [number, dict(_DECIMAL)]}


def _at(place: str, node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """The schema of one place: without references, null (which TOML has not) and titles."""
    default = node.get("default")
    while "$ref" in node:
        node = defs[node["$ref"].rpartition("/")[2]]
    choices = [choice for choice in node.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        return _at(place, {**choices[0], **({} if default is None else {"default": default})}, defs)
    found: dict[str, Any] = {"description": described(place)} if _speaks(place) else {}
    found |= {name: value for name, value in node.items() if name not in ("title", "description", "anyOf", "$defs")}
    if default is None or isinstance(default, dict):
        found.pop("default", None)
    else:
        found["default"] = default
    if choices:
        found["anyOf"] = [{k: v for k, v in _at(place, each, defs).items() if k != "description"} for each in choices]
    if "properties" in node:
        inner = {name: _at(f"{place}.{name}".lstrip("."), each, defs) for name, each in node["properties"].items()}
        found["properties"] = inner
    if isinstance(node.get("additionalProperties"), dict):
        found["additionalProperties"] = _at(f"{place}.*", node["additionalProperties"], defs)
    if isinstance(node.get("items"), dict):
        found["items"] = _at(f"{place}[]", node["items"], defs)
    return found | _MORE.get(place, {})


def _speaks(place: str) -> bool:
    """Whether the place has a meaning of its own: the names and items of plain tables and lists have none."""
    try:
        described(place)
    except KeyError:
        return False
    return True
