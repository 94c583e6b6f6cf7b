"""The payments client over a real socket, against the payment simulator and against servers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from paysim import Payments, running_payments
from siafu.apps.support.shop.money import payments
from siafu.apps.support.shop.money.payments import (
    Call,
    Capabilities,
    Declined,
    HttpPayments,
    NotSent,
    Outcome,
    Paid,
    Unclear,
)
from siafu.errors import ConfigError, ToolUnavailable

from .kit import MODES


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Payments]:
    with running_payments(tmp_path_factory.mktemp("payments") / "paid.jsonl") as payments:
        yield payments


@pytest.fixture
async def client(sim: Payments) -> AsyncIterator[HttpPayments]:
    sim.set_faults()
    made = HttpPayments(sim.url)
    yield made
    await made.aclose()


def call(key: str, amount: int = 700) -> Call:
    return Call(key=key, payment="가게:pay_1", amount=amount, currency="KRW", metadata={"refund_id": key})


async def test_a_refund_and_its_repetition(sim: Payments, client: HttpPayments) -> None:
    first = await client.refund(call("rf-1"), 5.0)
    assert isinstance(first, Paid)
    assert (first.payment, first.amount, first.currency, first.reference) == ("가게:pay_1", 700, "KRW", "rf-1")
    assert await client.refund(call("rf-1"), 5.0) == first
    assert await client.find(call("rf-1"), 5.0) == first
    assert await client.find(call("never asked"), 5.0) is None
    assert [effect["id"] for effect in sim.effects() if effect["reference"] == "rf-1"] == [first.id]


@pytest.mark.parametrize(
    ("fault", "expected", "paid"),
    [
        ("lost", Unclear, True),
        ("lost_before", Unclear, False),
        ("hang", Unclear, True),
        ("error_after", Unclear, True),
        ("error_before", Unclear, False),
        ("unparsable", Unclear, True),
        ("decline", Declined, False),
    ],
)
async def test_what_is_known_of_a_call(
    sim: Payments, client: HttpPayments, fault: str, expected: type[Outcome], paid: bool
) -> None:
    key = f"fault-{fault}"
    sim.set_faults({"kind": fault})
    outcome = await client.refund(call(key), 0.5 if fault == "hang" else 5.0)
    assert isinstance(outcome, expected)
    assert getattr(outcome, "answered", True) == (fault not in ("lost", "lost_before", "hang"))
    assert (await client.find(call(key), 5.0) is not None) == paid


@pytest.mark.parametrize("fault", ["lookup_lost", "lookup_error", "lookup_unparsable", "lookup_hang"])
async def test_a_lookup_without_an_answer_is_not_a_no(sim: Payments, client: HttpPayments, fault: str) -> None:
    sim.set_faults({"kind": fault})
    assert isinstance(await client.find(call("rf-1"), 0.5), Unclear)


async def test_a_key_with_another_body_and_one_still_running_are_unclear(sim: Payments, client: HttpPayments) -> None:
    """Both say that there is, or will be, a refund under this key."""
    await client.refund(call("twice"), 5.0)
    assert isinstance(await client.refund(call("twice", 800), 5.0), Unclear)
    sim.set_faults({"kind": "slow", "wait": 1.0})
    task = asyncio.create_task(client.refund(call("running"), 5.0))
    async with asyncio.timeout(10):
        while not any(request["reference"] == "running" for request in sim.requests()):
            await asyncio.sleep(0.01)
    assert isinstance(await client.refund(call("running"), 5.0), Unclear)
    assert isinstance(await task, Paid)


@pytest.mark.parametrize("mode", MODES)
async def test_the_provider_says_what_it_can_do(tmp_path: Path, mode: str) -> None:
    with running_payments(tmp_path / "paid.jsonl", mode=mode) as payments:
        client = HttpPayments(payments.url)
        can = await client.capabilities()
        assert (can.idempotency, can.lookup) == (MODES[mode].idempotency, MODES[mode].lookup)
        await client.aclose()


async def test_nobody_there_is_known_not_to_have_paid() -> None:
    client = HttpPayments("http://127.0.0.1:9")
    with pytest.raises(ToolUnavailable):
        await client.capabilities()
    assert isinstance(await client.refund(call("1"), 5.0), NotSent)
    assert isinstance(await client.find(call("1"), 5.0), NotSent)
    await client.aclose()


@asynccontextmanager
async def answering(raw: bytes) -> AsyncIterator[HttpPayments]:
    """A server that answers every request with these bytes and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = HttpPayments(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", given=Capabilities(True, True))
    async with server:
        yield client
        await client.aclose()


def reply(status: int, body: str) -> bytes:
    data = body.encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%s" % (
        status,
        len(data),
        data,
    )


