"""Refunds asked of the payment simulator, as a caller sees them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from paysim import Payments

Json = dict[str, Any]
RESET, SILENCE = "reset", "silence"


def body(reference: str = "환불-1", **fields: Any) -> Json:
    return {"payment": "pay_1", "amount": 700, "currency": "KRW", "reference": reference, **fields}


async def ask(
    payments: Payments,
    method: str,
    path: str,
    data: bytes | None = None,
    *,
    key: str | None = None,
    seconds: float = 10.0,
) -> tuple[int | str, Any, dict[str, str]]:
    """Status (or RESET, or SILENCE when `seconds` passed), JSON (the raw bytes when it is none), headers."""
    headers = {} if key is None else {"Idempotency-Key": key}
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, f"{payments.url}{path}", data=data, headers=headers) as reply,
        ):
            content = await reply.read()
            try:
                return reply.status, json.loads(content), dict(reply.headers)
            except ValueError:
                return reply.status, content, dict(reply.headers)
    except TimeoutError:
        return SILENCE, None, {}
    except aiohttp.ClientConnectionError:
        return RESET, None, {}


async def refund(
    payments: Payments, request: Json | None = None, *, key: str | None = None, seconds: float = 10.0
) -> tuple[int | str, Any, dict[str, str]]:
    data = json.dumps(request or body(), ensure_ascii=False).encode()
    return await ask(payments, "POST", "/v1/refunds", data, key=key, seconds=seconds)


async def lookup(payments: Payments, reference: str, *, seconds: float = 10.0) -> tuple[int | str, Any]:
    path = f"/v1/refunds?reference={reference}"
    return (await ask(payments, "GET", path, seconds=seconds))[:2]


async def until_sent(payments: Payments, count: int) -> None:
    """Wait until `count` requests have arrived, ten seconds at most."""
    async with asyncio.timeout(10):
        while len(await asyncio.to_thread(payments.requests)) < count:
            await asyncio.sleep(0.01)
