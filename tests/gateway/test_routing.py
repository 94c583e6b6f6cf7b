"""Which model and which upstream: rules as tables, shares as properties."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.errors import ConfigError
from siafu.gateway.chat import ChatRequest
from siafu.gateway.routing import BYTES_A_TOKEN, Rule, Target, chain, pick, target
from siafu.observe.calls import CallContext

from .conftest import ASK


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpt-4.1", Target("gpt-4.1")),
        ("gpt-4.1@seoul", Target("gpt-4.1", "seoul")),
        ("@cf/meta/llama@edge", Target("@cf/meta/llama", "edge")),
        (" kimi-k2.5 @ 서울 ", Target("kimi-k2.5", "서울")),
    ],
)
def test_a_target_is_written_model_at_upstream(text: str, found: Target) -> None:
    assert target(text) == found


@pytest.mark.parametrize("text", ["", " ", "@seoul", "gpt@", "gpt@ "])
def test_what_names_no_model_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="names no model"):
        target(text)


def test_a_rule_without_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one model"):
        Rule(use=())


LONG, CHEAP = Target("long"), Target("cheap")


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        ({}, True),
        ({"models": frozenset({"m"})}, True),
        ({"models": frozenset({"n"})}, False),
        ({"roles": frozenset({"refund"})}, True),
        ({"roles": frozenset({"faq"})}, False),
        ({"categories": frozenset({"complaint"})}, False),
        ({"categories": frozenset({"refund", "환불"})}, True),
        ({"tenants": frozenset({"kr"})}, True),
        ({"priorities": frozenset({1})}, True),
        ({"priorities": frozenset({2, 3})}, False),
        ({"roles": frozenset({"refund"}), "priorities": frozenset({3})}, False),
        ({"min_tokens": 100}, True),
        ({"min_tokens": 101}, False),
        ({"max_tokens": 100}, True),
        ({"max_tokens": 99}, False),
    ],
)
def test_every_condition_must_fit(rule: dict[str, Any], fits: bool) -> None:
    context = CallContext(role="refund", category="환불", tenant="kr", priority=1)
    assert Rule(use=(LONG,), **rule).fits("m", context, 100) is fits


def test_the_first_rule_that_fits_counts_and_length_is_that_of_the_request() -> None:
    rules = [Rule(use=(LONG, CHEAP), min_tokens=1000), Rule(use=(CHEAP,), models=frozenset({"m"}))]
    long = ChatRequest(model="m", messages=[{"role": "user", "content": "x" * 1000 * BYTES_A_TOKEN}])
    assert chain(rules, long, CallContext()) == (LONG, CHEAP)
    assert chain(rules, ASK, CallContext()) == (CHEAP,)
    assert chain(rules, ChatRequest(model="other", messages=ASK.messages), CallContext()) == (Target("other"),)


weights = st.lists(st.integers(1, 20), min_size=1, max_size=6)


@given(weights)
def test_shares_are_exact_over_a_whole_turn(shares: list[int]) -> None:
    lanes = [SimpleNamespace(tier=1, weight=float(share), credit=0.0) for share in shares]
    counts = Counter(id(pick(lanes)) for _ in range(sum(shares)))
    assert [counts[id(lane)] for lane in lanes] == shares


@given(weights, st.integers(0, 5))
def test_a_higher_tier_is_not_asked(shares: list[int], extra: int) -> None:
    first = [SimpleNamespace(tier=1, weight=1.0, credit=0.0) for _ in range(1 + extra)]
    rest = [SimpleNamespace(tier=2, weight=float(share), credit=99.0) for share in shares]
    assert all(pick([*rest, *first]).tier == 1 for _ in range(20))


def test_a_heavy_lane_does_not_come_in_a_row() -> None:
    """The point of the smooth variant: a a b a a, not a a a a b."""
    a, b = (SimpleNamespace(tier=1, weight=weight, credit=0.0) for weight in (4.0, 1.0))
    assert [pick([a, b]) is b for _ in range(5)] == [False, False, True, False, False]
