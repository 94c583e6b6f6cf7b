"""Batches of `siafu serve` as a process: killed, started again, and in its ledger."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from cli.front import siafu
from processes import wait_until
from service.test_serve import PROVIDER_KEY, Process, serving
from sim import running_sim

from .front import lines

LINES, CONCURRENCY = 60, 5


def ask(process: Process, key: str, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
    """The JSON of an answer with 200; the lines of a file, decoded."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    with contextlib.closing(process.connect()) as connection:
        connection.request(method, path, data, {"Authorization": f"Bearer {key}", "Content-Type": kind})
        reply = connection.getresponse()
        text = reply.read()
    assert reply.status == 200, text
    return json.loads(text) if path.count("/") < 4 else [json.loads(each) for each in text.splitlines()]


def upload(process: Process, key: str, data: bytes) -> str:
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n',
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + data + b"\r\n--b--\r\n",
    ]
    file = ask(process, key, "POST", "/v1/files", b"".join(parts), "multipart/form-data; boundary=b")
    return str(file["id"])


@pytest.mark.kill
def test_killed_it_goes_on_within_the_budget_of_the_key(tmp_path: Path) -> None:
    made = siafu(tmp_path, "keys", "create", "--name", "nightly", "--budget-day", "1 USD", "--json")
    key = json.loads(made.stdout)
    data = lines(*(f"q{number}" for number in range(LINES))).replace(b'"m"', b'"gpt-4.1-mini"')
    env = {"OPENAI_API_KEY": PROVIDER_KEY}
    with running_sim(latency="fixed:100ms") as sim:
        env["OPENAI_BASE_URL"] = sim.url
        process = Process(tmp_path, "--concurrency", str(CONCURRENCY), **env)
        asked = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        asked["input_file_id"] = upload(process, key["key"], data)
        batch = ask(process, key["key"], "POST", "/v1/batches", asked)
        assert wait_until(lambda: sim.stats()["completed"] >= 15, 30)
        process.process.kill()
        process.process.communicate()
        with serving(tmp_path, "--concurrency", str(CONCURRENCY), **env) as process:
            where = f"/v1/batches/{batch['id']}"
            assert wait_until(lambda: ask(process, key["key"], "GET", where)["status"] == "completed", 60)
            batch = ask(process, key["key"], "GET", where)
            found = ask(process, key["key"], "GET", f"/v1/files/{batch['output_file_id']}/content")
        requests = sim.stats()["requests"]
        rows = process.ledger()
    assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    assert sorted(each["custom_id"] for each in found) == sorted(f"q{number}" for number in range(LINES))
    assert LINES <= requests <= len(rows) <= LINES + CONCURRENCY  # a line is written before its request is sent
    assert {task.rpartition("/")[0] for task, *_ in rows} == {f"{key['id']}/{batch['id']}"}
    assert {outcome for _, outcome, code, _ in rows if code != "lost_in_crash"} == {"ok"}
    spent = json.loads(siafu(tmp_path, "keys", "show", key["id"], "--json").stdout)
    assert sum(row[3] for row in rows) == round(spent["spent_today_usd"] * 1e12), spent
