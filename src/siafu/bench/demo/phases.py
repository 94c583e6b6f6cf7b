"""One program's run as the demo directs it: start, kill -9 half-way, start again, wait for the end.

When to kill is judged at the endpoint, by the requests whose answer has been given there.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from siafu.bench.demo.seen import Reader, Seen
from siafu.bench.demo.servers import POLL_SECONDS, DemoFailed, Endpoint, kill_group, process, tail

Listener = Callable[["Moment"], None]


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program under test. `log`: where its errors go; `output`: where its standard output goes, appended."""

    name: str
    command: Sequence[str | Path]
    environment: Mapping[str, str]
    log: Path
    output: Path


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Where a program stands. stage: running, killed, again (running after the kill) or done. answered: requests whose
    answer the endpoint has given at least once. calls: those that reached it, None = not known. refused: those it
    answered with 429.
    """

    program: str
    stage: str
    answered: int
    total: int
    calls: int | None
    refused: int


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. killed_at: seconds since 1970. wall: seconds from the first start to the last end."""

    calls: list[Seen]
    killed_at: float
    wall: float
    exit_code: int


class Watch:
    """What the endpoint has seen since its last reset, kept up to date by `look`."""

    def __init__(self, endpoint: Endpoint, reader: Reader) -> None:
        self._endpoint = endpoint
        self._reader = reader
        self._ended: dict[int, Seen] = {}
        self._open: dict[int, Seen] = {}
        self._since = 0
        self.answered: set[str | None] = set()

    async def look(self) -> None:
        """Raises: DemoFailed."""
        found = await self._endpoint.records(self._since)
        self._open = {}
        for record in found:
            if record.n in self._ended:
                continue
            seen = self._reader.read(record)
            (self._open if record.ended is None else self._ended)[record.n] = seen
            if seen.final and seen.request is not None:
                self.answered.add(seen.request)
        newest = found[-1].n if found else self._since
        self._since = min(self._open, default=newest + 1) - 1

    @property
    def idle(self) -> bool:
        """Whether every call that came has ended."""
        return not self._open

    def calls(self) -> list[Seen]:
        """In order of arrival."""
        return [seen for _, seen in sorted({**self._ended, **self._open}.items())]


async def run(program: Program, watch: Watch, listen: Listener, *, total: int, folder: Path, seconds: float) -> Ran:
    """Run `program` on `total` requests, kill it when 40 % of them are answered, and run it again to its end.

    seconds: the longest that each of the two runs may take.

    Raises: DemoFailed. Cancelling kills it.
    """
    began = time.monotonic()

    def tell(stage: str) -> None:
        calls = watch.calls()
        listen(
            Moment(
                program=program.name,
                stage=stage,
                answered=len(watch.answered),
                total=total,
                calls=len(calls),
                refused=sum(call.status == 429 for call in calls),
            )
        )

    killed_at = 0.0
    for stage in ("running", "again"):
        kill_at = math.ceil(0.4 * total) if stage == "running" else math.inf
        async with process(
            program.command, folder=folder, environment=program.environment, log=program.log, out=program.output
        ) as child:
            try:
                async with asyncio.timeout(seconds):
                    while child.returncode is None and len(watch.answered) < kill_at:
                        await asyncio.sleep(POLL_SECONDS)
                        await watch.look()
                        tell(stage)
            except TimeoutError:
                raise DemoFailed(
                    f"{program.name} took longer than {seconds:.0f} s ({len(watch.answered)} of {total} requests were "
                    f"answered): {tail(program.log)}"
                ) from None
            if stage == "running":
                killed_at = time.time()
                kill_group(child)
                ended = await child.wait()
                if ended >= 0:
                    raise DemoFailed(
                        f"{program.name} ended with {ended} before it could be killed: {tail(program.log)}"
                    )
                tell("killed")
    wall = time.monotonic() - began
    await _settled(watch)
    tell("done")
    return Ran(calls=watch.calls(), killed_at=killed_at, wall=wall, exit_code=child.returncode or 0)


async def _settled(watch: Watch) -> None:
    """Wait until the endpoint has noticed that nobody is there any more."""
    try:
        async with asyncio.timeout(5):
            await watch.look()
            while not watch.idle:
                await asyncio.sleep(POLL_SECONDS)
                await watch.look()
    except TimeoutError:
        raise DemoFailed("calls at the endpoint did not end although the program that made them did") from None
