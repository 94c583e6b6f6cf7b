"""A key that is used is in nothing that anybody can read afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import logging
import pickle
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import siafu
from cli.front import siafu as run_siafu
from service.test_serve import serving
from siafu.border.secrets import Secret
from siafu.config.reaching import endpoint_rows
from siafu.config.settings import load
from siafu.config.shown import effective
from siafu.config.upstreams import configured_ways
from siafu.errors import ConfigError, SiafuError
from siafu.gateway.chat import ChatRequest
from siafu.gateway.transport import Transport
from siafu.observe.calls import CallContext
from siafu.observe.events import Event
from siafu.pace.clock import SystemClock
from siafu.tools.mcp import McpTools
from siafu.tools.servers import McpServer

CANARY = "sk-canary-0123456789-abcdefgh"
ASK = ChatRequest(model="m", messages=[{"role": "user", "content": "안녕하세요"}])


class Echo:
    """An endpoint that repeats every header it gets, in a body and headers of its own. `seen`: those headers."""

    def __init__(self, url: str, seen: list[dict[str, str]]) -> None:
        self.url = url
        self.seen = seen
        self.status, self.kind, self.location = 401, "application/json", ""


@contextmanager
def echoing() -> Iterator[Echo]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            sent = dict(self.headers.items())
            echo.seen.append({name.lower(): value for name, value in sent.items()})
            said = f"no key: {sent}"
            body = json.dumps({"error": {"message": said, "code": said, "param": said}}).encode()
            self.send_response(echo.status, said)
            self.send_header("content-type", echo.kind)
            self.send_header("content-length", str(len(body)))
            self.send_header("x-request-id", said)
            self.send_header("retry-after", "0")
            if echo.location:
                self.send_header("location", echo.location)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            """Nothing on stderr."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    echo = Echo(f"http://127.0.0.1:{server.server_port}/v1", [])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield echo
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def everything(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


# ---- the type -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["YOUR_API_KEY", "<key>", "sk-...", "changeme", "${OPENAI_API_KEY}", "xxxx"])
def test_sec22_a_placeholder_starts_nothing(given: str) -> None:
    with pytest.raises(ConfigError, match="placeholder"):
        configured_ways(load(environ={"OPENAI_API_KEY": given}))


def test_sec22_no_way_of_showing_settings_shows_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", CANARY)
    file = tmp_path / "siafu.toml"
    file.write_text(
        '[upstreams.u]\nbase_url = "https://a.example/v1"\napi_keys = ["env:CANARY"]\nproxy = "env:CANARY"\n'
        'headers = { x-secret = "env:CANARY" }\n'
    )
    settings = load(
        config=file, environ={"SIAFU_REDIS_URL": f"redis://:{CANARY}@h"}, flags={"endpoint.api_key": CANARY}
    )
    (way,) = configured_ways(settings.model_copy(update={"upstreams": {}, "endpoint": settings.endpoint}))
    things = [settings, settings.endpoint, settings.origin, way, way.upstream, way.upstream.key]
    shown = [text for each in things for text in (repr(each), str(each), f"{each}", str(vars_of(each)))]
    shown += [str(settings.model_dump()), str(msgspec.to_builtins(effective(settings, [])))]
    assert not any(CANARY in text for text in shown)
    assert way.upstream.key is not None and CANARY in way.upstream.key.reveal()  # the check can fail
    for refused in (pickle.dumps, msgspec.json.encode):
        with pytest.raises(TypeError):
            refused(way.upstream)
    with pytest.raises(Exception, match="serialize"):
        settings.model_dump_json()


def vars_of(value: Any) -> Any:
    return getattr(value, "__dict__", "")


async def test_sec22_a_traceback_with_locals_shows_no_key() -> None:
    """As loggers and crash reporters make them, of failures in every phase of a request."""
    told, captured = [], traceback.TracebackException.from_exception
    with echoing() as echo:
        for url in (echo.url, "http://127.0.0.1:9/v1", "http://localhost:9/v1"):
            settings = load(environ={"OPENAI_API_KEY": CANARY, "OPENAI_BASE_URL": url})
            (way,) = configured_ways(settings)
            transport = Transport(way.upstream, SystemClock())
            for call in (transport.open(ASK, CallContext()), transport.models()):
                try:
                    await call
                except SiafuError as error:
                    text = "".join(captured(error, capture_locals=True).format())
                    told.append(text)
            await transport.aclose()
    assert len(told) == 6 and any("transport.py" in text for text in told)
    assert not any(CANARY in text for text in told)
    try:
        unsafe = CANARY  # noqa: F841
        raise ValueError
    except ValueError as error:
        assert CANARY in "".join(captured(error, capture_locals=True).format())  # the check can fail


# ---- every sink -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 400, 429, 500, 302, 200])
async def test_sec23_a_map_tells_no_key(tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture) -> None:
    """With every logger of the process at DEBUG, at an endpoint that repeats all that it gets."""
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    events: list[Event] = []
    with echoing() as echo:
        echo.status, echo.location = status, echo.url if status == 302 else ""
        run = siafu.map(
            "{item}",
            ["하나", "둘"],
            base_url=echo.url,
            api_key=CANARY,
            model="m",
            journal=tmp_path / "run.db",
            item_timeout=1.0,
            observer=events.append,
        )
        results = [result async for result in run]
        settings = load(environ={"OPENAI_API_KEY": CANARY, "OPENAI_BASE_URL": echo.url})
        rows = await endpoint_rows(settings)
    sinks = [caplog.text, repr(events), repr(results), repr(run.summary), repr(rows)]
    assert echo.seen and all(CANARY in seen["authorization"] for seen in echo.seen)  # it was there to be told
    assert events and not any(CANARY in sink for sink in sinks)
    assert CANARY.encode() not in everything(tmp_path)


def test_sec23_no_command_tells_a_key(tmp_path: Path) -> None:
    """Of what a run and a server print and keep: files, journal, ledger, errors for clients."""
    line = {"custom_id": "a", "body": {"model": "m", "messages": ASK.messages}}
    (tmp_path / "in.jsonl").write_text(json.dumps(line))
    with echoing() as echo:
        env = {"OPENAI_BASE_URL": echo.url, "OPENAI_API_KEY": CANARY, "SIAFU_DEBUG": "1"}
        for status in (401, 500):
            echo.status = status
            done = run_siafu(tmp_path, "batch", "run", "in.jsonl", "--out", f"{status}.jsonl", **env)
            assert done.returncode in (1, 2) and CANARY not in done.stdout + done.stderr
        with serving(tmp_path, **env) as process:
            for status in (401, 400, 500, 302):
                echo.status, echo.location = status, echo.url if status == 302 else ""
                got, headers, body = process.ask()
                assert got >= 400 and CANARY not in str(headers) and CANARY.encode() not in body
            _, err = process.stop()
        assert CANARY not in err
    assert len(echo.seen) > 6 and CANARY.encode() not in everything(tmp_path)


# ---- where the key goes ---------------------------------------------------------------------------------------------


def test_sec26_neither_a_client_nor_a_redirect_sends_the_key_elsewhere(tmp_path: Path) -> None:
    with echoing() as capture, echoing() as echo:
        echo.status, echo.location = 307, f"{capture.url}/chat/completions"
        with serving(tmp_path, OPENAI_BASE_URL=echo.url, OPENAI_API_KEY=CANARY) as process:
            place = capture.url.removesuffix("/v1").removeprefix("http://")
            overrides: list[dict[str, Any]] = [{}, {"base_url": capture.url}, {"model": capture.url}]
            overrides.append({"extra_headers": {"host": place}})
            for body in overrides:
                process.ask(**body)
            with contextlib.closing(process.connect()) as raw:  # every header that some gateway takes for an address
                headers = {
                    "Content-Type": "application/json",
                    "X-Forwarded-Host": place,
                    "Forwarded": f"host={place}",
                    "X-Base-Url": capture.url,
                    "X-Siafu-Base-Url": capture.url,
                    "OpenAI-Base-Url": capture.url,
                    "X-Stainless-Base-Url": capture.url,
                }
                raw.request("POST", "/v1/chat/completions", json.dumps({"model": "m", "messages": []}), headers)
                raw.getresponse().read()
        assert capture.seen == [] and len(echo.seen) >= 5
        assert {seen["host"] for seen in echo.seen} == {echo.url.removesuffix("/v1").removeprefix("http://")}


async def test_sec25_no_redirect_of_a_tool_server_is_followed() -> None:
    with echoing() as capture, echoing() as echo:
        for status in (301, 302, 307, 308):
            echo.status, echo.location = status, capture.url
            tools = McpTools(McpServer(name="a", url=echo.url, headers={"x-key": Secret(CANARY)}), SystemClock())
            with pytest.raises(SiafuError) as caught:
                await tools.list()
            await tools.aclose()
            assert CANARY not in str(caught.value)
        assert capture.seen == [] and all(seen["x-key"] == CANARY for seen in echo.seen) and echo.seen
