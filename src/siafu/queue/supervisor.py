"""Several worker processes under one parent: started, started again when they die, stopped together.

They are in process groups of their own, so that a Ctrl-C at the terminal reaches the parent alone, which passes it on.
A parent that is killed cannot: its children see that it is gone, and stop by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from random import Random

import msgspec

from siafu.border.stopping import Stops
from siafu.pace.backoff import full_jitter
from siafu.pace.clock import Clock

CALM = 60.0  # seconds that a process has lived after which its next death is a first one again
FIRST, LONGEST = 1.0, 60.0  # seconds, of the pauses before it is started again
HURRY = 8.0  # seconds for processes to end that were asked twice
MEANT = (0, 2, 3)  # exit codes of a worker that another start would end with, too: done, wrong use or key, no money
_WORST = (0, 1, 3, 2)  # of several exit codes the last one counts


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker process ended for good. code: its exit code; what dies while it is stopped counts as 1. output: what
    it printed in its last life. deaths: how often it was started again.
    """

    code: int
    output: bytes
    deaths: int


class Supervisor:
    """command: starts one worker process, with `environment` beside this process's own. seconds: for all to
    end once they are asked to; who does not is killed. notice: told of every death, and when which starts again.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        seconds: float,
        notice: Callable[[str], None],
        *,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._command = command
        self._environment = environment
        self._seconds = seconds
        self._notice = notice
        self._clock = clock
        self._rng = rng
        self._running: set[asyncio.subprocess.Process] = set()

    async def run(self, number: int, stops: Stops) -> list[Ended]:
        """Keep `number` processes until each has ended by its own will, or all because `stops` asked: SIGTERM to each,
        SIGINT too when it hurries, SIGKILL when the time is over. Cancelled, it kills them.
        """
        passing = asyncio.create_task(self._pass_on(stops))
        try:
            async with asyncio.TaskGroup() as group:
                kept = [group.create_task(self._keep(each, stops)) for each in range(1, number + 1)]
        finally:
            passing.cancel()
        return [task.result() for task in kept]

    async def _keep(self, number: int, stops: Stops) -> Ended:
        deaths = failures = 0
        while True:
            began = self._clock.now()
            code, output, why = await self._live(stops)
            if stops.asked.is_set() or code in MEANT:
                return Ended(code=code if code >= 0 else 1, output=output, deaths=deaths)
            failures = 1 if self._clock.now() - began >= CALM else failures + 1
            deaths += 1
            pause = full_jitter(failures, self._rng, base=FIRST, cap=LONGEST)
            self._notice(f"worker process {number} {why}; it starts again in {pause:.1f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stops.asked.wait()
                return Ended(code=0, output=b"", deaths=deaths)

    async def _live(self, stops: Stops) -> tuple[int, bytes, str]:
        """One life of a process: its exit code (negative: the signal), what it printed, and that in words."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, **self._environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                process_group=0,
            )
        except OSError as error:  # no memory, too many processes
            return 1, b"", f"could not be started ({error.strerror or error})"
        self._running.add(process)
        if stops.asked.is_set():  # this moment
            self._send(signal.SIGTERM, process)
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            self._send(signal.SIGKILL, process)
            await process.communicate()  # closes its pipe
            raise
        finally:
            self._running.discard(process)
        code = process.returncode or 0
        if stops.asked.is_set() and code in (-signal.SIGTERM, -signal.SIGINT):
            code = 0  # it did not listen to signals yet, so it held nothing
        return code, output, f"(pid {process.pid}) {_why(code)}"

    async def _pass_on(self, stops: Stops) -> None:
        await stops.asked.wait()
        self._send(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await stops.hurry.wait()
            self._send(signal.SIGINT)  # of another number, as two equal ones at once are one
            await self._clock.sleep(HURRY)
        for process in self._running:
            self._notice(f"the worker process with pid {process.pid} did not end in time, and is killed")
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals, *processes: asyncio.subprocess.Process) -> None:
        for process in processes or tuple(self._running):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def worst(codes: Sequence[int]) -> int:
    """The exit code that stands for several: 2 before 3 before 1 before 0."""
    return max(codes, key=lambda code: _WORST.index(code) if code in _WORST else 1, default=0)


def _why(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
