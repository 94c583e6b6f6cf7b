"""Events of tasks as a stream: in their order, from any place on, none left out, none told to others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from siafu.service import server as server_module
from siafu.service.tasks import events
from siafu.store.task_desk import Which

from .server import until
from .task_kit import EVENTS, TASKS, Tasked, tasked


class Heard:
    """What a client has heard: `events` (id, type, data), and `beats`."""

    def __init__(self) -> None:
        self.status = 0
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.beats: list[str] = []
        self.ended = False

    @property
    def what(self) -> list[str]:
        return [type for _, type, _ in self.events]

    def take(self, block: str) -> None:
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in fields:
            self.events.append((fields["id"], fields["event"], json.loads(fields["data"])))
        elif "id" in fields:
            self.beats.append(fields["id"])


@contextlib.asynccontextmanager
async def listening(at: Tasked, path: str = EVENTS, **headers: str) -> AsyncIterator[Heard]:
    heard = Heard()
    ready = asyncio.Event()

    async def listen() -> None:
        async with aiohttp.ClientSession() as session, session.get(at.served.url + path, headers=headers) as reply:
            heard.status = reply.status
            left = ""
            if reply.status == 200:
                assert reply.content_type == "text/event-stream"
            async for piece in reply.content.iter_any():
                ready.set()
                *blocks, left = (left + piece.decode()).split("\n\n")
                for block in blocks:
                    heard.take(block)
        ready.set()
        heard.ended = True

    task = asyncio.create_task(listen())
    try:
        async with asyncio.timeout(10):
            await ready.wait()
        yield heard
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_task_is_followed_to_its_end_and_no_further(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key()
        task = await at.submit(auth, "r1", run="월요일")
        path = f"{TASKS}/{task['id']}/events"
        async with listening(at, path, **auth) as heard:
            await at.submit(auth, "another")
            await at.fail()
            await until(lambda: heard.ended)
        last = heard.events[-1][2]
        assert last["task"] == {"id": task["id"], "kind": "support", "run": "월요일", "name": "r1"}
        assert (last["type"], last["code"], last["object"]) == ("task.failed", "unreachable", "swarm.event")
        assert heard.what == ["task.accepted", "task.leased", "task.failed"]
        async with listening(at, path, **auth) as again:  # from the beginning
            await until(lambda: again.ended)
        assert again.events == heard.events
        async with listening(at, path, **auth, **{"Last-Event-ID": heard.events[0][0]}) as rest:
            await until(lambda: rest.ended)
        assert rest.events == heard.events[1:]
        async with listening(at, path, **auth, **{"Last-Event-ID": heard.events[-1][0]}) as over:
            await until(lambda: over.ended)
        assert (over.status, over.events) == (204, [])  # an EventSource comes no more


async def test_all_tasks_are_followed_from_any_place_and_only_ones_own(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth, other = await at.key(tenant="a"), await at.key(tenant="b")
        async with listening(at, **auth) as heard, listening(at, EVENTS + "?run=web", **auth) as web:
            await at.submit(auth, "r1", run="web")
            await at.submit(other, "r1", run="web")
            await at.submit(auth, "r2")
            await at.end()
            await until(lambda: len(heard.events) == 4)
            await until(lambda: len(web.events) == 3)
            assert [event["task"]["name"] for _, _, event in heard.events[:2]] == ["r1", "r2"]
            places = [int(id) for id, _, _ in heard.events]
            assert places == sorted(set(places))
        async with listening(at, EVENTS + f"?after={places[1]}", **auth) as rest:
            await until(lambda: len(rest.events) == 2)
            assert rest.events == heard.events[2:]
        async with listening(at, EVENTS + "?after=0", **other) as all_of_b:
            await until(lambda: len(all_of_b.events) >= 1)
            assert all_of_b.what == ["task.accepted"]


async def test_whether_read_from_the_window_or_the_store_nothing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PAGE", 3)
    monkeypatch.setattr(events, "WINDOW", 4)
    monkeypatch.setattr(events, "SPAN", 7)
    async with tasked(tmp_path) as at:
        auth = await at.key()
        async with listening(at, **auth) as heard:
            await at.ask(TASKS, [{"kind": "support", "input": {"text": "x"}} for _ in range(25)], **auth)
            while await at.house.desk.moving(Which()):
                await at.end()
            await until(lambda: len(heard.events) == 75)
            await at.submit(auth, "later")
            await until(lambda: len(heard.events) == 76)
        async with listening(at, EVENTS + "?after=0", **auth) as again:
            await until(lambda: len(again.events) == 76)
        assert again.events == heard.events


@pytest.mark.parametrize(("given", "status"), [("x", 400), ("-1", 400), ("1" * 19, 400), ("99", 409), ("0", 200)])
async def test_a_place_that_never_was_is_refused(tmp_path: Path, given: str, status: int) -> None:
    async with tasked(tmp_path) as at, listening(at, **{"Last-Event-ID": given}) as heard:
        assert heard.status == status


async def test_signs_of_life_move_the_place_from_which_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(events, "CHECK_SECONDS", 0.02)
    async with tasked(tmp_path) as at:
        auth, other = await at.key(tenant="a"), await at.key(tenant="b")
        async with listening(at, **auth) as heard:
            await at.submit(other, "r1")
            await until(lambda: heard.beats[-1:] == ["1"])
            assert heard.events == []


async def test_a_stream_ends_with_its_key_and_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "CHECK_SECONDS", 0.02)
    async with tasked(tmp_path) as at:
        first, second = await at.key(), await at.key()
        async with listening(at, **first) as one, listening(at, **second) as two:
            (key, _) = await at.served.parts.keys.all()
            await at.served.parts.keys.revoke(key.id)
            await at.served.ring.refresh()
            await until(lambda: one.ended)
            assert not two.ended
            at.served.stops.asked.set()
            await until(lambda: two.ended)
        assert at.served.ended is not None
        async with asyncio.timeout(10):
            assert await at.served.ended  # no stream had to be cut off


async def test_streams_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "A_KEY", 1)
    async with tasked(tmp_path) as at:
        first, second = await at.key(), await at.key()
        async with listening(at, **first), listening(at, **second):
            status, headers, told = await at.ask(EVENTS, **first)
            assert (status, told["error"]["code"]) == (429, "rate_limit_exceeded")
            assert int(headers["retry-after"]) >= 1
        for _ in range(3):  # whoever has left counts no more

            async def free() -> bool:
                async with listening(at, **first) as heard:
                    return heard.status == 200

            async with asyncio.timeout(10):
                while not await free():
                    await asyncio.sleep(0.01)


async def test_who_takes_nothing_in_holds_back_a_page_and_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SEND_SECONDS", 0.3)
    read = 0
    told = events._event

    def counted(event: Any) -> bytes:
        nonlocal read
        read += 1
        return told(event) + b":" + b"x" * 100_000 + b"\n\n"  # sockets hold megabytes

    monkeypatch.setattr(events, "_event", counted)
    monkeypatch.setattr(events, "PAGE", 10)
    async with tasked(tmp_path) as at:
        auth = await at.key()
        many = [{"kind": "support", "input": {"text": "x"}} for _ in range(100)]
        for _ in range(6):
            assert (await at.ask(TASKS, many, **auth))[0] == 202
        where = urlsplit(at.served.url)
        _, writer = await asyncio.open_connection(where.hostname, where.port, limit=1000)
        head = f"GET {EVENTS}?after=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {auth['Authorization']}\r\n\r\n"
        writer.write(head.encode())
        streams = at.served.app._tasks.listeners._streams  # type: ignore[union-attr]
        await until(lambda: streams.total() == 1)
        await until(lambda: streams.total() == 0)
        assert 0 < read < 500  # of 600
        async with listening(at, **auth) as heard:  # nobody else was held up
            await at.submit(auth, "r1")
            await until(lambda: len(heard.events) == 1)
        writer.close()


async def test_f54_streams_that_are_dropped_leave_nothing_behind(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key()
        where = urlsplit(at.served.url)
        head = f"GET {EVENTS} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {auth['Authorization']}\r\n\r\n"
        api = at.served.app._tasks
        assert not isinstance(api, str)
        async with listening(at, **await at.key()) as heard:
            for wave in range(6):
                writers = []
                for n in range(events.A_KEY):
                    reader, writer = await asyncio.open_connection(where.hostname, where.port)
                    writer.write(head.encode())
                    assert b"200 OK" in await reader.readuntil(b"retry: 2000\n\n")
                    if n % 2:
                        own = writer.get_extra_info("socket")
                        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
                    writers.append(writer)
                assert api.listeners._streams.total() == events.A_KEY + 1
                for writer in writers:
                    writer.transport.abort() if wave % 2 else writer.close()
                await until(lambda: api.listeners._streams.total() == 1)
                await at.submit(auth, f"r{wave}")
            await until(lambda: len(heard.events) == 6)
        await until(lambda: api.listeners._looking is None)
