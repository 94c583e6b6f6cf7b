"""Reading: what a text is about, as weighted features that Korean and English texts share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from siafu.bench.simulator.glossary import (
    GLOSSARY,
    PARTICLES,
    PREDICATE_ENDINGS,
    STOP_ENGLISH,
    STOP_KOREAN,
    SUGGESTS,
)

Features = Mapping[str, float]

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?|[가-힣]+")
_HANGUL = re.compile(r"[가-힣]")
_LATIN = re.compile(r"[A-Za-z]")
_CLAUSE = re.compile(r"[.!?;。!?]+(?:\s+|$)|\n+|,\s+|\s(?:and|also|then|plus|그리고|또한|또)\s+|(?<=[가-힣\d])하고\s+")
MOST_CHARS = 8_000  # of a text; the rest is not read
WORD_WEIGHT, BIGRAM_WEIGHT = 0.5, 0.25


def is_korean(text: str) -> bool:
    """Whether a person would answer this text in Korean."""
    return len(_HANGUL.findall(text)) * 4 >= len(_LATIN.findall(text)) and bool(_HANGUL.search(text))


def clauses(text: str) -> list[str]:
    """The text cut where one request may end and another begin."""
    return [part.strip() for part in _CLAUSE.split(text) if part and part.strip()]


def words(text: str) -> list[str]:
    """English and Korean words, identifiers taken apart, as written."""
    return _WORD.findall(_CAMEL.sub(" ", text).replace("_", " "))


def stem(word: str) -> str:
    """An English word without its ending, a Korean word without its particle; lower case."""
    word = word.lower()
    if _HANGUL.match(word):
        return next((word[: -len(p)] for p in PARTICLES if word.endswith(p) and len(word) > len(p)), word)
    word = word.removesuffix("'s").replace("'", "")
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    for ending in ("ing", "ed", "es", "s", "e"):
        base = word[: -len(ending)]
        if not word.endswith(ending) or len(base) < 3 or (ending == "s" and word.endswith(("ss", "us", "is"))):
            continue
        doubled = ending in ("ing", "ed") and base[-1] == base[-2] and base[-1] not in "ls"
        base = base[:-1] if doubled or base.endswith("ll") else base
        return base.removesuffix("e") if len(base) > 3 else base
    return word


def _split(entry: str) -> list[str]:
    return [word.replace("_", " ") for word in entry.split()]


_STRENGTH = {name: strength for name, strength, _, _ in GLOSSARY}
_ENGLISH: dict[str, list[str]] = {}
_PHRASES: list[tuple[re.Pattern[str], str]] = []
_KOREAN: list[tuple[str, str]] = []
_KOREAN_WHOLE: dict[str, str] = {}
for _name, _, _english, _korean in GLOSSARY:
    for _entry in _split(_english):
        if " " in _entry:
            _PHRASES.append((re.compile(rf"\b{_entry.strip()}\b", re.IGNORECASE), _name))
        else:
            _ENGLISH.setdefault(_entry if _entry.endswith("ing") else stem(_entry), []).append(_name)
    for _entry in _split(_korean):
        if _entry.startswith("^"):
            _KOREAN_WHOLE[_entry[1:]] = _name
        else:
            _KOREAN.append((_entry, _name))


def mentioned(text: str) -> frozenset[str]:
    """The concepts whose words occur in the text."""
    return _mentioned(text[:MOST_CHARS])


@lru_cache(maxsize=4_096)
def _mentioned(text: str) -> frozenset[str]:
    named: set[str] = set()
    for word in words(text):
        found = _ENGLISH.get(word.lower()) or _ENGLISH.get(stem(word))
        if found:
            named.update(found)
        elif (whole := _KOREAN_WHOLE.get(word) or _KOREAN_WHOLE.get(stem(word))) is not None:
            named.add(whole)
    named.update(name for phrase, name in _PHRASES if phrase.search(text))
    if _HANGUL.search(text):
        named.update(name for entry, name in _KOREAN if entry in text)
    return frozenset(named)


def concepts(text: str) -> Features:
    """Concept -> strength: what the text mentions, and what that suggests."""
    strength = {name: _STRENGTH[name] for name in mentioned(text)}
    for name in mentioned(text):
        for other, share in SUGGESTS.get(name, {}).items():
            strength[other] = max(strength.get(other, 0.0), share)
    return strength


def features(text: str) -> Features:
    """Concepts, and the words themselves for what no glossary knows."""
    return _features(text[:MOST_CHARS])


@lru_cache(maxsize=1_024)
def _features(text: str) -> Features:
    return {**{f"concept:{name}": weight for name, weight in concepts(text).items()}, **_own_words(text)}


def _own_words(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for word in words(text):
        base = stem(word)
        if is_stop(word) or base in STOP_ENGLISH or mentioned(word):
            continue
        found[f"word:{base}"] = WORD_WEIGHT
        if _HANGUL.match(base):
            found.update((f"pair:{base[i : i + 2]}", BIGRAM_WEIGHT) for i in range(len(base) - 1))
    return found


def is_stop(word: str) -> bool:
    """Whether the word says nothing about the subject."""
    lower = word.lower()
    if _HANGUL.match(lower):
        polite = len(lower) > 1 and lower.endswith(PREDICATE_ENDINGS)
        return polite or lower in STOP_KOREAN or stem(lower) in STOP_KOREAN
    return lower.replace("'", "") in STOP_ENGLISH


def described(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The features of something that several texts describe, each text with its weight."""
    found: dict[str, float] = {}
    for text, weight in parts:
        for name in [*(f"concept:{name}" for name in mentioned(text)), *_own_words(text)]:
            found[name] = max(found.get(name, 0.0), weight)
    return found


def scores(text: Features, targets: Mapping[str, Features]) -> dict[str, float]:
    """How well the text fits each target; what several targets share counts less."""
    shared: dict[str, float] = {}
    for target in targets.values():
        for name, weight in target.items():
            shared[name] = shared.get(name, 0.0) + weight
    return {
        key: sum(text[name] * weight * weight / shared[name] for name, weight in target.items() if name in text)
        for key, target in targets.items()
    }


def keywords(text: str, without: Iterable[str] = ()) -> list[str]:
    """The words that carry the subject, without particles, and without words of the concepts in `without`."""
    drop, kept = set(without), []
    for word in words(text):
        base = word if not _HANGUL.match(word) else stem(word) if len(stem(word)) > 1 else word
        if is_stop(word) or (drop and drop & set(concepts(word))):
            continue
        kept.append(base)
    return kept
