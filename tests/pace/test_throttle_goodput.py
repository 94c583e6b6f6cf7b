"""The throttle against an upstream with a limit that it does not know, in virtual time."""

from __future__ import annotations

import heapq
import math
from random import Random

import pytest

from siafu.pace.throttle import Throttle

JITTER = 0.002  # seconds between leaving and arriving


class Upstream:
    """At most `burst` requests at once and `rate` a second (GCRA); all refused while it is down."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, max(1.0, burst)
        self.full_at = -math.inf
        self.down = False

    def refuses(self, now: float) -> float | None:
        """Seconds to wait; 0 = it does not say; None = accepted."""
        if self.down:
            return 0.0
        wait = max(now, self.full_at) + (1 - self.burst) / self.rate - now
        if wait > 1e-9:
            return wait
        self.full_at = max(now, self.full_at) + 1 / self.rate
        return None


class Crowd:
    """Agents that always have a next request. `log`: (arrival, accepted)."""

    def __init__(self, upstream: Upstream, *, agents: int, latency: float, hints: bool, seed: int) -> None:
        self.upstream, self.agents, self.latency, self.hints = upstream, agents, latency, hints
        self.throttle, self.rng = Throttle(), Random(seed)
        self.log: list[tuple[float, bool]] = []
        self.now, self._in_flight, self._count = 0.0, 0, 0
        self._looks_at = 0.0
        self._events: list[tuple[float, int, str, float, float | None]] = [(0.0, 0, "look", 0.0, None)]

    def _later(self, at: float, what: str, sent_at: float = 0.0, wait: float | None = None) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, what, sent_at, wait))

    def until(self, end: float) -> None:
        while self._events[0][0] < end:
            self.now, _, what, sent_at, wait = heapq.heappop(self._events)
            if what == "arrive":
                refused = self.upstream.refuses(self.now)
                self.log.append((self.now, refused is None))
                if refused is None:
                    self._later(self.now + self.latency * self.rng.uniform(1, 1.1), "accepted", sent_at)
                else:
                    self._later(self.now + JITTER, "refused", sent_at, refused if refused and self.hints else None)
                continue
            if what == "accepted":
                self._in_flight -= 1
                self.throttle.accepted(sent_at, self.now)
            elif what == "refused":
                self._in_flight -= 1
                self.throttle.refused(sent_at, self.now, wait, self.rng)
            self._send()

    def _send(self) -> None:
        while self._in_flight < self.agents:
            wait = self.throttle.ready(self.now)
            if wait:
                if not self.now < self._looks_at <= self.now + wait:
                    self._looks_at = self.now + wait + self.rng.uniform(0, JITTER)
                    self._later(self._looks_at, "look")
                return
            self.throttle.take(self.now)
            self._in_flight += 1
            self._later(self.now + self.rng.uniform(0, JITTER), "arrive", self.now)

    def shares(self, start: float, end: float) -> tuple[float, float]:
        """Accepted as a share of what the limit allows; refused as a share of what was sent."""
        within = [accepted for at, accepted in self.log if start <= at < end]
        return sum(within) / (end - start) / self.upstream.rate, within.count(False) / max(1, len(within))


@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("latency", [0.05, 3.0])
@pytest.mark.parametrize(
    ("rate", "burst", "least"),
    [(5.0, 1, 0.75), (5.0, 5, 0.95), (50.0, 50, 0.95), (50.0, 300, 0.95), (200.0, 200, 0.95)],
)
def test_g5_a_crowd_uses_an_unknown_limit_and_is_rarely_refused(
    rate: float, burst: float, least: float, latency: float, hints: bool
) -> None:
    crowd = Crowd(Upstream(rate, burst), agents=int(3 * rate * latency) + 50, latency=latency, hints=hints, seed=3)
    crowd.until(60.0)
    goodput, refused = crowd.shares(10, 60)
    assert goodput >= least
    assert refused <= (0.02 if burst > 1 else 0.03)


@pytest.mark.parametrize("latency", [0.05, 3.0])
@pytest.mark.parametrize(("rate", "burst"), [(10.0, 10), (50.0, 50), (200.0, 200)])
def test_g5_a_limit_that_is_halved_is_found_within_ten_seconds(rate: float, burst: float, latency: float) -> None:
    crowd = Crowd(Upstream(rate, burst), agents=int(3 * rate * latency) + 50, latency=latency, hints=True, seed=5)
    crowd.until(30.0)
    crowd.upstream.rate /= 2
    crowd.until(55.0)
    assert crowd.shares(32.5, 40)[0] >= 0.9
    goodput, refused = crowd.shares(40, 55)
    assert goodput >= 0.94
    assert refused <= 0.02


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("latency", [0.05, 3.0])
@pytest.mark.parametrize("rate", [5.0, 50.0, 200.0])
def test_g6_after_an_outage_the_former_pace_is_back_soon_and_is_not_passed(
    rate: float, latency: float, seed: int
) -> None:
    crowd = Crowd(Upstream(rate, rate), agents=int(3 * rate * latency) + 50, latency=latency, hints=True, seed=seed)
    crowd.until(30.0)
    crowd.upstream.down = True
    crowd.until(50.0)
    during = [at for at, _ in crowd.log if 33 <= at < 50]
    crowd.upstream.down = False
    crowd.until(70.0)
    assert 3 <= len(during) <= 30, "it is tried, but rarely"
    assert crowd.shares(55, 70)[0] >= 0.9
    times = [at for at, _ in crowd.log]
    assert max(sum(s <= at < s + 1 for at in times) for s in range(50, 70)) <= 1.2 * rate


def test_without_a_throttle_a_crowd_is_mostly_refused() -> None:
    class Careless(Throttle):
        def ready(self, now: float) -> float:
            return 0.0

    crowd = Crowd(Upstream(50.0, 50), agents=200, latency=0.05, hints=True, seed=3)
    crowd.throttle = Careless()
    crowd.until(2.0)
    assert crowd.shares(1, 2)[1] > 0.5
