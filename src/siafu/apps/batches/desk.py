"""Files and batches as a whole: what clients ask for, what goes on meanwhile, and what a restart finds."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

from siafu.apps.batches.asking import Patrons, Purse
from siafu.apps.batches.life import House, Life, in_thread
from siafu.apps.batches.shelf import is_batch_id, is_file_id
from siafu.apps.batches.turns import Turns
from siafu.border.text import preview
from siafu.errors import BacklogFull, DiskFull, InputError, StoreError, TooLarge
from siafu.store.batch_records import FILE, OPEN, Batch, Purpose, StoredFile, new_id
from siafu.store.client_keys import KeyTerms
from siafu.store.crash import crash_point

MAX_FILE = 200 * 2**20  # bytes
MAX_FILES = 50_000  # of one owner
MAX_NAME = 255  # characters
MAX_OPEN = 100  # batches of one owner that have not ended
MAX_UPLOADS = 8  # of one owner at once
TOGETHER = 256 * 1024  # bytes of an upload that are written at once
LOOK, NOTE, SWEEP = 1.0, 5.0, 60.0  # seconds between two looks at deadlines, counts, and what has expired
T = TypeVar("T")
log = logging.getLogger("siafu")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """at_once: batches worked on at a time. most_bytes: that the files of one owner may take up."""

    at_once: int
    most_bytes: int


class Upload:
    """A file as it comes in. Without `keep`, nothing of it is left after `aclose`."""

    def __init__(self, house: House, owner: str, room: int) -> None:
        self.id = new_id(FILE)
        self._house = house
        self._owner = owner
        self._room = room
        self._buffer = bytearray()
        self._size = 0
        self._fd: int | None = None
        self._keeping: asyncio.Task[StoredFile] | None = None

    async def write(self, data: bytes) -> None:
        """Raises: TooLarge, InputError when the owner's files may take up no more, DiskFull, StoreError."""
        self._buffer += data
        self._size += len(data)
        if self._size > MAX_FILE:
            raise TooLarge(f"a file may have at most {MAX_FILE:,} bytes")
        if self._size > self._room:
            raise InputError("this client key's files would take up more than they may; delete some first")
        if len(self._buffer) >= TOGETHER:
            await self._flush()

    async def keep(self, name: str, seconds: float | None) -> StoredFile:
        """Make it a file, durably. name: the client's word for it. seconds: how long it is kept, None = as others. When
        cancelled, it may or may not be one.
        """
        await self._flush()
        if self._fd is None:
            raise InputError("the file is empty")
        self._keeping = asyncio.create_task(self._keep(name, seconds, self._fd))
        return await asyncio.shield(self._keeping)

    async def _keep(self, name: str, seconds: float | None, fd: int) -> StoredFile:
        shelf = self._house.shelf
        await in_thread(lambda: shelf.seal(self.id, fd))
        crash_point("file_sealed")
        file = StoredFile(
            id=self.id,
            owner=self._owner,
            name=preview(PurePath(name.replace("\\", "/")).name, MAX_NAME) or "file",
            purpose="batch",
            bytes=self._size,
            created_at=int(self._house.clock.wall()),
            expires_at=self._house.lasts(seconds),
        )
        try:
            await self._house.store.add_file(file)
        except StoreError:
            await in_thread(lambda: shelf.drop(self.id))
            raise
        return file

    async def aclose(self) -> None:
        """Idempotent."""
        if self._keeping is not None:
            await asyncio.wait({self._keeping})
        fd, self._fd = self._fd, None
        if fd is not None:
            await in_thread(lambda: self._house.shelf.let_go(self.id, fd))

    async def _flush(self) -> None:
        if self._buffer:
            data, self._buffer = bytes(self._buffer), bytearray()
            await in_thread(lambda: self._append(data))

    def _append(self, data: bytes) -> None:
        shelf = self._house.shelf
        if shelf.room() < len(data):
            raise DiskFull("there is no room on the disk of this server for further files")
        if self._fd is None:
            self._fd = shelf.begin(self.id)
        shelf.write(self._fd, data)


