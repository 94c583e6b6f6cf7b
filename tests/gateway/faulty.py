"""Answers for a fake upstream that are right behind a good network only, and some that are never right."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from .fake_upstream import OK, SSE_HEAD, Answer, Arrival, http, http_chunk, piece, sse, trickle

HEAD_BYTES = 120
PAGE = "<html>" + "<p>Bad Gateway</p>" * 2000
SAYS = http_chunk(b"data: " + json.dumps(piece("Par")).encode() + b"\n\n")
SAID = SSE_HEAD + SAYS


async def good(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
    """An answer whose head has HEAD_BYTES, plain or streamed."""
    whole = sse(piece("ok", finish="stop"), "[DONE]") if b'"stream"' in arrival.body else http(OK)
    head, end, body = whole.partition(b"\r\n\r\n")
    writer.write(head + b"\r\nx: " + b"y" * (HEAD_BYTES - len(head) - 9) + end + body)
    await writer.drain()


def later(rest: bytes) -> Answer:
    """A stream that says something, and some time later the rest."""
    return trickle(SAID, rest, gap=0.05)


def flood(head: bytes, unit: bytes) -> Answer:
    """A head, and then the unit again and again until the client has gone."""

    async def send(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
        writer.write(head)
        while True:
            writer.write(unit)
            await writer.drain()
            await asyncio.sleep(0.005)

    return send


def held() -> tuple[int, int]:
    """Open files and tasks of this process."""
    return sum(1 for _ in Path("/dev/fd").iterdir()), len(asyncio.all_tasks())


async def until_held(before: tuple[int, int]) -> None:
    """Wait until there is no more than before."""
    async with asyncio.timeout(5):
        while any(now > then for now, then in zip(held(), before, strict=True)):
            await asyncio.sleep(0.01)
