"""Whole processes that trace: a worker with tools over MCP into a real collector; commands whose collector is away."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cli.front import python, siafu

from .collector import Collector, black_hole, running_collector

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
KEY = "Basic c2lhZnU6YSB2ZXJ5IHNlY3JldCBrZXk="
ASKS = [
    {"id": "a", "customer": "kim", "text": "주문 1001 어디쯤 왔나요?"},
    {"id": "b", "customer": "kim", "text": "환불 정책이 어떻게 되나요?"},
]


def submit(folder: Path, **env: str) -> None:
    (folder / "r.jsonl").write_text("".join(json.dumps(ask) + "\n" for ask in ASKS), encoding="utf-8")
    assert siafu(folder, "submit", "support", "r.jsonl", **env).returncode == 0


def worked(folder: Path, *flags: str, **env: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """A worker that ends when all is done, and the lines of its log."""
    done = python(folder, "-m", "siafu", "worker", "--until-empty", "--log-format", "json", *flags, **env)
    return done, [json.loads(line) for line in done.stderr.splitlines()]


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.double_value for one in span.attributes}


def descended(collector: Collector, top: str) -> Counter[str]:
    """The names of spans, the one with the id `top` and all below it."""
    below: dict[str, list[Any]] = {}
    for span, _ in collector.spans:
        below.setdefault(span.parent_span_id.hex(), []).append(span)
    names, left = Counter[str](), [top]
    while left:
        for span in below.get(left.pop(), ()):
            names[span.name] += 1
            left.append(span.span_id.hex())
    return names


def test_a_task_is_traced_from_its_submission_to_its_tools(tmp_path: Path) -> None:
    submit(tmp_path, TRACEPARENT=f"00-{TRACE}-{SPAN}-01")
    with running_collector() as collector:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_SERVICE_NAME": "일꾼",
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={KEY}",
        }
        done, log = worked(tmp_path, **env)
        assert done.returncode == 0, done.stderr
    names = descended(collector, SPAN)
    assert names["invoke_workflow tasks"] == 2
    assert names["chat kimi-k2.5"] == 2
    assert names["chat deepseek-v3.2"] >= 2
    assert names["execute_tool get_order_status"] == 1
    assert names["MCP send tools/call get_order_status"] == 1  # the MCP SDK's own, once, within ours
    assert {span.trace_id.hex() for span, _ in collector.spans if span.name.startswith("chat")} == {TRACE}
    assert {resource["service.name"] for _, resource in collector.spans} == {"일꾼"}
    assert {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"} <= collector.metrics.keys()
    chats = [attributes(span) for span, _ in collector.spans if span.name.startswith("chat")]
    assert all(float(told["gen_ai.usage.cost"]) > 0 for told in chats)
    assert "주문" not in str(collector.spans)
    assert KEY.split()[1] not in done.stderr
    assert any("worker" in line["message"] for line in log)


def batch(folder: Path) -> tuple[str, ...]:
    body = {"model": "m", "messages": [{"role": "user", "content": "안녕"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (folder / "in.jsonl").write_text(json.dumps(line), encoding="utf-8")
    return "batch", "run", "in.jsonl", "-o", "out.jsonl"


def test_what_is_sampled_and_how_it_is_called_say_the_variables_of_opentelemetry(tmp_path: Path) -> None:
    env = {"OTEL_TRACES_SAMPLER": "always_off", "OTEL_RESOURCE_ATTRIBUTES": "service.name=야간,team=a"}
    with running_collector() as collector:
        env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        done = python(tmp_path, "-m", "siafu", *batch(tmp_path), **env)
        assert done.returncode == 0, done.stderr
    assert not collector.spans
    assert "gen_ai.client.operation.duration" in collector.metrics
    assert (collector.resource["service.name"], collector.resource["team"]) == ("야간", "a")


def test_a_collector_that_is_away_costs_nothing_but_spans(tmp_path: Path) -> None:
    with black_hole() as url:
        began = time.monotonic()
        done = python(tmp_path, "-m", "siafu", *batch(tmp_path), OTEL_EXPORTER_OTLP_ENDPOINT=url)
        took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text())["response"]["status_code"] == 200
    assert took < 40  # the SDK's own timeouts add up to more
    assert done.stderr.count("does not arrive") <= 1
    assert "Traceback" not in done.stderr


EMBEDDED = """
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import siafu
from siafu.gateway.scripted import Scripted

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

async def main():
    with trace.get_tracer("theirs").start_as_current_span("their work"):
        async for result in siafu.map("{item}?", ["a"], run="여행", endpoint=Scripted(["b"])):
            assert result.value == "b"

asyncio.run(main())
inner, outer = exporter.get_finished_spans()
assert (inner.name, outer.name) == ("invoke_workflow 여행", "their work")
assert inner.parent.span_id == outer.context.span_id
"""


PLAIN = """
import asyncio, sys
import siafu
from siafu.gateway.scripted import Scripted

async def main():
    async for result in siafu.map("{item}?", ["a"], endpoint=Scripted(["b"])):
        assert result.value == "b"

asyncio.run(main())
assert not set(sys.modules) & {"opentelemetry", "prometheus_client", "sqlalchemy"}
"""


def test_a_program_that_does_not_loads_nothing_for_it(tmp_path: Path) -> None:
    done = python(tmp_path, "-c", PLAIN)
    assert done.returncode == 0, done.stderr


def test_a_program_that_traces_gets_the_spans_of_its_maps(tmp_path: Path) -> None:
    done = python(tmp_path, "-c", EMBEDDED)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("env", "code", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, 2, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_SDK_DISABLED": "true"}, 0, ""),
    ],
)
def test_what_cannot_be_spoken_is_said(tmp_path: Path, env: dict[str, str], code: int, said: str) -> None:
    done = siafu(tmp_path, *batch(tmp_path), OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", **env)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
