"""Connections that a server closes while they are kept for the next request."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest

from bad_network import bad_network
from siafu.errors import CallTimeout, Unreachable, UpstreamFault
from siafu.gateway import connections
from siafu.gateway import transport as transport_module
from siafu.gateway.upstream import Timeouts
from siafu.observe.calls import CallContext

from .conftest import ASK, transport
from .fake_upstream import OK, Answer, Arrival, close_after, error, http, piece, reset_after, sse, upstream

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


def says(text: str) -> bytes:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return http({**OK, "choices": [choice]})


NOBODY_ASKED = [
    says("for somebody else"),
    error(408),
    sse(piece("for somebody else", finish="stop"), "[DONE]"),
    b"HTTP/1.1 102 Processing\r\n\r\n",
    b"junk",
    says("for somebody else")[:40],
]


@pytest.mark.parametrize("more", NOBODY_ASKED)
async def test_what_nobody_asked_for_is_not_the_next_answer(more: bytes) -> None:
    """A proxy that says something on an idle connection, such as 408, or the answer to somebody else."""
    sent, go = asyncio.Event(), asyncio.Event()

    async def send(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
        writer.write(says("first"))
        await writer.drain()
        await go.wait()
        writer.write(more)
        await writer.drain()
        sent.set()

    async with upstream([send, says("second"), says("third")]) as gw, transport(gw.base_url) as t:
        assert (await (await t.open(ASK, NOBODY)).message()).text == "first"
        go.set()
        await sent.wait()
        for _ in range(20):  # it is there: each turn of the loop reads what has come
            await asyncio.sleep(0)
        for text in ("second", "third"):
            assert (await (await t.open(ASK, NOBODY)).message()).text == text
        assert len(gw.arrivals) == 3


async def test_a_kept_connection_that_leads_nowhere_any_more_is_given_up_in_time() -> None:
    """Half open: the other side forgot it, and says nothing when a request comes on it."""
    async with upstream() as gw, bad_network(gw.port) as way:
        timeouts = Timeouts(first_byte=0.2)
        async with transport(way.base_url, timeouts=timeouts) as t:
            await t.open(ASK, NOBODY)
            way.forget()
            with pytest.raises(CallTimeout) as caught:
                await t.open(ASK, NOBODY)
            assert (caught.value.phase, way.came, len(gw.arrivals)) == ("first_byte", 1, 1)
            assert (await (await t.open(ASK, NOBODY)).message()).text == "ok"  # on another one
            assert (way.came, len(gw.arrivals)) == (2, 2)


async def test_the_system_is_told_to_notice_a_peer_that_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[Any] = []
    watch = connections._watch_peer

    def seen(sock: Any) -> None:
        watched.append(sock)
        watch(sock)

    monkeypatch.setattr(connections, "_watch_peer", seen)
    async with upstream() as gw, transport(gw.base_url) as t:
        for _ in range(2):
            await t.open(ASK, NOBODY)
        (sock,) = watched
        assert sock.getpeername() == ("127.0.0.1", gw.port)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if sys.platform == "linux":
            options = [(getattr(socket, name), value) for name, value in connections._PEER]
            assert [(option, sock.getsockopt(socket.IPPROTO_TCP, option)) for option, _ in options] == options


async def test_after_a_rush_one_connection_is_used_and_the_others_grow_old() -> None:
    used: list[int] = []
    together = asyncio.Barrier(8)

    async def send(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
        used.append(writer.get_extra_info("peername")[1])
        if len(used) <= 8:
            await together.wait()  # each has a connection of its own
        writer.write(http(OK))
        await writer.drain()

    async with upstream(lambda arrival: send) as gw, transport(gw.base_url) as t:
        await asyncio.gather(*(t.open(ASK, NOBODY) for _ in range(8)))
        for _ in range(16):
            await t.open(ASK, NOBODY)
    assert len(set(used[:8])) == 8 and len(set(used[8:])) == 1
