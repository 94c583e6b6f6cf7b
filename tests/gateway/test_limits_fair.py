"""Tokens a minute, headers, the interactive part and turns between runs: the wrapper in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.errors import ConfigError, RateLimited, UpstreamFault
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.endpoint import PlainReply, Reply, ReplyHead
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.retry import Retrying, RetryRules
from siafu.observe.calls import CallContext
from siafu.pace.clock import VirtualClock


class Counting:
    """An upstream that says in `plan` what a call uses and how long it takes, and notes when each came."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.start = clock.now()
        self.plan: dict[str, tuple[int, float, BaseException | None]] = {}
        self.came: list[tuple[float, str]] = []
        self.headers: dict[str, str] = {}

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        self.came.append((self.clock.now() - self.start, context.task))
        tokens, seconds, error = self.plan.get(context.task, (100, 0.1, None))
        await self.clock.sleep(seconds)
        if error is not None:
            raise error
        answer = ChatAnswer(message={}, content="네", usage=Usage(input=tokens - 10, output=10), model="m")
        return PlainReply(answer, ReplyHead(headers=self.headers), seconds)


class Line:
    def __init__(self, limits: Limits) -> None:
        self.clock = VirtualClock()
        self.upstream = Counting(self.clock)
        self.limited = Limited(
            self.upstream, limits, clock=self.clock, rng=Random(5), upstream="u", observer=lambda event: None
        )

    async def ask(self, task: str = "", size: int = 100, most: int = 10, **context: Any) -> Any:
        request = ChatRequest(model="m", messages=[{"role": "user", "content": "x" * size}], max_tokens=most)
        return await (await self.limited.open(request, CallContext(task=task, **context))).message()

    def used_within(self, window: float) -> int:
        """The most tokens of calls that came within any `window` seconds."""
        found = [(at, self.upstream.plan[task][0]) for at, task in self.upstream.came]
        return max(sum(n for at, n in found if start <= at <= start + window) for start, _ in found)


token_calls = st.lists(
    st.tuples(
        st.floats(0, 5),  # when it comes
        st.floats(0, 3),  # how long it takes
        st.integers(11, 200),  # tokens it uses
        st.sampled_from(["ok", "ok", "ok", "fault", "limit", "cancel"]),
        st.integers(1, 3),
        st.sampled_from(["주문", "환불"]),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(st.floats(600, 60_000), st.floats(60, 1200), st.integers(1, 8), token_calls)
def test_g12_tokens_requests_and_concurrency_hold_in_any_window_for_any_crowd(
    tpm: float, rpm: float, concurrency: int, crowd: list[tuple[float, float, int, str, int, str]]
) -> None:
    async def scenario() -> None:
        line = Line(Limits(tpm=tpm, rpm=rpm, concurrency=concurrency, interactive=0.3))
        errors = {"fault": UpstreamFault("x", status=500), "limit": RateLimited("x", wait=0.5)}
        line.upstream.plan = {str(n): (c[2], c[1], errors.get(c[3])) for n, c in enumerate(crowd)}

        async def caller(name: str, at: float, tokens: int, what: str, priority: int, run: str) -> None:
            await line.clock.sleep(at)
            ask = line.ask(name, size=3 * tokens, most=tokens, priority=priority, run=run)
            task = asyncio.create_task(ask)
            if what == "cancel":
                await line.clock.sleep(0.3)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        await asyncio.gather(
            *(caller(str(n), at, tokens, what, p, run) for n, (at, _, tokens, what, p, run) in enumerate(crowd))
        )
        burst = max(tpm / 12, 1000)  # a call of more than the burst leaves alone
        for window in (0.0, 0.5, 2.0, 10.0):
            if line.upstream.came:
                assert line.used_within(window) <= tpm / 60 * window + burst + 1e-3
        assert line.limited.in_flight == 0
        assert line.limited._admission._others == 0
        assert all(waiter.future.done() for waiter in line.limited._queue)

    asyncio.run(scenario())


async def test_tokens_are_paced_and_what_was_not_used_comes_back() -> None:
    line = Line(Limits(tpm=60_000, concurrency=1000))  # 1,000 a second, 5,000 at once
    line.upstream.plan = {str(n): (500, 1.0, None) for n in range(200)}
    await asyncio.gather(*(line.ask(str(n), size=2000) for n in range(200)))
    assert line.used_within(0.0) <= 5_000
    assert line.used_within(30.0) <= 35_000
    end = line.upstream.came[-1][0]
    assert 80 <= end <= 140, "100,000 tokens less those at once, at 1,000 a second; estimates cost some"


async def test_without_a_limit_of_tokens_nothing_is_counted() -> None:
    line = Line(Limits(concurrency=1000))
    line.upstream.plan = {str(n): (500, 1.0, None) for n in range(200)}
    await asyncio.gather(*(line.ask(str(n)) for n in range(200)))
    assert line.used_within(0.0) == 100_000
    assert line.limited._estimates == {}


async def test_what_an_answer_says_is_left_is_kept() -> None:
    line = Line(Limits(concurrency=100))
    line.upstream.headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "30s",
    }
    await line.ask()
    await asyncio.gather(*(line.ask() for _ in range(3)))
    times = [at for at, _ in line.upstream.came]
    assert times[1] >= 9 and times[2] >= 15, "two within thirty seconds, spread"
    assert times[3] >= 30


async def test_what_is_left_of_the_tokens_is_kept_too() -> None:
    line = Line(Limits(concurrency=100))
    line.upstream.plan = {"": (400, 0.1, None)}
    line.upstream.headers = {
        "x-ratelimit-limit-tokens": "10000",
        "x-ratelimit-remaining-tokens": "1000",
        "x-ratelimit-reset-tokens": "20s",
    }
    await line.ask()
    line.upstream.headers = {}
    await asyncio.gather(*(line.ask(size=300) for _ in range(4)))
    times = [at for at, _ in line.upstream.came]
    assert sum(at < 20 for at in times[1:]) <= 2
    assert len(times) == 5


async def test_runs_take_turns_in_tokens() -> None:
    line = Line(Limits(concurrency=2))
    line.upstream.plan = {"long": (2000, 1.0, None), "short": (200, 1.0, None)}
    async with asyncio.timeout(30):
        asks = [line.ask("long", size=8000, run="밤") for _ in range(40)]
        asks += [line.ask("short", size=800, run="낮") for _ in range(200)]
        tasks = [asyncio.create_task(ask) for ask in asks]
        while len(line.upstream.came) < 100:
            await line.clock.sleep(0.5)
    served = Counter(name for _, name in line.upstream.came[:100])
    assert 7 <= served["long"] <= 13, "ten times the tokens, a tenth of the calls"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("interactive", "waits"), [(0.25, False), (0.0, True)])
