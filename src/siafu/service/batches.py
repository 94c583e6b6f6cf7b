"""`/v1/batches`: made, listed, looked at and cancelled."""

from __future__ import annotations

import asyncio

import msgspec

from siafu.apps.batches.desk import BatchDesk
from siafu.errors import InputError
from siafu.service.exchange import Exchange
from siafu.service.files import known
from siafu.service.refusals import Refused, invalid
from siafu.service.shapes import once_of, read_body, read_query
from siafu.service.stored_records import BatchesQuery, BatchList, BatchObject, CreateBatch, batch_object
from siafu.store.batch_records import BATCH, Batch, new_id

MAX_ASKED = 64 * 1024  # bytes of a request
BODY_SECONDS = 60.0


async def create(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """POST /v1/batches"""
    x.size(MAX_ASKED)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await x.body(MAX_ASKED)
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {BODY_SECONDS:g} s", code="timeout") from None
    asked: CreateBatch = read_body(body, CreateBatch)
    once = once_of(x)
    if once and (made := await desk.asked(owner, once)):
        await _answer(x, desk, made)
        return
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
        made = await desk.create(batch, once or None)
    except InputError as error:
        raise invalid("input_file_id", error.message) from None
    await _answer(x, desk, made)


def _seconds(window: str) -> int:
    """Of a completion_window."""
    return int(window[:-1]) * (86_400 if window.endswith("d") else 3600)


async def list_batches(x: Exchange, desk: BatchDesk, owner: str, id: str) -> None:
    """GET /v1/batches"""
    asked = read_query(x.scope["query_string"], BatchesQuery)
    found = await known(desk.batches(owner, after=asked.after, limit=asked.limit + 1), "after")
    data = [_told(desk, batch) for batch in found[: asked.limit]]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    page = BatchList(data=data, has_more=len(found) > asked.limit, first_id=first, last_id=last)
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
