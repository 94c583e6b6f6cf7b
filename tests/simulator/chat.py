"""Requests to the simulated endpoint for its tests: by aiohttp, and by a bare socket that sees every byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from sim import Sim

Json = dict[str, Any]


def body(text: str = "안녕하세요", **fields: Any) -> Json:
    return {"model": "sim-small", "messages": [{"role": "user", "content": text}], **fields}


def tool(name: str, description: str, required: list[str] | None = None, **properties: Json) -> Json:
    names = list(properties) if required is None else required
    schema = {"type": "object", "properties": properties, "required": names}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


async def post(sim: Sim, request: Json, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """Status, decoded body and headers (lower case) of one plain request."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{sim.url}/chat/completions", data=json.dumps(request, ensure_ascii=False).encode(), headers=headers
        ) as reply,
    ):
        return reply.status, json.loads(await reply.read()), {k.lower(): v for k, v in reply.headers.items()}


async def say(sim: Sim, request: Json) -> Json:
    """The assistant's message."""
    status, reply, _ = await post(sim, request)
    assert status == 200, reply
    message: Json = reply["choices"][0]["message"]
    return message


def called(message: Json) -> list[tuple[str, Json]]:
    """The tool calls of a message, arguments parsed."""
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])]


async def raw(sim: Sim, request: Json, *, seconds: float = 10.0, headers: str = "") -> tuple[bytes, bytes, str]:
    """Head and body of one reply byte for byte, and how it ended: closed, reset, or silence (`seconds` passed)."""
    parts = urlsplit(sim.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    data = json.dumps(request, ensure_ascii=False).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n{headers}"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    received, end = b"", "closed"
    try:
        async with asyncio.timeout(seconds):
            while piece := await reader.read(65536):
                received += piece
    except TimeoutError:
        end = "silence"
    except ConnectionResetError:
        end = "reset"
    finally:
        writer.close()
    top, _, rest = received.partition(b"\r\n\r\n")
    return top, rest, end


async def until(check: Callable[[], object]) -> None:
    """Wait until `check` holds, ten seconds at most."""
    async with asyncio.timeout(10):
        while not check():
            await asyncio.sleep(0.01)


def dechunk(data: bytes) -> bytes:
    """The content of a chunked body, as far as it came."""
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size or b"0", 16)
        found, data = found + data[:length], data[length + 2 :]
    return found
