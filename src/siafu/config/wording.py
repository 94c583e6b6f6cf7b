"""What is wrong with a value, in our words: pydantic finds it, people read it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin

import msgspec
from pydantic import BaseModel

from siafu.border.secrets import redact
from siafu.border.text import preview

_MUST = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "decimal_type": "a number",
    "decimal_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text in quotes",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table of settings",
    "path_type": "a path in quotes",
    "date_type": "a day such as 2026-01-31",
    "date_parsing": "a day such as 2026-01-31",
    "date_from_datetime_parsing": "a day such as 2026-01-31",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
}


class Wrong(msgspec.Struct, frozen=True):
    """`place`: of the setting; a list's items are numbered from 0. `text`: one sentence that begins with its name."""

    place: tuple[str | int, ...]
    text: str


def explained(problems: Sequence[Any], model: type[BaseModel]) -> list[Wrong]:
    """What `problems`, the errors of a ValidationError of `model`, say; one for each place."""
    found: dict[tuple[str | int, ...], list[Any]] = {}
    for problem in problems:
        found.setdefault(_place(problem["loc"], model)[0], []).append(problem)
    return [Wrong(place, f"{name(place)}{_said(place, group, model)}") for place, group in found.items()]


def name(place: Sequence[str | int]) -> str:
    """`limits.rpm`, `routes[0].use`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


def _said(place: tuple[str | int, ...], group: Sequence[Any], model: type[BaseModel]) -> str:
    first = group[0]
    kind, value = first["type"], first["input"]
    if kind == "missing":
        return " is missing"
    if kind == "extra_forbidden":
        section = _place(first["loc"][:-1], model)[1]
        fields = section.model_fields if isinstance(section, type) and issubclass(section, BaseModel) else ()
        near = difflib.get_close_matches(str(place[-1]), fields, n=1)
        return " is no setting" + (f"; did you mean {near[0]}?" if near else "")
    if kind == "too_short":
        return " must not be empty"
    must = [
        _MUST[each["type"]].format(**{key: _shown(bound) for key, bound in each.get("ctx", {}).items()})
        for each in group
        if each["type"] in _MUST
    ]
    if not must:
        return f": {first['msg'].removeprefix('Value error, ')}"
    instead = ""
    if isinstance(value, str):
        instead = f', not "{preview(redact(value), 40)}"'
    elif isinstance(value, bool | int | float):
        instead = f", not {_shown(value)}"
    return f" must be {' or '.join(dict.fromkeys(must))}{instead}"


def _shown(value: Any) -> str:
    return str(value).replace("'", '"').lower() if isinstance(value, bool | str) else str(value).removesuffix(".0")


def _place(loc: Sequence[str | int], kind: Any) -> tuple[tuple[str | int, ...], Any]:
    """Where a problem is, without the alternatives of a type that pydantic names in it; and the type there, None = not
    known.
    """
    place: list[str | int] = []
    for part in loc:
        kinds = [each for each in get_args(kind) if each is not type(None)] if _is_union(kind) else [kind]
        if len(kinds) > 1:  # `part` names one of them
            kind = None
            continue
        place.append(part)
        inner = kinds[0]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            field = inner.model_fields.get(str(part))
            kind = None if field is None else field.annotation
        else:  # a table or list
            kind = next(iter(get_args(inner)[-1:]), None)
        while get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
    while _is_union(kind) and len(get_args(kind)) == 2 and type(None) in get_args(kind):
        kind = next(each for each in get_args(kind) if each is not type(None))
    return tuple(place), kind


def _is_union(kind: Any) -> bool:
    return getattr(get_origin(kind), "__name__", "") in ("Union", "UnionType")
