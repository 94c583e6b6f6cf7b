"""`siafu bench gateway` as a user runs it, small: real processes, real sockets, a real journal."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from here import command
from siafu.bench.gateway import drive, peers
from siafu.bench.gateway.compare import Client, measure, server
from siafu.errors import MeasurementInvalid

from .commands import bench

SMALL = ("--no-peers", "--concurrency", "4,8", "--calls", "24", "--repeats", "1", "--upstream-ms", "20")
ROW = {
    "client", "concurrency", "upstream_ms", "calls", "cpu_ms_per_call", "calls_per_s", "p50_ms", "p95_ms", "p99_ms",
    "errors", "rss_mb", "server_calls",
}  # fmt: skip


def test_the_report_has_every_client_and_the_servers_own_count(tmp_path: Path) -> None:
    ended = bench("gateway", tmp_path, *SMALL, "--json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    names = ["raw aiohttp", "siafu", "siafu, no store"]
    assert [(row["client"], row["concurrency"]) for row in report["rows"]] == [(n, c) for c in (4, 8) for n in names]
    for row in report["rows"]:
        assert row.keys() >= ROW
        assert (row["calls"], row["server_calls"], row["errors"], row["upstream_ms"]) == (24, 24, 0, 20.0)
        assert 20.0 <= row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["cpu_ms_per_call"] > 0 and row["rss_mb"] > 10
    assert report["ratios"].keys() == {"4", "8"}
    assert report["ratios"]["8"]["raw aiohttp"]["cpu"] == {"median": 1.0, "min": 1.0, "max": 1.0}
    assert report["machine"].keys() >= {"cores", "python", "load", "loop", "fsync_ms"}
    assert "6 of 6: siafu, no store, 8 agents" in ended.stderr
    assert list(tmp_path.iterdir()) == []  # journals are deleted


def test_the_table_leads_with_multiples_of_raw_aiohttp_and_says_who_is_missing(tmp_path: Path) -> None:
    (tmp_path / "bench-peers").touch()  # where the environments of others should be
    page = tmp_path / "page.html"
    ended = bench(
        "gateway",
        tmp_path,
        "--peer",
        "litellm",
        "--concurrency",
        "4",
        "--spread",
        "0.5",
        *SMALL[3:],
        "--html",
        str(page),
    )
    assert ended.returncode == 0, ended.stderr
    assert "4 agents" in ended.stdout and "1.00 x" in ended.stdout and "nearest rank" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80
    for shown in (ended.stdout, page.read_text(encoding="utf-8")):
        text = " ".join(shown.split())
        assert "Not measured: LiteLLM Router. litellm==" in text and "up to 50% earlier or later" in text


@pytest.mark.parametrize(
    "wrong",
    [("--concurrency", "0"), ("--concurrency", "4,x"), ("--loop", "trio"), ("--spread", "1"), ("--peer", "nobody")],
)
def test_wrong_use_is_told(tmp_path: Path, wrong: tuple[str, str]) -> None:
    ended = command(tmp_path, "bench", "gateway", "--home", str(tmp_path), *wrong, environment=os.environ)
    assert (ended.returncode, wrong[0] in ended.stderr) == (2, True)


def client(folder: Path, call: str) -> Client:
    """A client that answers with the server's mark, or not."""
    file = folder / "own.py"
    file.write_text(
        "import asyncio, contextlib, json, urllib.request\n"
        "@contextlib.asynccontextmanager\n"
        "async def connect(base_url, body, agents, folder):\n"
        "    def post():\n"
        "        request = urllib.request.Request(base_url + '/chat/completions', json.dumps(body).encode())\n"
        "        return json.load(urllib.request.urlopen(request))['choices'][0]['message']['content']\n"
        "    async def call(number):\n"
        f"        {call}\n"
        "    yield call\n",
        encoding="utf-8",
    )
    return Client(name="own", file=file)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ("await asyncio.to_thread(post); return await asyncio.to_thread(post)", "server counted 12"),
        ("await asyncio.sleep(0.01); return '배송'", "server counted 0"),
    ],
)
def test_a_client_that_calls_twice_or_not_at_all_is_found_out(tmp_path: Path, call: str, word: str) -> None:
    with server(5.0, "asyncio") as port, pytest.raises(MeasurementInvalid, match=word):
        measure(client(tmp_path, call), agents=2, calls=6, port=port, loop="asyncio", home=tmp_path)


def test_errors_are_counted_and_kept_out_of_the_latencies(tmp_path: Path) -> None:
    call = "return await asyncio.to_thread(post) if number % 3 else 'another answer'"
    with server(5.0, "asyncio") as port:
        run = measure(client(tmp_path, call), agents=1, calls=6, port=port, loop="asyncio", home=tmp_path)
    assert (run.errors, len(run.answered), run.server_calls) == (2, 4, 4)
    assert run.first_error == "another answer than the server's"


async def test_agents_share_the_calls() -> None:
    numbers, running, most = [], 0, 0

    async def call(number: int) -> str:
        nonlocal running, most
        numbers.append(number)
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0)
        running -= 1
        return drive.MARK

    crowd = drive.Crowd(call)
    await crowd.run(range(20), 4)
    assert (sorted(numbers), most, len(crowd.answered), crowd.errors) == (list(range(20)), 4, 20, [])


def test_an_environment_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reason = peers.environment(tmp_path / "file" / "here", ["something"])
    assert isinstance(reason, str) and reason.startswith("something cannot be installed: ")
