"""A process that works on batches with a slow endpoint, to be killed: `child.py FOLDER [forget]`.

What it finds undone it goes on with: it stores FOLDER/in.jsonl unless there is a file, asks for a batch unless there is
one, and prints that batch once it has ended. forget: the journals and outputs of earlier processes are thrown away
first, for the control.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec

from siafu.apps.batches.desk import BatchDesk, Rules
from siafu.apps.batches.life import House
from siafu.apps.batches.shelf import Shelf
from siafu.pace.clock import SystemClock
from siafu.store.batch_records import BATCH, OPEN, Batch, new_id
from siafu.store.batches import MIGRATIONS, SCHEMA, BatchStore
from siafu.store.client_keys import KeyTerms
from siafu.store.database import Database
from siafu.swarm.results import MapError

sys.path.insert(0, str(Path(__file__).parents[1]))
from asked import counting

CONCURRENCY = 10


class Anybody:
    """For whom batches are run here."""

    def terms(self, owner: str, /) -> KeyTerms | None:
        return KeyTerms(name="")

    async def account(self, owner: str, /) -> str:
        return "serve"

    def tell(self, code: str, message: str, /) -> MapError:
        return MapError(code, message)


async def stored(desk: BatchDesk, data: bytes) -> str:
    """The id of the file."""
    for file in await desk.files("", purpose="batch", after="", limit=1, newest_first=True):
        return file.id
    async with desk.receiving("") as coming:
        await coming.write(data)
        return (await coming.keep("in.jsonl", None)).id


async def asked_for(desk: BatchDesk, file: str) -> Batch:
    for batch in await desk.batches("", after="", limit=1):
        return batch
    now = int(time.time())
    batch = Batch(
        id=new_id(BATCH),
        owner="",
        input_file_id=file,
        completion_window="24h",
        created_at=now,
        expires_at=now + 86_400,
    )
    return await desk.create(batch, None)


async def main(folder: Path, data: bytes) -> None:
    shelf = Shelf(folder / "home")
    database = Database(folder / "home" / "files.db", MIGRATIONS, what="files", schema=SCHEMA)
    house = House(
        shelf=shelf,
        store=BatchStore(database),
        endpoint=counting(folder),
        clock=SystemClock(),
        own="siafu/",
        concurrency=CONCURRENCY,
        keep=None,
    )
    desk = BatchDesk(house, Rules(at_once=4, most_bytes=10**9))
    async with desk.open(Anybody()):
        batch = await asked_for(desk, await stored(desk, data))
        while batch.status in OPEN:
            await asyncio.sleep(0.01)
            batch = await desk.batch(batch.id, "")
    sys.stdout.write(msgspec.json.encode(batch).decode())


if __name__ == "__main__":
    root = Path(sys.argv[1])
    if sys.argv[2:] == ["forget"]:
        for left in root.glob("home/batches/*/*"):
            if left.name != "input.jsonl":
                left.unlink()
    asyncio.run(main(root, (root / "in.jsonl").read_bytes()))
