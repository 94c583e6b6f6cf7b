"""Filling a JSON Schema from a text: every value valid, and as apt as rules can make it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from siafu.bench.simulator import finding
from siafu.bench.simulator.choices import choose, fitting, is_so, level
from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.strings import matching, sample_of
from siafu.bench.simulator.words import clauses, concepts, is_korean, keywords

Json = dict[str, Any]
DEEPEST = 4  # nested optional parts below this are left away
_ANSWER = re.compile(r"answer|reply|response|message|답변|응답|안내", re.IGNORECASE)
_WHY = re.compile(r"reason|why|explan|rational|justif|이유|근거|사유", re.IGNORECASE)
_TOPIC = re.compile(r"keyword|tag|topic|query|search|term|subject|title|키워드|주제|제목", re.IGNORECASE)
_LANGUAGE = re.compile(r"^(lang|language|locale|언어)$", re.IGNORECASE)


class Source(msgspec.Struct, frozen=True):
    """What a schema is filled from. `text`: the user's; `explained`: what the caller says about the fields; `say`: an
    answer in words; `results`: values that tools returned."""

    text: str
    explained: str
    say: Callable[[], str]
    draws: Draws
    results: tuple[Any, ...] = ()


def fill(schema: Json, source: Source) -> Any:
    """A value that is valid for `schema`."""
    return _Filler(schema, source).value(schema, "", 0)


class _Filler:
    def __init__(self, root: Json, source: Source) -> None:
        self._root, self._source = root, source

    def value(self, schema: Any, name: str, depth: int) -> Any:
        schema = self.resolve(schema)
        if depth > 2 * DEEPEST:
            return None  # a schema that only leads back to itself
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._enum(schema, name)
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return self._one_of(schema, schema[key], name, depth)
        kinds = _types(schema)
        if "null" in kinds and (len(kinds) == 1 or not self.evident(schema, name)):
            return None
        kind = next((kind for kind in kinds if kind != "null"), "string")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind in ("integer", "number"):
            return self._number(schema, name, whole=kind == "integer")
        if kind == "boolean":
            return is_so(name, str(schema.get("description", "")), self._source.text)
        return self._string(schema, name)

    def resolve(self, schema: Any, depth: int = 0) -> Json:
        """The schema with $ref followed and allOf merged."""
        found: Json = schema if isinstance(schema, dict) else {}
        for _ in range(DEEPEST):
            reference = found.get("$ref")
            if not isinstance(reference, str):
                break
            target: Any = self._root
            for step in filter(None, reference.lstrip("#").split("/")):
                target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
            found = (target if isinstance(target, dict) else {}) | {k: v for k, v in found.items() if k != "$ref"}
        merged = {k: v for k, v in found.items() if k != "allOf"}
        for part in (self.resolve(part, depth + 1) for part in found.get("allOf", []) if depth < DEEPEST):
            properties = {**part.get("properties", {}), **merged.get("properties", {})}
            required = [*part.get("required", []), *merged.get("required", [])]
            merged = {**part, **merged, **({"properties": properties, "required": required} if properties else {})}
        return merged

    def evident(self, schema: Json, name: str) -> bool:
        """Whether the text holds something for an optional or nullable property."""
        text, kinds = self._source.text, _types(schema)
        if "enum" in schema:
            return choose(schema["enum"], name, self._explained(schema), text, self._source.draws)[1] > 0
        if "pattern" in schema:
            return bool(finding.by_pattern(schema["pattern"], text))
        if "format" in schema:
            return bool(finding.by_format(schema["format"], text))
        if {"integer", "number"} & set(kinds):
            numbers = finding.numbers(name, str(schema.get("description", "")), text)
            return bool(numbers) or level(0, 1, name, "", text) is not None
        if "string" in kinds and finding.is_id(name, schema):
            return bool(finding.ids(name, schema, text))
        return bool({"object", "array"} & set(kinds) or _ANSWER.search(name) or _WHY.search(name))

    def _explained(self, schema: Json) -> str:
        return f"{schema.get('description', '')}\n{self._source.explained}"

    def _enum(self, schema: Json, name: str) -> Any:
        values = [value for value in schema["enum"] if value is not None]
        if not values:
            return None
        value, sure = choose(values, name, self._explained(schema), self._source.text, self._source.draws)
        return None if None in schema["enum"] and not sure else value

    def _one_of(self, schema: Json, options: list[Any], name: str, depth: int) -> Any:
        rest = {k: v for k, v in schema.items() if k not in ("anyOf", "oneOf")}
        resolved = [{**rest, **self.resolve(option)} for option in options]
        real = [option for option in resolved if _types(option) != ["null"] and option.get("const", 0) is not None]
        if not real or (len(real) < len(resolved) and not any(self.evident(option, name) for option in real)):
            return None
        return self.value(next((option for option in real if self.evident(option, name)), real[0]), name, depth + 1)

    def _object(self, schema: Json, depth: int) -> Json:
        required = schema.get("required") or []
        found = {}
        properties = {key: {} for key in required} | (schema.get("properties") or {})
        for key, inner in properties.items():
            if key in required or (depth < DEEPEST and self.evident(self.resolve(inner), key)):
                found[key] = self.value(inner, key, depth + 1)
        return found

    def _array(self, schema: Json, name: str, depth: int) -> list[Any]:
        items = self.resolve(schema.get("items"))
        least = int(schema.get("minItems", 0))
        most = least if depth >= DEEPEST else int(schema.get("maxItems", max(3, least)))
        parts = clauses(self._source.text) or [self._source.text]
        if "enum" in items:
            fit = fitting(items["enum"], self._explained(schema), self._source.text)
            rest = [value for value in items["enum"] if value not in fit]
            return [*fit[:most], *rest, *items["enum"] * least][: max(least, min(len(fit), most))]
        told = self._strings(items, name) if items.get("type") == "string" else []
        found: list[Any] = finding.unique([_fitted(text, items) for text in told])[:most]
        wanted = max(least, 0 if found else min(len(parts), most))
        for number in range(len(found), wanted):
            part = msgspec.structs.replace(self._source, text=parts[number % len(parts)])
            found.append(_Filler(self._root, part).value(items, name, depth + 1))
        return found

    def _strings(self, schema: Json, name: str) -> list[str]:
        text = self._source.text
        if "pattern" in schema:
            return finding.by_pattern(schema["pattern"], text)
        if "format" in schema:
            return finding.by_format(schema["format"], text)
        if finding.is_id(name.removesuffix("s"), schema):
            return finding.ids(name.removesuffix("s"), schema, text)
        return finding.unique(keywords(text)) if _TOPIC.search(name) else []

    def _number(self, schema: Json, name: str, *, whole: bool) -> float | int:
        lowest, highest, step = _bounds(schema, whole)
        start = lowest if lowest > -math.inf else min(float(whole), highest)  # unbounded: 1 to 5, or 0 to 1
        end = highest if highest < math.inf else start + (4 if whole else 1)
        text, description = self._source.text, str(schema.get("description", ""))
        value = level(start, end, name, self._explained(schema), text)
        if value is None:
            found = [number for number in finding.numbers(name, description, text) if lowest <= number <= highest]
            value = found[0] if found else max(lowest, min(0.0, highest))
        if step:
            value = round(value / step) * step
            value += step * (value < lowest) - step * (value > highest)
        return int(value) if whole else round(value, 6)

    def _string(self, schema: Json, name: str) -> str:
        return _fitted(self._found(schema, name), schema)

    def _found(self, schema: Json, name: str) -> str:
        """The most apt string for a property, not yet fitted to its limits."""
        text = self._source.text
        exact = [] if _TOPIC.search(name) else self._strings(schema, name)
        if exact:
            return exact[0]
        earlier = [value for value in finding.in_results(name, list(self._source.results)) if isinstance(value, str)]
        if earlier:
            return earlier[0]
        if "format" in schema:
            return sample_of(schema["format"], self._source.draws)
        if "default" in schema and isinstance(schema["default"], str):
            return str(schema["default"])
        if _LANGUAGE.match(name):
            return "ko" if is_korean(text) else "en"
        if finding.is_id(name, schema):
            return "unknown"
        if _WHY.search(name):
            about = ", ".join(sorted(concepts(text))[:3])
            return f"The text mentions {about}." if about else "The text gives no clear sign."
        if _TOPIC.search(name):
            return " ".join(keywords(text)[:6]) or text[:60]
        return self._source.say() if _ANSWER.search(name) else (clauses(text) or [text])[0][:200]


def _fitted(text: str, schema: Json) -> str:
    """The text within the schema's lengths and pattern."""
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and text not in finding.by_pattern(pattern, text):
        return matching(pattern)
    return text[: schema.get("maxLength")].ljust(schema.get("minLength", 0), ".")


def _types(schema: Mapping[str, Any]) -> list[str]:
    """The types a schema allows, guessed from its keywords when it does not say."""
    given = schema.get("type")
    if isinstance(given, list):
        return [str(kind) for kind in given]
    if isinstance(given, str):
        return [given]
    if "properties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else ["string"]


def _bounds(schema: Mapping[str, Any], whole: bool) -> tuple[float, float, float]:
    """Lowest and highest value, both allowed, and the step between values (0 = any)."""
    step = float(schema.get("multipleOf") or (1 if whole else 0))
    lowest, highest = float(schema.get("minimum", -math.inf)), float(schema.get("maximum", math.inf))
    if "exclusiveMinimum" in schema:
        lowest = max(lowest, float(schema["exclusiveMinimum"]) + (step or 1e-6))
    if "exclusiveMaximum" in schema:
        highest = min(highest, float(schema["exclusiveMaximum"]) - (step or 1e-6))
    return lowest, highest, step
