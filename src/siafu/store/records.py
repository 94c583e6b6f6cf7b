"""The rows of the store, as frozen records, and the seams through which they are written.

Amounts are pico-dollars (`siafu.border.money`), times are seconds since 1970 (UTC), bodies are JSON bytes. Rows of text
and numbers cannot be part of a cycle, so the garbage collector need not know them (`gc=False`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

HEDGE_LOST = "hedge_lost"  # the code of an attempt that was given up, as another one for the same call was quicker
DOUBTFUL = "usage_doubtful"  # the code of an answer whose counts of the prompt cache contradict each other


class AttemptOpened(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A physical request is about to be sent. `attempt` is unique; `reserved_pico`: its largest possible cost, None
    when there is no price. `step`: `path#seq` of the journal. `key`: the upstream's key, as `siafu upstream-keys` names
    it. `bucket`: its side of a canary, such as `3/new`; "" = it took part in none.
    """

    attempt: str
    run: str
    task: str
    step: str
    agent: str
    role: str
    upstream: str
    model: str
    opened_at: float
    reserved_pico: int | None = None
    key: str = ""
    bucket: str = ""


class AttemptSettled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a physical request ended.

    outcome: ok, refused (an answer without work: 4xx, 429), failed (5xx, cut, malformed), abandoned (cancelled or
    timed out). `usage_known` false = the cost is between 0 and the reservation. `usd_pico`: the charged cost, None
    when unknown or unpriced. `saved_pico`: what the prompt cache saved, below 0 when writing it cost more.
    price_source, price_date: where the price came from (ISO date).
    """

    attempt: str
    outcome: Literal["ok", "refused", "failed", "abandoned"]
    settled_at: float
    status: int | None = None
    code: str = ""
    served_model: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    usage_known: bool = False
    usd_pico: int | None = None
    saved_pico: int = 0
    price_source: str = ""
    price_date: str = ""
    seconds: float = 0.0
    first_token: float | None = None


class Ledger(Protocol):
    """One line per physical attempt: opened before it is sent, settled when it has ended."""

    def open(self, line: AttemptOpened) -> Awaitable[None]:
        """Returns when the line is durable; only then may the request be sent."""
        ...

    def settle(self, line: AttemptSettled) -> None:
        """Queued; committed with or before everything queued after it. The first settlement of an attempt counts."""
        ...

    async def spent_on(self, task: str) -> Mapping[str, int]:
        """What the attempts for a task were charged so far, in pico-dollars, by agent; only what is committed."""
        ...


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of one logical step of a task.

    `path`: the agent's path ("" for the task itself); `seq`: position of the step on that path, from 0.
    kind: model, tool, value. fingerprint: sha256 of what was asked. outcome: JSON bytes. usd_pico: its cost.
    """

    path: str
    seq: int
    kind: str
    fingerprint: str
    outcome: bytes
    usd_pico: int | None = None


class Journal(Protocol):
    """What has been decided within one task. Entries of one task are written by one process at a time."""

    async def entries(self, task: str) -> list[JournalEntry]:
        """All live entries of a task, by path and seq."""
        ...

    def append(self, task: str, entry: JournalEntry) -> Awaitable[None]:
        """Returns when the entry is durable (committed with fsync). Replaces an entry with the same path and seq."""
        ...


class ItemRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The final result of one item. `status`: ok or error. `value`: JSON bytes of what work returned (None for an
    error). `input_print`, `work_print`: fingerprints of the item and of the work it was done with; an empty
    `work_print` is not known, and so never other work than any.
    """

    key: str
    status: Literal["ok", "error"]
    input_print: str
    work_print: str
    value: bytes | None = None
    code: str = ""
    message: str = ""
    seconds: float = 0.0
    usd_pico: int | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ended_at: float = 0.0


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows of an item that is about to run.

    record: its final result from an earlier session, None when there is none. duplicate: the same key was already
    claimed in this session. journaled: it has journal entries and the run had a session before (it was
    begun then).
    """

    key: str
    record: ItemRecord | None = None
    duplicate: bool = False
    journaled: bool = False


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """What an opened run holds from earlier sessions. session: 1 for the first.

    finished, failed: final results by status. changed, changed_pico: finished results made by other work than this
    one (other `work_print`), and their cost. in_flight: attempts that were sent and never settled, closed now as
    `abandoned` (code `lost_in_crash`) with unknown usage and charged at their reservations, in_flight_pico.
    spent_pico: charged cost of all attempts, those included.
    """

    session: int = 1
    finished: int = 0
    failed: int = 0
    changed: int = 0
    changed_pico: int = 0
    spent_pico: int = 0
    in_flight: int = 0
    in_flight_pico: int = 0


class RunStore(Protocol):
    """The store as one run sees it. One process holds it at a time."""

    journal: Journal
    ledger: Ledger

    async def begin(self, work_print: str) -> RunState:
        """Open the run for this session, and settle what the last one left in flight.

        Raises: StoreBusy when another process holds it.
        """
        ...

    async def claim(self, items: Sequence[tuple[str, str]]) -> list[Claimed]:
        """Claim items given as (key, input_print), in order; durable when it returns."""
        ...

    def record(self, item: ItemRecord) -> Awaitable[None]:
        """Returns when the final result is durable. Replaces an earlier one of the same key."""
        ...

    async def aclose(self) -> None:
        """Commit everything queued, close, and let go of the lock. Idempotent."""
        ...
