"""`siafu support` as a process, against the simulated endpoint as a process and the shop over stdio."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paysim import Payments, running_payments
from siafu.apps.support.shop.catalogue import products
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.orders import Order, first_orders
from siafu.apps.support.shop.policy import CHECKED_ABOVE
from sim import Sim, running_sim
from support.commands import SHORT_LEASE, environment, examples, intended, processes, records, siafu, until, write

REQUESTS = examples(100)
RUN = ("support", "run", "in.jsonl", "--out", "out.jsonl", "--quiet", "--json")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Sim]:
    with running_sim(seed=5) as sim:
        yield sim


@pytest.fixture
def payments(tmp_path: Path) -> Iterator[Payments]:
    with running_payments(tmp_path / "paid.jsonl") as payments:
        yield payments


@pytest.fixture
def sim(endpoint: Sim) -> Iterator[Sim]:
    endpoint.reset()
    yield endpoint
    endpoint.set_faults(rates="")


@pytest.fixture
def folder(tmp_path: Path, sim: Sim) -> Path:
    write(tmp_path / "in.jsonl", REQUESTS[:30])
    return tmp_path


def run(folder: Path, sim: Sim, *more: str, **env: str) -> tuple[int, Any, str]:
    """Exit code, summary and what was said of a run."""
    ended = siafu(folder, *RUN, "--base-url", sim.url, *more, **env)
    return ended.returncode, json.loads(ended.stdout or "null"), ended.stderr


def ledger(folder: Path) -> Counter[str]:
    """Attempts by outcome and code."""
    with closing(sqlite3.connect(next((folder / ".siafu" / "runs").glob("*.db")))) as db:
        return Counter(f"{outcome} {code}".strip() for outcome, code in db.execute("SELECT outcome, code FROM attempt"))


def done(summary: dict[str, Any]) -> int:
    """Requests with an answer: without a payment provider those for a refund go on waiting for one."""
    return int(summary["finished"] + summary["waiting"])


def outcomes(folder: Path) -> dict[bool, set[str]]:
    """Outcomes of requests for money (True), and of all others."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for record in records(folder / "out.jsonl"):
        found[record["category"] == "refund"].add(record["outcome"])
    return found


def test_100_korean_and_english_requests_are_answered(folder: Path, sim: Sim, payments: Payments) -> None:
    write(folder / "in.jsonl", REQUESTS)
    code, summary, told = run(folder, sim, SIAFU_PAYMENTS_URL=payments.url)
    assert code == 0, told
    assert (done(summary), summary["failed"], summary["left"]) == (100, 0, 0)
    assert summary["calls"] == sim.stats()["requests"]
    out = {record["id"]: record for record in records(folder / "out.jsonl")}
    assert len(out) == 100
    assert {record["status"] for record in out.values()} == {"ok"}
    waiting = [record for record in out.values() if record.get("waiting")]
    assert len(waiting) == summary["waiting"] > 0
    assert {record["outcome"] for record in waiting} == {"pending_approval"}
    assert outcomes(folder) == {True: {"answered", "pending_approval", "refused"}, False: {"answered"}}
    right = sum(out[request.id]["category"] == intended(request.text) for request in REQUESTS)
    assert right >= 90
    for request in REQUESTS:
        record = out[request.id]
        assert record["user_id"] == request.customer
        assert "flagged" not in record
        assert 0 < record["usd"] < 0.01
        korean = any("가" <= letter <= "힣" for letter in record["answer"][:20])
        assert korean == (request.lang == "ko")
    assert sum(record["usd"] for record in out.values()) == pytest.approx(summary["usd"], rel=1e-6)

    # What the records say was paid is what was paid, to the cent; every complaint has reached a person.
    paid = [refund for record in out.values() for refund in record["refunds"] if refund["state"] == "paid"]
    effects = payments.effects()
    assert paid
    assert Counter((refund["amount_minor"], refund["currency"]) for refund in paid) == Counter(
        (effect["amount"], effect["currency"]) for effect in effects
    )
    assert payments.stats()["duplicates"] == 0
    tickets = [record["ticket"] for record in out.values() if record["category"] == "complaint"]
    assert None not in tickets
    assert len(set(tickets)) == len(tickets) > 5

    code, again, told = run(folder, sim, SIAFU_PAYMENTS_URL=payments.url)
    assert code == 0, told
    assert again["calls"] == summary["calls"] == sim.stats()["requests"]  # nothing was asked again
    # Started over, everything is asked again, and nothing is paid or handed over again.
    code, again, told = run(folder, sim, "--fresh", SIAFU_PAYMENTS_URL=payments.url)
    assert (code, done(again)) == (0, 100), told
    assert payments.effects() == effects


