"""A process to be killed: writes to a store without end, and says on stdout what was confirmed to it.

    python child.py PATH write|forget|hold

`forget` is the same with every COMMIT left out, to show that the check would notice. `hold` only begins.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from functools import partial
from typing import Any

from siafu.store.records import AttemptOpened, AttemptSettled, ItemRecord, JournalEntry, RunStore
from siafu.store.sqlite import SqliteStore


class Forgetful(sqlite3.Connection):
    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" or (sql.startswith("BEGIN") and self.in_transaction):
            sql = "SELECT 1"
        return super().execute(sql, *rest)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def work(run: RunStore, prefix: str) -> None:
    for n in range(10**9):
        keys = [f"{prefix}-{n}-{part}" for part in range(3)]
        await run.claim([(key, "in") for key in keys])
        say("claimed", *keys)
        key = keys[0]
        line = AttemptOpened(
            attempt=key, run="r", task=key, step="#0", agent="a", role="r", upstream="u", model="m", opened_at=1.0,
            reserved_pico=10,
        )  # fmt: skip
        await run.ledger.open(line)
        say("opened", key)
        run.ledger.settle(AttemptSettled(attempt=key, outcome="ok", settled_at=2.0, usage_known=True, usd_pico=3))
        body = f"{key} 답변 ".encode() * 50
        step = JournalEntry(path="", seq=0, kind="model", fingerprint="f", outcome=body, usd_pico=3)
        await run.journal.append(key, step)
        say("appended", key)
        await run.record(ItemRecord(key=key, status="ok", input_print="in", work_print="w", value=body))
        say("recorded", key)


async def main(path: str, mode: str) -> None:
    if mode == "forget":
        sqlite3.connect = partial(sqlite3.connect, factory=Forgetful)  # type: ignore[assignment]
    run = SqliteStore(path).run("r")
    state = await run.begin("w")
    say("began", state.session)
    if mode == "hold":
        await asyncio.Event().wait()
    async with asyncio.TaskGroup() as tasks:
        for worker in range(8):
            tasks.create_task(work(run, f"{state.session}-{worker}"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