async def test_a_part_is_kept_free_for_interactive_calls(interactive: float, waits: bool) -> None:
    line = Line(Limits(concurrency=4, interactive=interactive))
    line.upstream.plan = {"batch": (100, 60.0, None), "person": (100, 1.0, None)}
    batch = [asyncio.create_task(line.ask("batch", priority=3)) for _ in range(8)]
    await line.clock.sleep(5)
    assert len(line.upstream.came) == (4 if waits else 3)
    before = line.clock.now()
    await line.ask("person", priority=1)
    assert (line.clock.now() - before > 30) == waits
    await asyncio.gather(*batch)


@pytest.mark.parametrize("priority", [1, 3])
async def test_g18_people_are_served_under_three_times_the_load(priority: int) -> None:
    """Ten slots, calls of two seconds, so five a second can be served and fifteen come: one of them by people, who wait
    five seconds at most, the others by batches.
    """
    line, rng, served = Line(Limits(concurrency=10, interactive=0.2)), Random(7), 0
    line.upstream.plan = {"person": (100, 1.0, None), "batch": (100, 2.1, None)}

    async def person(at: float) -> None:
        nonlocal served
        await line.clock.sleep(at)
        asked = asyncio.create_task(line.ask("person", priority=priority, run="batch"))
        patience = asyncio.create_task(line.clock.sleep(5.0))
        await asyncio.wait({asked, patience}, return_when=asyncio.FIRST_COMPLETED)
        served += asked.done()
        asked.cancel()
        patience.cancel()
        await asyncio.gather(asked, patience, return_exceptions=True)

    async def batch(at: float) -> None:
        await line.clock.sleep(at)
        await line.ask("batch", priority=3, run="batch")

    people = [person(rng.uniform(0, 60)) for _ in range(60)]
    await asyncio.gather(*people, *(batch(rng.uniform(0, 60)) for _ in range(14 * 60)))
    assert line.clock.now() - line.upstream.start > 150, "the batches take the loss: they wait"
    assert served / 60 >= 0.994 if priority == 1 else served / 60 < 0.5


@pytest.mark.parametrize("policy", ["fixed", "aimd", "vegas", "window"])
async def test_every_policy_finishes_a_crowd_that_is_refused_above_eight_at_once(policy: Any) -> None:
    line = Line(Limits(concurrency=50, policy=policy))
    refusals = 0

    async def open(request: ChatRequest, context: CallContext) -> Reply:
        nonlocal refusals
        if line.limited.in_flight > 8:
            refusals += 1
            raise RateLimited("full", status=429)
        await line.clock.sleep(1.0)
        return PlainReply(ChatAnswer(message={}, usage=Usage(input=50, output=10)), seconds=1.0)

    line.upstream.open = open  # type: ignore[method-assign]
    common: dict[str, Any] = {"clock": line.clock, "rng": Random(3), "upstream": "u", "observer": lambda event: None}
    retrying = Retrying(line.limited, RetryRules(), **common)
    request = ChatRequest(model="m", messages=[])
    replies = await asyncio.gather(*(retrying.open(request, CallContext()) for _ in range(150)))
    assert len(replies) == 150
    assert refusals > 0
    assert line.limited.in_flight == 0


@pytest.mark.parametrize("usage", [None, Usage(input=50, output=10)])
async def test_a_learned_limit_rises_also_where_answers_do_not_say_what_they_used(usage: Usage | None) -> None:
    line = Line(Limits(concurrency=50, policy="vegas"))

    async def open(request: ChatRequest, context: CallContext) -> Reply:
        await line.clock.sleep(1.0)
        return PlainReply(ChatAnswer(message={}, usage=usage), seconds=1.0)

    line.upstream.open = open  # type: ignore[method-assign]
    assert line.limited.limit == 2
    await asyncio.gather(*(line.ask() for _ in range(300)))
    assert line.limited.limit > 16


async def test_a_ramp_lets_the_first_calls_rise() -> None:
    line = Line(Limits(concurrency=20, ramp=16.0))
    line.upstream.plan = {"": (100, 100.0, None)}
    await asyncio.gather(*(line.ask() for _ in range(20)))
    times = [at for at, _ in line.upstream.came]
    assert times == [pytest.approx(max(0, n - 3), abs=0.01) for n in range(20)]


@pytest.mark.parametrize(
    "wrong", [{"tpm": 0}, {"tpm": float("inf")}, {"interactive": 1.0}, {"interactive": -0.1}, {"ramp": -1}]
)
def test_impossible_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Limits(**wrong)
