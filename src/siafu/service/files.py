"""`/v1/files`: input and output of batches, uploaded and read back piece by piece."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator
from typing import TypeVar, get_args

import msgspec

from siafu.apps.batches.desk import MAX_FILE, BatchDesk
from siafu.apps.batches.life import in_thread
from siafu.border.multipart import Multipart, Part, boundary_of
from siafu.border.text import preview
from siafu.errors import InputError, TooLarge
from siafu.service.exchange import Exchange
from siafu.service.refusals import Refused, invalid
from siafu.service.shapes import read_query
from siafu.service.stored_records import FileDeleted, FileList, FilesQuery, Kept, file_object
from siafu.store.batch_records import Purpose, StoredFile

IDLE_SECONDS, UPLOAD_SECONDS = 60.0, 3600.0  # for a piece of an upload to arrive, and for all of it
MAX_FORM = MAX_FILE + 2**16  # bytes
MAX_FIELD = 1024  # bytes of a field beside the file
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)  # others are passed over
_PIECE = 256 * 1024
T = TypeVar("T")


async def upload(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """POST /v1/files"""
    x.size(MAX_FORM)
    form = _Form(boundary_of(x.header(b"content-type")))
    now = asyncio.get_running_loop().time
    ends, more, size = now() + UPLOAD_SECONDS, True, 0
    async with desk.receiving(owner) as coming:
        while more:
            try:
                async with asyncio.timeout_at(min(now() + IDLE_SECONDS, ends)):
                    data, more = await x.piece()
            except TimeoutError:
                raise Refused(408, "the file did not arrive in time", code="timeout") from None
            size += len(data)
            if size > MAX_FORM:
                raise TooLarge(f"a file may have at most {MAX_FILE:,} bytes")
            for piece in form.feed(data):
                await coming.write(piece)
        told = form.ended()
        if not desk.serves(owner):
            message = "this client key was revoked, or has expired, while the file came in; it is not kept"
            raise Refused(401, message, code="invalid_api_key", again=False)
        file = await coming.keep(*told)
    await x.answer(msgspec.json.encode(file_object(file)))


class _Form:
    """The fields of an upload; the bytes of its file are handed on. Raises (all): Refused, BoundaryError."""

    def __init__(self, boundary: bytes) -> None:
        self._form = Multipart(boundary)
        self._fields: dict[str, bytes] = {}
        self._name: str | None = None  # of the file
        self._here = ""

    def feed(self, data: bytes) -> Iterator[bytes]:
        for found in self._form.feed(data):
            if isinstance(found, Part):
                self._begin(found)
            elif self._here == "file":
                yield found
            elif self._here in _FIELDS:
                self._fields[self._here] += found
                if len(self._fields[self._here]) > MAX_FIELD:
                    raise invalid(preview(self._here, 60), f"a field may have at most {MAX_FIELD:,} bytes")

    def _begin(self, part: Part) -> None:
        self._here = part.name
        if part.name in self._fields or (part.name == "file" and self._name is not None):
            raise invalid(preview(part.name, 60), "this field stands twice in the form")
        if part.name == "file":
            self._name = part.filename or ""
        elif part.name in _FIELDS:
            self._fields[part.name] = b""

    def ended(self) -> tuple[str, int | None]:
        """The name of the file, and for how many seconds it is to be kept (None = as others)."""
        self._form.end()
        if self._name is None:
            raise invalid("file", "the form has no part named file")
        if self._fields.get("purpose") != b"batch":
            raise invalid("purpose", 'purpose must be "batch"')
        return self._name, _kept(self._fields)


def _kept(fields: dict[str, bytes]) -> int | None:
    """The seconds that `expires_after` asks for; None without it."""
    seconds = fields.get(_SECONDS, b"")
    if fields.get(_ANCHOR, b"created_at") != b"created_at":
        raise invalid("expires_after.anchor", 'anchor must be "created_at"')
    try:
        return msgspec.convert(seconds.decode("latin-1"), Kept, strict=False) if seconds else None
    except msgspec.ValidationError as error:
        raise invalid("expires_after.seconds", f"seconds: {error}") from None


async def list_files(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """GET /v1/files"""
    asked = read_query(x.scope["query_string"], FilesQuery)
    found: list[StoredFile] = []
    if asked.purpose in ("", *get_args(Purpose)):
        files = desk.files(
            owner,
            purpose=asked.purpose or None,  # type: ignore[arg-type] # one of them
            after=asked.after,
            limit=asked.limit + 1,
            newest_first=asked.order == "desc",
        )
        found = await known(files, "after")
    data = [file_object(file) for file in found[: asked.limit]]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    page = FileList(data=data, has_more=len(found) > asked.limit, first_id=first, last_id=last)
    await x.answer(msgspec.json.encode(page))


async def known(asked: Awaitable[T], param: str = "id") -> T:
    """What is asked for by an id. Raises: Refused when there is no such thing, or it is somebody else's."""
    try:
        return await asked
    except InputError as error:
        raise Refused(404, error.message, code="not_found", param=param, again=False) from None


async def get_file(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """GET /v1/files/{id}"""
    await x.answer(msgspec.json.encode(file_object(await known(desk.file(id, owner)))))


async def delete_file(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """DELETE /v1/files/{id}"""
    await known(desk.delete(id, owner))
    await x.answer(msgspec.json.encode(FileDeleted(id=id)))


async def content(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """GET /v1/files/{id}/content"""
    file = await known(desk.file(id, owner))
    fd = await known(in_thread(lambda: desk.house.shelf.open(file.id)))
    try:
        x.events = False
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(file.bytes).encode()),
            (b"content-disposition", f'attachment; filename="{file.id}.jsonl"'.encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        await x.begin(200, headers)
        left = file.bytes
        while left and (data := await in_thread(lambda: os.read(fd, _PIECE))):
            left -= len(data)
            await x.write(data, more=left > 0)
    finally:
        os.close(fd)
