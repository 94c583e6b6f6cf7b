"""The floor: uvicorn and aiohttp, and nothing between them. What comes in goes on, what comes back goes back.

    python -m siafu.bench.serve.bare UPSTREAM_URL       prints its port; ends when its input ends

No limits, retries, keys, prices, records, deadlines or checks.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import uvicorn

from siafu.bench.gateway.drive import raise_file_limit
from siafu.border.listening import bind
from siafu.border.web import serve_until
from siafu.config.collector import relieve_collector

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class PassThrough:
    """The ASGI application."""

    def __init__(self, upstream: str, session: aiohttp.ClientSession) -> None:
        self._upstream = upstream
        self._session = session

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        pieces, more = [], True
        while more:
            message = await receive()
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
        headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-bench"}
        async with self._session.post(self._upstream + scope["path"], data=b"".join(pieces), headers=headers) as answer:
            kept = ("content-type", "content-length")
            found = [(name.encode(), answer.headers[name].encode()) for name in kept if name in answer.headers]
            await send({"type": "http.response.start", "status": answer.status, "headers": found})
            if "content-length" in answer.headers:
                await send({"type": "http.response.body", "body": await answer.read()})
                return
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


async def serve(upstream: str) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        with bind("127.0.0.1", 0) as listening:
            config = uvicorn.Config(
                PassThrough(upstream, session), ws="none", lifespan="off", log_level="critical", access_log=False
            )

            def ready() -> None:
                print(listening.getsockname()[1], flush=True)

            await serve_until(lambda: asyncio.to_thread(sys.stdin.read), config, listening, ready)


if __name__ == "__main__":
    raise_file_limit()
    relieve_collector()
    asyncio.run(serve(sys.argv[1]))
