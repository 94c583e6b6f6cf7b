"""The parent of worker processes, with small processes instead of workers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from processes import alive
from siafu.border.stopping import Stops
from siafu.pace.clock import SystemClock, VirtualClock
from siafu.queue import supervisor as module
from siafu.queue.pulse import Kept, stands_still
from siafu.queue.supervisor import Ended, Patience, Supervisor, worst

SECONDS = 20.0  # the longest that anything here may take
SLEEPS = "while true; do sleep 0.05; done"
STILL = 1.0  # seconds until a process that has begun to beat hangs
PULSE = "pulse=/proc/self/fd/$(echo $1 | grep -o '\"pulse\":[0-9]*' | cut -d: -f2)"


class Site:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "FIRST", 0.05)
        self.folder, self.said, self.stops = folder, list[str](), Stops(asyncio.Event(), asyncio.Event())

    async def run(
        self, script: str, number: int = 1, *, seconds: float = SECONDS, start: float = SECONDS
    ) -> list[Ended]:
        words = ["/bin/sh", "-c", f"echo $$ >> pids; {script}"]
        patience = Patience(closing=seconds, start=start, still=STILL)
        supervisor = Supervisor(
            words, {"WHERE": "여기"}, patience, self.said.append, clock=SystemClock(), rng=Random(1)
        )  # fmt: skip
        return await supervisor.run(number, self.stops)

    def pids(self) -> list[int]:
        file = self.folder / "pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    async def started(self, number: int) -> list[int]:
        async with asyncio.timeout(SECONDS):
            while len(self.pids()) < number:
                await asyncio.sleep(0.01)
        return self.pids()


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.chdir(tmp_path)
    found = Site(tmp_path, monkeypatch)
    async with asyncio.timeout(SECONDS):
        yield found
    assert not [pid for pid in found.pids() if alive(pid)]


async def test_what_ends_by_its_own_will_is_not_started_again(site: Site) -> None:
    codes = 'read -r n < n; echo $((n + 1)) > n; echo "$WHERE"; exit $n'
    (site.folder / "n").write_text("2\n")
    ended = await site.run(codes)
    assert ended == [Ended(code=2, output="여기\n".encode(), deaths=0)] and site.said == []


async def test_what_dies_is_started_again_and_the_reason_told(site: Site) -> None:
    lives = "case $(wc -l < pids) in 1) kill -9 $$;; 2) exit 1;; *) echo done;; esac"
    (ended,) = await site.run(lives)
    assert (ended.code, ended.output, ended.deaths) == (0, b"done\n", 2)
    assert [line.partition(";")[0].partition(") ")[2] for line in site.said] == [
        "was ended by SIGKILL", "ended with exit code 1",
    ]  # fmt: skip
    assert f"worker process 1 (pid {site.pids()[0]})" in site.said[0] and "starts again in" in site.said[0]


async def test_what_hangs_is_killed_and_started_again(site: Site) -> None:
    beats = "for n in 1 2 3 4 5 6 7 8 9 a b c d e; do echo . > $pulse; sleep 0.1; done; echo $1"  # longer than STILL
    lives = f"{PULSE}; case $(wc -l < pids) in 1) echo . > $pulse; kill -STOP $$;; 2) exit 1;; *) {beats};; esac"
    (ended,) = await site.run(lives)
    assert (ended.code, ended.deaths) == (0, 2)
    (first, *_), (hung, died) = site.pids(), site.said
    assert hung.startswith(f"worker process 1 (pid {first}) did not move for 1 s and was killed; it starts again in")
    assert "ended with exit code 1" in died
    kept = msgspec.json.decode(ended.output, type=Kept)
    assert (kept.died, kept.hung) == (1, 1)
    assert [rows for family in kept.families() for rows in family.rows] == [(("died",), 1.0), (("hung",), 1.0)]


async def test_what_hangs_before_it_has_begun_is_killed_and_started_again(site: Site) -> None:
    (ended,) = await site.run("case $(wc -l < pids) in 1) kill -STOP $$;; *) exit 0;; esac", start=0.5)
    assert (ended.code, ended.deaths) == (0, 1)
    assert "did not move for 0.5 s and was killed" in site.said[0]


class Suspended(VirtualClock):
    """The whole machine is suspended for an hour at each look; a beat comes in before each third of the first 30."""

    def __init__(self, beats: int) -> None:
        super().__init__()
        self._beats, self.looks = beats, 0

    async def sleep(self, seconds: float) -> None:
        await super().sleep(3600)
        self.looks += 1
        if self.looks <= 30 and self.looks % 3 == 0:
            os.write(self._beats, b".")


async def test_while_the_parent_stands_still_itself_nobody_hangs() -> None:
    ours, theirs = os.pipe()
    clock = Suspended(theirs)
    assert await stands_still(ours, 5.0, 8.0, clock) == 8.0
    assert clock.looks == 30 + 8
    os.close(theirs)
    assert not await stands_still(ours, 5.0, 8.0, clock)  # it ends, and does not hang
    os.close(ours)


async def test_what_cannot_be_started_is_tried_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    start, fails = asyncio.create_subprocess_exec, [True]

    async def failing(*words: Any, **more: Any) -> Any:
        if fails and fails.pop():
            raise OSError(11, "Resource temporarily unavailable")
        return await start(*words, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", failing)
    (ended,) = await site.run("exit 0")
    assert (ended.code, ended.deaths) == (0, 1)
    assert site.said[0].startswith("worker process 1 could not be started (Resource temporarily unavailable); it st")


async def test_g8_a_signal_is_passed_on_and_a_second_one_too(site: Site) -> None:
    twice = "trap 'n=$((n+1)); [ $n = 2 ] && exit 0' TERM INT"
    running = asyncio.create_task(site.run(f"n=0; {twice}; {SLEEPS}", 2))
    await site.started(2)
    await asyncio.sleep(0.2)  # until they have set their traps
    site.stops.signal()
    await asyncio.sleep(0.2)
    assert not running.done()
    site.stops.signal()
    assert [each.code for each in await running] == [0, 0] and site.said == []


@pytest.mark.parametrize("early", ["", "trap 'exit 130' TERM; "], ids=["the system ends it", "it is interrupted"])
async def test_who_is_stopped_before_it_listens_has_lost_nothing(site: Site, early: str) -> None:
    running = asyncio.create_task(site.run(early + "echo > ready; " + SLEEPS))
    while not (site.folder / "ready").exists():
        await asyncio.sleep(0.01)
    site.stops.signal()
    assert [each.code for each in await running] == [0]


async def test_g8_who_does_not_end_in_time_is_killed(site: Site) -> None:
    running = asyncio.create_task(site.run(f"trap '' TERM; {SLEEPS}", seconds=0.3))
    await site.started(1)
    await asyncio.sleep(0.1)
    site.stops.signal()
    assert [each.code for each in await running] == [1]
    assert "did not end in time" in site.said[0]


async def test_while_it_pauses_before_a_new_start_a_signal_ends_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST", 10 * SECONDS)
    running = asyncio.create_task(site.run("exit 1"))
    while not site.said:
        await asyncio.sleep(0.01)
    site.stops.signal()
    assert [(each.code, each.deaths) for each in await running] == [(0, 1)]


async def test_a_cancelled_parent_leaves_nobody(site: Site) -> None:
    running = asyncio.create_task(site.run(f"trap '' TERM; {SLEEPS}", 2))
    pids = await site.started(2)
    running.cancel()
    await asyncio.wait({running})
    until = time.monotonic() + SECONDS
    while any(map(alive, pids)):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


async def test_they_are_in_groups_of_their_own_so_that_a_terminal_reaches_the_parent_alone(site: Site) -> None:
    running = asyncio.create_task(site.run(SLEEPS))
    (pid,) = await site.started(1)
    assert os.getpgid(pid) == pid != os.getpgrp()
    site.stops.signal()
    await running


@pytest.mark.parametrize(
    ("codes", "found"), [((0, 0), 0), ((0, 1), 1), ((1, 3), 3), ((3, 2, 0), 2), ((0, 130), 130), ((), 0)]
)
def test_the_worst_exit_code_counts(codes: tuple[int, ...], found: int) -> None:
    assert worst(codes) == found
