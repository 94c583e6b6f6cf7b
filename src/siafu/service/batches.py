"""`/v1/batches`: made, listed, looked at and cancelled."""

from __future__ import annotations

import asyncio
import re

import msgspec

from siafu.apps.batch import URL
from siafu.apps.batches.desk import BatchDesk
from siafu.border.canonical import loads
from siafu.errors import InputError
from siafu.service.exchange import Exchange
from siafu.service.files import kept_seconds, known, limit_of, query
from siafu.service.refusals import Refused, invalid
from siafu.service.stored_records import BatchList, BatchObject, CreateBatch, batch_object
from siafu.store.batch_records import BATCH, Batch, new_id

MAX_ASKED = 64 * 1024  # bytes of a request
BODY_SECONDS = 60.0
LISTED, MOST_LISTED = 20, 100  # batches of a list: when nothing is said, and at most
_WINDOW = re.compile(r"([1-9][0-9]{0,2})([hd])")
_HOUR, _DAY = 3600, 86_400
_MOST = 30 * _DAY
_FIELD = re.compile(r"\$\.([a-z_]+)")


async def create(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """POST /v1/batches"""
    if x.header(b"content-type").partition(";")[0].strip().lower() != "application/json":
        message = "send the body as JSON, with the header Content-Type: application/json"
        raise Refused(415, message, code="unsupported_media_type", again=False)
    x.size(MAX_ASKED)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await x.body(MAX_ASKED)
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {BODY_SECONDS:g} s", code="timeout") from None
    asked = read_batch(body)
    file = await known(desk.file(asked.input_file_id, owner), "input_file_id")
    now = int(desk.house.clock.wall())
    batch = Batch(
        id=new_id(BATCH),
        owner=owner,
        input_file_id=file.id,
        completion_window=asked.completion_window,
        created_at=now,
        expires_at=now + _seconds(asked.completion_window),
        metadata=asked.metadata,
        output_seconds=None if asked.output_expires_after is None else asked.output_expires_after.seconds,
    )
    try:
        made = await desk.create(batch, x.header(b"idempotency-key") or None)
    except InputError as error:
        raise invalid("input_file_id", error.message) from None
    await _answer(x, desk, made)


def read_batch(body: bytes) -> CreateBatch:
    """What a client asks for. Unknown fields are passed over. Raises: Refused, BoundaryError."""
    value = loads(body, max_bytes=MAX_ASKED, what="the body")
    try:
        asked = msgspec.convert(value, CreateBatch)
    except msgspec.ValidationError as error:
        field = _FIELD.search(str(error))
        named = field[1] if field else next((f for f in CreateBatch.__struct_fields__ if f"`{f}`" in str(error)), "")
        raise invalid(named, str(error).replace("`$.", "`")) from None
    if asked.endpoint != URL:
        raise invalid("endpoint", f"endpoint must be {URL}")
    _seconds(asked.completion_window)
    pairs = asked.metadata or {}
    if len(pairs) > 16 or any(len(name) > 64 or len(text) > 512 for name, text in pairs.items()):
        raise invalid("metadata", "metadata has at most 16 pairs, names of 64 and values of 512 characters")
    if asked.output_expires_after is not None:
        kept_seconds(asked.output_expires_after.seconds, "output_expires_after")
    return asked


def _seconds(window: str) -> int:
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * (_DAY if found[2] == "d" else _HOUR) if found else 0
    if not 0 < seconds <= _MOST:
        raise invalid("completion_window", 'completion_window is "24h", or other hours or days from "1h" to "30d"')
    return seconds


async def list_batches(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """GET /v1/batches"""
    asked = query(x)
    limit = limit_of(asked, LISTED, MOST_LISTED)
    found = await known(desk.batches(owner, after=asked.get("after", ""), limit=limit + 1), "after")
    data = [_told(desk, batch) for batch in found[:limit]]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    page = BatchList(data=data, has_more=len(found) > limit, first_id=first, last_id=last)
    await x.answer(msgspec.json.encode(page))


async def get_batch(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """GET /v1/batches/{id}"""
    await _answer(x, desk, await known(desk.batch(id, owner)))


async def cancel(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """POST /v1/batches/{id}/cancel"""
    batch = await known(desk.cancel(id, owner))
    if batch is None:
        status = (await known(desk.batch(id, owner))).status
        raise Refused(409, f"a batch that is {status} cannot be cancelled", code="batch_ended", again=False)
    await _answer(x, desk, batch)


async def _answer(x: Exchange, desk: BatchDesk, batch: Batch) -> None:
    await x.answer(msgspec.json.encode(_told(desk, batch)))


def _told(desk: BatchDesk, batch: Batch) -> BatchObject:
    return batch_object(batch, desk.rests(batch.id), simulated=desk.house.simulated)
