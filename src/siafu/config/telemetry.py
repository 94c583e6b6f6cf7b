"""Whether this process traces, and where its spans go: by the OTEL_* variables, or as the program around siafu says."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from siafu.border.urls import check_server
from siafu.errors import ConfigError
from siafu.observe import spans

if TYPE_CHECKING:
    from siafu.observe.tracing import Exporting

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_ENDPOINTS = (ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_PROTOCOL = "http/protobuf"
_log = logging.getLogger("siafu")


@contextlib.asynccontextmanager
async def telemetry() -> AsyncIterator[None]:
    """Have this process trace from now on, when OTEL_EXPORTER_OTLP_ENDPOINT names a collector or the program around
    siafu has set OpenTelemetry's providers; else nothing is loaded. At the end of the block what is left is sent,
    within two seconds.

    Raises: ConfigError for a protocol other than http/protobuf, and for what is no address.
    """
    sent = _tracing()
    try:
        yield
    finally:
        if sent is not None:
            await sent.flush()


def _tracing() -> Exporting | None:
    """What sends the spans; None = nobody traces, or the program around siafu sends them."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        if spans.tracer() is None and "opentelemetry.sdk.trace" in sys.modules:  # else no provider there is records
            from siafu.observe.tracing import embedded  # noqa: PLC0415

            spans.trace_by(embedded())
        return None
    if (protocol := os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", _PROTOCOL)) != _PROTOCOL:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol[:40]!r}; siafu sends {_PROTOCOL} (port 4318) only")
    for name in _ENDPOINTS:
        if given := os.environ.get(name):
            check_server(given, name, like="http://127.0.0.1:4318")
    try:
        from siafu.observe.tracing import exporting  # noqa: PLC0415 (an extra; its SDK takes 0.2 s)
    except ImportError:
        _log.warning("%s is set, but OpenTelemetry is not installed: pip install 'siafu[otel]'", ENDPOINT)
        return None
    sent = exporting()
    spans.trace_by(sent.tracer)
    return sent
