"""What `siafu.map` says by itself: a run that ends early, and finished items that are paid for again."""

from __future__ import annotations

from pathlib import Path

import pytest

import siafu
from siafu.errors import BudgetReached
from siafu.gateway.chat import ChatRequest
from siafu.observe.calls import CallContext

ROWS = [{"id": n, "text": "안녕하세요"} for n in range(3)]


async def test_a_map_that_ends_early_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def spent(request: ChatRequest, context: CallContext) -> BudgetReached:
        return BudgetReached("the budget of $1 is used up")

    run = siafu.map("{text}", ROWS, endpoint=siafu.Scripted(spent))
    assert [result async for result in run] == []
    assert run.summary.stopped == "budget_reached" and run.summary.left == 3
    assert "the budget of $1 is used up" in caplog.text and "3 items are left" in caplog.text


async def test_a_changed_prompt_says_what_it_asks_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = tmp_path / "run.db"
    for prompt in ("English: {text}", "English: {text}", "French: {text}"):
        caplog.clear()
        run = siafu.map(prompt, ROWS, journal=journal, endpoint=siafu.Scripted(lambda *_: "ok"))
        assert len([result async for result in run]) == 3
        assert ("3 finished items run again" in caplog.text) == prompt.startswith("French")
