"""Choosing among given values: a label, a level, yes or no."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.words import concepts, described, features, is_korean, scores

# how urgent a matter is that mentions this, from 0 to 1
_URGENCY = {
    "urgent": 0.95, "security": 0.9, "complaint": 0.85, "damage": 0.85, "bug": 0.75, "late": 0.65, "wrong": 0.6,
    "refund": 0.5, "cancel": 0.5, "delivery": 0.5, "status": 0.5, "payment": 0.5, "recommend": 0.2, "question": 0.2,
    "product": 0.2, "style": 0.2, "docs": 0.15, "thanks": 0.1,
}  # fmt: skip
_MOOD = {"complaint": 0.1, "negative": 0.1, "damage": 0.2, "late": 0.3, "wrong": 0.3, "thanks": 0.9, "positive": 0.95}
_LEVELS = (
    ("none", "trivial", "lowest", "info", "없음"),
    ("low", "minor", "small", "wait", "later", "낮음", "여유", "weak", "cheap"),
    ("medium", "normal", "moderate", "mid", "middle", "standard", "보통", "중간", "중"),
    ("high", "major", "important", "높음", "strong"),
    ("urgent", "critical", "highest", "severe", "emergency", "blocker", "긴급", "심각"),
)
_LEVEL_OF = {word: number / (len(_LEVELS) - 1) for number, row in enumerate(_LEVELS) for word in row}
_MOODED = re.compile(r"rating|score|sentiment|satisf|stars|mood|만족|평점|감정", re.IGNORECASE)
_LIKELY = re.compile(r"confiden|probab|certain|확신|확률", re.IGNORECASE)
_RANKED = re.compile(r"priorit|urgen|severit|importan|level|우선|긴급|심각|중요", re.IGNORECASE)
NAME_WEIGHT, MEANING_WEIGHT = 1.0, 0.5
SIGN = 0.5  # a score that counts as a sign


def urgency(text: str) -> float:
    """From 0 (can wait) to 1 (now)."""
    return max((_URGENCY.get(name, 0.0) for name in concepts(text)), default=0.0) or 0.4


def meanings(values: Sequence[str], explained: str) -> dict[str, str]:
    """What a prompt says each value means: `refund: money back`, `1 = urgent`, `- bug (crashes)`."""
    found: dict[str, str] = {}
    names = "|".join(sorted(map(re.escape, values), key=len, reverse=True))
    for value in values:
        match = re.search(
            rf"(?<![\w]){re.escape(value)}[\"'`*]*\s*(?:=|:|->|→|\bmeans\b|\bis\b|–|—|\s-\s|\()\s*"
            rf"(.{{2,200}}?)(?=;|\n|\.\s|\)|\Z|,?\s*[\"'`*]*(?<!\w)(?:{names})[\"'`*]*\s*(?:=|:|->|→|–|—|\s-\s|\())",
            explained,
            re.IGNORECASE,
        )
        if match:
            found[value] = match[1]
    return found


def choose(values: Sequence[Any], name: str, explained: str, text: str, draws: Draws) -> tuple[Any, float]:
    """The value that fits the text best, and how well (0 = no sign of any). `explained`: what the caller says about
    the values. Without a sign: one that means "other", else one drawn."""
    labels = {str(value): value for value in values}
    said = meanings(list(labels), explained)
    levels = [_level(label, said.get(label, "")) for label in labels]
    if all(level is not None for level in levels) and len(labels) > 1:
        wanted = urgency(text)
        return min(zip(values, levels, strict=True), key=lambda pair: (abs((pair[1] or 0.0) - wanted), pair[1]))[0], 1.0
    if {"ko", "en"} <= {label.lower()[:2] for label in labels}:
        language = "ko" if is_korean(text) else "en"
        return next(value for label, value in labels.items() if label.lower().startswith(language)), 1.0
    targets = {label: _described(label, said) for label in labels}
    points = scores(features(text), targets)
    for label in labels:
        points[label] += 2.0 * bool(re.search(rf"(?<!\w){re.escape(label)}(?!\w)", text, re.IGNORECASE))
    best = max(points.values())
    if best <= 0:
        other = [label for label in labels if "other" in concepts(label) or "question" in concepts(label)]
        pool = other or list(labels)
        return labels[pool[draws.number(f"choice {name}") % len(pool)]], 0.0
    tied = [label for label, score in points.items() if score > best - 1e-9]
    return labels[tied[draws.number(f"choice {name}") % len(tied)]], best


def fitting(values: Sequence[Any], explained: str, text: str) -> list[Any]:
    """All values that the text gives a sign of."""
    said = meanings([str(value) for value in values], explained)
    found = features(text)
    return [value for value in values if scores(found, {"": _described(str(value), said)})[""] >= SIGN]


def _described(label: str, said: Mapping[str, str]) -> dict[str, float]:
    """What a label is about: its own words, and what the prompt says about it."""
    return described([(said.get(label, ""), MEANING_WEIGHT), (label, NAME_WEIGHT)])


def _level(label: str, meaning: str) -> float | None:
    """How far up a scale of urgency a label stands, by its own word or the first word of its meaning."""
    if label.lower() in _LEVEL_OF:
        return _LEVEL_OF[label.lower()]
    first = re.match(r"\w+", meaning)
    return _LEVEL_OF.get(first[0].lower()) if first and label.isdigit() else None


def level(lowest: float, highest: float, name: str, explained: str, text: str) -> float | None:
    """A number on a scale, for properties that are a priority, a mood or a confidence; None for others."""
    if _LIKELY.search(name):
        return lowest + (highest - lowest) * 0.9
    if _MOODED.search(name):
        return lowest + (highest - lowest) * max((_MOOD[c] for c in concepts(text) if c in _MOOD), default=0.5)
    if not _RANKED.search(name):
        return None
    start = explained.lower().find(name.lower())
    told = explained[max(0, start) :][:300]
    if _first_is_urgent(lowest, highest, name, told):
        return lowest + (highest - lowest) * (1 - urgency(text))
    return lowest + (highest - lowest) * urgency(text)


def _first_is_urgent(lowest: float, highest: float, name: str, told: str) -> bool:
    """Whether the lowest number is the most urgent: as the prompt says, else as a "priority 1" is."""
    for number, meaning in re.findall(r"(\d+)\s*[=:(–—-]\s*([^,;.\n\d]{2,40})", told):
        found = [_LEVEL_OF[word] for word in re.findall(r"[a-z]+|[가-힣]+", meaning.lower()) if word in _LEVEL_OF]
        if found and found[0] != 0.5 and float(number) in (lowest, highest):
            return (found[0] > 0.5) == (float(number) == lowest)
    return "priorit" in name.lower() or "우선" in name


def is_so(name: str, description: str, text: str) -> bool:
    """Yes or no: whether the text says what the property asks about."""
    asked = described([(description, MEANING_WEIGHT), (name, NAME_WEIGHT)])
    if "concept:urgent" in asked:
        return urgency(text) > 0.8
    return scores(features(text), {name: asked})[name] >= SIGN
