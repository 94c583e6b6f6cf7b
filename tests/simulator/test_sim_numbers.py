"""Draws, tokens, latency, limits, cache: the endpoint's pure parts."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.bench.simulator import tokens
from siafu.bench.simulator.cache import BLOCK_BYTES, PrefixCache, blocks_of
from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.latency import Latency, Speed, default_speed, pace, parse_latency, parse_speed
from siafu.bench.simulator.limits import Gcra, Limits, Settings, go_duration
from siafu.errors import ConfigError


def test_draws_depend_on_parts_and_label_alone() -> None:
    assert Draws(1, "m", b"x").number("a") == Draws(1, "m", b"x").number("a")
    assert len({Draws(1, "m", b"x").number("a"), Draws(2, "m", b"x").number("a"), Draws(1, "m", b"x").number("b")}) == 3
    assert Draws(1, "ab", "c").number("a") != Draws(1, "a", "bc").number("a")


def test_draws_are_spread_as_they_say() -> None:
    uniform = [Draws(n).uniform("u") for n in range(4_000)]
    normal = [Draws(n).normal("n") for n in range(4_000)]
    assert abs(statistics.mean(uniform) - 0.5) < 0.03 and min(uniform) >= 0 and max(uniform) < 1
    assert abs(statistics.mean(normal)) < 0.06 and abs(statistics.stdev(normal) - 1) < 0.06


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("hello", 1),
        ("hello world", 2),
        ("international", 3),
        ("12345", 2),
        ("안녕하세요", 5),
        ('{"a":1}', 7),
        ("a\nb", 3),
    ],
)
def test_token_rule(text: str, count: int) -> None:
    assert tokens.count(text) == count


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("The parcel left our warehouse yesterday and should reach you before the weekend. " * 5, 0.7, 0.95),
        ("주문하신 상품은 어제 출고되어 주말 전에 도착할 예정입니다. " * 5, 1.1, 1.5),
        ('{"order_id": "1001", "items": [{"sku": "SKU-1", "qty": 2}]}' * 5, 1.5, 3.0),
    ],
)
def test_token_rule_is_skewed_against_bytes_by_four(text: str, low: float, high: float) -> None:
    assert low < tokens.count(text) / (len(text.encode()) / 4) < high


@given(st.text(max_size=300), st.integers(0, 50))
def test_cut_and_pieces(text: str, most: int) -> None:
    short = tokens.cut(text, most)
    assert text.startswith(short) and tokens.count(short) <= most
    parts = tokens.pieces(text, most + 1)
    assert "".join(parts) == text
    assert all(tokens.count(part) <= most + 1 for part in parts)


def test_latency_is_spread_around_the_model_and_scaled() -> None:
    speed = Speed(0.4, 0.02)
    firsts = [pace(Latency(), speed, 0, Draws(n)).first for n in range(2_000)]
    assert 0.37 < statistics.median(firsts) < 0.43
    assert statistics.quantiles(firsts, n=20)[-1] > 0.6
    assert pace(Latency(scale=0.5), speed, 0, Draws(1)).first == pytest.approx(firsts[1] / 2)
    assert pace(parse_latency("fixed:200ms"), speed, 900, Draws(1)).seconds(500) == 0.2
    assert pace(parse_latency("none"), speed, 900, Draws(1)).seconds(500) == 0
    assert pace(Latency(), speed, 10_000, Draws(1)).first > firsts[1] + 0.9


@pytest.mark.parametrize("spec", ["", "fixed", "fixed:x", "scale:-1", "fast", "fixed:200 ms "])
def test_latency_specs_that_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError):
        parse_latency(spec)


def test_speeds() -> None:
    assert parse_speed("strong=450,16") == ("strong", Speed(0.45, 0.016))
    assert parse_speed("gpt-mini") == ("gpt-mini", default_speed("x-mini"))
    for wrong in ("=1,2", "a=1", "a=x,y"):
        with pytest.raises(ConfigError):
            parse_speed(wrong)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0121, "13ms"),
        (0.012, "12ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (90, "1m30s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
    ],
)
def test_go_duration(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


@given(
    st.floats(0.1, 50),
    st.floats(1, 40),
    st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 8)), min_size=1, max_size=120),
)
def test_g12_grants_in_any_window_stay_within_rate_and_burst(
    rate: float, burst: float, arrivals: list[tuple[float, float]]
) -> None:
    bucket, now, granted = Gcra(rate, burst), 0.0, []
    for gap, cost in arrivals:
        now += gap
        wait = bucket.wait(now, cost)
        if cost > burst:
            assert wait == math.inf
        elif wait == 0:
            bucket.take(now, cost)
            granted.append((now, cost))
        else:
            assert bucket.wait(now + wait + 1e-6, cost) < 1e-3  # the wait it tells is true
    for first in range(len(granted)):
        total = 0.0
        for at, cost in granted[first:]:
            total += cost
            assert total <= rate * (at - granted[first][0]) + burst + 1e-6 * (1 + total)


def test_gcra_gives_all_it_promises() -> None:
    bucket = Gcra(10, 5)
    taken = 0
    for tick in range(1, 2_001):
        if bucket.wait(tick / 200, 1) == 0:
            bucket.take(tick / 200, 1)
            taken += 1
    assert taken in (104, 105)  # ten seconds at ten a second, and the burst


def test_limits_refuse_without_taking_and_say_why() -> None:
    limits = Limits(Settings(rpm=60, tpm=6_000, max_concurrency=2, burst=1))
    assert limits.refuse(0.0, 100, 0) is None
    refusal = limits.refuse(0.0, 100, 0)
    assert refusal and refusal.limit in ("requests", "tokens") and refusal.wait == pytest.approx(1.0)
    assert limits.headers(0.0)["x-ratelimit-remaining-requests"] == "0"
    assert limits.headers(0.0)["x-ratelimit-reset-requests"] == "1s"
    full = limits.refuse(5.0, 10, 2)
    assert full and full.limit == "concurrency" and full.wait is None
    large = limits.refuse(5.0, 5_000, 0)
    assert large and large.wait == math.inf
    assert limits.refuse(5.0, 100, 0) is None  # the refusals took nothing


def test_prefix_cache_credits_a_shared_beginning_after_it_began() -> None:
    cache = PrefixCache(60)
    shared, tail = ("규칙을 지키고 간결하게 답하세요. " * 200), "첫 번째 질문"
    first, second = (shared + tail).encode(), (shared + "다른 질문입니다").encode()
    assert cache.credit(blocks_of("m", first), first, 0) == 0
    assert cache.credit(blocks_of("m", second), second, 1) == 0  # the first has not begun
    cache.remember(blocks_of("m", first), 2)
    credit = cache.credit(blocks_of("m", second), second, 3)
    assert credit % 128 == 0 and 1_024 <= credit <= tokens.count(shared)
    assert credit > tokens.count(shared) - 128 - BLOCK_BYTES
    assert cache.credit(blocks_of("other", second), second, 3) == 0
    assert cache.credit(blocks_of("m", second), second, 63) == 0  # forgotten
    changed = ("x" + shared).encode()
    assert cache.credit(blocks_of("m", changed), changed, 3) == 0
    short = shared[:900].encode()
    cache.remember(blocks_of("m", short), 3)
    assert cache.credit(blocks_of("m", short), short, 4) == 0
