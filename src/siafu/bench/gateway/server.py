"""The server that all clients are measured against: answers any POST after a fixed time, and counts. An answer that is
asked for as a stream begins then; its further pieces follow one every two milliseconds.

    python -m siafu.bench.gateway.server LATENCY_MS LOOP [SPREAD]     prints its port; ends when its input ends

SPREAD: how far a single answer's time may be from LATENCY_MS, as a part of it; 0 unless given.

A protocol on the bare event loop, so that it takes as little as possible from the machine it shares with the client.
`GET /stats`: how many calls came and their median service time in ms, since it was last asked.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from operator import length_hint
from random import Random
from typing import cast

from siafu.bench.gateway.drive import loop_factory, raise_file_limit
from siafu.bench.gateway.figures import nearest_rank

_STREAMED = re.compile(rb'"stream": *true')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ANSWER = {
    "id": "chatcmpl-bench-0001",
    "object": "chat.completion",
    "created": 1_780_000_000,
    "model": "kimi-k2.5",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "안녕하세요, 고객님. 주문번호 1001번의 주전자와 컵 두 개는 어제 저녁 물류센터에서 나와 "
                "현재 배송 중입니다. 택배사 조회에 따르면 내일 오후 2시에서 6시 사이에 도착할 예정이며, 부재중이시면 "
                "문 앞에 놓아 드립니다. 도착 전에 문자로 다시 안내해 드리겠습니다. 배송지를 바꾸고 싶으시면 오늘 밤 "
                "10시까지 말씀해 주세요. 이용해 주셔서 감사합니다!",
            },
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 168,
        "completion_tokens": 142,
        "total_tokens": 310,
        "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    },
    "system_fingerprint": "fp_bench",
}
_GAP = 0.002  # seconds between the pieces of a stream
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
    b"x-request-id: req_bench\r\n\r\n"
)
_WORDS = "안녕하세요, 고객님. 주문번호 1001번의 주전자와 컵 두 개는 현재 배송 중이며 내일 오후 2시쯤 도착합니다."


def _pieces() -> list[bytes]:
    """A streamed answer: its head with the first event, and each further event."""
    head = {
        "id": "chatcmpl-bench-0001",
        "object": "chat.completion.chunk",
        "created": 1_780_000_000,
        "model": "kimi-k2.5",
    }
    words = re.findall(r"\S+ ?", _WORDS)
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in words), {}]
    events = [
        {**head, "choices": [{"index": 0, "delta": each, "finish_reason": None if each else "stop"}]} for each in deltas
    ]
    events.append({**head, "choices": [], "usage": _ANSWER["usage"]})
    told = [json.dumps(event, ensure_ascii=False).encode() for event in events]
    chunks = [
        b"%x\r\n%b\r\n" % (len(data), data) for each in (*told, b"[DONE]") for data in [b"data: " + each + b"\n\n"]
    ]
    return [_STREAM_HEAD + chunks[0], *chunks[1:-1], chunks[-1] + b"0\r\n\r\n"]


def _response(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}x-request-id: req_bench\r\n\r\n".encode() + body


class Bench:
    """What all connections share. `latency`: seconds. `spread`: of it, from 0 to 1."""

    def __init__(self, latency: float, loop: asyncio.AbstractEventLoop, spread: float) -> None:
        self.loop = loop
        self._range = latency * (1.0 - spread), latency * (1.0 + spread)
        self._rng = Random(0)
        self.answer = [_response(json.dumps(_ANSWER, ensure_ascii=False).encode())]
        self.stream = _pieces()
        self.calls = 0
        self.served: list[float] = []

    def latency(self) -> float:
        """Seconds for the next answer."""
        return self._rng.uniform(*self._range)

    def stats(self) -> bytes:
        service_ms = nearest_rank(self.served, 50) * 1e3 if self.served else None
        calls, self.calls, self.served = self.calls, 0, []
        return _response(json.dumps({"calls": calls, "service_ms": service_ms}).encode())


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests on it are answered in order, one at a time."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is none

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._data, 0, end)
        size = end + 4 + (int(length[1]) if length else 0)
        if len(self._data) < size:
            return
        request, self._data = self._data[:size], self._data[size:]
        bench = self._bench
        if request.startswith(b"GET"):
            self._transport.write(bench.stats())
            return
        bench.calls += 1
        pieces = bench.stream if _STREAMED.search(request, end) else bench.answer
        bench.loop.call_later(bench.latency(), self._answer, time.monotonic(), iter(pieces))

    def _answer(self, came: float, pieces: Iterator[bytes]) -> None:
        piece = next(pieces, None)
        if piece is None or self._transport.is_closing():
            return
        self._transport.write(piece)
        if length_hint(pieces):
            self._bench.loop.call_later(_GAP, self._answer, came, pieces)
        else:
            self._bench.served.append(time.monotonic() - came)


async def serve(latency: float, spread: float) -> None:
    loop = asyncio.get_running_loop()
    bench = Bench(latency, loop, spread)
    server = await loop.create_server(lambda: Connection(bench), "127.0.0.1", 0, backlog=4096)
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    raise_file_limit()
    with asyncio.Runner(loop_factory=loop_factory(sys.argv[2])) as runner:
        runner.run(serve(float(sys.argv[1]) / 1e3, float(sys.argv[3]) if len(sys.argv) > 3 else 0.0))
