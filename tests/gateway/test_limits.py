from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.errors import ConfigError, DeadlineReached, RateLimited, UpstreamFault
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import End, PlainReply, Reply, ReplyHead
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.retry import Retrying, RetryRules
from siafu.gateway.scripted import say
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, Waited
from siafu.pace.clock import VirtualClock

from .conftest import ASK


class Upstream:
    """An endpoint in virtual time: takes `seconds` an answer, refuses by `limit`, and records when requests came."""

    def __init__(self, clock: VirtualClock, *, seconds: float = 0.0, limit: Any = None) -> None:
        self.clock = clock
        self.start = clock.now()
        self.seconds = seconds
        self.limit = limit
        self.arrivals: list[float] = []
        self.names: list[str] = []
        self.in_flight = self.peak = 0

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        at = self.clock.now() - self.start
        self.arrivals.append(at)
        self.names.append(context.task)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            refusal = self.limit(at) if self.limit else None
            await self.clock.sleep(0.01 if refusal else self.seconds)
            if refusal:
                raise refusal
            return PlainReply(say("ok"))
        finally:
            self.in_flight -= 1


class Line:
    def __init__(self, limits: Limits, *, retry: bool = False, **upstream: Any) -> None:
        self.clock = VirtualClock()
        self.upstream = Upstream(self.clock, **upstream)
        self.events: list[Event] = []
        common: dict[str, Any] = {
            "clock": self.clock,
            "rng": Random(5),
            "upstream": "u",
            "observer": self.events.append,
        }
        self.limited = Limited(self.upstream, limits, **common)
        self.endpoint = Retrying(self.limited, RetryRules(), **common) if retry else self.limited

    async def ask(self, task: str = "", **context: Any) -> Any:
        return await (await self.endpoint.open(ASK, CallContext(task=task, **context))).message()

    async def crowd(self, count: int, **context: Any) -> list[Any]:
        tasks = (self.ask(str(i), **context) for i in range(count))
        return await asyncio.gather(*tasks, return_exceptions=True)


def most_within(times: list[float], window: float) -> int:
    return max(sum(start <= t <= start + window for t in times) for start in times)


async def test_f43_no_more_at_once_than_allowed_and_no_fewer() -> None:
    line = Line(Limits(concurrency=150), seconds=8)
    await line.crowd(400)
    assert line.upstream.peak == 150
    assert line.clock.now() - line.upstream.start == pytest.approx(24)
    assert line.limited.in_flight == 0


async def test_f56_parallel_callers_are_paced_like_one_by_one() -> None:
    line = Line(Limits(rpm=60, concurrency=100))  # 3 in 3 s
    await line.crowd(10)
    assert line.upstream.arrivals == [pytest.approx(n) for n in range(10)]
    assert line.upstream.names == [str(n) for n in range(10)], "first come, first served"


async def test_f56_the_burst_is_what_it_says() -> None:
    line = Line(Limits(rpm=600, burst=5))
    await line.crowd(50)
    assert most_within(line.upstream.arrivals, 0.0) == 5
    assert most_within(line.upstream.arrivals, 1.0) <= 15
    assert line.upstream.arrivals[-1] == pytest.approx(4.5)


async def test_f56_repeats_take_a_permit_too() -> None:
    line = Line(Limits(rpm=60), retry=True, limit=lambda at: UpstreamFault("x") if at < 5 else None)
    await line.crowd(6)
    assert most_within(line.upstream.arrivals, 2.9) <= 3


@pytest.mark.parametrize("seed", range(5))
async def test_f06_a_hundred_refused_callers_do_not_stampede(seed: int) -> None:
    window: list[float] = []

    def twenty_a_second(at: float) -> RateLimited | None:
        if len(line.upstream.arrivals) <= 100:
            return RateLimited("slow", status=429, wait=2.0)
        window[:] = [t for t in window if t > at - 1.0]
        if len(window) >= 20:
            return RateLimited("slow", status=429, wait=None if seed % 2 else 1.0)
        window.append(at)
        return None

    line = Line(Limits(concurrency=100), retry=True, limit=twenty_a_second)
    line.limited._rng.seed(seed)
    answers = await line.crowd(100)
    assert [a.content for a in answers] == ["ok"] * 100
    arrivals = line.upstream.arrivals
    first, later = arrivals[:100], arrivals[100:]
    assert set(first) == {0.0}
    assert min(later) >= 2.0
    assert max(Counter(int(t / 0.05) for t in later).values()) <= 30
    assert len(arrivals) <= 250
    assert arrivals[-1] < 60
    waits = [e for e in line.events if isinstance(e, Waited)]
    assert len(waits) >= 100 and {e.reason for e in waits} == {"rate_limited"}


