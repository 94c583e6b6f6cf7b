"""Spans: what is under way, as a tree across processes, for whoever traces.

The words are OpenTelemetry's GenAI conventions: `invoke_workflow`, `invoke_agent`, `chat`, `execute_tool`. Nothing here
knows the library. There is one tracer a process, as its providers and what the MCP SDK traces by itself are the
process's too; without one, a span costs a look at a variable.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, Protocol, TypeAlias

import msgspec

from siafu.errors import SiafuError
from siafu.observe.events import Event

Operation = Literal["invoke_workflow", "invoke_agent", "chat", "execute_tool"]
Attributes: TypeAlias = Mapping[str, str | int | float | bool | Sequence[str] | None]
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Span(Protocol):
    """One piece of work. Attributes that are None are left away."""

    def set(self, attributes: Attributes) -> None: ...

    def end(self, error: str = "") -> None:
        """It has ended; only the first time counts. error: what it failed with, empty = it did not."""
        ...

    def current(self) -> AbstractContextManager[object]:
        """What begins while the block runs, in this task or in one that it starts, is a part of it."""
        ...


class Tracer(Protocol):
    """contents: whether spans may hold what was said and what tools were given."""

    contents: bool

    def begin(self, operation: Operation, name: str, attributes: Attributes) -> Span:
        """A part of the current span."""
        ...

    def under(self, parent: str) -> AbstractContextManager[object]:
        """What begins while the block runs belongs to the span that a `traceparent` names."""
        ...

    def headers(self) -> dict[str, str]:
        """Headers that name the current span to who is called; none without one."""
        ...

    def note(self, name: str, attributes: Attributes) -> None:
        """Something happened in the current span."""
        ...


class _Nothing:
    def set(self, attributes: Attributes) -> None:
        """Nobody traces."""

    def end(self, error: str = "") -> None:
        """Nobody traces."""

    def current(self) -> AbstractContextManager[object]:
        return nullcontext()


_NOTHING = _Nothing()
_tracer: Tracer | None = None


def tracer() -> Tracer | None:
    """Who traces in this process; None = nobody."""
    return _tracer


def trace_by(new: Tracer | None) -> Tracer | None:
    """Let `new` trace in this process from now on, None = nobody. Returns who did before."""
    global _tracer
    former, _tracer = _tracer, new
    return former


def begin(operation: Operation, name: str, attributes: Attributes) -> Span:
    """As `Tracer.begin`; a span that is nothing when nobody traces."""
    return _NOTHING if _tracer is None else _tracer.begin(operation, name, attributes)


@contextmanager
def span(operation: Operation, name: str, attributes: Attributes) -> Iterator[Span]:
    """A span that is current in the block, and ends with it."""
    found = begin(operation, name, attributes)
    try:
        with found.current():
            yield found
    except BaseException as error:
        found.end(kind_of(error))
        raise
    found.end()


def under(parent: str) -> AbstractContextManager[object]:
    """As `Tracer.under`. A text that is no traceparent changes nothing."""
    return nullcontext() if _tracer is None or not parent else _tracer.under(parent)


def headers() -> dict[str, str]:
    """As `Tracer.headers`."""
    return {} if _tracer is None else _tracer.headers()


def note(event: Event, /) -> None:
    """An Observer: what happens in a span is written down with it."""
    if _tracer is not None:
        told = {f"siafu.{name}": value for name, value in msgspec.structs.asdict(event).items() if value not in ("", 0)}
        _tracer.note(type(event).__name__, told)


def traceparent(text: str) -> str:
    """`text` when it is a traceparent (W3C Trace Context, version 00 and later), else nothing."""
    return text if _PARENT.fullmatch(text) else ""


def kind_of(error: BaseException) -> str:
    """The `error.type` of an error: one of few words, never its message."""
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    return error.code if isinstance(error, SiafuError) else type(error).__name__
