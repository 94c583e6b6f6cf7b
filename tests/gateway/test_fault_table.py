"""What networks, proxies and broken servers do to a call: each row ends in a typed error in time, its socket freed.

All rows run at once, each with an upstream and a gateway of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
import zlib
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

from bad_network import Weather, bad_network
from siafu.errors import (
    CallTimeout,
    DeadlineReached,
    MalformedReply,
    ModelError,
    RateLimited,
    RequestRefused,
    UpstreamFault,
)
from siafu.gateway import transport as transport_module
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import End
from siafu.gateway.upstream import Timeouts
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock

from .conftest import ASK, KEY, Bench, transport
from .fake_upstream import (
    OK,
    Answer,
    close_after,
    error,
    http,
    http_chunk,
    piece,
    reset_after,
    trickle,
    upstream,
)
from .faulty import HEAD_BYTES, PAGE, SAID, SAYS, flood, good, held, later, until_held

STREAM = ChatRequest(model="m", messages=ASK.messages, stream=True)
ROOM = 256 * 1024  # bytes that an answer may have here
IN_TIME = 30.0  # seconds for the whole table; its rows need about two

JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = JSON_HEAD + b"transfer-encoding: chunked\r\n\r\n"
BOMB = b" " * 16_000_000
DEFLATE, GZIP = zlib.compress(BOMB, 9), zlib.compress(BOMB, 9, 31)
SSE_BOMB = zlib.compress(b"data: " + BOMB, 9, 31)


def packed(data: bytes, how: str, kind: str = "application/json", status: int = 200) -> bytes:
    return http(data, status, content_type=kind, content_encoding=how)


class Row(NamedTuple):
    """says: a word of the error's message when the call was plain. sent: how often a call is sent, all in all."""

    name: str
    answer: Answer
    error: type[ModelError]
    says: str = ""
    sent: int = 3
    weather: Weather | None = None

    @property
    def timeouts(self) -> Timeouts:
        """Short where the row is to reach it, long else: machines are busy at times."""
        if self.error is not CallTimeout:
            return Timeouts(idle=8, total=8)
        return Timeouts(idle=0.3, total=8) if "silent" in self.says else Timeouts(idle=8, total=0.6)


def weather(name: str, error: type[ModelError], says: str, **what: Any) -> Row:
    """A row of a good upstream behind a bad way."""
    return Row(name, good, error, says, weather=Weather(**what))


MANY_HEADERS = b"".join(b"x-%d: y\r\n" % number for number in range(500))
TABLE = [
    weather("black hole", CallTimeout, "longer than 0.6 s", deaf=True),
    weather("hang before the headers", CallTimeout, "longer than 0.6 s", passes=0),
    weather("hang within the headers", CallTimeout, "longer than 0.6 s", passes=20),
    weather("hang after the headers", CallTimeout, "silent for 0.3 s", passes=HEAD_BYTES),
    weather("hang within the body", CallTimeout, "silent for 0.3 s", passes=HEAD_BYTES + 5),
    weather("one byte of the headers at a time", CallTimeout, "longer than 0.6 s", piece=1, gap=0.1),
    weather("reset before the headers", UpstreamFault, "broke", passes=0, then="reset"),
    weather("close before the headers", UpstreamFault, "broke", passes=0, then="close"),
    weather("reset within the headers", UpstreamFault, "broke", passes=20, then="reset"),
    weather("close within the headers", UpstreamFault, "broke", passes=20, then="close"),
    weather("reset within the body", UpstreamFault, "cut", passes=HEAD_BYTES + 5, then="reset"),
    weather("close within the body", UpstreamFault, "cut", passes=HEAD_BYTES + 5, then="close"),
    Row("one byte of the body at a time", flood(CHUNKED, http_chunk(b" ")), CallTimeout, "longer than 0.6 s"),
    Row("length too long", close_after(http(OK, content_length="9999")), UpstreamFault, "cut"),
    Row("length too short", http(OK, content_length="20"), MalformedReply),
    Row("length below zero", http(OK, content_length="-5"), MalformedReply, "valid HTTP"),
    Row("two lengths", http(OK, content_length="5\r\nContent-Length: 6"), MalformedReply, "valid HTTP"),
    Row("length and chunks", http(OK, transfer_encoding="chunked"), MalformedReply, "valid HTTP"),
    Row("no HTTP", close_after(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), MalformedReply, "valid HTTP"),
    Row("cut chunk", close_after(CHUNKED + b"40\r\nabc"), UpstreamFault, "cut"),
    Row("chunk of no size", http_chunk(b"").join([CHUNKED, b"zz\r\n"]), MalformedReply),
    Row("garbage for chunks", CHUNKED + b"zz\r\n", MalformedReply, "valid HTTP"),
    Row("endless chunk size", flood(CHUNKED + b"1;", b"a" * 9000), CallTimeout, "longer than 0.6 s"),
    Row("endless trailers", flood(CHUNKED + b"2\r\n{}\r\n0\r\n", MANY_HEADERS), MalformedReply),
    Row("endless status", flood(b"HTTP/1.1 200 ", b"y" * 9000), MalformedReply, "valid HTTP"),
    Row("endless header", flood(JSON_HEAD + b"x: ", b"y" * 9000), MalformedReply, "valid HTTP"),
    Row("endless headers", flood(JSON_HEAD, MANY_HEADERS), MalformedReply, "valid HTTP"),
    Row("flood of 1xx", flood(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 20), CallTimeout, "longer than 0.6 s"),
    Row("another protocol", http(b"", 101, upgrade="x", connection="upgrade"), UpstreamFault, "101"),
    Row("endless body", flood(CHUNKED, http_chunk(b" " * 30_000)), MalformedReply, "larger"),
    Row("gzip bomb", packed(GZIP, "gzip"), MalformedReply, "larger"),
    Row("deflate bomb", packed(DEFLATE, "deflate"), MalformedReply, "larger"),
    Row("gzip bomb of events", packed(SSE_BOMB, "gzip", "text/event-stream"), MalformedReply, "larger"),
    Row("bomb with 500", packed(GZIP, "gzip", status=500), UpstreamFault, "500"),
    Row("no gzip", packed(b"\x00\xff" * 500, "gzip"), UpstreamFault),
    Row("no deflate", packed(b"\x00\xff" * 500, "deflate"), UpstreamFault),
    Row("cut gzip", packed(zlib.compress(json.dumps(OK).encode(), wbits=31)[:-12], "gzip"), MalformedReply, "JSON"),
    Row("page with 502", http(PAGE, 502, content_type="text/html"), UpstreamFault, "text/html"),
    Row("page with 200", http(PAGE, content_type="text/html"), MalformedReply, "text/html"),
    Row("no content", http(b"", 204), MalformedReply, "204"),
    Row("empty", http(b"", content_type="application/json"), MalformedReply),
    Row("redirect", http(b"", 307, location="http://127.0.0.1:1/v1/"), RequestRefused, "redirect", sent=1),
    Row("refused", error(400, "no such field"), RequestRefused, "no such field", sent=1),
]

