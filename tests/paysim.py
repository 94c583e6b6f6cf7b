"""A running payment simulator for tests: `with running_payments(folder / "paid.jsonl", mode="lookup") as payments`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sim import control, running


class Payments:
    """The simulator of `running_payments`. The calls block for a moment; they are for checks, not for load."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url  # without a path: the API is under {url}/v1/
        self.pid = pid

    def stats(self) -> dict[str, Any]:
        """Totals: effects, references, duplicates, paid (by currency), refund_requests, lookups, unanswered, ..."""
        found: dict[str, Any] = self.control("stats")
        return found

    def effects(self) -> list[dict[str, Any]]:
        """Every refund paid: n, id, at, request, key, payment, amount, currency, reference."""
        return self._all("ledger", "effects")

    def requests(self) -> list[dict[str, Any]]:
        """Every request with its answer: n, what, reference, key, attempt, body, fault, status, ids, error, ..."""
        return self._all("requests", "requests")

    def set_faults(self, *rules: dict[str, Any], rates: str | None = None) -> None:
        """Replace the script by `rules`, e.g. {"kind": "lost", "times": 3, "match": "r-1"}."""
        self.control("faults", {"rules": list(rules)} | ({} if rates is None else {"rates": rates}))

    def control(self, path: str, body: Any = None) -> Any:
        """One request to /_payments/: POST with a body, GET without."""
        return control(f"{self.url}/_payments/{path}", "GET" if body is None else "POST", body)

    def _all(self, path: str, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while page := self.control(f"{path}?since={len(found)}")[name]:
            found += page
        return found


@contextmanager
def running_payments(ledger: Path, **options: Any) -> Iterator[Payments]:
    """`siafu payments serve` as a process on a free port, ended with the block.

    `options` are its flags with underscores (`mode="lookup"`, `slow=20`, `faults="lost:50%"`, `seed=3`, `port=...`).
    """
    flags = ["--ledger", str(ledger), "--json", "--parent-pid", str(os.getpid())]
    for name, value in options.items():
        flags += ["--" + name.replace("_", "-"), str(value)]
    with running("payments", "serve", *flags) as ready:
        yield Payments(ready["url"], ready["pid"])
