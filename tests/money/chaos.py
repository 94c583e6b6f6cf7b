"""The long storm: make chaos-refunds KILLS=1000 STOPS=50

Refunds are made by processes that are killed with SIGKILL and stopped for longer than their leases, on SQLite and on
PostgreSQL, with a provider that honours keys, with one where refunds can only be looked up, and with one that offers
neither. KILLS and STOPS are the totals, in equal shares for each of the six variants. They go in rounds that take
turns, each with a new database; after it the provider's ledger is held against the books. What counts as a kill and as
a stop: `storm.Storm`; what as a violation: `storm.violations`. A round counts once it was looked at, so one that is
interrupted does not count.

--report FILE is written after each round; with --resume it goes on from there. Exits with 1 when a round shows a
violation (the provider's ledger is kept then, and the database if it is SQLite), with 2 when it ended before all was
done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nursery import Nursery
from paysim import running_payments
from services import Postgres, running_postgres

from .storm import WINDOWS, Storm, settle, violations

A_ROUND = 50  # kills
SLOW = 150  # milliseconds that a call takes
TOLD_SECONDS = 10.0  # between two progress lines within a round
VARIANTS = [
    f"{database}-{mode}" for database in ("sqlite", "postgresql") for mode in ("idempotent", "lookup", "neither")
]


class Variant:
    """One database and one kind of provider, its share of the kills and stops, and what has come of it so far."""

    def __init__(self, name: str, kills: int, stops: int) -> None:
        self.name, self.asked = name, (kills, stops)
        self.database, self.mode = name.split("-")
        self.kills = self.stops = self.rounds = 0
        self.seconds = 0.0
        self.windows: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def left(self) -> tuple[int, int]:
        """Kills and stops."""
        return max(0, self.asked[0] - self.kills), max(0, self.asked[1] - self.stops)

    def round(self, folder: Path, postgres: Postgres | None, deadline: float, tell: Tell) -> None:
        """Add one round to what was done before; at most until `deadline`."""
        kills, stops = self.left
        share = min(1.0, A_ROUND / kills) if kills else 1.0
        self.rounds, began = self.rounds + 1, time.monotonic()
        (folder / "processes").mkdir(parents=True)
        with (
            _new_database(folder, postgres, keep=lambda: bool(self.wrong)) as database,
            running_payments(folder / "paid.jsonl", mode=self.mode, slow=SLOW) as sim,
            Nursery(folder / "processes", "money.child") as nursery,
        ):
            storm = Storm(nursery, database, sim, seed=time.time_ns())
            storm.run(min(kills, A_ROUND), round(stops * share), deadline - began, lambda: tell(storm))
            found = asyncio.run(settle(database, sim))
            self.wrong = violations(found, self.mode)
        self.kills, self.stops = self.kills + storm.kills, self.stops + storm.stops
        self.seconds += time.monotonic() - began
        self.windows += storm.windows
        self.sums.update({name: number for name, number in found.items() if isinstance(number, int)})
        self.sums.update({"differences": len(found["differences"])})
        if self.wrong:
            say(f"VIOLATION {self.wrong} in {folder}: {found}")
        else:
            shutil.rmtree(folder)

    def report(self) -> dict[str, Any]:
        names = ("asked", "kills", "stops", "rounds", "seconds", "windows", "sums", "wrong")
        return {name: getattr(self, name) for name in names}

    def resume(self, told: dict[str, Any]) -> None:
        """Go on from a `report`."""
        self.kills, self.stops, self.rounds, self.seconds = (told[n] for n in ("kills", "stops", "rounds", "seconds"))
        self.windows, self.sums, self.wrong = Counter(told["windows"]), Counter(told["sums"]), told["wrong"]

    def __str__(self) -> str:
        windows = " ".join(f"{window.removeprefix('refund_')} {self.windows[window]}" for window in WINDOWS)
        return (
            f"{self.name:<21} {self.kills:>5} kills, {self.stops:>3} stops, at windows: {windows}; "
            f"{self.sums['effects']} refunds paid, {self.sums['requests_paid_twice']} twice, "
            f"{self.sums['dispatched_after_the_end']} begun after their end, {self.sums['fenced']} fenced "
            f"({self.sums['arrived_after_the_end']} of them sent a call when they woke up), "
            f"{self.sums['reviewed']} left to a person, {self.sums['differences']} differences to the books"
        )


class Tell:
    """The progress line: how far all variants are, and at this pace how long it still takes."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._variants, self._began, self._told = variants, time.monotonic(), 0.0
        self._before = sum(each.kills + each.stops for each in variants)

    def __call__(self, storm: Storm | None = None, last: Variant | None = None) -> None:
        """storm: of the round under way, told only now and then; None = a round has just ended, of `last`."""
        now = time.monotonic()
        if storm is not None and now < self._told + TOLD_SECONDS:
            return
        self._told = now
        kills = sum(each.kills for each in self._variants) + (storm.kills if storm else 0)
        stops = sum(each.stops for each in self._variants) + (storm.stops if storm else 0)
        asked = [sum(each.asked[n] for each in self._variants) for n in (0, 1)]
        pace = (now - self._began) / max(1, kills + stops - self._before)
        left = pace * max(0, asked[0] + asked[1] - kills - stops)
        say(
            f"{kills}/{asked[0]} kills, {stops}/{asked[1]} stops, {now - self._began:.0f} s, about {left:.0f} s left"
            + (f" | {last}" if last else "")
        )


