"""On which line of a TOML file each setting stands, for messages. The standard parser does not tell, so it is asked
statement by statement.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

from siafu.config.wording import name

MOST = 500  # lines of one statement; behind a longer one nothing is found


def located(texts: Sequence[str], toml: str, file: str) -> list[str]:
    """`texts`, each with the place in `file` before it when it names a setting that stands there: `FILE:LINE: ...`. In
    the order of lines, those without one last.
    """
    lines = sorted(setting_lines(toml).items(), key=lambda each: -len(each[0]))

    def line(text: str) -> float:
        found = (at for name, at in lines if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w-])", text))
        return next(found, math.inf)

    placed = sorted(((line(text), text) for text in texts), key=lambda each: each[0])
    return [text if at == math.inf else f"{file}:{at}: {text}" for at, text in placed]


def setting_lines(toml: str) -> dict[str, int]:
    """The first line, from 1, of each setting and table by its name."""
    found: dict[str, int] = {}
    table: tuple[str | int, ...] = ()
    counts: dict[tuple[str | int, ...], int] = {}
    lines = toml.split("\n")
    for line, value in _statements(lines):
        places = list(_places(value))
        if lines[line - 1].lstrip().startswith("["):
            words = [part for part in places[-1] if isinstance(part, str)]
            table = ()
            for part in words:
                table = (*table, part)
                if table in counts and len(table) < len(words):
                    table = (*table, counts[table] - 1)
            if any(isinstance(part, int) for part in places[-1]):  # [[table]]
                counts[table] = counts.get(table, 0) + 1
                table = (*table, counts[table] - 1)
            places = [()]
        for place in places:
            found.setdefault(name((*table, *place)), line)
    found.pop("", None)
    return found


def _statements(lines: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each statement as a table of its own, with its first line."""
    start = 0
    while start < len(lines):
        for end in range(start + 1, min(start + MOST, len(lines)) + 1):
            try:
                value = tomllib.loads("\n".join(lines[start:end]))
            except tomllib.TOMLDecodeError:
                continue
            if value:
                yield start + 1, value
            break
        else:
            return
        start = end


def _places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """`place` and all within it, the outer first."""
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, each in inner:
        yield from _places(each, (*place, part))
