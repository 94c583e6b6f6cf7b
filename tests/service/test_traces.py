"""A request's `traceparent` names the span that its model call belongs to."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import PlainReply, Reply
from siafu.gateway.scripted import say
from siafu.observe import spans
from siafu.observe.calls import CallContext
from siafu.observe.tracing import OtelTracer

from .server import server

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Told:
    """What a call is made under."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        self.headers.append(spans.headers())
        return PlainReply(say("네"))


async def test_a_request_is_served_under_the_trace_that_it_names(tmp_path: Path) -> None:
    endpoint = Told()
    before = spans.trace_by(OtelTracer(TracerProvider(), MeterProvider(), contents=False))
    try:
        async with server(tmp_path, endpoint) as served:
            for sent in ({"traceparent": PARENT}, {}, {"traceparent": "00-forged"}):
                status, _, _ = await served.ask(**sent)
                assert status == 200
    finally:
        spans.trace_by(before)
    assert endpoint.headers == [{"traceparent": PARENT}, {}, {}]
