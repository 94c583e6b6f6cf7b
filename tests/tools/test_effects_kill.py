"""kill -9 and SIGSTOP of the siafu process at every window of an effect, with a real MCP server and a real journal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from here import command
from nursery import Child, Nursery
from processes import wait_until

from .cash import LOOKUP

WINDOWS = ["after_append", "effect_claimed", "effect_dispatching", "effect_called", "effect_finished", "after_append:2"]
HONOURS = {"honours_key": True, "lease_seconds": 1.0}
REVIEW = {"lease_seconds": 1.0}
LOOKS = {"lookup": LOOKUP, "lease_seconds": 1.0}
SECONDS = 60.0

pytestmark = pytest.mark.kill


class Till:
    """Processes that pay in one folder, with their effects in one database."""

    def __init__(self, folder: Path, url: str, nursery: Nursery) -> None:
        self.folder, self.url, self._nursery = folder, url, nursery
        self._outcomes: dict[int, str] = {}

    def start(self, rule: Any, *, crash: str = "", journal: str = "run.db", honest: bool = True) -> Child:
        wishes = ["honours"] if honest and rule.get("honours_key") else []
        outcome = f"outcome {len(self._outcomes)}"
        words = (str(self.folder), self.url, json.dumps(rule), journal, outcome, *wishes)
        child = self._nursery.bear(*words, crash_at=crash)
        self._outcomes[child.pid] = outcome
        return child

    def said(self, child: Child) -> dict[str, Any]:
        assert child.wait(SECONDS) == 0
        found: dict[str, Any] = json.loads((self.folder / self._outcomes[child.pid]).read_text())
        return found

    def killed(self, rule: Any, crash: str, *, honest: bool = True) -> None:
        ended = self.start(rule, crash=crash, honest=honest).wait(SECONDS)
        assert ended == -signal.SIGKILL, f"it never came to {crash}"

    @property
    def paid(self) -> int:
        file = self.folder / "paid"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def command(self, *words: str) -> Any:
        """`siafu ... --json` on the same home."""
        home = {**os.environ, "SIAFU_HOME": str(self.folder), "SIAFU_DATABASE_URL": self.url}
        done = command(self.folder, *words, "--json", environment=home)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("processes"), "tools.pay_child") as opened:
        yield opened


@pytest.fixture
def till(tmp_path: Path, sql_url: str, nursery: Nursery) -> Till:
    return Till(tmp_path, sql_url, nursery)


@pytest.mark.parametrize("window", WINDOWS)
def test_an_honoured_key_pays_once_and_the_run_goes_on(till: Till, window: str) -> None:
    till.killed(HONOURS, window)
    assert till.said(till.start(HONOURS))["ok"]
    assert till.paid == 1


SENT = {"effect_called", "effect_finished"}
KNOWN = {"after_append", "effect_finished"}  # nothing, or everything, was recorded


@pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("window", WINDOWS[:-1])
def test_without_one_it_pays_at_most_once_and_a_person_settles_the_rest(till: Till, window: str) -> None:
    till.killed(REVIEW, window)
    told = till.said(till.start(REVIEW))
    assert till.paid == (1 if window in SENT or window == "after_append" else 0)
    if window in KNOWN:
        assert told["ok"]
        return
    assert told == {"ok": False, "value": None, "code": "outcome_unknown"}
    (effect,) = till.command("effects", "list", "--state", "manual_review")
    assert effect["tool"] == "cash.pay"
    done = "--done" if till.paid else "--not-done"
    till.command("effects", "resolve", effect["id"][:8], done, "--as", "lee", "--note", "원장 확인")
    (shown,) = till.command("effects", "show", effect["id"])
    assert {"dispatched", "manual_review"} < {line["kind"] for line in shown["history"]}
    assert till.said(till.start(REVIEW))["ok"]
    assert till.paid == 1


@pytest.mark.parametrize("sql_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("window", ["effect_dispatching", "effect_called"])
def test_a_look_up_settles_what_was_done(till: Till, window: str) -> None:
    till.killed(LOOKS, window)
    told = till.said(till.start(LOOKS))
    assert told["ok"] is (window in SENT)
    assert till.paid == (1 if told["ok"] else 0)


@pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("rule", [HONOURS, REVIEW, LOOKS])
def test_a_process_that_dies_while_the_tool_works(till: Till, rule: Any) -> None:
    (till.folder / "hold").touch()
    child = till.start(rule)
    assert wait_until((till.folder / "holding").exists, SECONDS)
    child.end()
    (till.folder / "go").touch()
    assert wait_until(lambda: till.paid == 1, SECONDS)
    told = till.said(till.start(rule))
    assert told["ok"] is (rule is not REVIEW)
    assert till.paid == 1


def test_f32_a_process_that_stood_still_past_its_lease_is_fenced_off(till: Till) -> None:
    rule = {**HONOURS, "key": "request"}
    (till.folder / "hold").touch()
    paused = till.start(rule)
    assert wait_until((till.folder / "holding").exists, SECONDS)
    paused.send(signal.SIGSTOP)
    other = till.said(till.start(rule, journal="other.db"))
    assert other["ok"] and till.paid == 1
    (till.folder / "go").touch()
    paused.send(signal.SIGCONT)
    assert till.said(paused) == other
    assert till.paid == 1
    (shown,) = till.command("effects", "list")
    assert (shown["state"], shown["attempts"]) == ("succeeded", 2)


@pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
def test_the_check_can_fail(till: Till) -> None:
    """A server that does not honour keys, under a rule that says it does: it pays twice, and the file shows it."""
    till.killed(HONOURS, "effect_called", honest=False)
    assert till.said(till.start(HONOURS, honest=False))["ok"]
    assert till.paid == 2