def test_lines_that_cannot_be_used_are_records_too(folder: Path, sim: Sim) -> None:
    good = folder.joinpath("in.jsonl").read_bytes().splitlines(keepends=True)[:3]
    bad = b'{"id": "x", "text": "?"}\nno\n'
    (folder / "in.jsonl").write_bytes(b"\xef\xbb\xbf" + good[0] + bad + good[1].replace(b"\n", b"\r\n") + good[2][:-1])
    code, summary, told = run(folder, sim)
    assert (code, summary["finished"], summary["failed"]) == (1, 3, 2), told
    errors = [record["error"] for record in records(folder / "out.jsonl") if record["status"] == "error"]
    assert [error["code"] for error in errors] == ["input", "not_json"]
    assert errors[0]["message"] == "line 2: the field 'customer' must be a text that is not empty"


def test_faults_of_the_endpoint_are_waited_out_and_stand_in_the_ledger(folder: Path, sim: Sim) -> None:
    sim.set_faults(rates="429:5%,500:2%,reset:1%,malformed:1%,cut:1%,hang:1%")
    (folder / "siafu.toml").write_text("[endpoint]\nidle_seconds = 1\ntotal_seconds = 2\n")
    code, summary, told = run(folder, sim)
    assert code == 0, told
    assert done(summary) == 30
    stats = sim.stats()
    assert {"429", "500"} < set(stats["by_fault"]), stats["by_fault"]
    lines = ledger(folder)
    assert lines.total() == stats["requests"] == summary["calls"]
    answered = sum(record["steps"] for record in records(folder / "out.jsonl"))
    assert lines["ok"] == answered
    assert lines.total() - answered == sum(stats["by_fault"].values())


