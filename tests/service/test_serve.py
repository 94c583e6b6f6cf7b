"""`siafu serve` and `siafu keys` as processes, over the simulated endpoint: what users run, stop and kill."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cli.front import PLAIN, siafu
from processes import wait_until
from sim import Sim, running_sim

PROVIDER_KEY = "sk-provider-0123456789abcdef"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_order_status",
            "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
        },
    }
]


class Process:
    def __init__(self, folder: Path, *options: str, **env: str) -> None:
        self.folder = folder
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        words = [sys.executable, "-m", "siafu", "serve", "--port", "0", "--ready-file", str(ready), *options]
        self.process = subprocess.Popen(
            words, cwd=folder, env={**PLAIN, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        if not wait_until(lambda: ready.exists() or self.process.poll() is not None, 60.0) or not ready.exists():
            raise AssertionError(self.process.communicate()[1])
        self.ready = json.loads(ready.read_text())

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.ready["url"])
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)

    def send(self, body: dict[str, Any], key: str = "") -> http.client.HTTPConnection:
        connection = self.connect()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        connection.request("POST", "/v1/chat/completions", json.dumps(body, ensure_ascii=False).encode(), headers)
        return connection

    def ask(self, text: str = "안녕하세요", key: str = "", **more: Any) -> tuple[int, dict[str, str], bytes]:
        body = {"model": "gpt-4.1-mini", "max_tokens": 60, "messages": [{"role": "user", "content": text}], **more}
        with contextlib.closing(self.send(body, key)) as connection:
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err.decode()

    def ledger(self) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.folder / ".siafu" / "serve.db")) as db:
            return db.execute("SELECT task, outcome, code, usd_pico FROM attempt ORDER BY id").fetchall()


@contextlib.contextmanager
def serving(folder: Path, *options: str, **env: str) -> Iterator[Process]:
    process = Process(folder, *options, **env)
    try:
        yield process
    finally:
        _, err = process.stop()
    assert "Traceback" not in err, err


@contextlib.contextmanager
def in_front_of(sim: Sim, folder: Path, *options: str) -> Iterator[Process]:
    with serving(folder, *options, OPENAI_BASE_URL=sim.url, OPENAI_API_KEY=PROVIDER_KEY) as process:
        yield process


def test_two_variables_are_enough(tmp_path: Path) -> None:
    with running_sim(keep_bodies=True, require_key=True) as sim, in_front_of(sim, tmp_path) as process:
        assert process.ready["simulated"] is False
        status, headers, body = process.ask(mystery=[1.0], seed=3)
        assert status == 200
        assert json.loads(body)["choices"][0]["message"]["content"]
        assert (headers["x-siafu-upstream"], headers["x-siafu-attempts"]) == ("default", "1")
        assert float(headers["x-siafu-cost-usd"]) > 0
        status, _, body = process.ask("주문 1001 어디 있나요?", tools=TOOLS)
        assert json.loads(body)["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_order_status"
        status, headers, body = process.ask(stream=True)
        events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
        assert events.pop() == b"[DONE]"
        chunks = [json.loads(event) for event in events]
        assert all(chunk["choices"] for chunk in chunks)  # nobody asked for an event with tokens only
        assert "안녕하세요" in "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        first = sim.requests()[0]
        assert json.loads(first["body"])["mystery"] == [1.0]
        tasks = {task for task, *_ in process.ledger()}
        assert headers["x-request-id"] in tasks
        assert wait_until(lambda: [row[1] for row in process.ledger()] == ["ok"] * 3)
        everything = b"".join(path.read_bytes() for path in (tmp_path / ".siafu").iterdir() if path.is_file())
        assert PROVIDER_KEY.encode() not in everything
        assert "안녕하세요".encode() not in everything  # SEC24: nothing that was said is kept


def test_the_budget_a_day_of_the_home_holds_here_too(tmp_path: Path) -> None:
    (tmp_path / "siafu.toml").write_text('[budgets]\nday = "0.01 USD"\n')
    with running_sim() as sim, in_front_of(sim, tmp_path) as process:
        assert process.ask()[0] == 200
        status, headers, body = process.ask(max_tokens=100_000)  # could cost more than the day has
        assert (status, json.loads(body)["error"]["code"]) == (429, "budget_reached")
        assert "retry-after" not in headers and sim.stats()["requests"] == 1
        assert process.ask()[0] == 200


def test_prices_change_while_it_serves_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "siafu.toml"
    price = '[prices."gpt-4.1-mini"]\ninput = {0}\noutput = {0}\ndate = 2026-01-01\n'
    file.write_text(price.format(1))
    with running_sim() as sim, in_front_of(sim, tmp_path) as process:

        def cost() -> float:
            return float(process.ask()[1]["x-siafu-cost-usd"])

        before = cost()
        file.write_text(price.format(1000))
        assert wait_until(lambda: cost() > 100 * before)
        file.write_text("broken = [")
        process.process.send_signal(signal.SIGHUP)
        assert cost() > 100 * before
        _, err = process.stop()
    assert "siafu.toml has changed: from now on prices.gpt-4.1-mini" in err
    assert "the settings stay as they were: " in err


def test_without_an_endpoint_the_simulated_one_is_labelled(tmp_path: Path) -> None:
    process = Process(tmp_path)
    assert process.ready["simulated"] is True
    status, headers, _ = process.ask()
    assert (status, headers["x-siafu-upstream"]) == (200, "simulated")
    code, err = process.stop(signal.SIGINT)
    assert code == 0
    assert "SIMULATED" in err


def test_sec26_a_client_cannot_choose_where_the_key_goes(tmp_path: Path) -> None:
    with running_sim(require_key=True) as other, running_sim(require_key=True) as sim, in_front_of(sim, tmp_path) as at:
        for more in ({"base_url": other.url}, {"api_base": other.url}, {"model": f"openai/{other.url}"}):
            assert at.ask(**more)[0] == 200
        assert at.ask(key="sk-of-the-client-0123456789")[0] == 200
        assert (sim.stats()["requests"], other.stats()["requests"]) == (4, 0)


def test_sec1_beyond_loopback_it_does_not_start_without_a_key(tmp_path: Path) -> None:
    done = siafu(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "siafu keys create" in done.stderr


@pytest.mark.kill
def test_every_call_is_explained_after_a_kill(tmp_path: Path) -> None:
    slow = {"gpt-4.1-mini": (300.0, 200.0)}
    with running_sim(latency="default", models=slow) as sim:
        process = Process(tmp_path, OPENAI_BASE_URL=sim.url, OPENAI_API_KEY=PROVIDER_KEY)
        body = {
            "model": "gpt-4.1-mini",
            "stream": True,
            "max_tokens": 60,
            "messages": [{"role": "user", "content": "안"}],
        }
        streams = [process.send(body) for _ in range(4)]
        assert streams[0].getresponse().status == 200
        assert wait_until(lambda: len(process.ledger()) == 4)
        process.process.kill()
        process.stop()
        for stream in streams:
            stream.close()
        assert {row[1] for row in process.ledger()} == {None}
        again = Process(tmp_path, OPENAI_BASE_URL=sim.url, OPENAI_API_KEY=PROVIDER_KEY)
        assert {row[1:3] for row in again.ledger()} == {("abandoned", "lost_in_crash")}
        assert all(row[3] > 0 for row in again.ledger())  # charged at the most they may have cost
        code, err = again.stop()
        assert code == 0
        assert "4 calls were in flight" in err
        assert wait_until(lambda: sim.stats()["in_flight"] == 0)


def test_a_client_that_leaves_is_settled_and_sigterm_waits_for_the_others(tmp_path: Path) -> None:
    with running_sim(latency="fixed:1500ms") as sim, in_front_of(sim, tmp_path) as process:
        ask = {"model": "gpt-4.1-mini", "max_tokens": 5, "messages": [{"role": "user", "content": "안"}]}
        gone, stays = process.send(ask), process.send(ask)
        assert wait_until(lambda: len(process.ledger()) == 2)
        gone.close()
        assert wait_until(lambda: ("abandoned", "cancelled") in {row[1:3] for row in process.ledger()})
        process.process.send_signal(signal.SIGTERM)
        with contextlib.closing(stays), stays.getresponse() as reply:
            assert (reply.status, bool(reply.read())) == (200, True)
        code, _ = process.stop()
        assert code == 0
        assert sorted(row[1] for row in process.ledger()) == ["abandoned", "ok"]


def test_keys_from_the_command_to_the_ledger(tmp_path: Path) -> None:
    with running_sim() as sim, in_front_of(sim, tmp_path) as process:
        made = siafu(tmp_path, "keys", "create", "--name", "웹", "--budget-day", "0.0002 USD", "--json")
        key = json.loads(made.stdout)
        assert wait_until(lambda: process.ask()[0] == 401, 10.0)  # the first key closes the door
        found = [process.ask(key=key["key"]) for _ in range(4)]
        statuses = [status for status, _, _ in found]
        assert statuses[0] == 200
        assert statuses[-1] == 429
        assert json.loads(found[-1][2])["error"]["code"] == "budget_reached"
        assert found[-1][1]["x-should-retry"] == "false"
        shown = json.loads(siafu(tmp_path, "keys", "show", key["id"], "--json").stdout)
        assert 0 < shown["spent_today_usd"] <= 0.0002
        assert shown["name"] == "웹"
        assert key["key"] not in siafu(tmp_path, "keys", "list", "--json").stdout
        assert siafu(tmp_path, "keys", "revoke", key["id"][:8]).returncode == 0
        began = time.monotonic()
        assert wait_until(lambda: process.ask(key=key["key"])[0] == 401, 5.0)
        assert time.monotonic() - began < 5.0
        tasks = [task for task, *_ in process.ledger()]
        assert [task for task in tasks if task.startswith(key["id"] + "/req_")]
        assert key["key"].encode() not in b"".join(
            path.read_bytes() for path in (tmp_path / ".siafu").iterdir() if path.is_file()
        )


def test_a_swarm_answers_the_customer_of_the_key(tmp_path: Path) -> None:
    made = siafu(tmp_path, "keys", "create", "--name", "kim", "--customer", "kim", "--json")
    key = json.loads(made.stdout)["key"]
    env = {"OPENAI_API_KEY": PROVIDER_KEY, "SIAFU_MODEL": "gpt-4.1-mini"}
    with running_sim() as sim, serving(tmp_path, OPENAI_BASE_URL=sim.url, **env) as process:
        status, headers, body = process.ask("주문 1001 어디쯤 왔나요?", key, model="siafu/support")
        found = json.loads(body)
        assert status == 200, found
        assert "1001" in found["choices"][0]["message"]["content"]
        assert found["siafu"]["category"] in ("order_status", "shipping")
        mine = [row for row in process.ledger() if row[0].endswith(headers["x-request-id"])]
        assert len(mine) >= 3  # sorted, a tool asked for, answered


def test_who_a_customer_is_can_be_signed(tmp_path: Path) -> None:
    assert siafu(tmp_path, "keys", "sign", "--customer", "kim").returncode == 2
    done = siafu(tmp_path, "keys", "sign", "--customer", "kim", SIAFU_IDENTITY_KEY="k3y" * 12)
    assert done.stdout.startswith("eyJ")
