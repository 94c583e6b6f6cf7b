"""Progress: what it counts, and how it looks on a terminal and elsewhere."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from siafu.apps.filerun.job import Plan
from siafu.bench.demo.phases import Moment
from siafu.cli.demo_progress import Progress as DemoProgress
from siafu.cli.progress import Counts, Progress, span
from siafu.observe.events import AttemptEnded, ItemEnded, ItemStarted, LaneClosed, LaneOpened, Waited
from siafu.swarm.results import MapError, MapResult


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def result(ok: bool = True) -> MapResult:
    error = None if ok else MapError("x", "y")
    return MapResult(key="k", index=0, item=None, status="ok" if ok else "error", error=error)


def progress(label: str = "out.jsonl", **console: Any) -> tuple[Progress, io.StringIO, Time]:
    text, time = io.StringIO(), Time()
    made = Progress(label, console=Console(file=text, highlight=False, **console), clock=time)
    return made, text, time


def test_counts_rate_and_what_is_left() -> None:
    time = Time()
    counts = Counts(time)
    counts.begin(Plan(total=100, bad=2, finished=10, failed=3))
    assert (counts.done, counts.share(), counts.eta()) == (15, 15, None)
    for _ in range(10):
        time.now += 2
        counts.ended(result())
    assert counts.rate() == pytest.approx(30)
    assert counts.eta() == pytest.approx(75 / 30 * 60)
    assert counts.facts()[:4] == ["30/min", "ETA 2:30", "0 in flight", "5 failed"]


def test_no_time_is_promised_for_what_waits_for_people() -> None:
    time = Time()
    counts = Counts(time)
    counts.begin(Plan(total=4))
    time.now += 60
    counts.ended(result())
    counts.ended(MapResult(key="w", index=1, item=None, status="waiting"))
    assert counts.eta() == pytest.approx(120)  # two of the other three
    for _ in range(2):
        counts.ended(result())
    assert counts.eta() is None and counts.facts()[1] == "ETA -"


def test_the_rate_is_that_of_the_last_minute() -> None:
    time = Time()
    counts = Counts(time)
    counts.begin(Plan(total=10_000))
    for step in [1.0] * 200 + [0.1] * 2000:
        time.now += step
        counts.ended(result())
    assert counts.rate() == pytest.approx(600, rel=0.01)


def test_events_are_counted() -> None:
    time = Time()
    counts = Counts(time)
    counts.begin(Plan(total=5))
    for event in (
        ItemStarted(task="a"),
        ItemStarted(task="b"),
        ItemEnded(task="b"),
        ItemEnded(task="c", restored=True),
        AttemptEnded(status=429, outcome="refused"),
        AttemptEnded(usd_pico=12_300_000_000),
        Waited(reason="rate_limited", seconds=12.0),
    ):
        counts.saw(event)
    assert counts.facts()[2:] == ["1 in flight", "$0.0123", "1 x 429", "waiting 12 s: rate limited"]
    time.now += 11.5
    assert counts.facts()[2:] == ["1 in flight", "$0.0123", "1 x 429"]


def test_a_cost_that_is_not_known_is_not_shown_as_zero() -> None:
    counts = Counts()
    counts.saw(AttemptEnded(usd_pico=None))
    assert "cost ?" in counts.facts()


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (150, "2:30"), (3_725, "1:02:05")])
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_elsewhere_a_line_now_and_then() -> None:
    shown, text, time = progress("결과.jsonl", force_terminal=False)
    with shown:
        shown.begin(Plan(total=100))
        for _ in range(100):
            time.now += 0.2
            shown.ended(result())
    lines = text.getvalue().splitlines()
    assert 9 <= len(lines) <= 11
    assert lines[0].startswith("결과.jsonl: 10/100 (10 %) · 300/min · ETA 0:18")


def test_a_wait_is_told_without_a_result() -> None:
    shown, text, time = progress(force_terminal=False)
    shown.begin(Plan(total=10))
    time.now += 6
    shown(Waited(reason="rate_limited", seconds=30))
    assert "waiting 30 s: rate limited" in text.getvalue()


def test_a_pause_without_credit_is_told_with_its_reason_and_its_end() -> None:
    shown, text, time = progress(force_terminal=False)
    shown.begin(Plan(total=10))
    time.now += 6
    shown(LaneClosed(lane="default", reason="quota_exhausted"))
    shown(Waited(upstream="default", reason="quota", seconds=30))
    shown(LaneOpened(lane="default"))
    lines = text.getvalue().splitlines()
    assert lines[0] == "default: no credit or quota left; it is asked again now and then, until it goes on"
    assert lines[1].endswith("waiting 30 s: no credit left") and lines[2] == "default answers again"


def test_quiet_is_quiet_but_for_notes() -> None:
    text = io.StringIO()
    for terminal in (True, False):
        shown = Progress("x", quiet=True, console=Console(file=text, force_terminal=terminal, no_color=True))
        with shown:
            shown.begin(Plan(total=1))
            shown.ended(result())
    assert text.getvalue() == ""
    shown.note("a note")
    assert text.getvalue() == "a note\n"


@pytest.mark.parametrize("label", ["out.jsonl", "아주 긴 한글 이름의 결과 파일입니다 정말로.jsonl", "a\x1b[31mb"])
def test_on_a_terminal_two_lines_of_at_most_80_cells(label: str) -> None:
    shown, text, _ = progress(label, force_terminal=True, width=80, color_system=None)
    shown.counts.begin(Plan(total=1_234_567, finished=1_000_000, failed=99_999))
    shown.counts.saw(Waited(reason="overloaded", seconds=599))
    shown._console.print(shown._render())
    lines = text.getvalue().splitlines()
    assert len(lines) == 2
    assert all(cell_len(line) <= 80 for line in lines), lines
    assert "1,099,999/1,234,567   89 %" in lines[0]
    assert "\x1b[31m" not in text.getvalue()


def test_the_bar_appears_and_ends_with_the_block() -> None:
    shown, text, _ = progress(force_terminal=True, width=80)
    with shown:
        shown.begin(Plan(total=2))
        shown.ended(result())
        shown.note("한글 안내")
    assert "1/2   50 %" in text.getvalue()
    assert "한글 안내" in text.getvalue()
    assert text.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_people_hear_of_an_upstream_that_is_gone_once_a_minute_at_most() -> None:
    shown, text, time = progress(width=80)
    for _ in range(10):  # it comes and goes
        for model in ("m", "n"):
            shown(LaneClosed(lane="부산", model=model, reason="unreachable"))
        time.now += 3
        for model in ("m", "n"):
            shown(LaneOpened(lane="부산", model=model))
    shown(LaneClosed(lane="seoul#1", reason="access_refused"))
    assert text.getvalue().splitlines() == [
        "부산: unreachable again and again; tried now and then",
        "부산 answers again",
        "seoul#1: its key is refused; left out until the key is changed",
    ]
    time.now += 60
    shown(LaneClosed(lane="부산", model="m", reason="call_timeout"))
    assert text.getvalue().splitlines()[-1].startswith("부산: call_timeout again")


def test_a_demo_says_the_same_line_again_only_after_a_minute() -> None:
    text, time = io.StringIO(), Time()
    shown = DemoProgress(quiet=False, console=Console(file=text, force_terminal=False), clock=time)
    moment = Moment(program="siafu", stage="running", answered=0, total=10, calls=None, refused=0)
    for second in range(70):
        time.now = second + 100.0
        shown(msgspec.structs.replace(moment, answered=4 if second >= 66 else 0))
    shown(msgspec.structs.replace(moment, answered=10, stage="done"))
    said = [f"siafu: {n}/10 answered" for n in (0, 0, 4)]
    assert text.getvalue().splitlines() == [*said, "siafu: 10/10 answered  done"]