@contextmanager
def _new_database(folder: Path, postgres: Postgres | None, *, keep: Any) -> Iterator[str]:
    if postgres is None:
        yield f"sqlite:///{folder / 'shop.db'}"
        return
    name = f"chaos{uuid.uuid4().hex}"
    with postgres.connect() as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield postgres.url(name)
    if not keep():
        with postgres.connect() as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it says how far it came, however it is ended
    logging.disable()  # what the money layer says about refunds that need a person is told by the sums
    names = options.variant or VARIANTS
    variants = [Variant(name, *(share(n, i, len(names)) for n in (options.kills, options.stops)))
                for i, name in enumerate(names)]  # fmt: skip
    if options.resume and options.report.exists():
        told = json.loads(options.report.read_text(encoding="utf-8"))["variants"]
        for each in variants:
            each.resume(told.get(each.name) or each.report())
    folder = Path(tempfile.mkdtemp(prefix="siafu-chaos-"))
    ended = ""
    with ExitStack() as stack:
        postgres = None
        if any(each.database == "postgresql" for each in variants):
            postgres = stack.enter_context(running_postgres())
        try:
            ended = storm(variants, postgres, options, folder)
        except KeyboardInterrupt:
            ended = "interrupted; the round under way is not counted"
    wrong = [each.name for each in variants if each.wrong]
    done = all(each.left == (0, 0) for each in variants)
    say("\n".join(["", *map(str, variants)]))
    if ended:
        say(ended)
    say(f"asked for {options.kills} kills and {options.stops} stops in all: {'done' if done else 'NOT all done'}")
    say(f"VIOLATED: {', '.join(wrong)}, see above" if wrong else "no violation")
    if not wrong:
        shutil.rmtree(folder)
    return 1 if wrong else 0 if done else 2


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m money.chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000, help="in all variants together")
    parser.add_argument("--stops", type=int, default=50, help="in all variants together")
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="at most; what is missing then is said")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="only this one; repeat for more")
    parser.add_argument("--report", type=Path, help="a JSON file, written after each round")
    parser.add_argument("--resume", action="store_true", help="go on from --report")
    options = parser.parse_args(arguments)
    if options.resume and options.report is None:
        parser.error("--resume needs --report FILE")
    return options


def share(total: int, index: int, of: int) -> int:
    """The shares of all together are `total`."""
    return total * (index + 1) // of - total * index // of


def storm(variants: Sequence[Variant], postgres: Postgres | None, options: argparse.Namespace, folder: Path) -> str:
    """Rounds in turn until all is done, time is over or something is wrong; why it ended early, else ""."""
    deadline, tell = time.monotonic() + options.minutes * 60, Tell(variants)
    while any(each.left != (0, 0) for each in variants):
        for each in variants:
            if each.wrong:
                return "a round has shown a violation"
            if each.left == (0, 0):
                continue
            if time.monotonic() >= deadline:
                return f"{options.minutes:g} minutes are over"
            own = postgres if each.database == "postgresql" else None
            each.round(folder / f"{each.name}-{each.rounds + 1}", own, deadline, tell)
            tell(last=each)
            if options.report:
                write(options, variants)
    return ""


def write(options: argparse.Namespace, variants: Sequence[Variant]) -> None:
    told = {
        "asked": {"kills": options.kills, "stops": options.stops},
        "done": all(each.left == (0, 0) for each in variants),
        "violated": [each.name for each in variants if each.wrong],
        "variants": {each.name: each.report() for each in variants},
    }
    partial = options.report.with_name(options.report.name + ".part")
    partial.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    partial.replace(options.report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
