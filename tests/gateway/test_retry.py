from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from siafu.errors import (
    AccessRefused,
    BudgetReached,
    CallTimeout,
    DeadlineReached,
    MalformedReply,
    ModelError,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    SiafuError,
    UnpricedModel,
    Unreachable,
    UpstreamFault,
)
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.retry import Kind, Progress, Retrying, RetryRules, kind_of
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, Waited
from siafu.pace.clock import VirtualClock

from .conftest import ASK


class Line:
    """Retrying over Limited over a script, in virtual time, with the times at which requests left."""

    def __init__(self, script: Any, *, rules: RetryRules | None = None, limits: Limits | None = None) -> None:
        self.clock = VirtualClock()
        self.times: list[float] = []
        self.start = self.clock.now()
        answers = script if callable(script) else iter(script)

        def play(request: Any, context: CallContext) -> Any:
            self.times.append(self.clock.now() - self.start)
            return answers(request, context) if callable(answers) else next(answers)

        self.script = Scripted(play)
        self.events: list[Event] = []
        common: dict[str, Any] = {
            "clock": self.clock,
            "rng": Random(3),
            "upstream": "u",
            "observer": self.events.append,
        }
        limited = Limited(self.script, limits or Limits(), **common)
        self.retrying = Retrying(limited, rules or RetryRules(), **common)

    async def ask(self, **context: Any) -> Any:
        return await (await self.retrying.open(ASK, CallContext(**context))).message()

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def limited(wait: float | None = None, code: str | None = None) -> RateLimited:
    return RateLimited("slow down", status=429, wait=wait, provider_code=code)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *((RateLimited("x"), "admission"), (Overloaded("x"), "admission"), (UpstreamFault("x"), "fault")),
        *((MalformedReply("x"), "fault"), (Unreachable("x"), "fault"), (CallTimeout("x", phase="idle"), "fault")),
        *((RequestRefused("x"), "final"), (AccessRefused("x"), "final"), (QuotaExhausted("x"), "final")),
        *((UnpricedModel("x"), "final"), (ModelError("x"), "final")),
    ],
)
def test_every_kind_of_failure(error: ModelError, kind: Kind) -> None:
    assert kind_of(error) == kind
    assert error.retryable is (kind != "final")


async def test_f01_a_long_wait_is_waited_out_in_full() -> None:
    line = Line([limited(75), "ok"], rules=RetryRules(max_wait=90), limits=Limits(max_wait=90))
    assert (await line.ask()).content == "ok"
    assert line.gaps[0] >= 75


async def test_f01_a_wait_above_the_ceiling_surfaces_at_once_with_the_wait() -> None:
    line = Line([limited(75), "ok"])
    with pytest.raises(RateLimited) as caught:
        await line.ask()
    assert caught.value.wait == 75
    assert line.times == [0.0] and line.clock.now() == line.start
    with pytest.raises(RateLimited, match="longer than") as caught:  # the next call: not even sent
        await line.ask()
    assert 74 < (caught.value.wait or 0) <= 75.2
    assert len(line.times) == 1 and caught.value.attempts == 0


async def test_f03_every_wait_is_the_current_one() -> None:
    line = Line([limited(1), limited(3), limited(5), "ok"])
    assert (await line.ask()).content == "ok"
    assert [gap >= wait for gap, wait in zip(line.gaps, (1, 3, 5), strict=True)] == [True] * 3
    assert sum(line.gaps) < 9 + 3


async def test_f02_without_a_hint_the_wait_grows_with_jitter() -> None:
    line = Line([*[limited() for _ in range(6)], "ok"])
    await line.ask()
    assert len(line.times) == 7
    assert sum(line.gaps) <= 0.5 * (2**6 - 1) + 6


@pytest.mark.parametrize("error", [RequestRefused, AccessRefused, QuotaExhausted])
async def test_f04_f05_hard_refusals_are_asked_once_and_without_a_wait(error: type[ModelError]) -> None:
    line = Line([error("no", status=400)])
    with pytest.raises(error):
        await line.ask()
    assert line.times == [0.0] and line.clock.now() == line.start


