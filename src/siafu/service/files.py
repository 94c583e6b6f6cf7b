"""`/v1/files`: input and output of batches, uploaded and read back piece by piece."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator, Mapping
from typing import TypeVar, get_args
from urllib.parse import parse_qsl

import msgspec

from siafu.apps.batches.desk import MAX_FILE, BatchDesk
from siafu.apps.batches.life import in_thread
from siafu.border.multipart import Multipart, Part, boundary_of
from siafu.border.text import clean_bytes, preview
from siafu.errors import InputError, TooLarge
from siafu.service.exchange import Exchange
from siafu.service.refusals import Refused, invalid
from siafu.service.stored_records import FileDeleted, FileList, file_object
from siafu.store.batch_records import Purpose

IDLE_SECONDS, UPLOAD_SECONDS = 60.0, 3600.0  # for a piece of an upload to arrive, and for all of it
MAX_FORM = MAX_FILE + 2**16  # bytes
MAX_FIELD = 1024  # bytes of a field beside the file
LEAST_KEPT, MOST_KEPT = 3600, 30 * 86_400  # seconds that a client may have a file kept
MOST_FILES, FILES = 10_000, 1_000  # of a list: at most, and when nothing is said
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
        file = await coming.keep(*form.ended())
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
            else:
                self._fields[self._here] += found
                if len(self._fields[self._here]) > MAX_FIELD:
                    raise invalid(preview(self._here, 60), f"a field may have at most {MAX_FIELD:,} bytes")

    def _begin(self, part: Part) -> None:
        self._here = part.name
        if part.name in self._fields or (part.name == "file" and self._name is not None):
            raise invalid(preview(part.name, 60), "this field stands twice in the form")
        if part.name == "file":
            self._name = part.filename or ""
        else:
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
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != b"created_at" or seconds is None or not seconds.isdigit():
        raise invalid("expires_after", 'expires_after is {"anchor": "created_at", "seconds": NUMBER}')
    return kept_seconds(int(seconds[:12]), "expires_after")


def kept_seconds(seconds: int, param: str) -> int:
    """Raises: Refused when a file cannot be kept for so long."""
    if not LEAST_KEPT <= seconds <= MOST_KEPT:
        raise invalid(f"{param}.seconds", f"seconds must be {LEAST_KEPT:,} to {MOST_KEPT:,}")
    return seconds


async def list_files(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """GET /v1/files"""
    asked = query(x)
    order, purpose = asked.get("order", "desc"), asked.get("purpose")
    if order not in ("asc", "desc"):
        raise invalid("order", "order must be asc or desc")
    limit = limit_of(asked, FILES, MOST_FILES)
    if purpose is not None and purpose not in get_args(Purpose):
        files = []
    else:
        files = await known(
            desk.files(
                owner,
                purpose=purpose,  # type: ignore[arg-type] # one of them
                after=asked.get("after", ""),
                limit=limit + 1,
                newest_first=order == "desc",
            ),
            "after",
        )
    data = [file_object(file) for file in files[:limit]]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    page = FileList(data=data, has_more=len(files) > limit, first_id=first, last_id=last)
    await x.answer(msgspec.json.encode(page))


async def known(asked: Awaitable[T], param: str = "id") -> T:
    """What is asked for by an id. Raises: Refused when there is no such thing, or it is somebody else's."""
    try:
        return await asked
    except InputError as error:
        raise Refused(404, error.message, code="not_found", param=param, again=False) from None


def query(x: Exchange) -> dict[str, str]:
    """The parameters behind the `?`; of several with one name the last."""
    return dict(parse_qsl(clean_bytes(x.scope["query_string"]), keep_blank_values=True, max_num_fields=20))


def limit_of(asked: Mapping[str, str], usual: int, most: int) -> int:
    """How many entries of a list are asked for. Raises: Refused."""
    text = asked.get("limit", str(usual))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise invalid("limit", f"limit must be 1 to {most:,}")
    return int(text)


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
