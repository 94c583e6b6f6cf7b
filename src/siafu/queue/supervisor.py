"""Several worker processes under one parent: started, started again when they die or hang, stopped together.

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
from siafu.errors import Interrupted
from siafu.pace.backoff import full_jitter
from siafu.pace.clock import Clock
from siafu.queue.pulse import Kept, stands_still

CALM = 60.0  # seconds that a process has lived after which its next death is a first one again
FIRST, LONGEST = 1.0, 60.0  # seconds, of the pauses before it is started again
HURRY = 8.0  # seconds for processes to end that were asked twice
MEANT = (0, 2, 3)  # exit codes of a worker that another start would end with, too: done, wrong use or key, no money
# exit codes of one that is stopped before it has listened to signals itself
_NOT_YET = (-signal.SIGTERM, -signal.SIGINT, Interrupted.exit_code)
_WORST = (0, 1, 3, 2)  # of several exit codes the last one counts


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker process ended for good. code: its exit code; what dies while it is stopped counts as 1. output: what
    it printed in its last life. deaths: how often it was started again.
    """

    code: int
    output: bytes
    deaths: int


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """closing: seconds for all to end once they are asked to; who does not is killed. start: seconds until the first
    beat of one, still: without one from then on; after these it hangs, and is killed.
    """

    closing: float
    start: float
    still: float


class _Life(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a process. code: its exit code, negative: the signal. why: that in words. hung: it was killed as it
    stood still.
    """

    code: int
    output: bytes = b""
    why: str
    hung: bool = False


class Supervisor:
    """command: starts one worker process, with `environment` beside this process's own; as its last words it is told
    `--kept` and the JSON of a `Kept`. notice: told of every death, and when which starts again.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        patience: Patience,
        notice: Callable[[str], None],
        *,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._command = command
        self._environment = environment
        self._patience = patience
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
        died = hung = failures = 0
        while True:
            began = self._clock.now()
            life = await self._live(stops, died, hung)
            deaths = died + hung
            if stops.asked.is_set() or life.code in MEANT:
                return Ended(code=life.code if life.code >= 0 else 1, output=life.output, deaths=deaths)
            failures = 1 if self._clock.now() - began >= CALM else failures + 1
            died, hung = died + (not life.hung), hung + life.hung
            pause = full_jitter(failures, self._rng, base=FIRST, cap=LONGEST)
            self._notice(f"worker process {number} {life.why}; it starts again in {pause:.1f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stops.asked.wait()
                return Ended(code=0, output=b"", deaths=deaths + 1)

    async def _live(self, stops: Stops, died: int, hung: int) -> _Life:
        pulse, beats = os.pipe()
        kept = msgspec.json.encode(Kept(pulse=beats, died=died, hung=hung)).decode()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                "--kept",
                kept,
                env={**os.environ, **self._environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                process_group=0,
                pass_fds=(beats,),
            )
        except OSError as error:  # no memory, too many processes
            os.close(pulse)
            return _Life(code=1, why=f"could not be started ({error.strerror or error})")
        finally:
            os.close(beats)
        self._running.add(process)
        if stops.asked.is_set():  # this moment
            self._send(signal.SIGTERM, process)
        watching = asyncio.create_task(self._end_if_still(process, pulse, stops))
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            self._send(signal.SIGKILL, process)
            await process.communicate()  # closes its pipe
            raise
        finally:
            self._running.discard(process)
            was_still = watching.result() if watching.done() else 0.0
            watching.cancel()
            os.close(pulse)
        code = process.returncode or 0
        if stops.asked.is_set() and code in _NOT_YET:
            code = 0  # it held nothing
        why = f"did not move for {was_still:g} s and was killed" if was_still else _why(code)
        return _Life(code=code, output=output, why=f"(pid {process.pid}) {why}", hung=was_still > 0)

    async def _end_if_still(self, process: asyncio.subprocess.Process, pulse: int, stops: Stops) -> float:
        """Kill a process once it hangs, unless it is being stopped, which has times of its own. Returns the seconds for
        which it had not moved, 0 when it was not killed.
        """
        seconds = await stands_still(pulse, self._patience.start, self._patience.still, self._clock)
        if not seconds or stops.asked.is_set():
            return 0.0
        self._send(signal.SIGKILL, process)
        return seconds

    async def _pass_on(self, stops: Stops) -> None:
        await stops.asked.wait()
        self._send(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience.closing):
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