async def test_a_pause_holds_everybody_and_a_refused_call_keeps_its_place() -> None:
    refusals = iter([RateLimited("slow", wait=5)])
    line = Line(Limits(concurrency=1), retry=True, limit=lambda at: next(refusals, None))
    tasks = [asyncio.create_task(line.ask(name)) for name in ("first", "second", "third")]
    await asyncio.gather(*tasks)
    assert line.upstream.names == ["first", "first", "second", "third"]
    assert line.upstream.arrivals[1] >= 5


async def test_priority_goes_first_and_time_within_it() -> None:
    line = Line(Limits(concurrency=1), seconds=1)
    async with asyncio.TaskGroup() as group:
        for name, priority in (("a", 2), ("late", 3), ("b", 2), ("c", 2), ("urgent", 1)):
            group.create_task(line.ask(name, priority=priority))
    assert line.upstream.names == ["a", "urgent", "b", "c", "late"]


async def test_a_cancelled_waiter_gives_its_place_back() -> None:
    line = Line(Limits(rpm=60, concurrency=2), seconds=0.1)
    tasks = [asyncio.create_task(line.ask(str(n))) for n in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert line.upstream.names == ["0", "2", "3"]
    assert line.upstream.arrivals == [pytest.approx(n) for n in range(3)]
    assert line.limited.in_flight == 0


async def test_a_waiter_cancelled_in_the_moment_of_its_admission_gives_all_back() -> None:
    line = Line(Limits(rpm=60, concurrency=1), seconds=1.0)
    first = asyncio.create_task(line.ask("first"))
    await asyncio.sleep(0)
    second, third = (asyncio.create_task(line.ask(name)) for name in ("second", "third"))
    dispatch = line.limited._dispatch

    def dispatch_and_cancel() -> None:
        dispatch()
        if line.clock.now() > line.upstream.start and line.limited._queue.held == 1:
            second.cancel()  # its permit was given in this very step

    line.limited._dispatch = dispatch_and_cancel  # type: ignore[method-assign]
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert line.upstream.names == ["first", "third"]
    assert line.upstream.arrivals[1] == pytest.approx(1.0)
    assert line.limited.in_flight == 0


async def test_many_cancelled_waiters_do_not_pile_up() -> None:
    line = Line(Limits(concurrency=1), seconds=1000)
    holder = asyncio.create_task(line.ask())
    await asyncio.sleep(0)
    for _ in range(50):
        tasks = [asyncio.create_task(line.ask()) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert line.limited._queue.held <= 100
    holder.cancel()
    await asyncio.gather(holder, return_exceptions=True)


async def test_a_deadline_that_cannot_be_met_is_refused_early() -> None:
    line = Line(Limits(rpm=60))
    start = line.clock.now()
    results = await line.crowd(10, deadline=start + 4.5)
    assert [type(r).__name__ for r in results] == ["ChatAnswer"] * 5 + ["DeadlineReached"] * 5
    assert len(line.upstream.arrivals) == 5
    line = Line(Limits(), limit=lambda at: RateLimited("slow", wait=30) if at == 0 else None)
    with pytest.raises(RateLimited):
        await line.ask()
    now = line.clock.now()
    with pytest.raises(DeadlineReached):
        await line.ask(deadline=now + 20)
    assert line.clock.now() == now


async def test_a_waiter_whose_deadline_passed_meanwhile_is_not_sent() -> None:
    line = Line(Limits(concurrency=1), seconds=10)
    start = line.clock.now()
    results = await asyncio.gather(line.ask(), line.ask(deadline=start + 5), line.ask(), return_exceptions=True)
    assert [isinstance(r, DeadlineReached) for r in results] == [False, True, False]
    assert len(line.upstream.arrivals) == 2


async def test_f01_waiters_surface_when_the_pause_becomes_too_long() -> None:
    line = Line(Limits(concurrency=1, max_wait=60), limit=lambda at: RateLimited("slow", wait=3600), seconds=1)
    start = line.clock.now()
    results = await line.crowd(5)
    assert all(isinstance(r, RateLimited) and (r.wait or 0) > 3500 for r in results)
    assert len(line.upstream.arrivals) == 1 and line.clock.now() - start < 1


@pytest.mark.parametrize("end", ["error", "cancel", "close"])
async def test_permits_come_back_exactly_once_however_a_call_ends(end: str) -> None:
    class Stream:
        head = ReplyHead()

        def __init__(self) -> None:
            self.callbacks: list[Any] = []

        def on_end(self, callback: Any) -> None:
            self.callbacks.append(callback)

    class Streams:
        async def open(self, request: ChatRequest, context: CallContext) -> Any:
            if end == "error":
                raise UpstreamFault("x")
            if end == "cancel":
                await asyncio.sleep(1000)
            return Stream()

    limited = Limited(
        Streams(), Limits(concurrency=1), clock=VirtualClock(), rng=Random(1), upstream="u", observer=lambda event: None
    )
    for _ in range(3):
        task = asyncio.create_task(limited.open(ASK, CallContext()))
        await asyncio.sleep(0)
        assert limited.in_flight == (0 if end == "error" else 1)
        if end == "cancel":
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(result, Stream):
            assert limited.in_flight == 1, "a stream holds its permit until it ends"
            for callback in result.callbacks:
                callback(End(outcome="abandoned"))
        assert limited.in_flight == 0


def test_the_limiter_goes_on_in_the_next_event_loop() -> None:
    line = Line(Limits(rpm=60, concurrency=2), seconds=1)

    async def leave() -> None:
        tasks = [asyncio.create_task(line.ask()) for _ in range(5)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)

    asyncio.run(leave())
    assert line.limited.in_flight == 0
    answers = asyncio.run(line.crowd(4))
    assert [a.content for a in answers] == ["ok"] * 4


@pytest.mark.parametrize(
    "wrong", [{"concurrency": 0}, {"rpm": 0}, {"rpm": -1}, {"burst": 0}, {"max_wait": -1}, {"rpm": float("inf")}]
)
def test_impossible_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Limits(**wrong)


calls = st.lists(
    st.tuples(
        st.floats(0, 5),  # when it comes
        st.floats(0, 3),  # how long it takes
        st.sampled_from(["ok", "ok", "ok", "fault", "limit", "hint", "cancel"]),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(st.floats(30, 1200), st.integers(1, 8), st.integers(1, 5), calls)
def test_g12_limits_hold_in_any_window_for_any_crowd(
    rpm: float, concurrency: int, burst: int, crowd: list[tuple[float, float, str, int]]
) -> None:
    async def scenario() -> None:
        line = Line(Limits(rpm=rpm, concurrency=concurrency, burst=burst))
        plan = {str(n): (seconds, what) for n, (_, seconds, what, _) in enumerate(crowd)}
        base = line.upstream.open

        async def open(request: ChatRequest, context: CallContext) -> Reply:
            line.upstream.seconds, what = plan[context.task]
            errors = {"fault": UpstreamFault("x"), "limit": RateLimited("x"), "hint": RateLimited("x", wait=1)}
            line.upstream.limit = lambda at: errors.get(what)
            return await base(request, context)

        line.upstream.open = open  # type: ignore[method-assign]

        async def caller(name: str, at: float, what: str, priority: int) -> None:
            await line.clock.sleep(at)
            task = asyncio.create_task(line.ask(name, priority=priority))
            if what == "cancel":
                await line.clock.sleep(0.3)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        await asyncio.gather(*(caller(str(n), at, what, p) for n, (at, _, what, p) in enumerate(crowd)))
        arrivals, rate = line.upstream.arrivals, rpm / 60
        for window in (0.0, 0.5 / rate, 1 / rate, 1.0, 5.0):
            assert not arrivals or most_within(arrivals, window) <= rate * window + burst + 1e-3
        assert line.upstream.peak <= concurrency
        assert line.limited.in_flight == 0
        assert all(waiter.future.done() for waiter in line.limited._queue)

    asyncio.run(scenario())
