"""A folder with refund requests, the real command over them, and what the payment simulator was made to pay."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from paysim import Payments
from sim import Sim
from support.commands import SECONDS, environment, records, siafu, write


class Shop:
    """A folder with a file of requests, and every command that is run there. asks: customer and order of each id."""

    def __init__(self, folder: Path, sim: Sim, payments: Payments, asks: Mapping[str, tuple[str, str]]) -> None:
        self.folder, self.sim, self.payments, self.asks = folder, sim, payments, asks
        self.more = {"SIAFU_PAYMENTS_URL": payments.url}
        rows = [{"id": id, "customer": who, "text": f"주문 {order} 환불해 주세요"} for id, (who, order) in asks.items()]
        write(folder / "문의.jsonl", rows)
        self.words = ("support", "run", "문의.jsonl", "--out", "out.jsonl", "--base-url", sim.url, "--json")

    def siafu(self, *words: str) -> subprocess.CompletedProcess[str]:
        return siafu(self.folder, *words, **self.more)

    def run(self, *words: str, code: int = 0) -> dict[str, Any]:
        ended = self.siafu(*self.words, *words)
        assert ended.returncode == code, ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        return found

    @contextmanager
    def running(self, *words: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "siafu", *self.words, *words],
            cwd=self.folder,
            env=environment(**self.more, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextmanager
    def running_shop(self) -> Iterator[None]:
        """The shop by itself, with no run that calls it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "siafu", "shop", "serve"],
            cwd=self.folder,
            env=environment(**self.more),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.communicate(timeout=SECONDS)

    def outcomes(self) -> dict[str, str]:
        """The outcome of each id, which has one record, with `(waiting)` where it is not the last."""
        found = records(self.folder / "out.jsonl")
        assert max(Counter(record["id"] for record in found).values()) == 1
        return {r["id"]: r["outcome"] + " (waiting)" * r.get("waiting", False) for r in found}

    def answer(self, id: str) -> str:
        (text,) = [r["answer"] for r in records(self.folder / "out.jsonl") if r["id"] == id]
        return str(text)

    def decide(self, word: str, id: str) -> None:
        customer = self.asks[id][0]
        waiting = json.loads(self.siafu("approvals", "list", "--json").stdout)
        (approval,) = [each["id"] for each in waiting if each["requester"] == customer]
        decided = self.siafu("approvals", word, approval, "--as", "lee", "--note", "통화함")
        assert decided.returncode == 0, decided.stderr

    def expire(self, id: str) -> None:
        """Let the time pass in which a person could have decided."""
        with closing(sqlite3.connect(self.folder / ".siafu" / "shop.db")) as db:
            db.execute("UPDATE approval SET expires_at = 1 WHERE requester = ?", (self.asks[id][0],))
            db.commit()

    def paid(self) -> dict[str, int]:
        """How often each payment was paid back, as the one who paid says."""
        return dict(Counter(effect["payment"] for effect in self.payments.effects()))

    def asked(self) -> int:
        """Requests that a model got."""
        return int(self.sim.stats()["requests"])
