"""Prompt templates: text with `{field}` places. Names only: no attributes, indexes, formats or code."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from siafu.border.canonical import dumps
from siafu.errors import ConfigError, InputError

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_NAME = re.compile(r"[\w-]+")


class Template:
    """A parsed template.

    `{name}` is that field of the item (a dict, Struct or dataclass); `{item}` is the whole item, unless it has a field
    of that name. Text goes in as it is, everything else as JSON. `{{` and `}}` are literal braces. What is filled in
    is never looked at again.

    Raises: ConfigError for a lone brace, a place that is no plain name, or a template without any place.
    """

    def __init__(self, text: str) -> None:
        self._pieces: list[tuple[str, bool]] = []
        at = 0
        for found in _PIECE.finditer(text):
            self._pieces.append((text[at : found.start()], False))
            self._pieces.append(self._piece(found, text))
            at = found.end()
        self._pieces.append((text[at:], False))
        if not any(is_field for _, is_field in self._pieces):
            raise ConfigError("the prompt is the same for every item; write {item} or {field} where the item goes in")

    @staticmethod
    def _piece(found: re.Match[str], text: str) -> tuple[str, bool]:
        if found[0] in ("{{", "}}"):
            return found[0][0], False
        name = found[1]
        if name is None or not _NAME.fullmatch(name):
            line = text.count("\n", 0, found.start()) + 1
            raise ConfigError(
                f"the prompt has {found[0][:40]!r} in line {line}; a place is {{name}} with letters, digits, _ and -, "
                "and a literal brace is written twice"
            )
        return name, True

    def fill(self, item: Any) -> str:
        """The prompt for `item`.

        Raises: InputError naming a field that the item does not have, or when the item is no plain data.
        """
        try:
            fields = item if isinstance(item, str) else msgspec.to_builtins(item, str_keys=True)
        except (TypeError, ValueError) as error:
            raise InputError(f"the item cannot be written into a prompt: {error}") from None
        if not isinstance(fields, dict):
            fields = {"item": fields}
        return "".join(_value(fields, text) if is_field else text for text, is_field in self._pieces)


def _value(fields: dict[str, Any], name: str) -> str:
    if name not in fields and name != "item":
        known = ", ".join(sorted(map(str, fields)))[:200]
        raise InputError(f"the item has no field {name!r}, which the prompt needs; it has: {known or 'none'}")
    value = fields.get(name, fields)
    return value if isinstance(value, str) else dumps(value).decode()
