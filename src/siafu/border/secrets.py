"""Keys and passwords: a type that does not print itself, and a filter for every text that leaves."""

from __future__ import annotations

import re
from typing import NoReturn

from siafu.errors import ConfigError

_PLACEHOLDER = re.compile(
    r"^(your|my|the|insert|put|enter|replace|change|add)?[-_ ]{0,3}(open)?(ai)?[-_ ]{0,3}(api)?[-_ ]{0,3}"
    r"(key|token|secret)"
    r"([-_ ]{0,3}(here|goes[-_ ]?here|me))?$|^<.*>$|^\[.*\]$|^x{3,}$|^\.{3,}$|^sk-(x+|\.+|your.*)$|your[_-]|changeme"
    r"|replace[_-]?me|^[a-z0-9_]+_api_key$|^\$\{?\w+\}?$|\*{3,}",
    re.IGNORECASE,
)
_PATTERNS = re.compile(
    r"\b(?:sk|pk|rk|key|tok)-[A-Za-z0-9_\-]{16,}"
    r"|\b(?:Bearer|Basic)\s+[A-Za-z0-9._~+/=\-]{12,}"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
    r"|\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+"
    r"|\bAIza[A-Za-z0-9_\-]{30,}"
    r"|(?i:(?<=api_key=)|(?<=api-key=)|(?<=apikey=)|(?<=access_token=)|(?<=password=))[^\s&\"']{6,}",
)
# One of these is in every text that the patterns find something in. The words of every answer pass here.
_MARKED = re.compile("sk-|pk-|rk-|key-|tok-|Bearer|Basic|://|eyJ|AIza|=").search
_QUOTES = frozenset("\"'`")
MASK = "***"


class Secret:
    """A secret value. `reveal()` is the only way to it: repr, str, format, JSON and pickle show `***` or refuse."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        if len(value) >= 8:
            _known.add(value)

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(("Secret", self._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


# Values seen by this process, so that an upstream's error text that repeats a key can be masked. The one piece of
# state in the border: it only grows by what the operator configured.
_known: set[str] = set()


def redact(text: str) -> str:
    """`text` with every known secret and everything that looks like one replaced by `***`; what overlaps is one."""
    known = [value for value in _known if value in text]
    if not known and not _MARKED(text):
        return text
    spans = [match.span() for match in _PATTERNS.finditer(text)]
    spans += [match.span() for value in known for match in re.finditer(re.escape(value), text)]
    if not spans:
        return text
    parts, end = [], 0
    for begin, stop in sorted(spans):
        if begin >= end:
            parts += [text[end:begin], MASK]
        end = max(end, stop)
    return "".join(parts) + text[end:]


def checked_key(value: str, where: str) -> Secret:
    """A provider key as a Secret.

    Raises: ConfigError when it is empty, a placeholder such as YOUR_API_KEY, or no header value.
    """
    text = value.strip()
    if not text:
        raise ConfigError(f"{where} is empty")
    if _PLACEHOLDER.search(text):
        raise ConfigError(f"{where} still holds a placeholder; put the real key there")
    if wrong := _no_key(text):
        raise ConfigError(f"{where} {wrong}")
    return Secret(text)


def _no_key(text: str) -> str:
    """Why a text is no key, and what to do; empty when it may be one."""
    if text[:7].lower() in ("bearer ", "bearer:"):
        return "begins with Bearer, which siafu puts before it; leave it away"
    if text[0] in _QUOTES:
        return "stands in quotes, which are taken for a part of it; leave them away"
    if len(text.split()) > 1:
        return "holds a space or a line break; a key is one word: was more copied than the key, or two of them?"
    if not text.isascii() or not text.isprintable() or not _QUOTES.isdisjoint(text):
        return "holds characters that no key has (quotes, control characters or non-ASCII); copy it again"
    return ""
