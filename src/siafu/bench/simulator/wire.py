"""Sending: in time, in pieces, or wrongly on purpose."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
from aiohttp import web

from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.faults import Rule
from siafu.bench.simulator.refusals import Canned

CHUNK_SECONDS = 0.02  # tokens that come closer together than this travel in one chunk
SPLIT_BYTES = 40
RESET_DELAY = 0.02  # seconds; a reset overtakes bytes that the client has not read yet


class Gone(web.StreamResponse):
    """Stands for a reply that was written past aiohttp, or that nobody waits for: nothing more is sent."""

    async def prepare(self, request: web.BaseRequest) -> None:
        self.force_close()

    async def write_eof(self, data: bytes = b"") -> None:
        return None


async def send(request: web.Request, canned: Canned, headers: dict[str, str]) -> web.StreamResponse:
    """A whole reply, in good order."""
    reply = web.Response(
        body=canned.body,
        status=canned.status,
        headers={**headers, "Content-Type": canned.content_type, **canned.headers},
    )
    await reply.prepare(request)
    await reply.write_eof()
    return reply


async def send_wrongly(request: web.Request, kind: str, canned: Canned, rule: Rule) -> web.StreamResponse:
    """A reply that breaks off, never comes, or lies about its length; the connection is closed."""
    body, claimed = canned.body, len(canned.body)
    if kind == "hang":
        await asyncio.Event().wait()
    if kind in ("long-length", "short-length"):
        claimed += 64 if kind == "long-length" else -min(16, claimed)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {canned.content_type}\r\nContent-Length: {claimed}\r\n\r\n".encode()
    if kind in ("reset", "cut"):
        body = body[: len(body) // 2]
    transport = request.transport
    if transport is None:
        raise ConnectionResetError
    if kind != "reset-before":
        transport.write(head)
    if kind == "hang-after-headers":
        await asyncio.Event().wait()
    if kind == "slow":
        for byte in body:
            transport.write(bytes([byte]))
            await asyncio.sleep(rule.wait)
    elif kind != "reset-before":
        transport.write(body)
    if kind.startswith("reset"):
        await asyncio.sleep(RESET_DELAY)
        reset(transport)
    else:
        transport.close()
    return Gone()


def reset(transport: asyncio.Transport) -> None:
    """Close so that the peer gets a TCP reset."""
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def events(chunks: Iterable[dict[str, object]], kinds: Sequence[str]) -> list[bytes]:
    """Server-sent events, one a chunk and the closing [DONE], in the style that the faults ask for."""
    end = b"\r\n" if "crlf" in kinds else b"\n"
    start = b"data:" if "no-space" in kinds else b"data: "
    found = [start + msgspec.json.encode(chunk) + end * 2 for chunk in chunks]
    if "error-event" in kinds:
        failed = {"error": {"message": "engine died", "type": "server_error", "param": None, "code": 500}}
        found = [*found[: max(1, len(found) // 2)], start + msgspec.json.encode(failed) + end * 2]
    if "empty-first" in kinds:
        found.insert(0, start + b'{"choices":[],"prompt_filter_results":[]}' + end * 2)
    if "comments" in kinds:
        quiet = [b": PROCESSING" + end * 2, b":" + end * 2, b":ping" + end * 2]
        found = [part for i, event in enumerate(found) for part in (quiet[i % 3], event)]
    return [*found, start + b"[DONE]" + end * 2]


def split(parts: Sequence[bytes], draws: Draws) -> list[bytes]:
    """The same bytes, cut anywhere, also inside a character."""
    whole, cuts, at = b"".join(parts), [0], 0
    while at < len(whole):
        at += 1 + draws.number(f"split {at}") % SPLIT_BYTES
        cuts.append(min(at, len(whole)))
    return [whole[a:b] for a, b in pairwise(cuts)]


async def send_stream(
    request: web.Request,
    reply: web.StreamResponse,
    parts: list[bytes],
    seconds: float,
    fault: Rule | None,
    draws: Draws,
) -> None:
    """Write `parts` evenly over `seconds`, the first at once, and end the stream; or as the fault says."""
    kinds = fault.kinds if fault else []
    if "hang-after-headers" in kinds:
        await asyncio.Event().wait()
    if "cut" in kinds or "reset" in kinds:
        parts = parts[: max(2, len(parts) // 2)]
    if "split" in kinds:
        parts = split(parts, draws)
    if fault and "slow" in kinds:
        parts = [bytes([byte]) for byte in b"".join(parts)]
        seconds = fault.wait * (len(parts) - 1)
    if not seconds and not kinds:
        parts = [b"".join(parts)]
    clock = asyncio.get_running_loop().time
    start, last = clock(), max(1, len(parts) - 1)
    for number, part in enumerate(parts):
        await asyncio.sleep(max(0.0, start + seconds * number / last - clock()))
        await reply.write(part)
    if "reset" in kinds and request.transport is not None:
        await asyncio.sleep(RESET_DELAY)
        reset(request.transport)
    else:
        await reply.write_eof()


def chunk_tokens(per_token: float) -> int:
    """Tokens in one chunk of a stream."""
    return max(1, math.ceil(CHUNK_SECONDS / per_token)) if per_token else 16
