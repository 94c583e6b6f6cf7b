"""Processes in virtual time: event loops that are stepped by hand, one callback at a time, in an order that a seed
decides. They can be killed and stopped between any two callbacks, which is at any await.

Within a process callbacks keep their order, as asyncio has it. Time moves only when nothing can run.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from typing import Any

START = 1_000_000_000.0  # seconds since 1970, of the virtual clock at the beginning


class Machine:
    """The clock, and everything that will happen. stepped: told after every callback whose it was. over: ends `run`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.now, self.steps = rng, START, 0
        self.processes: list[Process] = []
        self.dead: list[Process] = []
        self.died_at: set[tuple[str, int]] = set()  # file and line of the awaits in which processes died
        self.stepped: Callable[[Process], None] = lambda _: None
        self.over = False
        self.trace: list[tuple[float, str, str]] = []
        self._events: list[tuple[float, float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def note(self, who: str, what: str) -> None:
        self.trace.append((self.now - START, who, what))

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), self.rng.random(), next(self._order), what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.at(self.now + seconds, what)

    def between(self, least: float, most: float) -> float:
        return least + (most - least) * self.rng.random()

    def run(self, latest: float) -> None:
        """Until `over`, or nothing can happen before `latest`."""
        try:
            while not self.over:
                ready = [process for process in self.processes if process.ready and process.awake]
                if ready:
                    process = ready[int(self.rng.random() * len(ready)) if len(ready) > 1 else 0]
                    process.step()
                    self.steps += 1
                    self.stepped(process)
                elif self._events and self._events[0][0] <= latest:
                    self.now, _, _, what = heapq.heappop(self._events)
                    what()
                else:
                    return
        finally:
            asyncio._set_running_loop(None)


class Process:
    """A process with one event loop, and threads that go on when the loop is stuck. failed: told of what nobody
    awaited. disturbed_at: when it last could not go on; infinite once it is dead.
    """

    def __init__(self, machine: Machine, name: str, failed: Callable[[str], None]) -> None:
        self.machine, self.name = machine, name
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.alive = self.awake = True
        self.stopped = False
        self.disturbed_at = machine.now
        self.on_death: list[Callable[[], None]] = []
        self._failed = failed
        self._loop: Any = self  # asyncio is content with what stands at the end
        self._held_up: list[Callable[[], None]] = []  # what its threads do once it is no longer stopped
        machine.processes.append(self)

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        self.create_task(main).add_done_callback(self._ended)

    def _ended(self, main: asyncio.Task[None]) -> None:
        if not main.cancelled() and (error := main.exception()) is not None:
            self._failed(f"{self.name} ended with {error!r}")

    def step(self) -> None:
        handle = self.ready.popleft()
        if not handle.cancelled():
            asyncio._set_running_loop(self._loop)
            handle._run()

    # ---- what may happen to it ----------------------------------------------------------------------------------

    def kill(self) -> None:
        """As by SIGKILL: nothing of it runs any more."""
        if self.alive:
            self.machine.note(self.name, "is dead")
            self.machine.processes.remove(self)
            self.machine.dead.append(self)
            self.machine.died_at.update(self.awaits())
            self.alive = self.awake = False
            self.disturbed_at = float("inf")
            for hook in self.on_death:
                hook()

    def awaits(self) -> Iterator[tuple[str, int]]:
        """Where its tasks are: file and line of every await that has not returned."""
        for task in self.tasks:
            waiting: Any = task.get_coro()
            while (frame := getattr(waiting, "cr_frame", None)) is not None:
                yield frame.f_code.co_filename, frame.f_lineno
                waiting = waiting.cr_await

    def pause(self, seconds: float, *, threads: bool) -> None:
        """Nothing of it runs for so long, as after SIGSTOP; without its threads, as when work blocks the loop."""
        if self.awake:
            self.machine.note(self.name, f"{'is stopped' if threads else 'hangs'} for {seconds:.3f} s")
            self.awake, self.stopped = False, threads
            self.machine.after(seconds, self._resume)

    def _resume(self) -> None:
        if self.alive:
            self.machine.note(self.name, "goes on")
            self.awake, self.stopped = True, False
            self.disturbed_at = self.machine.now
            held_up, self._held_up = self._held_up, []
            for what in held_up:
                self.machine.after(0.0, lambda what=what: self._in_thread(what))  # type: ignore[misc]

    def calm_since(self) -> float:
        """Since when it can go on; infinite when it cannot."""
        return self.disturbed_at if self.awake else float("inf")

    def in_thread(self, seconds: float, what: Callable[[], None]) -> None:
        """A thread of it does something in so long, unless it is dead by then."""
        self.machine.after(seconds, lambda: self._in_thread(what))

    def _in_thread(self, what: Callable[[], None]) -> None:
        if self.stopped:
            self._held_up.append(what)
        elif self.alive:
            what()

    def bury(self) -> None:
        """Let its tasks end, so that nothing of it is left. For afterwards: it wakes up once more."""
        self._failed = lambda _: None
        self.on_death.clear()
        self.alive = self.awake = True
        self.stopped = False
        for task in list(self.tasks):
            task.cancel()

    # ---- the part of an event loop that asyncio uses ------------------------------------------------------------

    def time(self) -> float:
        return self.machine.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._loop, context)
        self.ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any) -> None:
        self.call_soon(callback, *args)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self._loop, context)
        self.machine.at(when, lambda: self.ready.append(timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is looked at when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._loop)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self._loop, **options)
        self.tasks[task] = None
        task.add_done_callback(self.tasks.pop)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failed(f"{self.name}: {context.get('message')}: {context.get('exception')!r}")
