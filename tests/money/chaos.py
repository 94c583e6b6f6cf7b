"""The long storm: make chaos KILLS=1000 STOPS=50

Refunds are made by processes that are killed with SIGKILL and stopped for longer than their leases, on SQLite and on
PostgreSQL, with a provider that honours keys and with one where refunds can only be looked up. KILLS and STOPS are for
each of the four. They go in rounds that take turns, each with a new database; after it the provider's ledger is held
against the books. What counts as a kill and as a stop: `storm.Storm`; what as a violation: `storm.violations`.
Exits with 1 when a round shows a violation (the provider's ledger is kept then, and the database if it is SQLite), with
2 when it ended before all was done.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from paysim import running_payments
from services import Postgres, running_postgres

from .nursery import Nursery
from .storm import WINDOWS, Storm, settle, violations

A_ROUND = 50  # kills
SLOW = 150  # milliseconds that a call takes
MODES = ("idempotent", "lookup")


class Variant:
    """One database and one kind of provider, and what has come of it so far."""

    def __init__(self, name: str, mode: str, postgres: Postgres | None) -> None:
        self.name, self.mode, self._postgres = name, mode, postgres
        self.kills = self.stops = self.rounds = 0
        self.windows: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()
        self.wrong: list[str] = []

    @contextmanager
    def _database(self, folder: Path) -> Iterator[str]:
        if self._postgres is None:
            yield f"sqlite:///{folder / 'shop.db'}"
            return
        name = f"chaos{uuid.uuid4().hex}"
        with self._postgres.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        yield self._postgres.url(name)
        if not self.wrong:
            with self._postgres.connect() as connection:
                connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def round(self, folder: Path, kills: int, stops: int, seconds: float) -> None:
        """Add one round of so many to what was done before."""
        self.rounds += 1
        folder.mkdir()
        (folder / "processes").mkdir()
        with (
            self._database(folder) as database,
            running_payments(folder / "paid.jsonl", mode=self.mode, slow=SLOW) as sim,
            Nursery(folder / "processes") as nursery,
        ):
            storm = Storm(nursery, database, sim, seed=time.time_ns())
            storm.run(kills, stops, seconds)
            found = asyncio.run(settle(database, sim))
            self.wrong = violations(found, self.mode)
        self.kills, self.stops = self.kills + storm.kills, self.stops + storm.stops
        self.windows += storm.windows
        self.sums.update({name: number for name, number in found.items() if isinstance(number, int)})
        self.sums["differences"] += len(found["differences"])
        if self.wrong:
            say(f"VIOLATION {self.wrong} in {folder}: {found}")
        else:
            shutil.rmtree(folder)

    def __str__(self) -> str:
        windows = " ".join(f"{window.removeprefix('refund_')} {self.windows[window]}" for window in WINDOWS)
        return (
            f"{self.name:<10} {self.mode:<10} {self.kills:>5} kills, {self.stops:>3} stops, at windows: {windows}; "
            f"{self.sums['effects']} refunds paid, {self.sums['requests_paid_twice']} twice, "
            f"{self.sums['dispatched_after_the_end']} begun after their end, {self.sums['fenced']} fenced "
            f"({self.sums['arrived_after_the_end']} of them sent a call when they woke up), "
            f"{self.sums['differences']} differences to the books"
        )


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m money.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--stops", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=24 * 60.0)
    parser.add_argument("--databases", default="sqlite,postgresql")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it says how far it came, however it is ended
    logging.disable()  # what the money layer says about refunds that need a person is told by the sums
    deadline = time.monotonic() + options.minutes * 60
    folder = Path(tempfile.mkdtemp(prefix="siafu-chaos-"))
    with ExitStack() as stack:
        servers: dict[str, Postgres | None] = {"sqlite": None}
        if "postgresql" in options.databases:
            servers["postgresql"] = stack.enter_context(running_postgres())
        variants = [Variant(name, mode, servers[name]) for name in options.databases.split(",") for mode in MODES]
        try:
            storm(variants, options, folder, deadline)
        except KeyboardInterrupt:
            say("interrupted")
        done = all(each.kills >= options.kills and each.stops >= options.stops for each in variants)
        wrong = any(each.wrong for each in variants)
        say("\n".join(["", *map(str, variants)]))
        say(f"asked for {options.kills} kills and {options.stops} stops each: {'done' if done else 'NOT all done'}")
        say("VIOLATED, see above" if wrong else "no violation")
    if not wrong:
        shutil.rmtree(folder)
    return 1 if wrong else 0 if done else 2


def storm(variants: list[Variant], options: Any, folder: Path, deadline: float) -> None:
    """Rounds in turn until all is done, time is over or something is wrong."""
    rounds = max(1, -(-options.kills // A_ROUND))
    for number in range(1, rounds + 1):
        for each in variants:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            until = [options.kills * number // rounds - each.kills, options.stops * number // rounds - each.stops]
            each.round(folder / f"{each.name}-{each.mode}-{number}", until[0], until[1], left)
            say(f"{number}/{rounds} {each}")
            if each.wrong:
                return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
