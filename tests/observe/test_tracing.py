"""Spans and metrics as OpenTelemetry gets them, from a whole map over a real socket; and each rule by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import siafu
from gateway.fake_upstream import OK, SSE_HEAD, Answer, error, http, http_chunk, piece, sse, trickle, upstream
from siafu.border.secrets import Secret
from siafu.config.assembly import Plan, opened
from siafu.config.settings import load
from siafu.errors import RateLimited
from siafu.gateway.chat import ChatRequest
from siafu.gateway.scripted import Scripted
from siafu.gateway.traced import Traced, spoken
from siafu.gateway.upstream import Upstream
from siafu.observe import spans
from siafu.observe.calls import CallContext
from siafu.observe.tracing import OtelTracer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
KEY = "sk-test-0123456789abcdefghij"


class Recorder:
    """What was traced, in memory."""

    def __init__(self, *, contents: bool = False, sampled: bool = True) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider() if sampled else TracerProvider(sampler=ALWAYS_OFF)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = OtelTracer(provider, MeterProvider([self._reader]), contents=contents)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def metrics(self) -> dict[str, list[Any]]:
        found = self._reader.get_metrics_data()
        parts = [scope.metrics for each in (found.resource_metrics if found else ()) for scope in each.scope_metrics]
        return {metric.name: list(metric.data.data_points) for part in parts for metric in part}


@pytest.fixture
def traced() -> Iterator[Callable[..., Recorder]]:
    """Has this process trace until the end of the test."""
    before = spans.tracer()

    def record(**options: bool) -> Recorder:
        recorder = Recorder(**options)
        spans.trace_by(recorder.tracer)
        return recorder

    yield record
    spans.trace_by(before)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def of(parent: ReadableSpan, child: ReadableSpan) -> bool:
    return child.parent is not None and child.parent.span_id == parent.context.span_id


def answer(text: str | None, **fields: Any) -> bytes:
    message = {"role": "assistant", "content": text, **fields}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if fields else "stop"}
    usage = {"prompt_tokens": 700, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 600}}
    return http({**OK, "model": "gpt-4.1-mini", "choices": [choice], "usage": usage})


def where(order: str) -> str:
    """Where a parcel is."""
    return f"{order}: 부산"


ASK = answer(
    None, tool_calls=[{"id": "c", "type": "function", "function": {"name": "where", "arguments": '{"order":"1001"}'}}]
)
AGENT = siafu.Agent(name="courier", instructions="Find parcels.", role="order_status", tools=("where",))


async def mapped(script: Any, *, key: str = KEY) -> Any:
    async with upstream(script) as behind:
        options: dict[str, Any] = {"base_url": behind.base_url, "api_key": key, "model": "gpt-4.1-mini"}
        run = siafu.map(AGENT, ["주문 1001은?"], run="parcels", tools=[where], **options)
        results = [result async for result in run]
        return results[0] if results else None, behind.arrivals


async def test_a_task_is_one_tree_with_the_names_of_the_conventions(traced: Callable[..., Recorder]) -> None:
    seen = traced()
    result, arrivals = await mapped([ASK, answer("부산이에요")])
    assert result.value == "부산이에요"
    workflow, agent = seen.named("invoke_workflow parcels"), seen.named("invoke_agent courier")
    first, second = (span for span in seen.spans if span.name == "chat gpt-4.1-mini")
    tool = seen.named("execute_tool where")
    assert workflow.parent is None
    assert of(workflow, agent)
    assert all(of(agent, child) for child in (first, second, tool))
    assert len({span.context.trace_id for span in seen.spans}) == 1
    told = attributes(first)
    assert {name: told[name] for name in told if name.startswith("gen_ai")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "default",
        "gen_ai.request.model": "gpt-4.1-mini",
        "gen_ai.agent.name": "courier",
        "gen_ai.response.id": "c1",
        "gen_ai.response.model": "gpt-4.1-mini",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 700,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 600,
        "gen_ai.usage.cost": pytest.approx(result.usd_pico / 2e12),
    }
    assert [event.name for event in first.events] == ["AttemptEnded"]
    assert attributes(tool)["gen_ai.tool.name"] == "where"
    assert attributes(workflow)["gen_ai.workflow.name"] == "parcels"
    sent = [arrival.headers["traceparent"].split("-") for arrival in arrivals]
    assert [(int(parts[1], 16), int(parts[2], 16)) for parts in sent] == [
        (span.context.trace_id, span.context.span_id) for span in (first, second)
    ]
    whole = str([(span.name, span.attributes, [event.attributes for event in span.events]) for span in seen.spans])
    assert not any(word in whole for word in ("부산", "1001은", KEY)), whole


@pytest.mark.parametrize(
    ("address", "provider"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://seoul.openai.azure.com/openai/v1", "azure.ai.openai"),
        ("http://127.0.0.1:1/v1", "우리"),
    ],
)
async def test_a_call_that_nobody_answers_says_who_was_asked(
    address: str, provider: str, traced: Callable[..., Recorder]
) -> None:
    seen = traced()
    endpoint = Traced(Scripted([RateLimited("no")]), seen.tracer, [Upstream(name="우리", base_url=address)])
    with pytest.raises(RateLimited):
        await endpoint.open(ChatRequest(model="m", messages=[]), CallContext())
    told = attributes(seen.named("chat m"))
    assert (told["gen_ai.provider.name"], told["error.type"]) == (provider, "rate_limited")


async def test_metrics_count_also_what_is_not_sampled(traced: Callable[..., Recorder]) -> None:
    seen = traced(sampled=False)
    await mapped([ASK, answer("네")])
    assert not seen.spans
    found = seen.metrics()
    (duration,) = found["gen_ai.client.operation.duration"]
    assert (duration.count, duration.attributes["gen_ai.operation.name"]) == (2, "chat")
    tokens = {point.attributes["gen_ai.token.type"]: point.sum for point in found["gen_ai.client.token.usage"]}
    assert tokens == {"input": 1400, "output": 40}


def test_models_that_clients_made_up_are_no_labels(traced: Callable[..., Recorder]) -> None:
    seen = traced()
    for name in ("made-up-1", "made-up-2", "real"):
        span = seen.tracer.begin("chat", name, {"gen_ai.request.model": name})
        span.end("" if name == "real" else "request_refused")
    found = seen.metrics()["gen_ai.client.operation.duration"]
    assert {point.attributes["gen_ai.request.model"] for point in found} == {"real", "other"}
    assert {span.name for span in seen.spans} == {"chat made-up-1", "chat made-up-2", "chat real"}


async def test_what_was_said_is_in_spans_only_when_it_is_asked_for_and_keys_never_are(
    traced: Callable[..., Recorder],
) -> None:
    seen = traced(contents=True)
    Secret(KEY)
    await mapped([ASK, answer(f"부산, {KEY}")])
    last = [span for span in seen.spans if span.name == "chat gpt-4.1-mini"][-1]
    assert '"parts":[{"type":"text","content":"주문 1001은?"}]' in attributes(last)["gen_ai.input.messages"]
    assert '"type":"tool_call_response","id":"c","response":"1001: 부산"' in attributes(last)["gen_ai.input.messages"]
    assert '"content":"부산, ***"' in attributes(last)["gen_ai.output.messages"]
    assert attributes(seen.named("execute_tool where"))["gen_ai.tool.call.result"] == "1001: 부산"
    assert KEY not in str([span.attributes for span in seen.spans])


async def test_f58_the_key_is_in_no_span_of_a_call_that_is_refused(traced: Callable[..., Recorder]) -> None:
    seen = traced(contents=True)
    await mapped([error(401, f"{KEY} is no key")])
    assert attributes(seen.named("chat gpt-4.1-mini"))["error.type"] == "access_refused"
    told = [
        (span.name, span.attributes, span.status, [event.attributes for event in span.events]) for span in seen.spans
    ]
    assert KEY not in str(told)


async def test_waits_and_attempts_are_told_within_the_one_call(traced: Callable[..., Recorder]) -> None:
    seen = traced()
    script = [error(429, retry_after="0.01"), answer("네")]
    result, arrivals = await mapped(script)
    assert result.ok
    assert len(arrivals) == 2
    told = [
        (event.name, (event.attributes or {}).get("siafu.code")) for event in seen.named("chat gpt-4.1-mini").events
    ]
    assert ("AttemptEnded", "rate_limited") in told
    assert "Waited" in dict(told)
    assert told[-1] == ("AttemptEnded", None)


@pytest.mark.parametrize(("script", "code"), [([error(400)], "request_refused"), ([answer("{")], None)])
async def test_an_error_is_told_in_one_word(script: list[Answer], code: str, traced: Callable[..., Recorder]) -> None:
    seen = traced()
    result, _ = await mapped(script)
    chat = seen.named("chat gpt-4.1-mini")
    assert attributes(chat).get("error.type") == code
    assert chat.status.is_ok is (code is None)
    assert (result.error is None) is (code is None)
    assert attributes(seen.named("invoke_workflow parcels")).get("error.type") == code


async def test_a_streamed_call_ends_with_its_stream(traced: Callable[..., Recorder]) -> None:
    seen = traced()
    begin, end = sse(piece("네")), sse(piece(finish="stop"), "[DONE]").removeprefix(SSE_HEAD)
    stream = trickle(begin.removesuffix(http_chunk(b"")), end, gap=0.1)
    async with upstream([stream]) as behind:
        settings = load(flags={"endpoint.base_url": behind.base_url, "endpoint.api_key": Secret(KEY)}, environ={})
        async with opened(settings, Plan()) as house:
            request = ChatRequest(model="m", messages=[{"role": "user", "content": "안녕"}], stream=True)
            reply = await house.around.endpoint.open(request, CallContext())
            assert not seen.spans
            await reply.message()
            assert attributes(seen.named("chat m"))["gen_ai.response.finish_reasons"] == ("stop",)
            left = await house.around.endpoint.open(request, CallContext())
            await left.aclose()
    assert attributes(seen.spans[-1])["error.type"] == "abandoned"


async def test_what_is_submitted_under_a_trace_is_done_under_it(traced: Callable[..., Recorder]) -> None:
    seen = traced()
    with spans.under(PARENT), spans.span("invoke_workflow", "w", {}):
        pass
    with spans.under("00-nonsense"), spans.span("invoke_workflow", "alone", {}):
        pass
    inner = seen.named("invoke_workflow w")
    assert inner.parent is not None
    assert f"{inner.context.trace_id:032x}-{inner.parent.span_id:016x}" == PARENT[3:-3]
    assert seen.named("invoke_workflow alone").parent is None


async def test_a_run_of_an_agent_that_is_left_has_an_end_too(traced: Callable[..., Recorder]) -> None:
    seen = traced()

    async def work(item: Any, ctx: Any) -> str:
        async for _ in AGENT.run(ctx, "주문?"):
            return "left"
        return "never"

    run = siafu.map(work, ["x"], endpoint=Scripted(["네"]), tools=[where])
    assert [result.value async for result in run] == ["left"]
    assert attributes(seen.named("invoke_agent courier"))["error.type"] == "abandoned"


async def test_who_is_cancelled_is_told_so(traced: Callable[..., Recorder]) -> None:
    seen = traced()

    async def work() -> None:
        with spans.span("execute_tool", "slow", {}):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert attributes(seen.named("execute_tool slow"))["error.type"] == "cancelled"


def test_nobody_traces_and_nothing_is_in_the_way() -> None:
    assert spans.tracer() is None
    assert spans.headers() == {}
    with spans.under(PARENT), spans.span("chat", "m", {"a": 1}) as span:
        span.set({"b": None})
    with pytest.raises(RateLimited), spans.span("chat", "m", {}):
        raise RateLimited("no")


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (PARENT, True),
        (PARENT.replace("00-", "cc-", 1), True),
        (PARENT.replace("00-", "ff-", 1), False),
        (PARENT.upper(), False),
        (PARENT + "-x", False),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", False),
        (f"00-{'1' * 32}-{'0' * 16}-01", False),
        ("", False),
        (PARENT + "\n", False),
    ],
)
def test_traceparents(text: str, valid: bool) -> None:
    assert spans.traceparent(text) == (text if valid else "")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"content": [{"type": "text", "text": "네"}, 5]},
        {"role": "assistant", "tool_calls": [{"id": "c"}, {"function": "no"}]},
        {"role": 3, "content": 7},
        {"tool_calls": 5},
        {"tool_calls": [7]},
    ],
)
def test_messages_of_any_shape_can_be_told(message: dict[str, Any]) -> None:
    assert spoken([message, 5]).startswith('[{"role":')
