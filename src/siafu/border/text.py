"""Text from outside, made safe once: valid UTF-8, no NUL, bounded, no terminal control."""

from __future__ import annotations

import re
from collections.abc import Sequence

_BROKEN = re.compile("[\ud800-\udfff\x00]")
# C0 and C1 without tab and newline, line and paragraph separators, and what turns the direction of writing around
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
REPLACEMENT = "\ufffd"
SHOWN = 3  # of several that may be meant


def clean(text: str) -> str:
    """`text` with every lone surrogate and NUL replaced by U+FFFD, so that any store, file or socket takes it."""
    return _BROKEN.sub(REPLACEMENT, text) if _BROKEN.search(text) else text


def clean_bytes(data: bytes) -> str:
    """`data` as text; bytes that are no UTF-8 become U+FFFD."""
    return clean(data.decode("utf-8", "replace"))


def preview(text: str, limit: int = 200) -> str:
    """One printable line of at most `limit` characters, for messages and logs; control characters become spaces."""
    line = _CONTROL.sub(" ", clean(text[: limit + 200])).replace("\n", " ").replace("\t", " ").strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def printable(text: str) -> str:
    """`text` for a terminal: newlines and tabs kept, every other control character shown as U+FFFD."""
    return _CONTROL.sub(REPLACEMENT, clean(text))


def first_of(names: Sequence[str]) -> str:
    """The first `SHOWN` of them, and whether there are more: for messages about what may be meant."""
    return ", ".join(names[:SHOWN]) + (" and more" if len(names) > SHOWN else "")


def counted(number: int, what: str) -> str:
    """`1 line`, `2,000 lines`: for words whose plural is an s more."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
