"""How long an upstream asks us to wait, and what it says is left of its limits, in every form in which it is said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

from siafu.pace.announced import Left

_NUMBER = re.compile(r"\d{1,15}(?:\.\d{0,9})?", re.ASCII)
_DURATION = re.compile(r"(?:\d{1,12}(?:\.\d{0,9})?(?:h|ms|m|s|us|µs|μs|ns))+", re.ASCII)
_PART = re.compile(r"([\d.]+)(h|ms|m|s|us|µs|μs|ns)", re.ASCII)
LONGEST_RESET = 86_400.0  # seconds; a reset later than this is a date or a mistake
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}


def server_wait(headers: Mapping[str, str], wall: float) -> float | None:
    """Seconds to wait by the headers (lower-case names) of one response; None when it does not say so, or says
    nonsense: zero, negative, in the past, not a time.

    Read in this order: `retry-after-ms`, `x-ms-retry-after-ms`, `retry-after` (seconds or an HTTP date, RFC 9110
    10.2.3), then `x-ratelimit-reset-requests` and `-tokens` (durations such as `1m30s`), of which only those count
    whose `x-ratelimit-remaining-...` is not above zero. `wall`: seconds since 1970.
    """
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        seconds = _number(headers.get(name, ""))
        if seconds:
            return seconds / 1000
    seconds = _retry_after(headers.get("retry-after", ""), wall)
    if seconds:
        return seconds
    resets = [
        _duration(headers.get(f"x-ratelimit-reset-{what}", ""))
        for what in ("requests", "tokens")
        if not _number(headers.get(f"x-ratelimit-remaining-{what}", ""))
    ]
    return max((reset for reset in resets if reset), default=None)


def limits_left(headers: Mapping[str, str], what: str) -> Left | None:
    """The limit, what remains of it and its reset, by `x-ratelimit-{limit,remaining,reset}-{what}` of one answer.
    `what`: requests or tokens. None when one of the three is missing or makes no sense.
    """
    remaining = _number(headers.get(f"x-ratelimit-remaining-{what}", ""))
    limit = _number(headers.get(f"x-ratelimit-limit-{what}", ""))
    reset = _duration(headers.get(f"x-ratelimit-reset-{what}", ""))
    if remaining is None or not limit or reset is None or reset > LONGEST_RESET:
        return None
    return Left(limit=limit, remaining=min(remaining, limit), reset=reset)


def _retry_after(text: str, wall: float) -> float | None:
    seconds = _number(text)
    if seconds is not None:
        return seconds
    try:
        when = parsedate_to_datetime(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return max(0.0, when.timestamp() - wall)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _number(text: str) -> float | None:
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _duration(text: str) -> float | None:
    text = text.strip()
    if not _DURATION.fullmatch(text):
        return _number(text)
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
