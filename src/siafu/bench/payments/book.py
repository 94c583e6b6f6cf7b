"""The ledger in memory. Pure: it is what its lines say, whether they were just written or read after a restart."""

from __future__ import annotations

from collections import Counter, defaultdict
from enum import StrEnum
from typing import Any

import msgspec

from siafu.bench.payments.lines import Body, Line, Paid, Request


class Mode(StrEnum):
    """What the provider offers to a caller who does not know whether a refund was paid."""

    idempotent = "idempotent"
    lookup = "lookup"
    neither = "neither"

    @property
    def honours_keys(self) -> bool:
        return self is Mode.idempotent

    @property
    def has_lookup(self) -> bool:
        return self is not Mode.neither


class Settled(msgspec.Struct, frozen=True):
    """What became of a key. `paid`: None = declined."""

    body: Body
    paid: Paid | None


class Book:
    """All requests and effects, oldest first."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.effects: list[Paid] = []
        self.keys: dict[str, Settled] = {}
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._by_reference: defaultdict[str, list[Paid]] = defaultdict(list)

    def apply(self, line: Line) -> None:
        """Raises: ValueError for a line that cannot come here."""
        if isinstance(line, Request):
            if not 1 <= line.n <= len(self.requests) + 1:
                raise ValueError(f"request {line.n} is out of order")
            if line.n > len(self.requests):
                self._attempts[line.what, line.reference] += 1
            self.requests[line.n - 1 : line.n] = [line]
            return
        if not 1 <= line.request <= len(self.requests):
            raise ValueError(f"request {line.request} is not known")
        paid = line if isinstance(line, Paid) else None
        if paid:
            if paid.n != len(self.effects) + 1:
                raise ValueError(f"effect {paid.n} is out of order")
            self.effects.append(paid)
            self._by_reference[paid.reference].append(paid)
        cause = self.requests[line.request - 1]
        if cause.key and cause.body:
            self.keys.setdefault(cause.key, Settled(cause.body, paid))

    def attempts(self, what: str, reference: str) -> int:
        """How often a refund, or a lookup, with this reference came."""
        return self._attempts[what, reference]

    def paid(self, reference: str) -> list[Paid]:
        """The refunds paid under a reference."""
        return list(self._by_reference.get(reference, ()))

    def stats(self) -> dict[str, Any]:
        """Totals. `duplicates`: effects beyond the first of their reference. `unanswered`: requests without an answer
        yet, or whose answer the end of the process prevented. `paid`: by currency, in minor units."""
        paid: Counter[str] = Counter()
        for effect in self.effects:
            paid[effect.currency] += effect.amount
        refunds = [request for request in self.requests if request.what == "refund"]
        return {
            "effects": len(self.effects),
            "references": len(self._by_reference),
            "duplicates": len(self.effects) - len(self._by_reference),
            "paid": paid,
            "refund_requests": len(refunds),
            "lookups": len(self.requests) - len(refunds),
            "unanswered": sum(request.status is None for request in self.requests),
            "by_status": Counter(str(request.status) for request in refunds if request.status is not None),
            "by_fault": Counter(request.fault for request in self.requests if request.fault),
        }
