"""Announced limits against upstreams that count in fixed windows and in buckets, in virtual time."""

from __future__ import annotations

import heapq
import math

import pytest

from siafu.pace.announced import Announced, Left


class Windows:
    """`limit` requests in each minute by the wall clock."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used, self.began = limit, 0, 0.0

    def ask(self, now: float) -> tuple[bool, Left]:
        if now >= self.began + 60:
            self.began += 60 * ((now - self.began) // 60)
            self.used = 0
        ok = self.used < self.limit
        self.used += ok
        return ok, Left(self.limit, self.limit - self.used, self.began + 60 - now)


class Fills:
    """A bucket of `limit` requests that is filled within a minute."""

    def __init__(self, limit: int) -> None:
        self.limit, self.level, self.at = limit, float(limit), 0.0

    def ask(self, now: float) -> tuple[bool, Left]:
        self.level = min(self.limit, self.level + (now - self.at) * self.limit / 60)
        self.at = now
        ok = self.level >= 1
        self.level -= ok
        return ok, Left(self.limit, int(self.level), (self.limit - self.level) * 60 / self.limit)


def crowd(upstream: Windows | Fills, *, agents: int, latency: float, seconds: float, obey: bool) -> tuple[int, int]:
    """Accepted and refused of agents that always have a next request."""
    announced, sent, flying, now = Announced(), 0, 0, 0.0
    ends: list[tuple[float, int, float, int, Left]] = []
    accepted = refused = 0
    while now < seconds:
        while flying < agents and (not obey or announced.ready(now, 1, sent) == 0.0):
            sent += 1
            flying += 1
            announced.take(now)
            ok, left = upstream.ask(now)
            accepted += ok
            refused += not ok
            heapq.heappush(ends, (now + (latency if ok else 0.05), sent, now, sent, left))
        wait = announced.ready(now, 1, sent) if obey and flying < agents else math.inf
        if ends and ends[0][0] <= now + wait:
            now, _, sent_at, mark, left = heapq.heappop(ends)
            flying -= 1
            announced.heard(left, sent_at, mark)
        else:
            now += wait
    return accepted, refused


@pytest.mark.parametrize("latency", [0.2, 2.0])
@pytest.mark.parametrize("kind", [Windows, Fills])
def test_headers_are_obeyed_before_a_refusal_comes(kind: type[Windows] | type[Fills], latency: float) -> None:
    accepted, refused = crowd(kind(600), agents=50, latency=latency, seconds=300, obey=True)
    assert refused <= 0.005 * accepted
    assert accepted >= 0.95 * 3000
    assert crowd(kind(600), agents=50, latency=latency, seconds=300, obey=False)[1] > 1000 / max(1.0, latency * 10)


def test_news_that_is_older_than_its_reset_holds_nobody() -> None:
    announced = Announced()
    announced.heard(Left(60, 0, 5), sent_at=10.0, mark=1)
    assert announced.ready(12.0, 1, 1) == pytest.approx(3.0)
    assert announced.ready(15.0, 1, 1) == 0.0


def test_what_left_after_the_answered_request_counts() -> None:
    announced = Announced()
    announced.heard(Left(60, 5, 30), sent_at=0.0, mark=10)
    assert announced.ready(1.0, 1, 14) < 29.0
    assert announced.ready(1.0, 1, 15) == pytest.approx(29.0), "five more have left"


def test_an_answer_to_an_older_request_tells_nothing_new() -> None:
    announced = Announced()
    announced.heard(Left(60, 0, 30), sent_at=5.0, mark=2)
    announced.heard(Left(60, 59, 1), sent_at=4.0, mark=1)
    assert announced.ready(6.0, 1, 2) == pytest.approx(29.0)


def test_a_lot_left_holds_nobody_and_a_little_is_spread() -> None:
    announced = Announced()
    announced.heard(Left(60, 40, 30), sent_at=0.0, mark=0)
    assert announced.ready(0.0, 1, 0) == 0.0
    announced.heard(Left(60, 29, 30), sent_at=0.0, mark=0)
    assert announced.ready(0.0, 1, 0) == pytest.approx(1.0)


def test_more_than_the_whole_limit_waits_only_for_the_whole() -> None:
    announced = Announced()
    announced.heard(Left(1000, 1000, 30), sent_at=0.0, mark=0)
    assert announced.ready(0.0, 5000, 0) == 0.0
