"""`/v1/files` and `/v1/batches` of a server in this event loop, over a scripted endpoint, and a client for them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from service.server import Served, server
from siafu.apps.batches.desk import BatchDesk
from siafu.config.batches import batch_desk
from siafu.config.settings import Settings
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Endpoint
from siafu.gateway.scripted import Answer, Scripted
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.store.client_keys import KeyTerms

ENDED = ("completed", "failed", "expired", "cancelled")


def echo(request: ChatRequest, context: CallContext) -> Answer:
    return f"답 {request.messages[-1]['content']}"


def line(id: str, text: str | None = None, **more: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": id if text is None else text}]}
    asked = {"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body, **more}
    return json.dumps(asked, ensure_ascii=False).encode() + b"\n"


def lines(*ids: str) -> bytes:
    return b"".join(map(line, ids))


class Client:
    """Asks as one client key does."""

    def __init__(self, served: Served, desk: BatchDesk, session: aiohttp.ClientSession, key: str = "") -> None:
        self.served = served
        self.desk = desk
        self.session = session
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def with_key(self, **terms: Any) -> Client:
        """A client with a key of its own."""
        _, secret = await self.served.parts.keys.create(KeyTerms(name="k", **terms))
        await self.served.ring.refresh()
        return Client(self.served, self.desk, self.session, secret.reveal())

    async def ask(self, method: str, path: str, **how: Any) -> tuple[int, Any]:
        """Status and JSON, or bytes where it is none."""
        how["headers"] = {**self.headers, **how.get("headers", {})}
        async with self.session.request(method, self.served.url + path, **how) as reply:
            data = await reply.read()
            return reply.status, json.loads(data) if reply.content_type == "application/json" else data

    async def upload(self, data: bytes, name: str = "질문.jsonl", **fields: str) -> tuple[int, Any]:
        form = aiohttp.FormData({"purpose": "batch", **fields}, quote_fields=False)
        form.add_field("file", io.BytesIO(data), filename=name)
        return await self.ask("POST", "/v1/files", data=form)

    async def file(self, data: bytes) -> str:
        """The id of a new file."""
        status, file = await self.upload(data)
        assert status == 200, file
        return str(file["id"])

    async def create(self, file: str, **more: Any) -> tuple[int, Any]:
        asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h", **more}
        return await self.ask("POST", "/v1/batches", json=asked)

    async def begun(self, data: bytes, **more: Any) -> str:
        """The id of a new batch of these lines."""
        status, batch = await self.create(await self.file(data), **more)
        assert status == 200, batch
        return str(batch["id"])

    async def batch(self, id: str) -> Any:
        status, batch = await self.ask("GET", f"/v1/batches/{id}")
        assert status == 200, batch
        return batch

    async def ended(self, id: str, seconds: float = 20.0) -> Any:
        """The batch, once it has ended."""
        async with asyncio.timeout(seconds):
            while (batch := await self.batch(id))["status"] not in ENDED:
                await asyncio.sleep(0.01)
        return batch

    async def content(self, id: str | None) -> list[Any]:
        """The records of a file, none without one."""
        if id is None:
            return []
        status, data = await self.ask("GET", f"/v1/files/{id}/content")
        assert status == 200
        return [json.loads(each) for each in data.splitlines()]


@contextlib.asynccontextmanager
async def front(
    folder: Path, endpoint: Endpoint | None = None, *, limits: dict[str, Any] | None = None, **batches: Any
) -> AsyncIterator[Client]:
    """The server, ended with the block; another one over the same folder goes on. limits, batches: settings."""
    settings = Settings.model_validate({"home": str(folder / "home"), "batches": batches, "limits": limits or {}})
    asked = Scripted(echo) if endpoint is None else endpoint
    async with (
        batch_desk(settings, asked, SystemClock()) as desk,
        server(folder, asked, batches=desk) as served,
        aiohttp.ClientSession() as session,
    ):
        yield Client(served, desk, session)
