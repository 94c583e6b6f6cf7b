"""What happened at the endpoint: one record a request, in a ring, and totals. The truth for tests and benches."""

from __future__ import annotations

import time
from collections import Counter, deque
from itertools import islice
from typing import Any

import msgspec


class Record(msgspec.Struct, kw_only=True):
    """One request. Times in seconds since the epoch; None = not known (yet).

    `n`: number in order of arrival, from 1. `attempt`: the attempt header as sent. `first_byte`: when the answer began.
    `service_seconds`: what an idle server needs for this answer; 0, and `usage` None, when none began. `limited`: which
    limit refused it. `fault`: what was done wrong on purpose. `status`: 0 when nothing was sent. `client_left`: the
    client closed before the answer was complete. `body`, `reply`: only with --keep-bodies.
    """

    n: int
    id: str
    arrived: float
    path: str = ""
    ended: float | None = None
    first_byte: float | None = None
    service_seconds: float = 0.0
    status: int = 0
    model: str | None = None
    sha256: str = ""
    attempt: str | None = None
    stream: bool = False
    user: str | None = None
    metadata: dict[str, Any] | None = None
    limited: str | None = None
    fault: str | None = None
    usage: dict[str, Any] | None = None
    finish_reason: str | None = None
    client_left: bool = False
    body: str | None = None
    reply: str | None = None


class Records:
    """The newest `most` records, and totals of all since the last reset."""

    def __init__(self, most: int) -> None:
        self._ring: deque[Record] = deque(maxlen=most)
        self._clock = time.time() - time.monotonic()  # one offset: differences of record times are true
        self._next = 1
        self.in_flight = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything but the requests being answered, whose numbers go on."""
        self._ring.clear()
        self.total = self.completed = self.client_left = 0
        self.status: Counter[str] = Counter()
        self.model: Counter[str] = Counter()
        self.fault: Counter[str] = Counter()
        self.limited: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter(prompt=0, completion=0, cached=0)
        self.service_seconds = 0.0
        self.peak_in_flight = self.in_flight

    def now(self) -> float:
        return time.monotonic() + self._clock

    def open(self, path: str) -> Record:
        """A record for a request that just arrived."""
        record = Record(n=self._next, id=f"req-{self._next:08d}", arrived=self.now(), path=path)
        self._next += 1
        self.total += 1
        self._ring.append(record)
        return record

    def enter(self) -> None:
        """An admitted answer is being made."""
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)

    def leave(self) -> None:
        self.in_flight -= 1

    def close(self, record: Record) -> None:
        """The request is over: count it."""
        record.ended = self.now()
        self.status[str(record.status)] += 1
        self.model[record.model or ""] += 1
        self.client_left += record.client_left
        if record.status == 200 and not record.client_left:
            self.completed += 1
            self.service_seconds += record.service_seconds
        if record.fault:
            self.fault[record.fault] += 1
        if record.limited:
            self.limited[record.limited] += 1
        if record.usage:
            self.tokens["prompt"] += record.usage["prompt_tokens"]
            self.tokens["completion"] += record.usage["completion_tokens"]
            self.tokens["cached"] += record.usage["prompt_tokens_details"]["cached_tokens"]

    def since(self, number: int, most: int) -> list[Record]:
        """At most `most` records whose n is greater than `number`, oldest first."""
        skip = max(0, number + 1 - self._ring[0].n) if self._ring else 0
        return list(islice(self._ring, skip, skip + most))

    def stats(self) -> dict[str, Any]:
        """Totals. `completed`: answered in full with 200; `service_seconds`: theirs; `tokens`: of all that began."""
        return {
            "requests": self.total,
            "completed": self.completed,
            "by_status": dict(self.status),
            "by_model": dict(self.model),
            "by_fault": dict(self.fault),
            "limited": dict(self.limited),
            "tokens": dict(self.tokens),
            "service_seconds": self.service_seconds,
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
            "client_left": self.client_left,
            "kept": len(self._ring),
            "last": self._next - 1,
        }
