"""Child processes of a demo: started aside from the terminal's signals, and ended with it, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import aiohttp
import msgspec

from siafu.bench.demo.local import SLOTS
from siafu.bench.demo.place import clean_environment
from siafu.bench.demo.seen import Record
from siafu.errors import ConfigError, SiafuError

START_SECONDS = 30.0
STOP_SECONDS = 5.0
POLL_SECONDS = 0.05
PAGE = 5_000
SIAFU = (sys.executable, "-m", "siafu")
LOCAL = "siafu.bench.demo.local"
LEASH = Path(__file__).with_name("leash.py")


class DemoFailed(SiafuError):
    """The demo could not be shown to its end; the message says where to look."""

    code = "demo_failed"


class Endpoint:
    """The simulated endpoint and its records. `url` ends with /v1."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._control = url.removesuffix("/v1") + "/_sim"
        self._session = session

    async def records(self, since: int) -> list[Record]:
        """Every record later than number `since`. Raises: DemoFailed."""
        found: list[Record] = []
        while True:
            page = msgspec.json.decode(await self._ask("GET", f"requests?since={since}&limit={PAGE}"), type=_Page)
            found += page.requests
            if len(page.requests) < PAGE:
                return found
            since = found[-1].n

    async def peak(self) -> int:
        """Most answers in the making at one moment since the last reset."""
        return msgspec.json.decode(await self._ask("GET", "stats"), type=_Stats).peak_in_flight

    async def reset(self) -> None:
        """As after the start: no records, no cached prompts, full limits, the whole script of faults."""
        await self._ask("POST", "reset")

    async def _ask(self, method: str, path: str) -> bytes:
        try:
            async with self._session.request(method, f"{self._control}/{path}") as reply:
                reply.raise_for_status()
                return await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoFailed(f"the simulated endpoint does not tell what it saw: {error or 'no answer'}") from None


class _Page(msgspec.Struct):
    requests: list[Record]


class _Stats(msgspec.Struct):
    peak_in_flight: int


@contextlib.asynccontextmanager
async def process(
    command: Sequence[str | Path], *, folder: Path, environment: Mapping[str, str], log: Path, out: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `command` in `folder`, in a process group of its own, which is killed with the end of the block; on Linux the
    process also ends when this one is killed.

    log: gets what it says on stderr, appended. out: the same for stdout; None = into `log` too.
    """
    with log.open("ab") as errors, (out or log).open("ab") as output:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", LEASH, str(os.getpid())),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
        )
    try:
        yield child
    finally:
        kill_group(child)
        await child.wait()


def kill_group(child: asyncio.subprocess.Process) -> None:
    """SIGKILL for a process of `process` and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def server(
    name: str,
    command: Sequence[str | Path],
    *,
    folder: Path,
    environment: Mapping[str, str],
    seconds: float = START_SECONDS,
    port: int = 0,
) -> AsyncIterator[str]:
    """A server of siafu's own, such as `siafu sim`, while the block runs; yields what its ready file says. It ends with
    the block, and also when this process dies.

    command: takes --ready-file, --port and --parent-pid. seconds: for its start. port: 0 = a free one.

    Raises: DemoFailed when it does not start.
    """
    ready, log = folder / f"{name}.ready", folder / f"{name}.log"
    ready.unlink(missing_ok=True)
    more = ("--ready-file", ready, "--port", str(port), "--parent-pid", str(os.getpid()))
    async with process([*command, *more], folder=folder, environment=environment, log=log) as child:
        try:
            async with asyncio.timeout(seconds):
                while not ready.exists():
                    if child.returncode is not None:
                        raise DemoFailed(f"the {name} ended with {child.returncode} at its start: {tail(log)}")
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise DemoFailed(f"the {name} did not start within {seconds:.0f} s: {tail(log)}") from None
        try:
            yield ready.read_text(encoding="utf-8").strip()
        finally:
            await _stop(child)


@contextlib.asynccontextmanager
async def payments(name: str, folder: Path, ledger: Path, *more: str) -> AsyncIterator[str]:
    """A simulated payment provider while the block runs; yields its URL. more: options of `siafu payments serve`.

    Raises: DemoFailed when it does not start.
    """
    command: list[str | Path] = [*SIAFU, "payments", "serve", "--ledger", ledger, *more]
    async with server(name, command, folder=folder, environment=clean_environment()) as ready:
        yield msgspec.json.decode(ready)["url"]


@contextlib.asynccontextmanager
async def model_server(
    file: Path, folder: Path, *, template: Path | None = None, slots: int = SLOTS, port: int = 0
) -> AsyncIterator[tuple[str, str]]:
    """A model file, served while the block runs; yields base URL and name of the model. template: its chat template,
    None = its own. slots: answers at once. port: 0 = a free one.

    Raises: ConfigError without the extra `local`, DemoFailed when it does not start.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError("to serve a model file, install the extra: pip install 'siafu[local]'")
    command, environment = _serving(file, template, slots), clean_environment()
    async with server("model", command, folder=folder, environment=environment, seconds=300, port=port) as ready:
        found = msgspec.json.decode(ready)
        yield found["url"], found["model"]


def _serving(file: Path, template: Path | None, slots: int) -> list[str | Path]:
    command: list[str | Path] = [sys.executable, "-m", LOCAL, file.absolute(), "--slots", str(slots)]
    return command if template is None else [*command, "--chat-template", template.absolute()]


async def _stop(child: asyncio.subprocess.Process) -> None:
    """SIGTERM, and time to follow it."""
    if child.returncode is None:
        child.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), STOP_SECONDS)


def tail(log: Path) -> str:
    """The last lines of a log, for a message."""
    try:
        lines = log.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    return "\n".join(["", *lines[-8:], f"(all of it: {log})"]) if lines else f"it said nothing ({log})"
