"""What runs behind a map: reading, claiming, working, recording; all within one task group.

reader -> claimer -> window (by priority) -> one flight an item -> window (finished) -> whoever iterates

The engine knows nothing of the handle that users hold, so dropping the handle is noticed and ends the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

import msgspec

from siafu.agents.task import Surroundings
from siafu.errors import ConfigError, InputError, SiafuError
from siafu.observe.events import Event, ItemEnded, ItemStarted, RunResumed, Waited
from siafu.store.records import Claimed, ItemRecord, RunStore
from siafu.swarm.crew import Crew, Pause
from siafu.swarm.ending import put_down, root_cause
from siafu.swarm.intake import END, Entry, Source, make_entry
from siafu.swarm.keys import Name, Recent, changed, copy_name
from siafu.swarm.options import MapOptions
from siafu.swarm.parking import Parking
from siafu.swarm.results import MapResult, MapSummary, Tally, failure, tell
from siafu.swarm.window import Window
from siafu.swarm.work import Job

CLAIMS = 256
SLICE = 0.005  # seconds that reading may keep the event loop

log = logging.getLogger("siafu")


class Engine:
    """One run of a map."""

    def __init__(
        self, job: Job, source: Source, around: Surroundings, store: RunStore | None, options: MapOptions
    ) -> None:
        self._job = job
        self._source = source
        self._observer = around.observer
        self._around = msgspec.structs.replace(around, observer=self._tell)
        self._store = store
        self._options = options
        self._window: Window[Entry, MapResult] = Window(options.held, ordered=options.ordered)
        self._tally = Tally()
        self._crew = Crew(job, self._around, store, options, self._tally)
        self._parking = Parking(options.wait)
        self._recent = Recent()
        self._copies: dict[str, int] = {}
        self._arrived: deque[Entry] = deque()
        self._read_all = False
        self._flying = 0
        self._stopped = ("", "")
        self._budget = ""
        self._left: Pause | None = None  # why an item was left while others went on
        self._began = self._ended = 0.0
        self._ends_at: float | None = None
        self._observer_failed = False
        self._news = asyncio.Event()  # for the claimer: something was read
        self._room = asyncio.Event()  # for the reader: something was taken
        self._ready = asyncio.Event()  # for whoever iterates: something has finished
        self._main: asyncio.Task[None] | None = None
        self._feeders: list[asyncio.Task[None]] = []
        self.error: BaseException | None = None

    # ---- for the handle -----------------------------------------------------------------------------------------

    async def next(self) -> MapResult | None:
        """The next result; None at the end. Starts the run at the first call. Cancelling does not end the run."""
        if self._main is None:
            self._main = asyncio.create_task(self._run(), name=f"siafu.map {self._options.run}")
        while True:
            result = self._window.take()
            self._room.set()
            if result is not None:
                return result
            if self._main.done():
                return None
            self._ready.clear()
            await self._ready.wait()

    async def close(self) -> None:
        """Cancel what runs and wait for its end, within bounds."""
        if self._main is not None:
            await put_down({self._main}, 5 * self._options.grace)  # itself it waits for work, then for the reader
        while self._window.take() is not None:
            pass

    def wind_up(self, error: SiafuError) -> None:
        """Start nothing new; what flies goes on to its end. `error`: why."""
        self._stop(error.code, error.message)

    def drop(self) -> None:
        """Nobody holds the handle any more: end the run. May be called from any thread."""
        if self._main is not None and not self._main.done():
            try:
                self._main.get_loop().call_soon_threadsafe(self._main.cancel)
            except RuntimeError:  # the loop is closed: nothing runs any more
                pass

    def summary(self) -> MapSummary:
        sums = self._tally.sums
        sums["read"] = self._window.read
        sums["left"] = sums["read"] - sums["ok"] - sums["failed"] - sums["waiting"]
        code, message = self._stopped
        until = self._ended or self._around.clock.now()
        return MapSummary(
            **sums,
            stopped=code,
            stop_message=message,
            budget=self._budget,
            seconds=until - self._began if self._began else 0,
        )

    # ---- the run ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._began = self._around.clock.now()
        timer = reader = None
        try:
            await self._begin()
            if self._options.deadline is not None:
                self._ends_at = self._began + self._options.deadline
                timer = asyncio.create_task(self._time_out(self._options.deadline))
            reader = asyncio.create_task(self._read())
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._feeders = [reader, group.create_task(self._claim())]
                if self._stopped[0]:  # before it began
                    self._stop(*self._stopped)
            if self.error is not None:
                self._fail(self.error)
            elif self._left is not None:
                self._stop(self._left.code, self._left.message)
        except asyncio.CancelledError:
            self._stop("closed", "the run was closed before its end")
        except Exception as error:  # noqa: BLE001  handed to whoever iterates
            self._fail(root_cause(error))
        finally:
            if timer is not None:
                timer.cancel()
            try:
                if reader is not None and await put_down({reader}, self._options.grace):
                    log.warning("run %s: an input iterator did not end when it was cancelled", self._options.run)
            finally:
                self._ended = self._around.clock.now()
                self._window.close()
                self._ready.set()

    async def _begin(self) -> None:
        if self._store is None:
            return
        state = await self._store.begin(self._job.work_print)
        if state.changed and self._options.on_change == "refuse":
            raise ConfigError(
                f"{state.changed} finished items were done by other work than this. Run them again with "
                'on_change="rerun", keep their results with "keep", or give the run a new journal'
            )
        rerun = self._options.on_change == "rerun"
        self._tally.sums["in_flight_lost"] = state.in_flight
        self._tally.sums["in_flight_lost_pico"] = state.in_flight_pico
        if state.session > 1:
            self._tell(
                RunResumed(
                    run=self._options.run,
                    finished=state.finished,
                    failed=state.failed,
                    changed=state.changed if rerun else 0,
                    changed_usd_pico=state.changed_pico if rerun else 0,
                    in_flight=state.in_flight,
                )
            )

    async def _time_out(self, seconds: float) -> None:
        await self._around.clock.sleep(seconds)
        self._stop("deadline_reached", f"the {seconds:g} seconds given to the run are over")
        self._halt()

    def _fail(self, error: BaseException) -> None:
        self._stop("failed", tell(error))
        self.error = self.error or error

    def _stop(self, code: str, message: str) -> None:
        """Start nothing new; what flies goes on. The first reason stays."""
        if not self._stopped[0]:
            self._stopped = (code, message)
        self._window.give_up()
        self._arrived.clear()
        for feeder in self._feeders:
            feeder.cancel()

    def _halt(self) -> None:
        """Cancel what flies, too."""
        assert self._main is not None  # noqa: S101
        self._main.cancel()

    # ---- reading and claiming -----------------------------------------------------------------------------------

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE
        try:
            while True:
                await self._taken()
                item = await self._source.next()
                if item is END:
                    return
                self._enter(item)
                if loop.time() > until:
                    await asyncio.sleep(0)
                    until = loop.time() + SLICE
        except asyncio.CancelledError:
            if not self._feeders[0].cancelling():  # not we, but something within the iterator
                self.error = InputError("the input iterator was cancelled from within, so not all items were read")
            raise
        except Exception as error:  # noqa: BLE001  of the caller's iterator; raised when all that was read is done
            self.error = error
        finally:
            self._read_all = True
            self._news.set()

    def _enter(self, item: Any) -> None:
        index = self._window.enter()
        try:
            self._arrived.append(make_entry(item, index, self._options, durable=self._store is not None))
        except Exception as error:  # noqa: BLE001  of the caller's key or priority: this item's error
            self._finish(failure(Entry(index, item, Name(str(index))), error))
        self._news.set()

    async def _claim(self) -> None:
        while True:
            while not self._arrived:
                if self._read_all:
                    return await self._look_again()
                self._news.clear()
                await self._news.wait()
            batch = [self._arrived.popleft() for _ in range(min(CLAIMS, len(self._arrived)))]
            for entry, claimed in zip(batch, await self._claims(batch), strict=True):
                self._admit(entry, claimed)
            self._dispatch()
            await asyncio.sleep(0)

    async def _look_again(self) -> None:
        """Once all else has ended and was taken, start what waits again, now and then, until nothing waits or the time
        for that is over. Between two looks no slot is held.
        """
        clock = self._around.clock
        while self._options.wait is not None and self.error is None:
            await self._taken(all_of_it=True)
            pause = self._parking.pause(clock.now())
            if pause is None:
                return
            self._tell(Waited(run=self._options.run, reason="waiting", seconds=pause))
            await clock.sleep(pause)
            for entry in self._parking.entries:
                await self._taken()
                self._window.enter_again()
                self._window.wait(entry.index, entry.priority, entry)
                self._dispatch()

    async def _taken(self, *, all_of_it: bool = False) -> None:
        """Wait until the window has room, or, with `all_of_it`, holds nothing."""
        while self._window.held if all_of_it else self._window.room <= 0:
            self._room.clear()
            await self._room.wait()

    async def _claims(self, batch: list[Entry]) -> list[Claimed]:
        if self._store is not None:
            return await self._store.claim([(entry.name.key, entry.name.input_print) for entry in batch])
        given = self._options.key is not None
        keys = [entry.name.key for entry in batch]
        return [Claimed(key=key, duplicate=given and self._recent.repeats(key)) for key in keys]

    def _admit(self, entry: Entry, claimed: Claimed) -> None:
        record, name = claimed.record, entry.name
        if claimed.duplicate and name.by_content:
            number = self._copies[name.input_print] = self._copies.get(name.input_print, 1) + 1
            entry.name = copy_name(name.input_print, number)
            self._arrived.append(entry)
        elif claimed.duplicate:
            twice = InputError(f"an earlier item of this run has the key {name.key!r} too; this one was not run")
            self._finish(failure(entry, twice, code="duplicate_key"))
        elif record is not None and record.input_print != name.input_print and not self._retries(record):
            other = InputError(
                f"the item {name.key!r} is in the journal with other content, whose result is kept; give the changed "
                "item a new key, or the run a new journal"
            )
            self._finish(failure(entry, other, code="input_changed"))
        elif record is not None and not self._runs_again(record):
            self._finish(self._crew.restore(entry, record))
        else:
            entry.retried = record is not None and record.status == "error"
            entry.journaled = claimed.journaled
            self._window.wait(entry.index, entry.priority, entry)

    def _retries(self, record: ItemRecord) -> bool:
        return record.status == "error" and self._options.retry_failed

    def _runs_again(self, record: ItemRecord) -> bool:
        if record.status == "error":
            return self._retries(record)
        again = self._options.on_change == "rerun" and changed(record, self._job.work_print)
        self._tally.sums["changed"] += again
        return again

    # ---- working ------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        most = 0 if self._stopped[0] else self._options.concurrency
        while self._flying < most and (entry := self._window.next()) is not None:
            self._flying += 1
            self._tally.sums["peak"] = max(self._tally.sums["peak"], self._flying)
            self._group.create_task(self._fly(entry))

    async def _fly(self, entry: Entry) -> None:
        self._tell(ItemStarted(run=self._options.run, task=entry.name.key))
        result = await self._crew.do(entry, self._ends_at)
        if isinstance(result, MapResult):
            self._settle(entry, result)
        else:
            self._window.finish(entry.index, None)
            self._ready.set()
        if isinstance(result, Pause) and result.item_only:
            self._left = result
        elif isinstance(result, Pause):
            self._stop(result.code, result.message)
            if result.needs_pico > self._tally.sums["needs_pico"]:
                self._tally.sums["needs_pico"], self._budget = result.needs_pico, result.budget
        self._flying -= 1
        self._dispatch()

    def _settle(self, entry: Entry, result: MapResult) -> None:
        """Take the result of an item that has been worked on: maybe again, after it has waited."""
        told = self._parking.take(entry.index)
        if told is not None:
            self._tally.add(told, -1)
        if result.status == "waiting":
            self._parking.put(entry, result)
        same = told is not None and (told.error, told.value) == (result.error, result.value)
        if told is not None and not same:
            self._parking.news()
        self._finish(result, told=same)

    def _finish(self, result: MapResult, *, told: bool = False) -> None:
        """`told`: it waits as it did before, so it is not given out a second time."""
        self._tally.add(result)
        self._tell(
            ItemEnded(
                run=self._options.run,
                task=result.key,
                ok=result.ok,
                code="" if result.error is None else result.error.code,
                seconds=result.seconds,
                restored=result.restored,
                waits=result.status == "waiting",
            )
        )
        if self._options.on_error == "fail_fast" and result.error is not None and result.status == "error":
            error = result.exception or SiafuError(f"{result.error.message} (in an earlier session; see retry_failed)")
            error.add_note(f"while working on item {result.key!r} (no. {result.index + 1})")
            self._fail(error)
            self._halt()
            return
        self._window.finish(result.index, None if told else result)
        self._ready.set()

    def _tell(self, event: Event) -> None:
        """Count the event and tell the observer. One that raises is logged the first time and cannot end the run."""
        self._tally.see(event)
        try:
            self._observer(event)
        except Exception:
            if not self._observer_failed:
                log.exception("run %s: an observer failed; this is said once", self._options.run)
            self._observer_failed = True
