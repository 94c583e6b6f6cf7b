"""Connections that a server closes while they are kept for the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from siafu.errors import Unreachable, UpstreamFault
from siafu.gateway import transport as transport_module
from siafu.observe.calls import CallContext

from .conftest import ASK, transport
from .fake_upstream import OK, Answer, Arrival, close_after, http, reset_after, upstream

NOBODY = CallContext()


def dying(*, reset: bool) -> Callable[[Arrival], Answer]:
    """A server that answers once on each connection, and closes it when the next request comes on it."""
    known: set[int] = set()

    async def send(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
        if id(writer) in known:
            if reset:
                writer.transport.abort()
            raise ConnectionResetError
        writers.append(writer)  # so that no other gets its id
        known.add(id(writer))
        writer.write(http(OK))
        await writer.drain()

    writers: list[asyncio.StreamWriter] = []
    return lambda arrival: send


@pytest.mark.parametrize("reset", [True, False])
async def test_a_kept_connection_that_the_server_had_closed_costs_no_attempt(bench: Any, reset: bool) -> None:
    async with upstream(dying(reset=reset)) as gw, bench(gw.base_url) as b:
        for _ in range(15):  # more than the retry budget holds
            assert (await b.ask()).attempts == 1
        assert len(b.ledger.ended) == 15 and {line.outcome for line in b.ledger.ended} == {"ok"}
        await asyncio.gather(*(b.ask() for _ in range(20)))
        await asyncio.gather(*(b.ask() for _ in range(20)))
        assert {line.outcome for line in b.ledger.ended} == {"ok"}


async def test_a_server_that_closes_after_each_answer_without_a_word_is_no_failure() -> None:
    async with upstream([close_after(http(OK))]) as gw, transport(gw.base_url) as t:
        for _ in range(20):
            await t.open(ASK, NOBODY)
        assert len(gw.arrivals) == 20


async def test_only_a_used_connection_that_fails_at_once_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream([reset_after(b"")]) as gw, transport(gw.base_url) as t:
        with pytest.raises(UpstreamFault):
            await t.open(ASK, NOBODY)
        assert len(gw.arrivals) == 1, "a new connection"
    monkeypatch.setattr(transport_module, "_AT_ONCE", 0.0)
    async with upstream([http(OK), reset_after(b"")]) as gw, transport(gw.base_url) as t:
        await t.open(ASK, NOBODY)
        with pytest.raises(UpstreamFault):
            await t.open(ASK, NOBODY)
        assert len(gw.arrivals) == 2, "it may have been at work"
    monkeypatch.setattr(transport_module, "_AT_ONCE", 1.0)
    async with upstream([http(OK), reset_after(b"HTTP/1.1 200 OK\r\ncontent-")]) as gw, transport(gw.base_url) as t:
        await t.open(ASK, NOBODY)
        with pytest.raises(UpstreamFault):
            await t.open(ASK, NOBODY)
        assert len(gw.arrivals) == 2, "its answer had begun"


async def test_a_request_lost_on_a_kept_connection_is_not_told_as_never_sent() -> None:
    """The server dies with a request in its hands, and the one sent again finds nobody: Unreachable would be free."""

    async def die(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
        gw.stop_listening()
        writer.transport.abort()
        raise ConnectionResetError

    async with upstream([http(OK), die]) as gw, transport(gw.base_url) as t:
        await t.open(ASK, NOBODY)
        with pytest.raises(UpstreamFault) as caught:
            await t.open(ASK, NOBODY)
        assert len(gw.arrivals) == 2 and type(caught.value) is UpstreamFault
        with pytest.raises(Unreachable):
            await t.open(ASK, NOBODY)