MUCH = http_chunk(b"data: " + json.dumps(piece("x" * 9000)).encode() + b"\n\n")
END = http_chunk(b"")


STREAMS = [
    Row("hang", trickle(SAID, gap=0, hang=30), CallTimeout, "silent"),
    Row("one byte at a time", flood(SAID, http_chunk(b":")), CallTimeout),
    Row("reset", reset_after(SAID), UpstreamFault),
    Row("close", close_after(SAID + http_chunk(b"data: {")), UpstreamFault),
    Row("end without a finish", later(END), MalformedReply),
    Row("done without a finish", later(http_chunk(b"data: [DONE]\n\n") + END), MalformedReply),
    Row("torn event", later(http_chunk(b'data: {"choices":[{"del') + END), MalformedReply),
    Row("junk", later(http_chunk(b"data: junk\n\n") + END), MalformedReply),
    Row("garbage for chunks", later(b"zz\r\n"), UpstreamFault),
    Row("error", later(http_chunk(b'data: {"error":{"message":"died","code":500}}\n\n') + END), UpstreamFault),
    Row("rate limit", later(http_chunk(b'data: {"error":{"code":429}}\n\n') + END), RateLimited),
    Row("comments for ever", flood(SAID, http_chunk(b":ping\n\n" * 20)), CallTimeout),
    Row("text for ever", flood(SAID, SAYS), CallTimeout),
    Row("much text for ever", flood(SAID, MUCH), MalformedReply),
    Row(
        "nothing for ever",
        flood(SAID, http_chunk(b":" * 100_000 + b"\n\n")),
        MalformedReply,
    ),
    Row("a line without an end", flood(SAID, http_chunk(b"data: " + b"x" * 30_000)), MalformedReply),
    Row("an event without an end", flood(SAID, http_chunk(b"data:\n" * 5000)), MalformedReply),
]


class Found(NamedTuple):
    row: Row
    request: ChatRequest
    error: BaseException | None
    seconds: float
    bench: Bench


async def play(row: Row, request: ChatRequest, deadline: float | None = None) -> Found:
    """One call through a gateway of its own. Ended, the upstream has no connection left."""
    async with AsyncExitStack() as stack:
        gw = await stack.enter_async_context(upstream([row.answer]))
        url = gw.base_url
        if row.weather is not None:
            url = (await stack.enter_async_context(bad_network(gw.port, row.weather))).base_url
        bench = Bench(url, timeouts=row.timeouts, max_answer_bytes=ROOM)
        began, error = time.monotonic(), None
        try:
            await bench.ask(request, deadline=deadline and SystemClock().now() + deadline)
        except (ModelError, DeadlineReached) as caught:
            error = caught
        seconds = time.monotonic() - began
        await bench.gateway.aclose()
        assert await gw.all_closed(), row.name
    return Found(row, request, error, seconds, bench)


