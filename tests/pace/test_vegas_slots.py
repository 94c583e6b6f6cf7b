"""Where a learned limit settles at a model server with slots, in virtual time.

The server works as llama.cpp does: so many calls have a slot, the others wait in order. It goes on in steps; each
takes time for the step itself, for every prompt token that is read in it and for every slot that speaks. So all are
slower the more are busy, and a long prompt holds up whoever speaks. Its machine has other things to do: a step takes
half as long or twice, and all is slower or faster for a minute.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import product
from random import Random
from statistics import median

import msgspec

from siafu.pace.aimd import Aimd
from siafu.pace.concurrency import Policy, Sample
from siafu.pace.vegas import Vegas

SLOTS, AGENTS, CALLS = 4, 12, 100
NOISE, DRIFT, DRIFT_SECONDS = 0.5, 0.5, 40.0  # sigmas of logarithms: of a step, and of the machine
# Seconds of a step, of a prompt token and of a token that is said: as measured on one core, on a GPU, and in between.
SPEEDS = {"core": (0.0, 0.02, 0.1), "gpu": (0.03, 0.001, 0.002), "between": (0.02, 0.008, 0.005)}
PROMPTS = {"short": (20,), "long": (90,), "mixed": (20, 90)}


class Call(msgspec.Struct):
    at: float
    in_flight: int
    unread: float  # tokens of the prompt
    left: int  # tokens to say
    said: int = 0
    first: float = 0.0


class Machine:
    """How long a piece of work takes that is worth `seconds`."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._load, self._at = rng, 0.0, 0.0

    def takes(self, now: float, seconds: float) -> float:
        kept = math.exp(-(now - self._at) / DRIFT_SECONDS)
        self._load = self._load * kept + DRIFT * math.sqrt(1 - kept**2) * self._rng.gauss(0, 1)
        self._at = now
        return seconds * self._rng.lognormvariate(self._load, NOISE)


def settled(
    make: Callable[[int], Policy], speed: str, prompts: str, seed: int, *, halved: bool = False, whole: bool = False
) -> float:
    """The median limit in the last third of a hundred streams or two hundred answers in one piece (`whole`); `halved`:
    after as many more with half of the slots.
    """
    calls = 2 * CALLS if whole else CALLS
    rng, policy, now, slots = Random(seed), make(100), 0.0, SLOTS
    machine, (step, reading, saying) = Machine(rng), SPEEDS[speed]
    waiting, busy, limits = deque[Call](), list[Call](), list[int]()
    while len(limits) < (2 * calls if halved else calls):
        while (under_way := len(waiting) + len(busy)) < AGENTS and policy.ready(now, under_way) == 0.0:
            tokens = rng.choice(PROMPTS[prompts]) * rng.uniform(0.8, 1.2)
            waiting.append(Call(now, under_way + 1, tokens, rng.randint(4, 12)))
        if len(limits) >= calls:
            slots = SLOTS // 2
        while waiting and len(busy) < slots:
            busy.append(waiting.popleft())
        now += machine.takes(now, step + sum(call.unread * reading if call.unread else saying for call in busy))
        for call in list(busy):
            call.unread, call.said, call.first = 0.0, call.said + 1, call.first or now
            if call.said >= call.left:
                busy.remove(call)
                limits.append(policy.limit)
                first, said = (None, call.said) if whole else (call.first - call.at, None)
                policy.ended(Sample(sent_at=call.at, now=now, in_flight=call.in_flight, first_token=first, tokens=said))
    return median(limits[-calls // 3 :])


def test_vegas_finds_the_slots_and_half_of_them() -> None:
    found = {
        halved: [
            settled(Vegas, speed, each, seed, halved=halved)
            for speed in SPEEDS
            for each in PROMPTS
            for seed in range(8)
        ]
        for halved in (False, True)
    }
    for halved, limits in found.items():
        slots = SLOTS / 2 if halved else SLOTS
        near = [abs(limit - slots) <= 1 for limit in limits]
        assert sum(near) >= 0.93 * len(near), sorted(limits)
        assert max(limits) <= slots + 2, sorted(limits)


def test_answers_in_one_piece_tell_less() -> None:
    for halved in (False, True):
        worlds = product(SPEEDS, PROMPTS, range(6))
        found = [settled(Vegas, *world, halved=halved, whole=True) for world in worlds]
        slots = SLOTS / 2 if halved else SLOTS
        near = [abs(limit - slots) <= 1 for limit in found]
        assert sum(near) >= 0.75 * len(near), sorted(found)
        assert median(found) in (slots, slots + 1), sorted(found)
        assert sum(limit >= AGENTS for limit in found) <= 1, sorted(found)


def test_the_control_a_policy_that_only_hears_refusals_lets_all_wait() -> None:
    assert settled(Aimd, "core", "short", 1) >= AGENTS
