"""`python -m siafu` as a process, its ends, and what its journal says."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from here import command
from siafu.apps.support.examples import TEXTS, KnownOrder, example_requests
from siafu.apps.support.requests import CustomerRequest
from siafu.apps.support.shop.catalogue import products
from siafu.apps.support.shop.orders import first_orders
from sim import SRC, Sim

SECONDS = 60.0  # the longest that anything here may take
# Prices are known for these names, so every call has a cost.
MODELS = {"SIAFU_STRONG_MODEL": "kimi-k2.5", "SIAFU_CHEAP_MODEL": "deepseek-v3.2"}
# Settings: the shop's own rule for refunds, but who takes over from a killed process waits less for it.
SHORT_LEASE = """[tools.effects."shop.process_refund"]
key = ["request", "order_id"]
ignore = ["reason"]
unclear = ["shop_unavailable"]
honours_key = true
lease_seconds = 5
"""


def examples(count: int) -> list[CustomerRequest]:
    """So many example requests, no two with the same text."""
    goods = products()
    orders = [KnownOrder(order_id=order.order_id, customer=customer) for customer, order in first_orders(goods)]
    names = [(product.name_ko, product.name_en) for product in goods]
    found = {request.text: request for request in example_requests(orders, names, count=2 * count)}
    return list(found.values())[:count]


def intended(text: str) -> str:
    """The category a person would give to an example request."""
    for category, _, *texts in TEXTS:
        for example in (text for language in texts for text in language):
            pattern = re.escape(example).replace(r"\{order\}", ".+").replace(r"\{product\}", ".+")
            if re.fullmatch(pattern, text):
                return category
    raise AssertionError(text)


def write(path: Path, rows: Iterable[Any]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def records(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def environment(**more: str) -> dict[str, str]:
    """Of a process that nobody has configured."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SIAFU_", "OPENAI_"))}
    return {**own, "PYTHONPATH": str(SRC), **MODELS, **more}


def siafu(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command from its start to its end, in this process."""
    return command(folder, *words, environment=environment(**more))


def until(true: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Wait until `true()`, for `seconds` at most."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.002)


def processes(word: str) -> list[int]:
    """Living processes with `word` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:  # it has ended
            continue
        if word.encode() in line.split(b"\0"):
            found.append(int(path.parent.name))
    return found


class Command:
    """A command over files that is killed and started again, and what is known of it from outside: the requests that
    reached the endpoint, and the journal's file.
    """

    def __init__(self, folder: Path, sim: Sim, *words: str) -> None:
        self.folder = folder
        self.sim = sim
        self.words = words
        self.program = ["-m", "siafu"]
        self.environment: dict[str, str] = {}
        self.lost: list[int] = []  # calls of each life that reached the endpoint and were not journaled
        self.unsettled: list[int] = []  # ledger lines that each life left open
        self.printed = b""  # by the last life
        self._since = 0
        self._journaled = 0

    def live(self, *, kill_at: int = 0, linger: float = 0.0, crash_at: str = "") -> int:
        """One life of the process; returns its exit code. It is killed `linger` seconds after the endpoint got its
        `kill_at`-th request of this life, or at a crash point.
        """
        before = self.sim.stats()["requests"]
        process = subprocess.Popen(
            [sys.executable, *self.program, *self.words],
            cwd=self.folder,
            env=environment(SIAFU_CRASH_AT=crash_at, **self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            if kill_at:
                until(
                    lambda: process.poll() is not None or self.sim.stats()["requests"] >= before + kill_at,
                    "the command asked nothing",
                )
                time.sleep(linger)
                process.kill()
            self.printed, told = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
            process.wait()
        until(lambda: self.sim.stats()["in_flight"] == 0, "the endpoint still answers")
        if process.returncode == -signal.SIGKILL:
            self._count_lost()
        else:
            assert process.returncode == 0, told.decode()
        return process.returncode

    def _count_lost(self) -> None:
        found = self.sim.requests(self._since)
        self._since = found[-1]["n"] if found else self._since
        journaled = self.query("SELECT COUNT(*) FROM journal WHERE kind = 'model'")[0][0]
        self.lost.append(len(found) - (journaled - self._journaled))
        self._journaled = journaled
        self.unsettled.append(self.query("SELECT COUNT(*) FROM attempt WHERE outcome IS NULL")[0][0])

    @property
    def journal(self) -> Path:
        return next((self.folder / ".siafu" / "runs").glob("*.db"))

    def forget(self) -> None:
        """Lose the journal, as nothing should."""
        for path in self.journal.parent.glob("*.db*"):
            path.unlink()
        self._journaled = 0

    def query(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.journal)) as db:
            return db.execute(sql).fetchall()

    def repeated(self) -> int:
        """How many requests the endpoint got that it had got before, to the byte."""
        asked = Counter(request["sha256"] for request in self.sim.requests())
        return asked.total() - len(asked)