GOOD = '{"id":"re_1","payment":"가게:pay_1","amount":700,"currency":"KRW","reference":"1","status":"succeeded"}'


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, GOOD, Paid),
        (200, GOOD.replace("700", "700.0"), Unclear),
        (200, GOOD.replace("700", "701"), Unclear),
        (200, GOOD.replace('"1"', '"2"'), Unclear),
        (200, GOOD.replace("succeeded", "pending"), Unclear),
        (200, GOOD.replace('"amount":700', '"amount":1,"amount":700'), Unclear),
        (200, "{}", Unclear),
        (200, "", Unclear),
        (200, "x" * 300_000, Unclear),
        (201, GOOD, Unclear),
        (302, GOOD, Unclear),
        (400, '{"error":{"code":"bad_amount"}}', Declined),
        (402, '{"error":{"code":"declined","message":"한도"}}', Declined),
        (422, '{"error":{"code":"currency_not_supported"}}', Declined),
        (422, '{"error":{"code":"idempotency_key_reused"}}', Unclear),
        (402, "<html>", Unclear),
        (401, '{"error":{"code":"bad_api_key"}}', Unclear),
        (403, '{"error":{"code":"forbidden"}}', Unclear),
        (404, '{"detail":"not found"}', Unclear),
        (408, '{"error":{"code":"timeout"}}', Unclear),
        (409, '{"error":{"code":"idempotency_key_in_use"}}', Unclear),
        (429, '{"error":{"code":"slow_down"}}', Unclear),
        (500, '{"error":{"code":"oops"}}', Unclear),
        (503, "", Unclear),
    ],
)
async def test_only_definite_answers_are_definite(status: int, body: str, expected: type[Outcome]) -> None:
    async with answering(reply(status, body)) as client:
        assert isinstance(await client.refund(call("1"), 5.0), expected)


async def test_half_an_answer_is_unclear() -> None:
    async with answering(reply(200, GOOD)[:-10]) as client:
        assert isinstance(await client.refund(call("1"), 5.0), Unclear)


async def test_an_endless_slow_answer_is_cut_at_the_deadline() -> None:
    async with answering(b"HTTP/1.1 200 X\r\ncontent-length: 99999\r\n\r\n{") as client:
        assert isinstance(await client.refund(call("1"), 0.3), Unclear)


@pytest.mark.parametrize("url", ["ftp://x", "http://pay.example.com", "https://user:pw@pay.example.com", "nothing"])
def test_an_unsafe_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        HttpPayments(url)


async def test_f32_a_process_that_stood_still_before_the_body_does_not_send_it(
    sim: Payments, client: HttpPayments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timer has run out as well, but is looked at only after what the process was about to do when it stopped."""
    in_time = payments._in_time
    monkeypatch.setattr(payments, "_in_time", lambda body, ends: in_time(body, ends - 3600))
    assert isinstance(await client.refund(call("rf-late"), 5.0), NotSent)
    monkeypatch.undo()
    assert "rf-late" not in {request["reference"] for request in sim.requests()}
    assert isinstance(await client.refund(call("rf-late"), 5.0), Paid)  # the check can pass
