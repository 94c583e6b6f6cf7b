"""The OpenTelemetry door: spans and metrics with the names of its GenAI conventions (v1.41), sent by OTLP over HTTP.

What is sampled, how often and where it is sent, OTEL_* variables say, as OpenTelemetry defines them. Its SDK sends from
threads of its own and keeps a bounded queue: a collector that is away costs spans, never time. Importing this module
imports the SDK, an extra.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache
from time import perf_counter
from typing import Any

from opentelemetry import context as ambient
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from siafu import __version__
from siafu.border.secrets import Secret, redact
from siafu.border.text import preview
from siafu.observe.figures import Names
from siafu.observe.spans import Attributes, Operation, Span, traceparent

FLUSH_SECONDS = 2.0  # for what is left at the end
QUIET_SECONDS = 60.0  # between two complaints
CONTENTS = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_SECONDS = [0.01 * 2**n for n in range(14)]
_TOKENS = [float(4**n) for n in range(14)]
_MEASURED = (
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model", "server.address",
    "error.type",
)  # fmt: skip
_MODELS = {"gen_ai.request.model", "gen_ai.response.model"}
_w3c = TraceContextTextMapPropagator()  # and no baggage: what a program tells its own parts is none of a model's


class OtelTracer:
    """Spans of `provider`, and metrics of `meters`. contents: as in `Tracer`."""

    def __init__(self, provider: trace.TracerProvider, meters: metrics.MeterProvider, *, contents: bool) -> None:
        self.contents = contents
        self.models = Names()  # of metrics
        self._tracer = provider.get_tracer("siafu", __version__)
        meter = meters.get_meter("siafu", __version__)
        self.duration = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "GenAI operation duration",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )  # fmt: skip
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens used", explicit_bucket_boundaries_advisory=_TOKENS
        )

    def begin(self, operation: Operation, name: str, attributes: Attributes) -> Span:
        kind = trace.SpanKind.CLIENT if operation == "chat" else trace.SpanKind.INTERNAL
        told = {"gen_ai.operation.name": operation, **attributes}
        return _OtelSpan(self, self._tracer.start_span(preview(redact(f"{operation} {name}")), kind=kind), told)

    def under(self, parent: str) -> AbstractContextManager[object]:
        found = {"traceparent": parent} if traceparent(parent) else {}
        return _attached(_w3c.extract(found, ambient.get_current()))

    def headers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        _w3c.inject(found)
        return found

    def note(self, name: str, attributes: Attributes) -> None:
        trace.get_current_span().add_event(name, _plain(attributes))


class _OtelSpan:
    def __init__(self, tracer: OtelTracer, inner: trace.Span, attributes: Attributes) -> None:
        self._tracer = tracer
        self._inner = inner
        self._began = perf_counter()
        self._measured: dict[str, Any] = {}  # kept here, as a span that is not sampled keeps nothing
        self._over = False
        self.set(attributes)

    def set(self, attributes: Attributes) -> None:
        told = _plain(attributes)
        self._measured |= told
        self._inner.set_attributes(told)

    def end(self, error: str = "") -> None:
        if self._over:
            return
        self._over = True
        if error:
            self.set({"error.type": error})
            self._inner.set_status(trace.StatusCode.ERROR, error)
        if self._measured["gen_ai.operation.name"] == "chat":
            labels = {name: self._measured[name] for name in _MEASURED if name in self._measured}
            for name in labels.keys() & _MODELS:  # clients write what they like there
                labels[name] = self._tracer.models.bounded(labels[name], newcomer=not error)
            self._tracer.duration.record(perf_counter() - self._began, labels)
            for kind in ("input", "output"):
                if (tokens := self._measured.get(f"gen_ai.usage.{kind}_tokens")) is not None:
                    self._tracer.tokens.record(tokens, {**labels, "gen_ai.token.type": kind})
        self._inner.end()

    def current(self) -> AbstractContextManager[object]:
        return _attached(trace.set_span_in_context(self._inner))

    def __del__(self) -> None:
        self.end("abandoned")  # a run that was left without a word


@contextlib.contextmanager
def _attached(context: ambient.Context) -> Iterator[None]:
    token = ambient.attach(context)
    try:
        yield
    finally:
        ambient.detach(token)


def _plain(attributes: Attributes) -> dict[str, Any]:
    """What may leave: masked, and without what is unknown."""
    return {
        name: redact(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }


class Exporting:
    """The process's tracer, whose spans are sent, and what sends them."""

    def __init__(self, tracer: OtelTracer, flushed: list[TracerProvider | MeterProvider]) -> None:
        self.tracer = tracer
        self._flushed = flushed

    async def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Send what is left, for so long at most: the thread that sends ends with the process, at the latest."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            for provider in self._flushed:
                provider.force_flush(int(seconds * 1000))
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(sent.set)

        threading.Thread(target=send, name="siafu-telemetry", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(sent.wait(), seconds)


class _Seldom(logging.Handler):
    """What the SDK has to say, once in a while: while a collector is away, that is the same every few seconds."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if (now := perf_counter()) >= self._next:
            self._next = now + QUIET_SECONDS
            said = preview(redact(record.getMessage()), 300)
            logging.getLogger("siafu").warning("what is traced does not arrive; the work goes on: %s", said)


def embedded() -> OtelTracer | None:
    """Over the providers that the program around siafu has set; None when it has set none."""
    if not isinstance(provider := trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return OtelTracer(provider, metrics.get_meter_provider(), contents=_wants_contents(os.environ))
    return None


@cache
def exporting() -> Exporting:
    """Providers by what OTEL_* say, for this process from now on; the same ones each time."""
    environ = os.environ
    for name in (name for name in environ if name.startswith("OTEL_EXPORTER_OTLP") and name.endswith("HEADERS")):
        for pair in environ[name].split(","):
            Secret(pair.partition("=")[2].strip())  # from here on no log shows it
    library = logging.getLogger("opentelemetry")
    library.addHandler(_Seldom())
    library.propagate = False
    given = Resource.create()  # by OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    own = {"service.version": __version__}
    if str(given.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
        own["service.name"] = "siafu"
    resource = given.merge(Resource(own))
    spans = TracerProvider(resource=resource, shutdown_on_exit=False)
    if environ.get("OTEL_TRACES_EXPORTER", "otlp") != "none":
        spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    readers = []
    if environ.get("OTEL_METRICS_EXPORTER", "otlp") != "none":
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    meters = MeterProvider(readers, resource, shutdown_on_exit=False)
    trace.set_tracer_provider(spans)  # the MCP SDK's own spans go there too
    metrics.set_meter_provider(meters)
    return Exporting(OtelTracer(spans, meters, contents=_wants_contents(environ)), [spans, meters])


def _wants_contents(environ: Mapping[str, str]) -> bool:
    return environ.get(CONTENTS, "").strip().lower() in ("true", "1", "span_only", "span_and_event")
