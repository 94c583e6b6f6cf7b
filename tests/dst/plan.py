"""What a seed stands for: how many workers there are, what comes in, and what goes wrong. Each seed leaves some faults
out, so that those it has come often (swarm testing: Groce et al., ISSTA 2012).
"""

from __future__ import annotations

import json
import random
from typing import Any, Literal

import msgspec

from .disk import Weather

Fault = Literal["kill", "stop", "hang", "end", "hurry", "give up", "kill other", "away", "clock"]
FAULTS: tuple[Fault, ...] = ("kill", "kill", "stop", "hang", "end", "hurry", "give up", "kill other", "away", "clock")
DOES = ("well", "well", "well", "long", "fails", "passing", "raises", "later", "halt", "deaf", "hang", "poison")
FORGOTTEN = "잊힌 손님"
NOBODY = float("inf")  # comes to look after it


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """seconds: until nothing goes wrong any more. batches: of submissions. every: steps from one fault to the next, on
    average. does: what work does. wired: bells ring in all processes. people: seconds between what they do.
    submitters: clients at once in a process. chained: most tasks need what was submitted shortly before, and people
    remove what has ended. until_empty: some workers end by themselves when nothing is left to do. poisons: so many of
    the first tasks kill their workers, and nothing else goes wrong. growing: slots follow the work; throttled: and the
    calls that wait for the endpoint. tellers: processes that tell a webhook what has ended.
    """

    lease: float
    slots: int
    workers: int
    poll: float
    grace: float
    seconds: float
    batches: int
    batch: int
    pause: float
    priorities: tuple[int, ...]
    tenants: int
    kinds: tuple[str, ...]
    every: int
    faults: tuple[Fault, ...]
    does: tuple[str, ...]
    weather: Weather
    wired: bool
    lost: float
    doubled: float
    people: float
    submitters: int
    most_open: int
    chained: bool
    until_empty: bool
    poisons: int
    growing: bool
    throttled: bool
    tellers: int


def plan_of(rng: random.Random) -> Plan:
    weather = Weather()
    for name, most in (("slow", 0.05), ("broken", 0.05), ("unheard", 0.05), ("overtaken", 0.1)):
        if rng.random() < 0.35:
            setattr(weather, name, most * rng.random())
    weather.slowest = rng.choice((0.5, 3.0, 12.0))
    faults = tuple(sorted({fault for fault in FAULTS if rng.random() < 0.5}))
    kind = rng.random()
    crowded, poisons = kind < 0.15, 0 if kind < 0.94 else rng.randint(1, 2)
    alone, chained = crowded or poisons > 0, 0.15 < kind < 0.3
    return Plan(
        lease=rng.choice((1.5, 2.5, 4.0)),
        slots=rng.randint(1, 2) if crowded else rng.randint(1, 4),
        workers=rng.randint(1, 2) if crowded else rng.choice((2, 2, 3, 4)),
        poll=rng.choice((0.5, 1.0)),
        grace=rng.choice((0.5, 3.0)),
        seconds=rng.uniform(3.0, 7.0),
        batches=11 if crowded else rng.randint(3, 6),
        batch=9 if crowded else 5,
        pause=0.5 if crowded else 1.2,
        priorities=(1, 1, 1, 1, 1, 2, 3) if crowded else (1, 2, 3),
        tenants=rng.randint(1, 3),
        kinds=("a", "b") if rng.random() < 0.5 else ("a",),
        every=0 if alone or not faults else rng.randint(40, 400),
        faults=faults,
        does=("quick",) if alone else ("well", *(each for each in DOES if rng.random() < 0.5)),
        weather=Weather() if alone else weather,
        wired=rng.random() < 0.5,
        lost=rng.choice((0.0, 0.3, 1.0)),
        doubled=rng.choice((0.0, 0.3)),
        people=NOBODY if poisons else 0.4 if chained else rng.choice((0.5, 2.0, NOBODY)),
        submitters=rng.randint(1, 3),
        most_open=rng.choice((12, 30)) if rng.random() < 0.2 else 1000,
        chained=chained,
        until_empty=rng.random() < 0.3,
        poisons=poisons,
        growing=rng.random() < 0.3,
        throttled=rng.random() < 0.3,
        tellers=rng.randint(1, 2) if rng.random() < 0.3 else 0,
    )


def work_of(rng: random.Random, does: str) -> str:
    """The payload of a task."""
    long = {"quick": 0.2, "long": 3.0}.get(does, 0.3)
    work: dict[str, Any] = {"does": does, "steps": 1 if does == "quick" else rng.randint(0, 2)}
    return json.dumps(work | {"seconds": round(long * rng.uniform(0.1, 2.0), 3), "times": rng.randint(1, 3)})
