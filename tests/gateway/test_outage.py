"""What a gateway does while its only upstream fails for a minute, and after (G4, G6, G19), in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from siafu.errors import CallTimeout, MalformedReply, ModelError, Overloaded, UpstreamFault
from siafu.gateway.guard import Patience
from siafu.gateway.limits import Limits

from .outages import World

FAULTS: list[Callable[[], ModelError]] = [
    lambda: UpstreamFault("broken", status=500),
    lambda: Overloaded("full", status=503),
    lambda: Overloaded("full", status=503, wait=1.0),
]
OUT, BACK = 10.0, 70.0


def down(fault: Callable[[], ModelError]) -> Callable[[float], ModelError | None]:
    return lambda at: fault() if OUT <= at < BACK else None


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("agents", [1, 20, 60])
async def test_g4_g6_an_outage_of_a_minute(agents: int, fault: Callable[[], ModelError]) -> None:
    world = World(down(fault))
    await world.agents(agents, until=80.0)
    during = world.sent(OUT, BACK)
    firsts = sum(request.attempts == 0 for request in during)
    assert 5 <= len(during) <= 1.1 * firsts + 10
    assert max(world.steps.values()) <= (3 if fault().code == "upstream_fault" else 10)
    assert len(world.lost) <= (2 if agents == 1 else 0), "a single agent's step has three attempts"
    former = world.goodput(1.0, OUT)
    assert world.goodput(75.0, 80.0) >= 0.95 * former
    assert max(len(world.sent(at, at + 1)) for at in range(70, 79)) <= 1.2 * max(len(world.sent(9, 10)), 10)


@pytest.mark.parametrize("fault", FAULTS)
async def test_g6_with_an_unknown_rate_limit_the_former_pace_is_back_and_the_limit_is_not_passed(
    fault: Callable[[], ModelError],
) -> None:
    world = World(lambda at: fault() if 40.0 <= at < 100.0 else None, rate=50.0)
    await world.agents(60, until=112.0)
    assert world.goodput(105.0, 112.0) >= 0.95 * 50
    assert max(len(world.sent(at, at + 1)) for at in range(100, 112)) <= 1.2 * 50
    during = world.sent(40.0, 100.0)
    assert len(during) <= 1.1 * sum(request.attempts == 0 for request in during) + 10
    assert not world.lost


async def test_g4_calls_that_hang_open_it_too() -> None:
    world = World(down(lambda: CallTimeout("silent", phase="first_byte")), fault_seconds=5.0)
    await world.agents(30, until=80.0)
    during = world.sent(OUT, BACK)
    assert 30 <= len(during) <= 1.1 * sum(request.attempts == 0 for request in during) + 10
    assert len(world.lost) <= 1


async def test_without_patience_calls_fail_at_once_and_few_are_sent() -> None:
    """The control: it is the waiting that loses no call."""
    world = World(down(lambda: UpstreamFault("broken", status=500)), patience=Patience(), limits=Limits(rpm=600))

    async def pause(at: float) -> None:
        await world.clock.sleep(at - world.now)

    await world.agents(2, until=OUT)
    for second in range(10, 70):
        await pause(second)
        with pytest.raises(UpstreamFault):
            await world.ask()
    assert 5 <= len(world.sent(OUT, BACK)) <= 20
    assert {error.attempts for error in world.lost} <= {0, 1, 2, 3}
    await pause(101.0)
    assert await world.ask() == "ok"


async def test_g19_one_percent_of_mixed_faults_loses_nothing() -> None:
    rng = Random(3)
    makers: list[Callable[[], ModelError]] = [
        *FAULTS,
        lambda: CallTimeout("x", phase="idle"),
        lambda: MalformedReply("x"),
    ]
    world = World(lambda at: rng.choice(makers)() if rng.random() < 0.01 else None)
    await world.agents(50, until=25.0)
    assert world.done > 2000 and sum(world.steps.values()) > 15
    assert len(world.lost) <= 0.001 * world.done
