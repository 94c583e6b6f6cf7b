"""Load on a server: clients that send the same request again as soon as it is answered. wrk where it is installed, else
this file as a process:

    python -m siafu.bench.serve.load PORT BODY_FILE CLIENTS SECONDS     prints a `Load` as JSON
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import msgspec

from siafu.bench.gateway.drive import MARK, raise_file_limit
from siafu.bench.gateway.figures import nearest_rank
from siafu.border.text import preview
from siafu.errors import MeasurementInvalid

WRK = "wrk"
PATH = "/v1/chat/completions"
_END = b"\r\n0\r\n\r\n"  # of a body in chunks
_SCRIPT = """
function init(args)
  local file = io.open(args[1], "rb")
  wrk.method, wrk.body = "POST", file:read("*a")
  wrk.headers["Content-Type"] = "application/json"
  file:close()
end
function done(summary, latency)
  local wrong = summary.errors
  io.stderr:write(string.format(
    '{"answered":%d,"errors":%d,"seconds":%.6f,"p50_ms":%.3f,"p99_ms":%.3f}',
    summary.requests - wrong.status, wrong.connect + wrong.read + wrong.write + wrong.status + wrong.timeout,
    summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
"""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: answers with status 200, everything else, and how long a whole answer took."""

    answered: int
    errors: int
    seconds: float
    p50_ms: float
    p99_ms: float


def load(port: int, body: bytes, *, clients: int, seconds: float, folder: Path, tool: str) -> Load:
    """Send `body` to the server on `port` of this machine, from a process of its own. tool: `wrk`, or `own`. folder:
    for files that are needed meanwhile.

    Raises: MeasurementInvalid.
    """
    sent = folder / "body.json"
    sent.write_bytes(body)
    if tool == WRK:
        script = folder / "load.lua"
        script.write_text(_SCRIPT, encoding="utf-8")
        url = f"http://127.0.0.1:{port}{PATH}"
        command = [WRK, "-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", "-s", str(script), url, "--", str(sent)]
    else:
        command = [sys.executable, "-P", "-m", __name__, str(port), str(sent), str(clients), str(seconds)]
    ended = subprocess.run(command, capture_output=True, timeout=seconds + 60, check=False)
    told = ended.stderr if tool == WRK else ended.stdout
    try:
        return msgspec.json.decode(told[told.find(b"{") :], type=Load)
    except msgspec.DecodeError:
        reason = preview((ended.stderr or ended.stdout).decode("utf-8", "replace")) or "it said nothing"
        raise MeasurementInvalid(f"the load ended without figures: {reason}") from None


def found_tool(wanted: str) -> str:
    """`wanted`, where auto is wrk if it is installed. Raises: MeasurementInvalid."""
    found = shutil.which(WRK) is not None
    if wanted == WRK and not found:
        raise MeasurementInvalid("wrk is not installed (Debian, Ubuntu and Homebrew have a package wrk); --load own")
    return WRK if found and wanted != "own" else "own"


class _Client(asyncio.Protocol):
    """One connection that asks again and again. `times`: when each answer was whole, and how long it took."""

    def __init__(self, request: bytes, times: list[tuple[float, float]]) -> None:
        self._request = request
        self._times = times
        self._data = b""
        self.errors = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        self._data, self._began = b"", time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        head = head.lower()
        _, told, length = head.partition(b"content-length: ")
        if not (len(body) >= int(length.split(b"\r\n", 1)[0]) if told else body.endswith(_END)):
            return
        now = time.perf_counter()
        if head.startswith(b"http/1.1 200 ") and MARK.encode() in body:
            self._times.append((now, now - self._began))
        else:
            self.errors += 1
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self.errors += 1  # closing is ours


async def ask(port: int, body: bytes, clients: int, seconds: float) -> Load:
    """The load itself. Raises: OSError when nobody listens."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    times: list[tuple[float, float]] = []
    loop, began = asyncio.get_running_loop(), time.perf_counter()
    made = [await loop.create_connection(lambda: _Client(request, times), "127.0.0.1", port) for _ in range(clients)]
    await asyncio.sleep(seconds)
    ended, errors = time.perf_counter(), sum(client.errors for _, client in made)
    for transport, _ in made:
        transport.abort()
    took = [each for at, each in times if at <= ended]
    p50, p99 = (nearest_rank(took, percent) * 1e3 if took else 0.0 for percent in (50, 99))
    return Load(answered=len(took), errors=errors, seconds=ended - began, p50_ms=p50, p99_ms=p99)


if __name__ == "__main__":
    raise_file_limit()
    _, at, file, many, long = sys.argv
    print(json.dumps(msgspec.to_builtins(asyncio.run(ask(int(at), Path(file).read_bytes(), int(many), float(long))))))