def wrong(found: Found) -> str:
    """What is not as the table says; empty when all is."""
    row, request, error, seconds, bench = found
    sent, text = len(bench.ledger.opened), str(error)
    if type(error) is not row.error or sent != row.sent or (not request.stream and row.says not in text):
        return f"{row.name}, stream={request.stream}: {sent} x {type(error).__name__}: {text[:200]}"
    if len(text) > 700 or KEY in text or len(bench.ledger.ended) != sent or seconds > IN_TIME:
        return f"{row.name}, stream={request.stream}: {seconds:.1f} s, {text}"
    return ""


async def test_g20_every_fault_is_a_typed_error_in_time_with_its_socket_freed() -> None:
    await play(TABLE[-1], ASK)  # what is loaded late is loaded now
    before = held()
    async with asyncio.timeout(2 * IN_TIME):
        found = await asyncio.gather(*(play(row, request) for row in TABLE for request in (ASK, STREAM)))
    assert [text for each in found if (text := wrong(each))] == []
    await until_held(before)


async def test_g20_a_deadline_ends_what_hangs() -> None:
    await play(TABLE[-1], ASK)
    before = held()
    rows = [row for row in TABLE if row.error is CallTimeout]
    found = await asyncio.gather(*(play(row, request, 0.2) for row in rows for request in (ASK, STREAM)))
    assert [(each.row.name, type(each.error)) for each in found if not isinstance(each.error, DeadlineReached)] == []
    assert max(each.seconds for each in found) < IN_TIME
    await until_held(before)


async def test_a_list_of_models_is_no_less_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "_LIST_SECONDS", 0.6)

    async def ask(row: Row) -> None:
        async with AsyncExitStack() as stack:
            gw = await stack.enter_async_context(upstream([row.answer]))
            way = await stack.enter_async_context(bad_network(gw.port, row.weather))
            async with transport(way.base_url, timeouts=row.timeouts, max_answer_bytes=ROOM) as t:
                with pytest.raises(ModelError):
                    await t.models()
            assert await gw.all_closed(), row.name

    async with asyncio.timeout(IN_TIME):
        await asyncio.gather(*map(ask, TABLE))


async def read(row: Row) -> tuple[str, list[str], list[object]]:
    """A stream's name, its deltas, and what all who read it are told: the deltas' reader, the message's, the end's."""
    async with upstream([row.answer]) as gw, transport(gw.base_url, timeouts=row.timeouts, max_answer_bytes=ROOM) as t:
        reply = await t.open(STREAM, CallContext())
        ends: list[End] = []
        texts: list[str] = []
        reply.on_end(ends.append)
        with pytest.raises(ModelError) as caught:
            texts.append((await anext(reply.deltas())).content)
            async for _ in reply.deltas():
                pass
        with pytest.raises(ModelError) as again:
            await reply.message()
        assert again.value is caught.value
        await t.aclose()
        assert await gw.all_closed(), row.name
    return (
        row.name,
        texts,
        [type(caught.value), *((end.outcome, end.answer, end.error is caught.value) for end in ends)],
    )


async def test_f18_a_stream_that_breaks_later_fails_for_every_reader() -> None:
    before = held()
    async with asyncio.timeout(IN_TIME):
        found = await asyncio.gather(*map(read, STREAMS))
    assert found == [(row.name, ["Par"], [row.error, ("failed", None, True)]) for row in STREAMS]
    await until_held(before)


LITTLE = 6_000_000  # bytes: a few times ROOM, and the buffers on the way
LARGE = ("endless", "flood", "bomb", "for ever", "without an end")


def most_held(what: Row, room: int) -> int:
    """Bytes of memory that one attempt of a row takes at most, the upstream's own included."""

    async def once() -> int:
        async with (
            upstream([what.answer]) as gw,
            transport(gw.base_url, timeouts=what.timeouts, max_answer_bytes=room) as t,
        ):
            await asyncio.sleep(0)
            tracemalloc.start()
            try:
                with pytest.raises(ModelError):
                    await (await t.open(STREAM, CallContext())).message()
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    return asyncio.run(once())


def test_no_answer_takes_much_memory() -> None:
    rows = [row for row in TABLE + STREAMS if any(word in row.name for word in LARGE)]
    taken = {row.name: most_held(row, ROOM) for row in rows}
    assert len(taken) > 15 and max(taken.values()) < LITTLE, taken


def test_the_check_of_memory_can_fail() -> None:
    (bomb,) = [row for row in TABLE if row.name == "gzip bomb"]
    assert most_held(bomb, 2 * len(BOMB)) > len(BOMB) > LITTLE


async def test_the_table_can_fail() -> None:
    fine = await play(Row("a good way", good, MalformedReply, weather=Weather(latency=0.001, piece=7)), ASK)
    assert fine.error is None and "1 x NoneType" in wrong(fine)
