"""A child process that speaks lines: started without a shell and with little environment, ended with its group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import cast

from siafu.border.secrets import Secret, redact
from siafu.border.text import clean_bytes, preview

MAX_LINE = 32 * 1024 * 1024
MAX_UNREAD = 1000
MAX_UNSENT = 32 * 1024 * 1024
TAIL = 4096
_GRACE = 2.0  # seconds to end by itself after its stdin closed
_GRACE_TERM = 1.0  # seconds more after SIGTERM
_LAST_WORDS = 0.5  # seconds to wait for output that is still in the pipes of a process that has ended
_INHERITED = ("PATH", "HOME", "LANG", "TZ")


def small_environment(extra: Mapping[str, str | Secret], environ: Mapping[str, str]) -> dict[str, str]:
    """PATH, HOME, LANG, LC_* and TZ of `environ`, and `extra`. No key of a provider is among them unless named."""
    kept = {name: value for name, value in environ.items() if name in _INHERITED or name.startswith("LC_")}
    return kept | {name: value.reveal() if isinstance(value, Secret) else value for name, value in extra.items()}


class Child(asyncio.SubprocessProtocol):
    """Lines to its stdin, lines from its stdout, the last 4 KiB of its stderr. Made by `start`."""

    def __init__(self) -> None:
        self._transport: asyncio.SubprocessTransport  # set before `start` returns
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._partial = bytearray()
        self._paused = False
        self._over = False
        self._fault = ""
        self._tail = b""
        self._open = {1, 2}
        self._exited = asyncio.Event()
        self._gone = asyncio.Event()
        self.pid = 0

    @classmethod
    async def start(cls, command: Sequence[str], *, env: Mapping[str, str], cwd: str | None) -> Child:
        """Start a process in a session, and so a process group, of its own.

        Raises: OSError (no such command or folder, not executable), ValueError (NUL in an argument).
        """
        loop = asyncio.get_running_loop()
        _, child = await loop.subprocess_exec(cls, *command, env=dict(env), cwd=cwd, start_new_session=True)
        return child

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.pid = self._transport.get_pid()

    async def line(self) -> bytes | None:
        """The next line of stdout without its end; None when there will be no more."""
        line = await self._lines.get()
        if self._paused and self._lines.qsize() < MAX_UNREAD // 2:
            self._paused = False
            self._reading(True)
        return line

    def send(self, line: bytes) -> bool:
        """Hand one line to its stdin, without waiting. False = not taken, as it has 32 MiB still to read."""
        stdin = self._transport.get_pipe_transport(0)
        if not isinstance(stdin, asyncio.WriteTransport) or stdin.is_closing():
            return True  # it has ended, as whoever waits for its lines is about to learn
        if stdin.get_write_buffer_size() > MAX_UNSENT:
            return False
        stdin.write(line + b"\n")
        return True

    @property
    def fate(self) -> str:
        """How it ended, with its last words on stderr; for messages. Keys in it are masked."""
        code = self._transport.get_returncode()
        if code is None:
            ended = self._fault or "closed its output"
        else:
            ended = self._fault or (
                f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            )
        words = preview(redact(clean_bytes(self._tail)).strip()[-1000:], 1000)
        return f"{ended}; the last words on its stderr: {words}" if words else f"{ended}, without a word on stderr"

    async def stop(self) -> None:
        """Close its stdin, give it 2 s to end, then SIGTERM (1 s) and SIGKILL to its whole group. Afterwards it has
        been waited for and its pipes are closed. When cancelled, SIGKILL comes at once.
        """
        try:
            stdin = self._transport.get_pipe_transport(0)
            if stdin is not None:
                stdin.close()
            if not await self._exits(_GRACE):
                self._signal(signal.SIGTERM)
                await self._exits(_GRACE_TERM)
        finally:
            self._signal(signal.SIGKILL)  # also what it has started and left behind
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await self._gone.wait()

    async def _exits(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._exited.wait()
        return self._exited.is_set()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)  # its pid is its group, as it leads its session

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._tail = (self._tail + data)[-TAIL:]
            return
        first, *rest = data.split(b"\n")
        self._partial += first
        for piece in rest:
            self._lines.put_nowait(bytes(self._partial).rstrip(b"\r"))
            self._partial = bytearray(piece)
        if len(self._partial) > MAX_LINE:
            self._give_up(f"wrote a line of more than {MAX_LINE:,} bytes")
        elif not self._paused and self._lines.qsize() > MAX_UNREAD:
            self._paused = True
            self._reading(False)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        self._maybe_over()

    def process_exited(self) -> None:
        self._exited.set()
        self._maybe_over()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._gone.set()

    def _maybe_over(self) -> None:
        if self._exited.is_set() and not self._open:
            self._end()
        elif self._exited.is_set() or 1 not in self._open:  # a process it started may hold the pipes for long
            asyncio.get_running_loop().call_later(_LAST_WORDS, self._end)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._lines.put_nowait(None)

    def _give_up(self, fault: str) -> None:
        if not self._fault:
            self._fault = fault
            self._signal(signal.SIGKILL)
            self._end()

    def _reading(self, on: bool) -> None:
        stdout = self._transport.get_pipe_transport(1)
        if isinstance(stdout, asyncio.ReadTransport) and not stdout.is_closing():
            (stdout.resume_reading if on else stdout.pause_reading)()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
