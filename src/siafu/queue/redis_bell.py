"""A bell through Redis, for many processes: a ring is a note in a stream, and wakes one of them.

A note says which task was accepted, and no more: what is claimed, and by whom, is decided in the store by priority and
turn. So it may be lost, doubled, late or about a task that has ended: that costs a look, or the time until the next.
Redis may therefore be killed, wiped, full, slow or away: it is told, tried again and again, and waited for by nobody.

Only who has a free slot asks for notes. It drops them as soon as it has looked, whatever it found. If it has no slot
left then, it passes one note on, as there may be more than it could take.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from random import Random

from siafu.border.secrets import Secret
from siafu.errors import StoreError
from siafu.pace.backoff import full_jitter
from siafu.pace.clock import Clock
from siafu.queue.doorbell import Doorbell
from siafu.store.redis import RedisDoor, RedisStream

GROUP = "workers"
MOST = 1000  # notes that wait, about: enough to wake a hundred processes
AT_ONCE = 100  # notes of one round trip
READ, BLOCK = 10, 2.0  # notes of one read; seconds that it waits for the first
SLOW = 1.0  # seconds that Redis may take besides
BASE, CAP = 0.5, 10.0  # of the pause after a fault, in seconds
DEAD = 60.0  # seconds after which a reader that does not ask is removed; it is looked for as often
QUIET = 60.0  # seconds between two faults that are told


class RedisBell(Doorbell):
    """Rings in this process, and through Redis in others. It works while `open` runs.

    place: of the tasks, the same for all who share them. reader: who listens to others, nobody else's name; None = it
    only rings. notice: told when Redis is lost, and when it is back.

    Raises: ConfigError when the address cannot be used.
    """

    def __init__(
        self, url: Secret, place: str, *, reader: str | None, clock: Clock, rng: Random, notice: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._reader = reader
        self._doors = [RedisDoor(url, timeout=SLOW), RedisDoor(url, timeout=BLOCK + SLOW)]
        self._out, self._in = (RedisStream(door, f"siafu:tasks:{place}", GROUP, most=MOST) for door in self._doors)
        self._sending = _Line("rung", clock, rng, notice)
        self._hearing = _Line("heard", clock, rng, notice)
        self._clock, self._rng = clock, rng
        self._notes: deque[str] = deque(maxlen=MOST)
        self._rung, self._looked = asyncio.Event(), asyncio.Event()
        self._free = 0
        self._over = False
        self._tidy_at = float("-inf")

    def ring(self, tasks: Collection[str] = ()) -> None:
        super().ring(tasks)
        self._pass_on(tasks or ("",))

    def looked(self, free: int) -> None:
        self._free = free
        self._looked.set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Ring and listen while the block runs; then send what has been rung, if Redis takes it at once."""
        sender = asyncio.create_task(self._send(), name="siafu bell, sending")
        listener = asyncio.create_task(self._listen(), name="siafu bell, listening")
        try:
            yield
        finally:
            listener.cancel()
            self._over = True
            self._rung.set()
            await asyncio.wait({sender}, timeout=0 if self._sending.faults else SLOW)
            sender.cancel()
            ends = await asyncio.gather(sender, listener, return_exceptions=True)
            if self._reader is not None and not self._hearing.faults:
                with contextlib.suppress(StoreError):
                    await self._in.leave(self._reader)
            for door in self._doors:
                await door.aclose()
            for fault in ends:
                if isinstance(fault, Exception):
                    raise fault

    def _pass_on(self, notes: Collection[str]) -> None:
        self._notes.extend(notes)
        self._rung.set()

    async def _send(self) -> None:
        while not self._over or self._notes:
            await self._rung.wait()
            self._rung.clear()
            while self._notes:
                some = [self._notes.popleft() for _ in range(min(AT_ONCE, len(self._notes)))]
                try:
                    await self._out.add(some)
                except StoreError as error:
                    await self._sending.lost(error)
                    self._notes.clear()  # by now they were found without
                else:
                    self._sending.good()

    async def _listen(self) -> None:
        while self._reader is not None:
            try:
                await self._in.join()
                while True:
                    await self._hear(self._reader)
            except StoreError as error:
                await self._hearing.lost(error)

    async def _hear(self, reader: str) -> None:
        while not self._free:
            self._looked.clear()
            await self._looked.wait()
        notes = await self._in.read(reader, READ, BLOCK)
        if notes:
            self._looked.clear()
            super().ring()
            await self._looked.wait()
            await self._in.drop(notes)
            if not self._free:
                self._pass_on(("",))
        if self._clock.now() >= self._tidy_at:
            await self._in.tidy(DEAD)
            self._tidy_at = self._clock.now() + DEAD * self._rng.uniform(0.5, 1.5)
        self._hearing.good()


class _Line:
    """What has become of one direction. faults: in a row."""

    def __init__(self, what: str, clock: Clock, rng: Random, notice: Callable[[str], None]) -> None:
        self.faults = 0
        self._what, self._clock, self._rng, self._notice = what, clock, rng, notice
        self._told, self._told_at = False, float("-inf")

    async def lost(self, error: StoreError) -> None:
        """Tell it, unless one was told a short while ago, and pause before the next try."""
        self.faults += 1
        if not self._told and self._clock.now() - self._told_at >= QUIET:
            self._told, self._told_at = True, self._clock.now()
            why = f"so workers find tasks by looking: {error.message}"
            self._notice(f"the bell cannot be {self._what} through Redis, {why}")
        await self._clock.sleep(full_jitter(self.faults, self._rng, base=BASE, cap=CAP))

    def good(self) -> None:
        self.faults = 0
        if self._told:
            self._told = False
            self._notice(f"the bell can be {self._what} through Redis again")