def test_a_refused_key_stops_the_run_and_fails_nobody(folder: Path, sim: Sim) -> None:
    sim.set_faults({"kind": "401", "times": None})
    key = "sk-test-0123456789abcdefghij"
    code, summary, told = run(folder, sim, "--concurrency", "5", SIAFU_API_KEY=key)
    assert (code, summary["stopped"], summary["finished"], summary["failed"]) == (2, "access_refused", 0, 0)
    assert "401" in told
    assert "to go on: " in told
    assert sim.stats()["requests"] <= 5
    assert not (folder / "out.jsonl").exists() or not (folder / "out.jsonl").read_bytes()
    assert not [path for path in folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert key not in told

    sim.set_faults()
    code, summary, told = run(folder, sim, SIAFU_API_KEY=key)
    assert (code, done(summary)) == (0, 30), told


def test_f04_used_up_credit_stops_quickly_and_the_run_goes_on_when_it_is_back(folder: Path, sim: Sim) -> None:
    (folder / "siafu.toml").write_text("[patience]\nquota_seconds = 0\n")
    sim.set_faults({"kind": "quota", "times": None})
    code, summary, told = run(folder, sim, "--concurrency", "5")
    assert (code, summary["stopped"], summary["finished"], summary["failed"]) == (3, "quota_exhausted", 0, 0)
    assert sim.stats()["requests"] <= 5  # those in flight at the first refusal
    sim.set_faults()
    code, summary, told = run(folder, sim)
    assert (code, done(summary)) == (0, 30), told

    # What only takes longer than one wants to wait is a failure of that request, with another exit code.
    write(folder / "in.jsonl", REQUESTS[:2])
    (folder / "siafu.toml").write_text("[limits]\nmax_wait_seconds = 1\n")
    sim.set_faults({"kind": "429", "times": None, "form": "seconds", "wait": 3600})
    code, summary, told = run(folder, sim, "--fresh")
    assert (code, summary["stopped"], summary["failed"]) == (1, None, 2), told
    assert {record["error"]["code"] for record in records(folder / "out.jsonl")} == {"rate_limited"}


def test_a_budget_ends_the_run_with_what_is_done_and_more_of_it_goes_on(folder: Path, sim: Sim) -> None:
    few = ("--concurrency", "2", "--budget")
    code, summary, told = run(folder, sim, *few, "0.008 USD")
    assert (code, summary["stopped"], summary["failed"]) == (3, "budget_reached", 0)
    assert 0 < done(summary) < 30
    assert summary["usd_at_most"] <= 0.008
    assert len(records(folder / "out.jsonl")) == done(summary)
    code, less, told = run(folder, sim, *few, "0.001 USD")
    assert (code, done(less)) == (3, done(summary)), told
    assert "--budget '0.0" in told.split("to go on: ")[1]  # more than both: the same would stop at once
    code, all_done, told = run(folder, sim, *few, "1 USD")
    assert (code, done(all_done)) == (0, 30), told
    assert all_done["usd"] > summary["usd"]


def test_a_shop_that_is_killed_is_started_again(folder: Path, sim: Sim) -> None:
    write(folder / "in.jsonl", REQUESTS)
    where = str(folder / "shop.db")
    words = [*RUN, "--base-url", sim.url, "--database", where, "--concurrency", "4"]
    process = subprocess.Popen(
        [sys.executable, "-m", "siafu", *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for share in (20, 60):
            until(lambda share=share: sim.stats()["requests"] > share or process.poll() is not None, "nothing asked")  # type: ignore[misc]
            assert process.poll() is None, "it was over before the shop was killed"
            shops = [pid for pid in processes(where) if pid != process.pid]
            assert len(shops) == 1
            os.kill(shops[0], signal.SIGKILL)
            until(lambda dead=shops[0]: dead not in processes(where), "the shop lives on")  # type: ignore[misc]
        out, told = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, told
    assert done(json.loads(out)) == 100
    # Without a payment provider no money is paid back so far; everything else is answered.
    assert outcomes(folder) == {True: {"unknown"}, False: {"answered"}}
    until(lambda: not processes(where), "a shop has outlived its client")


def test_ask_shows_every_step_and_json_shows_the_record(folder: Path, sim: Sim) -> None:
    question = ("support", "ask", "주문 1001 어디쯤 왔나요?", "--customer", "kim", "--base-url", sim.url)
    ended = siafu(folder, *question)
    assert ended.returncode == 0, ended.stderr
    assert "1001" in ended.stdout
    told = [line for line in ended.stderr.splitlines() if not line.startswith("siafu: ")]
    steps = [line.split()[0] for line in told]
    assert steps == ["sorted", "model", "tool", "model", "done", "answered"]
    assert 'get_order_status({"order_id":"1001"}) ok: {"order_id":"1001"' in ended.stderr

    ended = siafu(folder, *question, "--json")
    record = json.loads(ended.stdout)
    assert (record["user_id"], record["status"], record["outcome"]) == ("kim", "ok", "answered")
    assert record["id"].startswith("ask-")  # another one each time: it is another request
    assert (record["steps"], record["tool_calls"]) == (3, 1)
    assert all(line.startswith("siafu: without SIAFU_PAYMENTS_URL") for line in ended.stderr.splitlines())

    ended = siafu(
        folder, "support", "ask", "주문 1002 어디쯤 왔나요?", "--customer", "kim", "--base-url", sim.url, "--json"
    )
    assert json.loads(ended.stdout)["outcome"] == "needs_info"  # it is the order of somebody else


def test_a_thread_goes_on_until_the_refund_is_made_once(folder: Path, sim: Sim, payments: Payments) -> None:
    def ask(text: str, thread: str, customer: str = "kim", *, code: int = 0) -> Any:
        words = ("support", "ask", text, "--customer", customer, "--thread", thread, "--base-url", sim.url, "--json")
        ended = siafu(folder, *words, SIAFU_PAYMENTS_URL=payments.url)
        assert ended.returncode == code, ended.stderr
        return json.loads(ended.stdout) if code == 0 else ended.stderr

    owner, order = next((customer, order) for customer, order in first_orders(products()) if refundable(order))
    first = ask("환불해 주세요.", "대화 1", owner)
    assert (first["category"], first["outcome"], first["refunds"]) == ("refund", "needs_info", [])
    assert payments.effects() == []
    second = ask(f"{order.order_id}번 주문 환불이요.", "대화 1", owner)
    assert (second["outcome"], second["refunds"][0]["amount_minor"]) == ("answered", order.total_minor)
    assert [effect["amount"] for effect in payments.effects()] == [order.total_minor]
    third = ask(f"{order.order_id}번 주문 환불이요.", "대화 1", owner)  # another request, on an order with nothing left
    assert (third["outcome"], len({first["id"], second["id"], third["id"]})) == ("refused", 3)
    assert "another customer" in ask("뭐라고 했죠?", "대화 1", "tess", code=2)
    assert len(payments.effects()) == 1


@pytest.mark.kill
def test_a_message_that_is_sent_again_after_a_crash_pays_once(folder: Path, sim: Sim, payments: Payments) -> None:
    owner, order = next((customer, order) for customer, order in first_orders(products()) if refundable(order))
    text = f"주문 {order.order_id} 환불해 주세요."
    (folder / "siafu.toml").write_text(SHORT_LEASE)
    words = ("support", "ask", text, "--customer", owner, "--thread", "t", "--base-url", sim.url, "--json")
    sim.set_faults({"kind": "hang", "times": None, "match": "refund_id"})  # the model, once it sees the refund
    process = subprocess.Popen(
        [sys.executable, "-m", "siafu", *words],
        cwd=folder,
        env=environment(SIAFU_PAYMENTS_URL=payments.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until(lambda: payments.effects() or process.poll() is not None, "nothing was paid")
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it had ended before it was killed"
    sim.set_faults()
    ended = siafu(folder, *words, SIAFU_PAYMENTS_URL=payments.url)
    assert ended.returncode == 0, ended.stderr
    record = json.loads(ended.stdout)
    assert (record["outcome"], record["refunds"][0]["state"]) == ("answered", "paid")
    assert [effect["amount"] for effect in payments.effects()] == [order.total_minor]


def refundable(order: Order) -> bool:
    """In full, and without a person."""
    return order.status == "paid" and order.total_minor <= CHECKED_ABOVE[order.currency]


def test_ask_says_why_there_is_no_answer(folder: Path, sim: Sim) -> None:
    question = ("support", "ask", "주문 1001", "--customer", "kim", "--base-url", sim.url)
    for kind, code, word in (
        ("401", 2, "access_refused"),
        ("quota", 3, "quota_exhausted"),
        ("404", 1, "request_refused"),
    ):
        sim.set_faults({"kind": kind, "times": None})
        ended = siafu(folder, *question)
        assert (ended.returncode, ended.stdout) == (code, "")
        assert f"siafu: {word}: " in ended.stderr
        assert "Traceback" not in ended.stderr
    ended = siafu(folder, *question, "--json")
    assert json.loads(ended.stdout)["error"]["code"] == word


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("support", "ask", " ", "--customer", "kim"), "'text'"),
        (("support", "run", "none.jsonl", "--out", "out.jsonl"), "none.jsonl"),
        (("support", "run", "in.jsonl", "--out", "in.jsonl"), "same file"),
        (("support", "run", "in.jsonl", "--out", "out.jsonl", "--budget", "much"), "much"),
        (("support", "run", "in.jsonl", "--out", "out.jsonl", "--base-url", "http://example.com/v1"), "http"),
    ],
)
def test_wrong_use_is_told_and_writes_nothing(folder: Path, words: tuple[str, ...], said: str) -> None:
    ended = siafu(folder, *words)
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (folder / "out.jsonl").exists()


def test_a_tool_server_without_the_tools_is_refused_before_anything_is_asked(folder: Path, sim: Sim) -> None:
    (folder / "server.py").write_text(
        "from mcp.server import MCPServer\n"
        "server = MCPServer('other')\n"
        "@server.tool()\n"
        "def weather(city: str) -> str:\n"
        "    return city\n"
        "server.run('stdio')\n"
    )
    (folder / "siafu.toml").write_text(
        f'[mcp_servers.other]\ncommand = "{sys.executable}"\nargs = ["{folder / "server.py"}"]\n'
    )
    code, _, told = run(folder, sim)
    assert code == 2, told
    assert "get_order_status" in told
    assert "there are: weather" in told
    assert sim.stats()["requests"] == 0


def test_a_shop_over_http_is_told_who_asks(folder: Path, sim: Sim) -> None:
    key = "k3y" * 20
    serve = ("shop", "serve", "--transport", "http", "--port", "0", "--ready-file", "ready", "--database", "shop.db")
    process = subprocess.Popen(
        [sys.executable, "-m", "siafu", *serve],
        cwd=folder,
        env=environment(SIAFU_IDENTITY_KEY=key),
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: (folder / "ready").exists() or process.poll() is not None, "the shop did not start")
        url = (folder / "ready").read_text().strip()
        (folder / "siafu.toml").write_text(f'[mcp_servers.shop]\nurl = "{url}"\nidentity = "siafu"\n')
        code, _, told = run(folder, sim)
        assert code == 2
        assert "SIAFU_IDENTITY_KEY" in told
        code, summary, told = run(folder, sim, SIAFU_IDENTITY_KEY=key)
        assert (code, done(summary)) == (0, 30), told
        assert outcomes(folder) == {True: {"unknown"}, False: {"answered"}}
        # A shop that does not believe us: no customer's fault, so nobody is told no, and nobody calls it a good answer.
        code, _, told = run(folder, sim, "--fresh", "--limit", "5", SIAFU_IDENTITY_KEY="other" * 10)
        assert (code, (folder / "out.jsonl").read_text().count("identity_invalid")) == (1, 4), told
        assert not {"answered", "pending_approval"} & set().union(*outcomes(folder).values())
    finally:
        process.terminate()
        process.wait(20)


def test_a_killed_run_leaves_no_process_behind(folder: Path) -> None:
    """Without a configured endpoint the simulated one is a child too."""
    where = str(folder / "shop.db")
    process = subprocess.Popen(
        [sys.executable, "-m", "siafu", *RUN, "--database", where],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: (folder / "out.jsonl").exists() or process.poll() is not None, "nothing was answered")
    process.kill()
    process.wait()
    until(lambda: not processes(where) and not processes(str(process.pid)), "a child has outlived its parent")


def test_one_question_to_a_shop_on_postgresql(tmp_path: Path, sim: Sim, postgres_url: str) -> None:
    words = ("support", "ask", "주문 1001 어디쯤 왔나요?", "--customer", "kim", "--base-url", sim.url, "--json")
    asked = siafu(tmp_path, *words, SIAFU_SHOP_DATABASE_URL=postgres_url)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)["outcome"] == "answered"
    with closing(ShopDatabase(postgres_url)) as shop:
        assert [call.customer for call in shop.calls(10)] == ["kim"]
