"""No text from outside keeps a regular expression busy: every one there is, against texts made to."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from siafu.apps.support.claims import claims_payment
from siafu.apps.support.grants import named
from siafu.apps.support.requests import MAX_TEXT
from siafu.border.secrets import redact
from siafu.gateway.hints import server_wait

SRC = Path(__file__).parents[2] / "src"
LONG = 1500  # characters: what is cubic needs seconds with them, what is worse for ever
CAP = 1.0  # seconds of CPU for one text
BLANK = (" ", "\n", "\t ")
PIECES = ("0", "a", "A0", "a.", "가", "가 ", "-", ".", ",0", "\\", '"', "<", "(", "[", "/", ":", "@", "=", "_", "!")


def patterns() -> dict[str, re.Pattern[Any]]:
    """Every compiled pattern of a module and every literal one in a call, by where it stands."""
    found: dict[str, re.Pattern[Any]] = {}

    def look(value: Any, where: str) -> None:
        if isinstance(value, re.Pattern):
            found[f"{where}: {value.pattern!r}"] = value
        elif isinstance(value, tuple | list | frozenset):
            for each in value:
                look(each, where)
        elif isinstance(value, dict):
            look([*value, *value.values()], where)

    for file in sorted((SRC / "siafu").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "\nimport re\n" not in text or "simulator" in file.parts:
            continue
        name = ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        look(list(vars(importlib.import_module(name)).values()), name)
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[ast.Constant(value=str() as one), *_]):
                    look(re.compile(one), name)
    return found


def attacks(pattern: str, long: int) -> Iterator[str]:
    """Texts in which much of it fits, and the end does not."""
    words = sorted(set(re.findall(r"[A-Za-z가-힣]{2,}", pattern)))[:10]
    for piece in (*BLANK, *PIECES, *words):
        yield piece * (long // len(piece)) + "\0"
    for word, blank in itertools.product(words, BLANK):
        yield word + blank * (long // len(blank)) + "\0"


def slowest(read: Callable[[str], object], pattern: str, long: int) -> tuple[float, str]:
    """Seconds of CPU of the text that takes it longest, and how that begins. Ends at the first that takes too long."""
    worst = (0.0, "")
    for text in attacks(pattern, long):
        began = time.process_time()
        read(text)
        worst = max(worst, (time.process_time() - began, text[:30]))
        if worst[0] > CAP:
            break
    return worst


def matched(pattern: re.Pattern[Any]) -> tuple[float, str]:
    def read(text: str) -> None:
        given = text if isinstance(pattern.pattern, str) else text.encode()
        pattern.search(given)
        pattern.fullmatch(given)

    return slowest(read, str(pattern.pattern), LONG)


def test_sec35_no_pattern_is_kept_busy_by_a_text() -> None:
    found = {where: matched(pattern) for where, pattern in patterns().items()}
    assert len(found) > 50
    assert {where: worst for where, worst in found.items() if worst[0] > CAP} == {}


def test_the_check_can_fail() -> None:
    assert matched(re.compile(r"\s*\s*x|\s*\s*y|\s*\s*z"))[0] > CAP


READERS: dict[str, tuple[Callable[[str], object], int]] = {
    "a customer's message": (lambda text: named([text]), MAX_TEXT),
    "a model's answer": (lambda text: claims_payment(text, {("KRW", 1)}), 50_000),
    "an endpoint's words": (redact, MAX_TEXT),
    "a header": (lambda text: server_wait({"retry-after": text, "x-ratelimit-reset-tokens": text}, 0.0), 8190),
}


@pytest.mark.parametrize("what", READERS)
def test_sec35_long_texts_are_read_in_time(what: str) -> None:
    read, long = READERS[what]
    assert slowest(read, "have refund will money 환불 주문 원 Bearer eyJ password=", long)[0] <= CAP
