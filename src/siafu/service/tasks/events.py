"""Events as they happen, as a stream (SSE), from a place in their order on.

What happens is read once for all who listen, into a window of the newest events; who has fallen behind that, or comes
with an older Last-Event-ID, reads pages of the store. A client that takes nothing in holds back its own reading and
nothing else; after the server's time for that it is cut off, and goes on where it was when it comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Mapping

import msgspec

from siafu.errors import StoreError
from siafu.pace.clock import Clock
from siafu.queue.doorbell import Doorbell
from siafu.service.access import Holder
from siafu.service.completions import STREAM_HEADERS
from siafu.service.exchange import Exchange
from siafu.service.refusals import Refused
from siafu.service.tasks.shapes import event_shown
from siafu.store.task_events import TaskEvent, TaskViews, Whose
from siafu.store.task_records import TERMINAL

MOST_LISTENERS, A_KEY = 200, 50  # streams at once, of all and of one key
PAGE = 100  # events that are read and sent at once: the most that a stream holds in memory
SPAN = 10_000  # events, of whomever, that are looked through at once
WINDOW = 1_000  # newest events that are kept for all
LOOK_SECONDS = 0.5  # between two looks for what other processes have done
CHECK_SECONDS = 1.0  # until a key that was revoked is noticed
BEAT_SECONDS = 15.0  # between two signs of life
log = logging.getLogger("siafu")


class Listeners:
    """All who listen, and what they share. bell: rung when there may be news."""

    def __init__(self, views: TaskViews, bell: Doorbell, clock: Clock) -> None:
        self.views = views
        self.clock = clock
        self._closing = False
        self.last = 0  # place of the newest event that is known
        self.window: deque[TaskEvent] = deque(maxlen=WINDOW)
        self.begins = 0  # the window holds all events behind this place
        self._bell = bell
        self._streams: Counter[str] = Counter()  # by key
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def join(
        self, x: Exchange, whose: Whose, filters: Mapping[str, str], holder: Holder | None, *, after: int | None
    ) -> Stream:
        """A stream of the events behind the place `after`; None = from now on. filters: as in `TaskViews.events_of`.

        Raises: Refused when there are too many, or there has been no such event; StoreError.
        """
        key = "" if holder is None else holder.key.id
        if self._streams.total() >= MOST_LISTENERS or (key and self._streams[key] >= A_KEY):
            message = f"{self._streams[key]} streams of events are open, as many as may be; close one, or try later"
            raise Refused(429, message, code="rate_limit_exceeded", wait=BEAT_SECONDS)
        self._streams[key] += 1
        stream = Stream(self, x, whose, filters, holder)
        try:
            last = await self.views.settle()
            if after is not None and after > last:
                message = f"no event has the id {after} yet; is the database another one by now?"
                raise Refused(409, message, code="event_unknown", param="last-event-id", again=False)
        except BaseException:
            stream.leave()
            raise
        stream.after = last if after is None else after
        if self._looking is None:
            self.last = self.begins = last
            self._looking = asyncio.create_task(self._look(), name="siafu events")
        return stream

    @property
    def open(self) -> bool:
        """False when streams shall end: the server stops, or nobody looks for news any more."""
        return not self._closing and self._looking is not None and not self._looking.done()

    def left(self, key: str) -> None:
        self._streams[key] -= 1
        if not self._streams.total() and self._looking is not None:
            self._looking.cancel()
            self._looking = None
            self.window.clear()

    def close(self) -> None:
        """End all streams: the server stops."""
        self._closing = True
        self._tell()

    async def news(self, seconds: float) -> None:
        """Until there may be some, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _look(self) -> None:
        """Read what happens, for all."""
        rung = asyncio.Event()
        failed = False
        with self._bell.heard(rung.set):
            while True:
                try:
                    await self._read()
                    failed = False
                except StoreError as error:
                    if not failed:
                        log.warning("events of tasks cannot be read, it is tried again: %s", error.message)
                    failed = True
                rung.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await rung.wait()

    async def _read(self) -> None:
        newest = await self.views.settle()
        while self.last < newest:
            found = await self.views.events(after=self.last, upto=newest, limit=WINDOW)
            for event in found:
                if len(self.window) == WINDOW:
                    self.begins = self.window[0].place
                self.window.append(event)
            self.last = found[-1].place if len(found) == WINDOW else newest
            self._tell()


class Stream:
    """What one client hears. after: the place up to which it has been told all. It has to be left once."""

    def __init__(
        self, listeners: Listeners, x: Exchange, whose: Whose, filters: Mapping[str, str], holder: Holder | None
    ) -> None:
        self.after = 0
        self._listeners = listeners
        self._x = x
        self._whose = whose
        self._filters = filters
        self._holder = holder

    def leave(self) -> None:
        self._listeners.left("" if self._holder is None else self._holder.key.id)

    async def run(self) -> None:
        """Send until the client leaves, the task has ended, the key counts no more, or the server stops."""
        x, clock = self._x, self._listeners.clock
        try:
            await x.begin(200, STREAM_HEADERS)
            await x.write(b"retry: 2000\n\n")
            beat = clock.now() + BEAT_SECONDS
            while self._counts():
                page, behind = await self._page()
                if page:
                    await x.write(b"".join(map(_event, page)))
                    if "id" in self._filters and page[-1].what in TERMINAL and not behind:
                        break
                elif clock.now() >= beat:
                    # an id without data moves the place from which a client goes on, and tells it nothing
                    await x.write(b":\nid: %d\n\n" % self.after)
                if page or clock.now() >= beat:
                    beat = clock.now() + BEAT_SECONDS
                if not behind and self.after >= self._listeners.last:
                    await self._listeners.news(CHECK_SECONDS)
            await x.write(b"", more=False)
        finally:
            self.leave()

    def _counts(self) -> bool:
        holder = self._holder
        valid = holder is None or holder.key.state(self._listeners.clock.wall()) == "active"
        return valid and self._listeners.open

    async def _page(self) -> tuple[list[TaskEvent], bool]:
        """The next events, and whether there are more of them already."""
        shared, upto = self._listeners, self._listeners.last
        if self.after >= shared.begins:
            found = [event for event in shared.window if event.place > self.after and self._wants(event)]
        else:
            if "id" not in self._filters:
                upto = min(upto, self.after + SPAN)
            found = await shared.views.events_of(
                self._whose, self._filters, after=self.after, upto=upto, limit=PAGE + 1
            )
        more = len(found) > PAGE
        del found[PAGE:]
        self.after = found[-1].place if more else max(self.after, upto)
        return found, more

    def _wants(self, event: TaskEvent) -> bool:
        named = {"id": event.task, "run": event.run, "kind": event.kind}
        return self._whose.owns(event.tenant, event.customer) and all(
            named[name] == value for name, value in self._filters.items()
        )


def _event(event: TaskEvent) -> bytes:
    told = event_shown(event)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.place, told.type.encode(), msgspec.json.encode(told))
