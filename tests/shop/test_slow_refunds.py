"""A refund that takes its time: the client hears of it, and neither cancelling nor leaving cuts it short."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp import Client

from paysim import Payments, running_payments
from processes import wait_until
from siafu.apps.support.shop import server
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.refusal import Refusal
from siafu.pace.clock import SystemClock

from .test_http import post, serving
from .test_stdio import HELLO, call, parameters

ORDER = {"order_id": "1048"}  # choi's, paid, 74,000 won
SLOW_MS = 2500


@pytest.fixture
def payments(tmp_path: Path) -> Iterator[Payments]:
    with running_payments(tmp_path / "paid.jsonl", slow=SLOW_MS) as found:
        yield found


@asynccontextmanager
async def connected(transport: str, folder: Path, payments: Payments, mode: Any) -> AsyncIterator[Client]:
    options = ("--customer", "choi", "--payments", payments.url)
    if transport == "stdio":
        async with Client(parameters(folder / "shop.db", *options), mode=mode) as client:
            yield client
    else:
        with serving(folder, *options) as url:
            async with Client(url, mode=mode) as client:
                yield client


def outcomes(folder: Path) -> list[tuple[str, str]]:
    with closing(ShopDatabase(folder / "shop.db")) as shop:
        return [(call.tool, call.outcome) for call in shop.calls(10)]


def refunded(folder: Path) -> int:
    with closing(ShopDatabase(folder / "shop.db")) as shop:
        rows = shop.transact(lambda tx: tx.rows("SELECT refunded_minor, reserved_minor FROM payment"))
    assert all(row["reserved_minor"] == 0 for row in rows)
    return sum(row["refunded_minor"] for row in rows)


async def seen(condition: Callable[[], bool]) -> None:
    assert await asyncio.to_thread(wait_until, condition)


CLIENTS = [("stdio", "auto"), ("stdio", "legacy"), ("http", "auto"), ("http", "legacy")]


@pytest.mark.parametrize(("transport", "mode"), CLIENTS)
async def test_progress_is_told(transport: str, mode: Any, tmp_path: Path, payments: Payments) -> None:
    told: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with connected(transport, tmp_path, payments, mode) as client:
        done = await client.call_tool("process_refund", ORDER, progress_callback=hear)
        assert not done.is_error and done.structured_content["amount_minor"] == 74_000, done
        steps = [progress for progress, _ in told]
        assert len(steps) >= 2 and steps == sorted(set(steps))
        told.clear()
        quick = await client.call_tool("process_refund", ORDER, progress_callback=hear)
        assert quick.structured_content["replayed"] and told == []
        looked = (await client.call_tool("get_order_status", ORDER)).structured_content
        assert (looked["refunded_minor"], looked["refundable_minor"]) == (74_000, 0)
    assert payments.stats()["effects"] == 1 and refunded(tmp_path) == 74_000


async def test_a_client_that_cannot_be_told_does_not_cut_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PROGRESS_SECONDS", 0.01)
    gate, ended = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def effect() -> Refusal:
        await gate.wait()
        ended.set()
        return Refusal(code="", message="")

    class Gone:
        async def report_progress(self, progress: float, message: str) -> None:
            told.append(message)
            if len(told) == 3:
                raise ConnectionResetError

    shop: Any = server.Shop(None, None, clock=SystemClock())  # type: ignore[arg-type]  # neither is asked
    with pytest.raises(ConnectionResetError):
        await shop._to_its_end(effect(), SimpleNamespace(session=Gone()))
    assert told == ["it is being carried out"] * 3 and not ended.is_set()
    gate.set()
    await asyncio.wait_for(ended.wait(), 10)


@pytest.mark.parametrize(("transport", "mode"), CLIENTS)
async def test_a_client_that_cancels_does_not_cut_it(
    transport: str, mode: Any, tmp_path: Path, payments: Payments
) -> None:
    async def hear(progress: float, total: float | None, message: str | None) -> None:
        """To be answered as a stream over HTTP, which the server notices to be closed."""

    async with connected(transport, tmp_path, payments, mode) as client:
        asking = asyncio.create_task(client.call_tool("process_refund", ORDER, progress_callback=hear))
        await seen(lambda: payments.stats()["unanswered"] == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await seen(lambda: outcomes(tmp_path) == [("process_refund", "ok")])
        again = (await client.call_tool("process_refund", ORDER)).structured_content
        assert again["replayed"] and again["amount_minor"] == 74_000
    assert payments.stats()["effects"] == 1 and refunded(tmp_path) == 74_000


def begin(folder: Path, payments: Payments) -> subprocess.Popen[bytes]:
    """The shop on stdio, with a refund under way."""
    command = [sys.executable, "-m", "siafu", "shop", "serve", "--database", str(folder / "shop.db")]
    command += ["--customer", "choi", "--payments", payments.url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin
    for message in (HELLO, call(1, ORDER, "process_refund")):
        process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()
    assert wait_until(lambda: payments.stats()["unanswered"] == 1, 60)
    return process


@pytest.mark.parametrize("how", ["leaves", "SIGTERM", "SIGINT"])
def test_the_server_ends_after_the_refund_has(how: str, tmp_path: Path, payments: Payments) -> None:
    with begin(tmp_path, payments) as process:
        assert process.stdin and process.stderr
        if how == "leaves":
            process.stdin.close()
        else:
            process.send_signal(signal.Signals[how])
        assert process.wait(timeout=60) == 0
        assert b"Traceback" not in process.stderr.read()
    assert outcomes(tmp_path) == [("process_refund", "ok")]
    assert payments.stats()["effects"] == 1 and refunded(tmp_path) == 74_000


def test_an_http_client_that_drops_its_connection_does_not_cut_it(tmp_path: Path, payments: Payments) -> None:
    with serving(tmp_path, "--customer", "choi", "--payments", payments.url) as url:
        asked = json.dumps(call(1, ORDER, "process_refund")).encode()
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
        connection.request("POST", parts.path, asked, {"Content-Type": "application/json"})
        assert wait_until(lambda: payments.stats()["unanswered"] == 1, 60)
        connection.close()
        assert wait_until(lambda: outcomes(tmp_path) == [("process_refund", "ok")], 60)
    assert payments.stats()["effects"] == 1 and refunded(tmp_path) == 74_000


@pytest.mark.kill
def test_what_a_killed_server_left_open_the_next_one_completes(tmp_path: Path, payments: Payments) -> None:
    with begin(tmp_path, payments) as process:
        process.kill()
    with serving(tmp_path, "--customer", "choi", "--payments", payments.url) as url:
        with closing(ShopDatabase(tmp_path / "shop.db")) as shop:  # as if the lease were over
            shop.transact(lambda tx: tx.change("UPDATE refund_intent SET lease_until = 1"))
        assert wait_until(lambda: refunded_so_far(tmp_path) == 74_000, 60)
        deadline = time.monotonic() + 60
        while True:
            status, body = post(url, json.dumps(call(1, ORDER, "process_refund")).encode())
            found = json.loads(body)["result"]["structuredContent"]
            if found.get("code") != "in_progress" or time.monotonic() > deadline:
                break
        assert status == 200 and found["replayed"]
    assert payments.stats()["effects"] == 1


def refunded_so_far(folder: Path) -> int:
    with closing(ShopDatabase(folder / "shop.db")) as shop:
        return sum(row["refunded_minor"] for row in shop.transact(lambda tx: tx.rows("SELECT * FROM payment")))


def test_without_a_provider_nothing_is_promised(tmp_path: Path) -> None:
    with serving(tmp_path, "--customer", "choi") as url:
        _, body = post(url, json.dumps(call(1, ORDER, "process_refund")).encode())
    assert json.loads(body)["result"]["structuredContent"]["code"] == "payments_unavailable"
    with closing(ShopDatabase(tmp_path / "shop.db")) as shop:
        assert shop.transact(lambda tx: tx.rows("SELECT * FROM refund_intent")) == []
