"""Workers that are killed with SIGKILL and stopped for longer than their leases, and what is left of it. With a Redis,
that has its faults meanwhile, one after the other.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from money.storm import onlooker
from nursery import Child, Nursery
from siafu.border.secrets import Secret
from siafu.queue.redis_bell import GROUP, MOST
from siafu.store.redis import RedisDoor, RedisStream
from siafu.store.task_desk import Which
from siafu.store.task_records import MOST_DELIVERIES, Accepted, Task
from store.task_house import House, new

from .child import ASKED, KIND, LEASE, PLACE, SLOTS
from .redis_faults import FAULTS, Town

WINDOWS = ("task_claimed", "task_appended", "task_ended", "effect_claimed", "effect_called")
WORKERS = 2
OPEN = 12  # tasks that are kept open
LONGEST_SLEEP = 8 * LEASE
STREAM = f"siafu:tasks:{PLACE}"


class Storm:
    """`run` does it. wish: of all workers, see `child`. redis: through which they are rung. What it counts:

    kills: workers killed while they held a task. stops: workers stopped while they held one, until their lease was over
    and another one had taken a task of theirs. windows: workers that died at the window they were born for. faults: of
    Redis, by name.
    """

    def __init__(self, folder: Path, url: str, *, seed: int, wish: str = "", redis: Town | None = None) -> None:
        self.kills = self.stops = self.deaths = 0
        self.windows: Counter[str] = Counter()
        self.accepted: list[str] = []
        self.poison = ""
        self.faults: Counter[str] = Counter()
        self._redis, self._fault, self._mend_at = redis, AsyncExitStack(), 0.0
        self.folder, self._url = folder, url
        self._wishes = [*filter(None, [wish]), *([redis.url("slow")] if redis else [])]
        self._rng, self._born = random.Random(seed), 0
        self._awake: dict[str, Child] = {}
        self._doomed: tuple[str, Child] | None = None

    async def run(self, kills: int, stops: int, seconds: float) -> dict[str, Any]:
        """Until there were so many, and each window was hit, at most for so long; then let everything end, and say how
        it came out; then have what is dead tried again, without the poison.
        """
        (self.folder / "paid").mkdir()
        (self.folder / "processes").mkdir()
        house = House(self._url)
        self._rows = onlooker(self._url)
        try:
            with Nursery(self.folder / "processes", "tasks.child") as nursery:
                self._nursery = nursery
                async with self._fault:
                    await self._rage(house, kills, stops, time.monotonic() + seconds)
                await self._end_all()
                found = await self._found(house)
                await house.desk.retry([task.id for task in found["tasks"] if task.state == "dead_letter"])
                await house.desk.cancel([self.poison])
                await self._settle("patient")  # nothing is killed any more, however slow the machine is
            return found | {"revived": await house.states(), "pending": await self._pending()}
        finally:
            self._rows.close()
            await house.aclose()

    async def _rage(self, house: House, kills: int, stops: int, deadline: float) -> None:
        self.poison = await self._submit(house, '"poison"')
        while time.monotonic() < deadline and (
            self.kills < kills
            or self.stops < stops
            or len(self.windows) < len(WINDOWS)
            or (self._redis is not None and len(self.faults) < len(FAULTS))
        ):
            await self._break_redis()
            states = await house.states()
            for _ in range(OPEN - states["ready"] - states["leased"]):
                await self._submit(house, '"일"')
            self._fill()
            await asyncio.sleep(self._rng.uniform(0.02, 0.12))
            self._bury()
            busy = [name for name in self._awake if self._held(name)]
            if busy and self.stops < stops:
                await self._stop(self._rng.choice(busy))
            elif busy and self.kills < kills:
                self._kill(self._rng.choice(busy))

    async def _break_redis(self) -> None:
        """What is broken is mended after a while; then comes what has been the least."""
        if self._redis is None or time.monotonic() < self._mend_at:
            return
        await self._fault.aclose()
        name = min(FAULTS, key=lambda each: (self.faults[each], self._rng.random()))
        self.faults[name] += 1
        self._mend_at = time.monotonic() + self._rng.uniform(0.1, 0.6)
        await self._fault.enter_async_context(FAULTS[name](self._redis))

    async def _pending(self) -> int:
        """Notes that were read and never dropped, once those who died are cleared away."""
        if self._redis is None:
            return 0
        door = RedisDoor(Secret(self._redis.url("killed")), timeout=5)
        stream = RedisStream(door, self._redis.stream, GROUP, most=MOST)
        await stream.join()
        await stream.tidy(0.0)
        await door.aclose()
        return int(self._redis.command("XPENDING", self._redis.stream, GROUP).split()[1][1:])

    async def _submit(self, house: House, payload: str) -> str:
        (answer,) = await house.store.accept([new(f"n{len(self.accepted)}", kind=KIND, payload=payload)])
        assert isinstance(answer, Accepted)
        self.accepted.append(answer.id)
        return answer.id

    def _fill(self) -> None:
        while len(self._awake) < WORKERS:
            name, child = self._bear()
            self._awake[name] = child
        if self._doomed is None:
            window = min(WINDOWS, key=lambda each: (self.windows[each], self._rng.random()))
            _, child = self._bear(f"{window}:{self._rng.randint(1, 6)}")
            self._doomed = window, child

    def _bear(self, crash_at: str = "", *wishes: str) -> tuple[str, Child]:
        self._born += 1
        name = f"w{self._born}"
        words = (self._url, str(self.folder), name, *wishes, *self._wishes)
        return name, self._nursery.bear(*words, crash_at=crash_at)

    def _bury(self) -> None:
        """Those that died by themselves: at their window, or of the poison."""
        if self._doomed is not None and (status := self._doomed[1].status()) is not None:
            assert status == -signal.SIGKILL, "a worker failed"
            self.windows[self._doomed[0]] += 1
            self.deaths += 1
            self._doomed = None
        for name, child in list(self._awake.items()):
            if child.status() is not None:
                assert child.wait(5) == -signal.SIGKILL, "a worker failed"
                self.deaths += 1
                del self._awake[name]

    def _kill(self, name: str) -> None:
        assert self._awake.pop(name).end() == -signal.SIGKILL, "a worker failed"
        self.deaths += 1
        self.kills += bool(self._held(name))

    async def _stop(self, name: str) -> None:
        child = self._awake[name]
        child.send(signal.SIGSTOP)
        child.wait_stopped(5)
        held, until = self._held(name), time.monotonic() + LONGEST_SLEEP
        while held and self._writable() and time.monotonic() < until and not held - self._held(name):
            await asyncio.sleep(0.05)
        taken = held - self._held(name)
        child.send(signal.SIGCONT)
        if taken:
            await asyncio.sleep(0.5)  # it wakes up and learns of it, before anything else happens to it
        self.stops += bool(taken)
        self.deaths += 1  # what it does in vain from now on is paid for, as after a death

    def _held(self, name: str) -> set[str]:
        sql = f"SELECT id FROM task WHERE state = 'leased' AND worker = '{name}'"
        return {id for (id,) in self._rows.execute(sql).fetchall()}

    def _writable(self) -> bool:
        """Whether others can go on; on SQLite one that was stopped within a transaction holds up all."""
        if self._url.startswith("postgresql"):
            return True
        try:
            self._rows.execute("BEGIN IMMEDIATE")
        except Exception:  # noqa: BLE001  sqlite3's own
            return False
        self._rows.execute("ROLLBACK")
        return True

    async def _end_all(self) -> None:
        """Without kills everything ends."""
        for child in [*self._awake.values(), *([self._doomed[1]] if self._doomed else [])]:
            child.end()
        self.deaths += WORKERS + 1
        await self._settle()

    async def _settle(self, *wishes: str) -> None:
        deadline = time.monotonic() + 100
        _, last = self._bear("", "until_empty", *wishes)
        while (status := last.status()) is None:
            assert time.monotonic() < deadline, "tasks are left that do not end"
            await asyncio.sleep(0.05)
        if status == -signal.SIGKILL:  # the poison, once more
            self.deaths += 1
            return await self._settle(*wishes)
        assert status == 0, "a worker failed"
        return None

    async def _found(self, house: House) -> dict[str, Any]:
        tasks: list[Task] = []
        while page := await house.desk.find(Which(), limit=500, after=tasks[-1] if tasks else None):
            tasks += page
        journaled = house.database.transact(
            lambda tx: tx.rows("SELECT task, COUNT(*) AS n FROM task_journal WHERE kind = 'model' GROUP BY task")
        )
        paid = Counter(file.name.partition("-")[0] for file in (self.folder / "paid").iterdir())
        asked = Counter((self.folder / "asked").read_text().split())
        return {"tasks": tasks, "paid": paid, "asked": asked, "journaled": {row["task"]: row["n"] for row in journaled}}


def violations(storm: Storm, found: dict[str, Any]) -> list[str]:
    """What must not be; empty = it held."""
    tasks = {task.id: task for task in found["tasks"]}
    good = [task for task in tasks.values() if task.state == "succeeded"]
    dead = [task for task in tasks.values() if task.state == "dead_letter"]
    wrong = {
        "lost": set(tasks) != set(storm.accepted),
        "not ended": len(good) + len(dead) != len(tasks),
        "doubled effects": any(number > 1 for number in found["paid"].values()),
        "missing effects": any(found["paid"][task.id] != 1 for task in good),
        "dead too early": any(task.deliveries != MOST_DELIVERIES or task.code != "worker_lost" for task in dead),
        "answers not journaled": any(found["journaled"].get(task.id) != ASKED for task in good),
        "paid twice for more than was in flight": (found["asked"].total() - sum(found["journaled"].values()))
        > SLOTS * storm.deaths,
        "not revived": found["revived"] != {"succeeded": len(tasks) - 1, "cancelled": 1},
        "pending in Redis": found["pending"] != 0,
        "poison": (tasks[storm.poison].state, tasks[storm.poison].lease_epoch) != ("dead_letter", MOST_DELIVERIES),
    }
    return [name for name, is_so in wrong.items() if is_so]