@pytest.mark.parametrize(
    "fault", [UpstreamFault("x"), MalformedReply("x"), Unreachable("x"), CallTimeout("x", phase="total")]
)
async def test_f08_faults_are_repeated_three_times_at_most(fault: ModelError) -> None:
    line = Line(lambda request, context: fault)
    with pytest.raises(type(fault)) as caught:
        await line.ask()
    assert len(line.times) == 3
    assert caught.value.attempts == 3
    assert [c.attempts for c in line.script.contexts] == [0, 1, 2]
    line = Line([fault, fault, "ok"])
    assert (await line.ask()).content == "ok"


async def test_attempts_go_on_counting_after_a_redelivery() -> None:
    line = Line(lambda request, context: UpstreamFault("x"))
    with pytest.raises(UpstreamFault) as caught:
        await line.ask(attempts=2)
    assert len(line.times) == 1 and caught.value.attempts == 1


async def test_rate_limits_do_not_use_up_attempts() -> None:
    line = Line([*[limited(1) for _ in range(10)], UpstreamFault("x"), limited(1), UpstreamFault("x"), "ok"])
    assert (await line.ask()).content == "ok"
    assert [c.attempts for c in line.script.contexts] == list(range(14))


async def test_quota_wording_that_may_mean_either_gets_few_tries_and_its_own_error() -> None:
    line = Line(lambda request, context: limited(1, "quota_exceeded"))
    with pytest.raises(QuotaExhausted, match="3 times"):
        await line.ask()
    assert len(line.times) == 3


async def test_a_refusal_without_end_ends_with_the_patience() -> None:
    line = Line(lambda request, context: limited(50), rules=RetryRules(patience=300))
    with pytest.raises(RateLimited):
        await line.ask()
    assert 6 <= len(line.times) <= 8


async def test_the_deadline_bounds_the_waits() -> None:
    line = Line(lambda request, context: limited(10))
    with pytest.raises(DeadlineReached):
        await line.ask(deadline=line.start + 5)
    assert len(line.times) == 1 and line.clock.now() == line.start
    line = Line(lambda request, context: UpstreamFault("x", wait=10))
    with pytest.raises(UpstreamFault):
        await line.ask(deadline=line.start + 5)
    assert line.clock.now() == line.start


async def test_a_fault_with_a_hint_waits_at_least_that_long() -> None:
    line = Line([UpstreamFault("x", status=500, wait=7), "ok"])
    await line.ask()
    assert line.gaps[0] >= 7
    assert [e.reason for e in line.events if isinstance(e, Waited)] == ["backoff"]


@pytest.mark.parametrize("error", [BudgetReached("x"), DeadlineReached("x"), ValueError("bug")])
async def test_what_is_no_model_error_passes(error: Exception) -> None:
    line = Line([error])
    with pytest.raises(type(error)):
        await line.ask()
    assert len(line.times) == 1


async def test_g4_while_every_answer_fails_repeats_stay_a_tenth_of_first_tries() -> None:
    line = Line(lambda request, context: UpstreamFault("down"))
    first = 300
    for _ in range(first):
        with pytest.raises(UpstreamFault):
            await line.ask()
    assert first + 10 <= len(line.times) <= 1.1 * first + 10


async def test_an_overloaded_upstream_is_asked_rarely_even_without_a_breaker() -> None:
    line = Line(lambda request, context: Overloaded("full", status=503), rules=RetryRules(patience=60))
    with pytest.raises(Overloaded):
        await line.ask()
    assert len(line.times) <= 70
    waits = [e for e in line.events if isinstance(e, Waited)]
    assert {e.reason for e in waits} == {"overloaded"} and sum(e.seconds for e in waits) > 50


@pytest.mark.parametrize("seed", range(20))
def test_the_rules_are_bounded_whatever_comes(seed: int) -> None:
    rng, now = Random(seed), 0.0
    progress, rules = Progress(faults=0), RetryRules()
    makers: list[Callable[[], ModelError]] = [
        lambda: limited(rng.uniform(0, 50)),
        limited,
        lambda: UpstreamFault("x"),
        lambda: limited(1, "quota"),
    ]
    for _ in range(10_000):
        wait = progress.next_wait(rng.choice(makers)(), rules, now, rng)
        if wait is None:
            break
        assert 0 <= wait <= rules.max_wait
        now += wait + 1
    else:
        pytest.fail("it would ask for ever")


def test_errors_keep_their_class_tree() -> None:
    assert issubclass(Unreachable, UpstreamFault) and issubclass(UpstreamFault, ModelError)
    assert issubclass(ModelError, SiafuError)
