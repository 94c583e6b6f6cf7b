"""The dashboard and the alerts, by Prometheus itself: it scrapes a server and a worker that have worked, and answers
every query that they ask.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.front import PLAIN, siafu
from services import Server, free_port
from siafu.cli.main import COMMANDS
from siafu.config.settings import load
from siafu.config.watching import scrape_of
from siafu.pace.clock import SystemClock
from sim import running, running_sim

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "siafu.json"
DOCS = ROOT / "docs" / "watching.md"
STANDARD = re.compile("process_|python_")
METRIC = re.compile(r"\b(?:siafu|agent_swarm|process|python)_\w+|\bup\b")
SILENT = re.compile("errors_total|error_total|wait_seconds|canary|tool_call")  # as nothing went wrong, or was tried
SECONDS = 60.0
ASK = {"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": "안녕"}]}
CONFIG = """
global: {{ scrape_interval: 500ms, evaluation_interval: 500ms }}
rule_files: [ "{rules}" ]
scrape_configs: [ {{ job_name: siafu, static_configs: [ {{ targets: {targets} }} ] }} ]
"""


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip("Prometheus is not installed")
    return found


def promtool(*words: str) -> str:
    done = subprocess.run(
        [program("promtool"), *words], cwd=RULES.parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_rules_and_their_tests_pass() -> None:
    assert "15 rules found" in promtool("check", "rules", RULES.name)
    promtool("check", "config", "prometheus.yml")
    promtool("test", "rules", "rules.test.yml")


def test_every_command_that_an_alert_names_is_there() -> None:
    named = {
        text
        for action in re.findall(r'action: "(.*)"', RULES.read_text())
        for text in re.findall(r"siafu ([a-z-]+)", action)
    }
    assert {"dead", "report", "doctor", "effects"} <= named <= COMMANDS.keys()


def test_the_tests_of_the_rules_can_fail(tmp_path: Path) -> None:
    for name in (RULES.name, "rules.test.yml"):
        text = (RULES.parent / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("siafu_tasks_dead) > 0", "siafu_tasks_dead) > 2"), encoding="utf-8")
    with pytest.raises(AssertionError, match="SiafuTasksDead"):
        promtool("test", "rules", str(tmp_path / "rules.test.yml"))


def dashboard() -> list[str]:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(asked) >= 30
    return [expr.replace("$__rate_interval", "30s") for expr in asked]


def names(exprs: list[str]) -> set[str]:
    """The metrics that they name, as a scrape's `# TYPE` lines call them."""
    found = set(METRIC.findall(" ".join(exprs))) - {"up"}  # which Prometheus makes itself
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in found}


def told(page: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\w+) ", page, flags=re.MULTILINE))


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return str(reply.read().decode())


def until(found: Callable[[], Any]) -> Any:
    """What it returns, once that is something."""
    deadline = time.monotonic() + SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.1)
    return value


def gone(left: Callable[[], list[str]]) -> None:
    """Wait until nothing is left."""
    deadline = time.monotonic() + SECONDS
    while still := left():
        assert time.monotonic() < deadline, still
        time.sleep(0.1)


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def query(self, expr: str) -> list[Any]:
        answer = json.loads(get(f"{self._url}/query?{urllib.parse.urlencode({'query': expr})}"))
        assert answer["status"] == "success", (expr, answer)
        return list(answer["data"]["result"])

    def rules(self) -> list[Any]:
        (group,) = json.loads(get(f"{self._url}/rules"))["data"]["groups"]
        return list(group["rules"])


@contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[Prometheus]:
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(rules=RULES, targets=json.dumps(targets)), encoding="utf-8")

    def command(port: int) -> list[str]:
        flags = [f"--config.file={config}", f"--storage.tsdb.path={folder}/data", "--log.level=warn"]
        return [program("prometheus"), *flags, f"--web.listen-address=127.0.0.1:{port}"]

    def ready(port: int) -> bool:
        try:
            return bool(get(f"http://127.0.0.1:{port}/-/ready"))
        except OSError:
            return False

    server = Server(folder, command, ready)
    server.start()
    try:
        yield Prometheus(server.port)
    finally:
        server.stop()


@contextmanager
def worker(folder: Path, **env: str) -> Iterator[str]:
    """The address of the metrics of a worker that has done a task."""
    (folder / "r.jsonl").write_text(json.dumps({"id": "a", "customer": "kim", "text": "주문 1001 어디쯤 왔나요?"}))
    assert siafu(folder, "submit", "support", "r.jsonl", **env).returncode == 0
    address = f"127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "siafu", "worker", "--metrics", address, "--log-format", "json"]
    with (
        (folder / "log").open("w+") as log,
        subprocess.Popen(words, cwd=folder, env={**PLAIN, **env}, stderr=log) as run,
    ):
        try:
            until(lambda: '"state":"succeeded"' in siafu(folder, "tasks", "list", "--json", **env).stdout)
            yield address
        finally:
            run.terminate()
            run.wait(30)


def test_every_query_is_answered_and_every_metric_is_there(tmp_path: Path) -> None:
    program("prometheus")
    env = {"SIAFU_STRONG_MODEL": "gpt-4.1", "SIAFU_CHEAP_MODEL": "gpt-4.1-mini"}
    (tmp_path / "siafu.toml").write_text(f'home = "{tmp_path}/집"\n[budgets]\nday = "5 USD"\n', encoding="utf-8")
    config = ("--config", str(tmp_path / "siafu.toml"))
    with (
        running_sim(seed=1, rpm=600) as sim,
        worker(tmp_path, SIAFU_BASE_URL=sim.url, **env) as working,
        running("serve", "--port", "0", "--json", "--base-url", sim.url, *config) as serving,
        prometheus(tmp_path, working, serving["control"].removeprefix("http://")) as found,
    ):
        request = urllib.request.Request(
            f"{serving['url']}/chat/completions", json.dumps(ASK).encode(), {"Content-Type": "application/json"}
        )
        assert urllib.request.urlopen(request, timeout=30).status == 200
        pages = [get(f"http://{working}/metrics"), get(f"{serving['control']}/metrics")]
        until(lambda: len(found.query("up == 1")) == 2)
        gone(lambda: [rule["name"] for rule in found.rules() if rule["health"] == "unknown"])
        gone(lambda: [expr for expr in dashboard() if not found.query(expr) and not SILENT.search(expr)])
        rules = found.rules()
    assert all(rule["health"] == "ok" for rule in rules), rules
    assert len(rules) == 15
    there = told("\n".join(pages))
    assert not names(dashboard() + [rule["query"] for rule in rules]) - there
    listed = DOCS.read_text(encoding="utf-8")
    assert not {name for name in there if f"`{name}`" not in listed and not STANDARD.match(name)}


def test_a_metric_that_is_not_there_is_noticed() -> None:
    async def page() -> str:
        return (await scrape_of(load(environ={}), SystemClock()).render(""))[1].decode()

    there = told(asyncio.run(page()))
    assert names(["sum(rate(siafu_model_call_seconds_bucket[5m])) / siafu_cost_usd_total"]) <= there
    assert names(["sum(rate(siafu_nonsense_seconds_bucket[5m]))"]) - there == {"siafu_nonsense_seconds"}
