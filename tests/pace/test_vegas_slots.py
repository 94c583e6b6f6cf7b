"""Where a learned limit settles at a model server with slots, in virtual time.

The server works as llama.cpp does: so many calls have a slot, the others wait in order. It goes on in steps; each
takes time for the step itself, for every prompt token that is read in it and for every slot that speaks. So all are
slower the more are busy, and a long prompt holds up whoever speaks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from statistics import median

import msgspec
import pytest

from siafu.pace.aimd import Aimd
from siafu.pace.concurrency import Policy, Sample
from siafu.pace.vegas import Vegas

SLOTS, AGENTS = 4, 12
# Seconds of a step, of a prompt token and of a token that is said: as measured on one core, on a GPU, and in between.
SPEEDS = {"core": (0.0, 0.02, 0.1), "gpu": (0.03, 0.001, 0.002), "between": (0.02, 0.008, 0.005)}
PROMPTS = {"short": (30,), "long": (150,), "mixed": (30, 150)}


class Call(msgspec.Struct):
    at: float
    in_flight: int
    unread: float  # tokens of the prompt
    left: int  # tokens to say
    said: int = 0
    first: float = 0.0


def settled(
    make: Callable[[int], Policy], speed: str, prompts: str, seed: int, *, halved: bool, whole: bool = False
) -> float:
    """The median limit in the last third of a hundred calls; `halved`: after a hundred more with half of the slots."""
    rng, policy, now, slots = Random(seed), make(100), 0.0, SLOTS
    step, reading, saying = SPEEDS[speed]
    waiting, busy, limits = deque[Call](), list[Call](), list[int]()
    calls = 200 if halved else 100
    while len(limits) < calls:
        while len(waiting) + len(busy) < AGENTS and policy.ready(now, len(waiting) + len(busy)) == 0.0:
            tokens = rng.choice(PROMPTS[prompts]) * rng.uniform(0.8, 1.2)
            waiting.append(Call(now, len(waiting) + len(busy) + 1, tokens, rng.randint(6, 14)))
        if len(limits) >= 100:
            slots = SLOTS // 2
        while waiting and len(busy) < slots:
            busy.append(waiting.popleft())
        work = sum(call.unread * reading if call.unread else saying for call in busy)
        now += (step + work) * rng.lognormvariate(0, 0.3)
        for call in list(busy):
            call.unread, call.said, call.first = 0.0, call.said + 1, call.first or now
            if call.said >= call.left:
                busy.remove(call)
                limits.append(policy.limit)
                first, tokens_out = (None, call.said) if whole else (call.first - call.at, None)
                policy.ended(
                    Sample(sent_at=call.at, now=now, in_flight=call.in_flight, first_token=first, tokens=tokens_out)
                )
    return median(limits[-33:])


@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("speed", SPEEDS)
def test_vegas_finds_the_slots_and_half_of_them(speed: str, prompts: str) -> None:
    full = [settled(Vegas, speed, prompts, seed, halved=False) for seed in range(10)]
    half = [settled(Vegas, speed, prompts, seed, halved=True) for seed in range(10)]
    assert min(full) >= 3 and median(full) <= 5 and max(full) <= 6, full
    assert min(half) >= 1 and median(half) <= 3 and max(half) <= 4, half


@pytest.mark.parametrize("prompts", PROMPTS)
def test_answers_in_one_piece_tell_less_but_never_let_many_wait(prompts: str) -> None:
    """Seconds per token rise with every slot that is busy, so on one core it stays below the slots."""
    assert all(2 <= settled(Vegas, "core", prompts, seed, halved=False, whole=True) <= 5 for seed in range(5))
    assert all(3 <= settled(Vegas, "gpu", prompts, seed, halved=False, whole=True) <= 5 for seed in range(5))


def test_the_control_a_policy_that_only_hears_refusals_lets_all_wait() -> None:
    assert settled(Aimd, "core", "short", 1, halved=False) >= AGENTS
