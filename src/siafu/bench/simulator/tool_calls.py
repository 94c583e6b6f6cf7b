"""Which tools a text asks for, with which arguments: decided by the tools' own names, descriptions and schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from siafu.bench.simulator import finding
from siafu.bench.simulator.choices import SIGN, choose, is_so
from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.words import (
    clauses,
    concepts,
    described,
    features,
    is_korean,
    keywords,
    mentioned,
    scores,
    words,
)

Json = dict[str, Any]

LEAST_SCORE = 1.0
ID_BONUS = 0.8  # the text holds an id that the tool asks for
MOST_CALLS = 8
_LINES = re.compile(r"reason|message|text|body|content|comment|note|question|detail|사유|내용|메모", re.IGNORECASE)
_SEARCHED = re.compile(r"query|keyword|search|term|topic|subject|검색|키워드|주제", re.IGNORECASE)
_PLACE = re.compile(r"destination|city|location|place|(?:^|_)to$|where|도시|장소|목적지|지역", re.IGNORECASE)
_LANGUAGE = re.compile(r"^(lang|language|locale)$", re.IGNORECASE)
_GENERIC = ("search", "recommend", "stock", "price", "question", "status", "whereabouts", "product", "list", "date")


class Wish(msgspec.Struct, frozen=True):
    """A tool the text asks for. `missing`: required arguments that nothing in the conversation tells."""

    name: str
    arguments: Json
    missing: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """What makes two calls the same."""
        return self.name, msgspec.json.encode(self.arguments, order="sorted").decode()


def wishes(text: str, functions: list[Json], results: list[Any], draws: Draws) -> list[Wish]:
    """The tools that the text asks for, in its order, each call once."""
    parts = clauses(text)
    chosen = [_best(part, functions) for part in parts]
    if not any(chosen):
        parts, chosen = [text], [_best(text, functions)]
    found: list[Wish] = []
    for number, part in enumerate(parts):
        function = chosen[number] or _neighbour(part, chosen, number)
        if function:
            wanted = _wishes(function, part, text, results, draws)
            found += _found_first(wanted, functions, part, text, results, draws)
    complete = {wish.name for wish in found if not wish.missing}
    kept = [wish for wish in found if not wish.missing or wish.name not in complete]
    return list({wish.key: wish for wish in kept}.values())[:MOST_CALLS]


def _found_first(
    wanted: list[Wish], functions: list[Json], part: str, text: str, results: list[Any], draws: Draws
) -> list[Wish]:
    """The same calls; before one that misses an id, the search that may tell it (a product's code, from its name)."""
    missing = set().union(*(mentioned(name) for wish in wanted for name in wish.missing))
    for function in functions:
        about = _about(function)
        if "concept:search" in about and any(f"concept:{name}" in about for name in missing):
            first = _wishes(function, part, text, results, draws)
            if not first[0].missing:
                return [*first, *wanted]
    return wanted


def insisted(text: str, functions: list[Json], results: list[Any], draws: Draws) -> Wish:
    """The best call of one of `functions`, when one must be called whatever the text says."""
    targets = {function["name"]: _about(function) for function in functions}
    points = scores(features(text), targets)
    function = max(functions, key=lambda function: points[function["name"]])
    return _wishes(function, text, text, results, draws)[0]


def _about(function: Json) -> dict[str, float]:
    """What a tool is about."""
    properties = (function.get("parameters") or {}).get("properties") or {}
    return _described(function["name"], str(function.get("description") or "")[:2_000], " ".join(properties))


@lru_cache(maxsize=1_024)
def _described(name: str, description: str, properties: str) -> dict[str, float]:
    return described([(properties, 0.4), (description, 0.5), (name, 1.0)])


def _best(part: str, functions: list[Json]) -> Json | None:
    """The tool that a clause asks for, if any: the best of all that would be called if it were the only one."""
    said, about = features(part), {function["name"]: _about(function) for function in functions}
    beside = scores(said, about)
    able: list[tuple[float, Json]] = []
    for function in functions:
        name = function["name"]
        bonus = ID_BONUS * bool(beside[name] and _ids_of(function, part))
        if scores(said, {name: about[name]})[name] + bonus >= LEAST_SCORE:
            able.append((beside[name] + bonus, function))
    return max(able, key=lambda found: found[0])[1] if able else None


def _neighbour(part: str, chosen: list[Json | None], number: int) -> Json | None:
    """The tool for a clause that is only another id: "the status of 1001 and 1002"."""
    if len(words(part)) > 2:
        return None
    near = [*reversed(chosen[:number]), *chosen[number + 1 :]]
    function = next(filter(None, near), None)
    return function if function and _ids_of(function, part) else None


def _ids_of(function: Json, part: str) -> list[str]:
    """Ids in the clause that fit one of the tool's required parameters."""
    parameters = function.get("parameters") or {}
    found: list[str] = []
    for name, schema in (parameters.get("properties") or {}).items():
        if name in (parameters.get("required") or []) and isinstance(schema, dict) and "enum" not in schema:
            found += _exact(name, schema, part)
    return found


def _wishes(function: Json, part: str, text: str, results: list[Any], draws: Draws) -> list[Wish]:
    """The calls of one tool that a clause asks for: one, or one for each id it names."""
    parameters = function.get("parameters") or {}
    properties = {k: v for k, v in (parameters.get("properties") or {}).items() if isinstance(v, dict)}
    required = [name for name in parameters.get("required") or [] if name in properties]
    finder = _Finder(function, part, text, results, draws)
    arguments: Json = {}
    several: tuple[str, list[Any]] | None = None
    for name, schema in properties.items():
        values = list(finder.values(name, schema, needed=name in required))
        if values:
            arguments[name] = values[0]
        if len(values) > 1 and name in required and several is None:
            several = name, values
    missing = tuple(name for name in required if name not in arguments)
    if several is None or missing:
        return [Wish(function["name"], arguments, missing)]
    return [Wish(function["name"], {**arguments, several[0]: value}) for value in several[1][:MOST_CALLS]]


def _whole(schema: Json) -> Json:
    """The schema with its first choice that is not null: how optional parameters are often written."""
    options = [option for option in schema.get("anyOf") or schema.get("oneOf") or [] if isinstance(option, dict)]
    return {**schema, **next((option for option in options if option.get("type") != "null"), {})}


def _exact(name: str, schema: Json, text: str) -> list[str]:
    """Values whose shape the schema gives: a pattern, a format, an id."""
    if "pattern" in schema:
        return finding.by_pattern(schema["pattern"], text)
    if "format" in schema:
        return finding.by_format(schema["format"], text)
    return finding.ids(name, schema, text) if schema.get("type") == "string" and finding.is_id(name, schema) else []


class _Finder(msgspec.Struct, frozen=True):
    """Looks for arguments: in the clause, then in the whole text, then in what earlier tools returned."""

    function: Json
    part: str
    text: str
    results: list[Any]
    draws: Draws

    def values(self, name: str, schema: Json, *, needed: bool) -> Iterator[Any]:
        """Values for one parameter; several when the clause names several. None found: nothing."""
        schema = _whole(schema)
        kind = schema.get("type", "string")
        kind = next((k for k in kind if k != "null"), "string") if isinstance(kind, list) else kind
        if "const" in schema:
            yield schema["const"]
        elif "enum" in schema:
            yield from self._enum(name, schema, needed)
        elif kind == "boolean":
            if is_so(name, str(schema.get("description", "")), self.part):
                yield True
            elif needed:
                yield False
        elif kind in ("integer", "number"):
            yield from self._numbers(name, schema, needed, whole=kind == "integer")
        elif kind == "array":
            items = schema.get("items") if isinstance(schema.get("items"), dict) else {}
            found = list(self.values(name.removesuffix("s"), items or {}, needed=needed))
            if found:
                yield found
        elif kind == "object":
            inner = _wishes({"name": name, "parameters": schema}, self.part, self.text, self.results, self.draws)[0]
            if inner.arguments and not inner.missing:
                yield inner.arguments
        else:
            yield from self._strings(name, schema, needed)

    def _enum(self, name: str, schema: Json, needed: bool) -> Iterator[Any]:
        options = [value for value in schema["enum"] if value is not None]
        for where in (self.part, self.text):
            value, sure = choose(options, name, str(schema.get("description", "")), where, self.draws)
            if sure >= (SIGN if not needed else 1e-9):
                yield value
                return
        if needed and "default" in schema:
            yield schema["default"]

    def _numbers(self, name: str, schema: Json, needed: bool, *, whole: bool) -> Iterator[float | int]:
        lowest, highest = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
        description = str(schema.get("description", ""))
        for where in (self.part, self.text):
            for value in finding.numbers(name, description, where, own=not needed):
                if lowest <= value <= highest and (not whole or value.is_integer()):
                    yield int(value) if whole else value
                    return
        for value in finding.in_results(name, self.results):
            if needed and isinstance(value, int | float) and lowest <= value <= highest:
                yield int(value) if whole else value
                return
        if needed and "default" in schema:
            yield schema["default"]

    def _strings(self, name: str, schema: Json, needed: bool) -> Iterator[str]:
        shaped = "pattern" in schema or "format" in schema or finding.is_id(name, schema)
        typed = {"type": "string", **schema}
        found = _exact(name, typed, self.part) or _exact(name, typed, self.text)
        if not found and needed:
            found = [str(value) for value in finding.in_results(name, self.results)[:1] if value is not None]
        if not found and not shaped:
            found = self._free(name, schema, needed)
        if not found and needed and isinstance(schema.get("default"), str):
            found = [schema["default"]]
        most = schema.get("maxLength", 1_000)
        yield from (value[:most] for value in found)

    def _free(self, name: str, schema: Json, needed: bool) -> list[str]:
        """Words for a parameter without a shape: quoted, named, or what is left without the question itself."""
        label = f"{name} {schema.get('description', '')}"
        if _LANGUAGE.match(name):
            return ["ko" if is_korean(self.text) else "en"]
        marked = finding.quoted(self.part) or finding.quoted(self.text)
        if marked and not _LINES.search(name):
            return marked[:1]
        if not needed:
            return []
        if _SEARCHED.search(label):
            return [" ".join(self._subject(self.part) or self._subject(self.text) or keywords(self.part)) or self.part]
        if _LINES.search(name):
            return [self.text]
        named = finding.places(self.part) if _PLACE.search(name) else []
        named = named or finding.capitalised(self.part) or finding.capitalised(self.text)
        subject = [" ".join(self._subject(self.part))] if self._subject(self.part) else []
        return (named or subject)[:1]

    def _subject(self, where: str) -> list[str]:
        """The words of a clause that are neither about the tool itself nor about asking."""
        own = concepts(self.function["name"].replace("_", " "))
        return keywords(where, [*own, *_GENERIC])[:8]
