"""A process that races for one move of a canary: `python canary_child.py URL`. It begins when its input closes, and
says on stdout whether the move was its own.
"""

from __future__ import annotations

import asyncio
import sys

from siafu.store.canaries import MIGRATIONS, SCHEMA, Canaries
from siafu.store.canary_records import Move, Numbers
from siafu.store.database import Database


async def main(url: str) -> None:
    database = Database(url, MIGRATIONS, what="the canaries", schema=SCHEMA)
    canaries = Canaries(database)
    last = (await canaries.look()).last
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    if last is not None:
        await canaries.look({(last.id, last.number, "new"): Numbers(calls=10, ok=9, slots={5: 9})})
        won = await canaries.move(last, Move(state="running", stage=1, reason="raced"))
        sys.stdout.write("won\n" if won else "lost\n")
    await database.aclose()


asyncio.run(main(sys.argv[1]))
