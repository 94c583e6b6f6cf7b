"""Strings made to fit: a sample of a format, a text that matches a pattern."""

from __future__ import annotations

import re

from siafu.bench.simulator.draws import Draws

_PIECE = re.compile(
    r"(?P<set>\[(?:\\.|[^\]\\])+\])|(?P<escape>\\.)|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<or>\|)|(?P<char>[^*+?{}|])"
)
_TIMES = re.compile(r"\*|\+|\?|\{(\d+)(?:,\d*)?\}")
_ESCAPES = {"d": "0", "w": "a", "s": " ", "D": "a", "W": "-", "S": "a", "b": "", "A": "", "Z": ""}


def sample_of(form: str, draws: Draws) -> str:
    """A valid string of a JSON Schema format."""
    hexes = draws.text("uuid", 32)
    return {
        "date": "2026-01-01",
        "date-time": "2026-01-01T00:00:00Z",
        "time": "00:00:00Z",
        "email": "unknown@example.com",
        "uri": "https://example.com/",
        "hostname": "example.com",
        "ipv4": "192.0.2.1",
        "ipv6": "2001:db8::1",
        "uuid": f"{hexes[:8]}-{hexes[8:12]}-4{hexes[13:16]}-8{hexes[17:20]}-{hexes[20:]}",
        "duration": "P0D",
    }.get(form, "")


def matching(pattern: str) -> str:
    """A short text that matches the usual kind of pattern: literals, sets, groups, choices, repeats.

    Look-arounds and back references are beyond it; then the text may not match.
    """
    return _first(pattern.removeprefix("^").removesuffix("$"), 0)[0]


def _first(pattern: str, at: int) -> tuple[str, int]:
    """The text for the first choice of a group that starts at `at`, and where the group ends."""
    made, chosen = "", None
    while at < len(pattern):
        piece = _PIECE.match(pattern, at)
        if not piece:
            at += 1
            continue
        at, kind = piece.end(), piece.lastgroup
        if kind == "close":
            break
        if kind == "or":
            chosen, made = made if chosen is None else chosen, ""
            continue
        if kind == "open":
            text, at = _first(pattern, at)
        else:
            text = _one(piece[0], str(kind))
        repeat = _TIMES.match(pattern, at)
        if repeat:
            at = repeat.end()
            text *= int(repeat[1]) if repeat[1] else 1 if repeat[0] == "+" else 0
        made += text
    return (made if chosen is None else chosen), at


def _one(piece: str, kind: str) -> str:
    """One character that a set, an escape or a literal allows."""
    if kind == "escape":
        return _ESCAPES.get(piece[1], piece[1])
    if kind == "set":
        allowed = re.compile(piece)
        return next((c for c in "0aA-_. 가!" + piece[1:-1] if allowed.match(c)), "")
    return {"^": "", "$": "", ".": "a"}.get(piece, piece)
