"""What one command over files says about its lines: the seam between a command and the engine."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from siafu.agents.task import TaskContext
from siafu.border.jsonl import LineError
from siafu.swarm.results import MapResult


class Task(msgspec.Struct, frozen=True):
    """One usable line of the input. `key`: its id as text. `item`: what `work` gets."""

    key: str
    item: Any


class Written(msgspec.Struct, frozen=True):
    """One record of an output file, as far as resuming needs it. `key` None = the record of a line that could not be
    used. `ok`: the item succeeded. `waits`: it told what can be told while the item waits, and goes on later; `reason`:
    the code of what for. `tells`: what it told; when that changes, its record does.
    """

    key: str | None
    ok: bool
    waits: bool = False
    reason: str = ""
    tells: str = ""


class FileJob(Protocol):
    """A command over files. `starts`: the bytes that every record begins with."""

    starts: bytes

    def parse(self, value: Any) -> Task:
        """The task of a line's JSON value. Raises: InputError saying what is wrong with it."""
        ...

    def remarks(self) -> list[str]:
        """What a person should know of the lines parsed so far, beside those that cannot be used."""
        ...

    def fingerprint(self) -> str:
        """Changes when, and only when, the same item could now get another answer by design."""
        ...

    async def work(self, item: Any, ctx: TaskContext, /) -> Any:
        """Do one item; see `siafu.swarm.map`."""
        ...

    def record(self, result: MapResult) -> Any:
        """The line to write for a result, good, bad or waiting; `result.item` is the Task. None = it waits and nothing
        can be told meanwhile.
        """
        ...

    def refusal(self, error: LineError) -> Any:
        """The line to write for an input line that cannot be used."""
        ...

    def claims(self, value: Any) -> str | None:
        """The id that `refusal` gives the record of a line with this value; None = none."""
        ...

    def read_back(self, line: bytes) -> Written | None:
        """What a line of an output file is; None = not written by this command. Never raises."""
        ...


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to do. total: lines of the input that hold something. bad: lines that cannot be used.
    finished, failed: items with a record from earlier sessions.
    """

    total: int
    bad: int = 0
    finished: int = 0
    failed: int = 0

    @property
    def todo(self) -> int:
        return self.total - self.bad - self.finished - self.failed


class Watcher(Protocol):
    """Who looks at a run while it goes on. It must be quick and must not raise."""

    def begin(self, plan: Plan, /) -> None:
        """The input is accepted; work begins."""
        ...

    def ended(self, result: MapResult, /) -> None:
        """A result was written."""
        ...

    def note(self, text: str, /) -> None:
        """Something a person should know: one sentence."""
        ...