class BatchDesk:
    """Raises (all that clients ask for): StoreError; InputError for an id that is not the owner's."""

    def __init__(self, house: House, rules: Rules) -> None:
        self.house = house
        self._rules = rules
        self._patrons: Patrons | None = None
        self._lives: dict[str, tuple[Life, asyncio.Task[None]]] = {}
        self._purses: dict[str, Purse] = {}
        self._going: set[asyncio.Task[Any]] = set()
        self._accepting = asyncio.Lock()
        self._uploads: Counter[str] = Counter()
        self._turns = Turns(rules.at_once)

    @asynccontextmanager
    async def open(self, patrons: Patrons) -> AsyncIterator[None]:
        """Go on with what a former process has left, and work for as long as the block runs. Raises: StoreError."""
        self._patrons = patrons
        house = self.house
        files, batches = await house.store.known()
        if files or batches:  # an empty database beside files may have been lost: then nothing is removed
            await in_thread(lambda: house.shelf.sweep(files, batches))
        for batch in await house.store.open_batches():
            self._begin(batch)
        keeping = asyncio.create_task(self._keep_house(), name="siafu batches")
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait({keeping, *self._going})
            await self.drain(0.0, asyncio.Event())

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Ask nothing more, and wait for what is under way; after `seconds`, or once `hurry` is set, give that up. All
        batches go on in the next process.
        """
        tasks = {task for _, task in self._lives.values()}
        for life, _ in self._lives.values():
            life.halt()
        if tasks:
            hurried = asyncio.create_task(hurry.wait())
            ended = asyncio.create_task(asyncio.wait(tasks))
            await asyncio.wait({hurried, ended}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            for task in tasks:
                task.cancel()
            await ended

    @asynccontextmanager
    async def receiving(self, owner: str) -> AsyncIterator[Upload]:
        """A new file, to be written and kept in the block.

        Raises: BacklogFull when too many come in at once; InputError when there are too many.
        """
        if self._uploads[owner] >= MAX_UPLOADS:
            told = f"{MAX_UPLOADS} files are being uploaded with this client key, as many as may at once"
            raise BacklogFull(told, retry_after=5.0)
        self._uploads[owner] += 1
        try:
            files, size = await self.house.store.held(owner)
            if files >= MAX_FILES:
                raise InputError(f"this client key has {files:,} files, as many as may be; delete some first")
            upload = Upload(self.house, owner, self._rules.most_bytes - size)
            async with aclosing(upload):
                yield upload
        finally:
            self._uploads[owner] -= 1

    def serves(self, owner: str) -> bool:
        """Whether its client key is good still."""
        return self._patrons is not None and self._patrons.terms(owner) is not None

    async def file(self, id: str, owner: str) -> StoredFile:
        found = await self.house.store.file(id, owner) if is_file_id(id) else None
        if found is None:
            raise InputError(f"there is no file {preview(id, 60)!r}")
        return found

    async def delete(self, id: str, owner: str) -> None:
        """Remove a file. A batch that works on it goes on: it has the bytes under another name."""
        await self._surely(self._delete(await self.file(id, owner)))

    async def _delete(self, file: StoredFile) -> None:
        await self.house.store.remove_file(file.id, file.owner)
        await in_thread(lambda: self.house.shelf.drop(file.id))

    async def asked(self, owner: str, once: str) -> Batch | None:
        """The batch that was accepted under the word `once`, whatever became of its file; None = there is none."""
        found = await self.house.store.batch_asked(owner, once)
        return None if found is None else self._now(found)

    async def create(self, batch: Batch, once: str | None) -> Batch:
        """Accept a batch: it is on disk, and is worked on from now on. once: a word under which its owner asks again
        for the same; the first batch counts.

        Raises: BacklogFull.
        """
        return await self._surely(self._create(batch, once))

    async def _create(self, batch: Batch, once: str | None) -> Batch:
        async with self._accepting:  # one at a time, so that they are counted
            return await self._accept(batch, once)

    async def _accept(self, batch: Batch, once: str | None) -> Batch:
        house, owner = self.house, batch.owner
        known = [life.batch for life, _ in self._lives.values()]
        if sum(each.owner == owner and each.status in OPEN for each in known) >= MAX_OPEN:
            told = f"{MAX_OPEN} batches of this client key have not ended, as many as may; try again later"
            raise BacklogFull(told, retry_after=60.0)
        file = await self.file(batch.input_file_id, owner)
        if file.purpose != "batch":
            raise InputError(f"{file.id} is the output of a batch, and no input")
        await in_thread(lambda: house.shelf.lay_out(batch.id, file.id))
        crash_point("batch_laid_out")
        kept = await house.store.add_batch(batch, once)
        crash_point("batch_accepted")
        if kept.id == batch.id:
            self._begin(batch)
        else:
            await in_thread(lambda: house.shelf.clear(batch.id))
        return await self.batch(kept.id, owner)

    async def batch(self, id: str, owner: str) -> Batch:
        found = await self.house.store.batch(id, owner) if is_batch_id(id) else None
        if found is None:
            raise InputError(f"there is no batch {preview(id, 60)!r}")
        return self._now(found)

    async def batches(self, owner: str, *, after: str, limit: int) -> list[Batch]:
        """Newest first; `after`: the id that they follow, "" = from the newest."""
        if after:
            await self.batch(after, owner)
        return [self._now(batch) for batch in await self.house.store.batches(owner, after=after, limit=limit)]

    async def files(
        self, owner: str, *, purpose: Purpose | None, after: str, limit: int, newest_first: bool
    ) -> list[StoredFile]:
        """`after`: the id that they follow, "" = from the start."""
        if after:
            await self.file(after, owner)
        files = self.house.store.files
        return await files(owner, purpose=purpose, after=after, limit=limit, newest_first=newest_first)

    async def cancel(self, id: str, owner: str) -> Batch | None:
        """Have it cancelled: durably so when this returns; it has happened once its status is `cancelled`. None = it
        has ended otherwise, or its output is being made.
        """
        batch = await self.batch(id, owner)
        if batch.status == "cancelled":
            return batch
        if id not in self._lives or not await self._surely(self._lives[id][0].cancel()):
            return None
        return await self.batch(id, owner)

    async def _surely(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns. When the client leaves meanwhile, it still comes to its end: what is in SQL and what is
        known here must agree.
        """
        task = asyncio.create_task(work)
        self._going.add(task)
        task.add_done_callback(self._going.discard)
        return await asyncio.shield(task)

    def rests(self, id: str) -> tuple[str, str] | None:
        """Code and message of what keeps a batch from going on; None = nothing does."""
        return self._lives[id][0].rests if id in self._lives else None

    def _now(self, batch: Batch) -> Batch:
        return self._lives[batch.id][0].shown() if batch.id in self._lives else batch

    def _begin(self, batch: Batch) -> None:
        if self._patrons is None:
            raise TypeError("the desk is not open")
        if batch.owner not in self._purses:
            terms = self._patrons.terms(batch.owner) or KeyTerms(name="")
            self._purses[batch.owner] = Purse(terms)
        life = Life(batch, self.house, self._patrons, self._purses[batch.owner], self._turns)
        task = asyncio.create_task(life.run(), name=f"siafu {batch.id}")
        self._lives[batch.id] = life, task
        task.add_done_callback(lambda _: self._lives.pop(batch.id))

    async def _keep_house(self) -> None:
        house = self.house
        due = {NOTE: 0.0, SWEEP: 0.0}
        while True:
            now, wall = house.clock.now(), house.clock.wall()
            for life, _ in self._lives.values():
                life.look(wall)
            try:
                if self._lives and await in_thread(house.shelf.room) <= 0:
                    for life, _ in self._lives.values():
                        life.make_room()
                if now >= due[NOTE]:
                    due[NOTE] = now + NOTE
                    for life, _ in list(self._lives.values()):
                        await life.note()
                if now >= due[SWEEP]:
                    due[SWEEP] = now + SWEEP
                    for id in await house.store.forget(wall, house.keep):
                        await in_thread(lambda id=id: house.shelf.drop(id))  # type: ignore[misc]
            except StoreError as error:
                log.error("stored files and batches: %s", error.message)
            except Exception:
                log.exception("stored files and batches cannot be looked after; this is tried again")
            await house.clock.sleep(LOOK)
