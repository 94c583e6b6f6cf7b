"""A collector of OpenTelemetry on a real socket: keeps what it is sent. And one that takes connections, and no more."""

from __future__ import annotations

import gzip
import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """spans: of all processes, as OTLP has them, each with the attributes of its resource. metrics: by name; resource:
    whose they are.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[tuple[Any, dict[str, str]]] = []
        self.metrics: dict[str, Any] = {}
        self.resource: dict[str, str] = {}

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = {one.key: one.value.string_value for one in each.resource.attributes}
                self.spans += [(span, resource) for scope in each.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for found in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.resource = {one.key: one.value.string_value for one in found.resource.attributes}
                self.metrics |= {metric.name: metric for scope in found.scope_metrics for metric in scope.metrics}


@contextmanager
def running_collector() -> Iterator[Collector]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(self.path, gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def black_hole() -> Iterator[str]:
    """The address of one that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
