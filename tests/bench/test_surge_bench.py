"""`siafu bench surge`: its plan, checks and goals, and one small surge at a real server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from siafu.bench.gateway.figures import nearest_rank
from siafu.bench.surge.figures import Came, Seen, by_second, check, goals, recovery, rows
from siafu.bench.surge.load import Order, load
from siafu.bench.surge.plan import Surge
from siafu.bench.watching import Held
from siafu.errors import MeasurementInvalid

from .commands import bench

SURGE = Surge(calm=10.0, peak=100.0, before=2.0, rise=2.0, hold=2.0, after=10.0, interactive=0.1)


def came(change: Callable[[Came], dict[str, Any]] = lambda _: {}) -> list[Came]:
    """Half of the others are refused during the peak, everybody else is answered after 0.2 s."""
    found = []
    for number, (planned, interactive) in enumerate(SURGE.times()):
        good = interactive or not SURGE.before < planned < SURGE.over or number % 2
        usual: dict[str, Any] = {
            "planned": planned, "late": 0.01, "interactive": interactive, "status": 200 if good else 429,
            "told": not good, "seconds": 0.2 if good else 0.02,
        }  # fmt: skip
        one = Came(**usual)
        found.append(Came(**{**usual, **change(one)}))
    return found


def seen(**fields: Any) -> Seen:
    usual: dict[str, Any] = {
        "capacity": 60.0, "burst": 60.0, "waiting": 100, "sent": 400, "completed": 400, "cpu": 1.0,
        "held": [Held(rss_mb=100.0, descriptors=20), Held(rss_mb=140.0, descriptors=90)],
    }  # fmt: skip
    return Seen(**{**usual, **fields})


@given(calm=st.floats(1, 50), peak=st.floats(1, 300), rise=st.floats(0.5, 5), hold=st.floats(0, 5))
def test_as_many_requests_are_planned_as_the_rates_add_up_to(
    calm: float, peak: float, rise: float, hold: float
) -> None:
    surge = Surge(calm=calm, peak=peak, before=2.0, rise=rise, hold=hold, after=2.0, interactive=0.25)
    planned = list(surge.times())
    whole = 4 * calm + rise * (calm + peak) / 2 + hold * peak
    assert len(planned) == pytest.approx(whole, abs=1.0)
    assert [at for at, _ in planned] == sorted(at for at, _ in planned)
    assert sum(at < 2.0 for at, _ in planned) == pytest.approx(2 * calm, abs=1.0)
    assert sum(at < 2.0 + rise for at, _ in planned) == pytest.approx(2 * calm + rise * (calm + peak) / 2, abs=1.0)
    assert sum(interactive for _, interactive in planned) == len(planned) // 4


def test_a_surge_that_adds_up_passes_and_meets_its_goals() -> None:
    check(SURGE, came(), seen())
    assert [goal.met for goal in goals(SURGE, came(), seen())] == [True] * 5


@pytest.mark.parametrize(
    ("change", "fields", "told"),
    [
        (lambda one: {}, {"completed": 10}, "the endpoint counted 10"),
        (lambda one: {}, {"capacity": 5.0, "burst": 5.0}, "more than the endpoint's limit"),
        (lambda one: {"seconds": 0.001}, {}, "before it was sent"),
        (lambda one: {"late": 2.0, "seconds": 2.2}, {}, "2.0 s late"),
    ],
)
def test_a_surge_that_contradicts_itself_is_refused(change: Any, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(MeasurementInvalid, match=told):
        check(SURGE, came(change), seen(**fields))


def test_requests_that_nobody_knows_of_are_missed() -> None:
    with pytest.raises(MeasurementInvalid, match="were planned"):
        check(SURGE, came()[1:], seen())


@pytest.mark.parametrize(
    ("change", "fields", "missed"),
    [
        (lambda one: {"status": 429, "told": True} if one.interactive else {}, {}, "interactive requests answered"),
        (lambda one: {"told": False}, {}, "do not say when"),
        (lambda one: {"status": 0} if one.status == 429 else {}, {}, "neither answered nor refused"),
        (lambda one: {"seconds": 9.0} if one.planned > 11 else {}, {}, "until all are answered as before"),
        (lambda one: {}, {"held": [Held(rss_mb=100.0, descriptors=9), Held(rss_mb=400.0, descriptors=9)]}, "grew by"),
    ],
)
def test_goals_can_be_missed(change: Any, fields: dict[str, Any], missed: str) -> None:
    found = [goal.what for goal in goals(SURGE, came(change), seen(**fields)) if not goal.met]
    assert any(missed in what for what in found), found


def test_the_recovery_is_told_in_whole_seconds() -> None:
    assert recovery(SURGE, came()) == 0.0
    slow = came(lambda one: {"seconds": 0.6} if SURGE.over <= one.planned < SURGE.over + 2.5 else {})
    assert recovery(SURGE, slow) == 3.0


def test_f52_percentiles_are_of_the_answered_and_stand_beside_their_share() -> None:
    people, others = rows(came())
    assert (people["kept"], people["p50_ms"], people["by_status"]) == (1.0, 200.0, {"200": people["planned"]})
    assert others["kept"] < 1.0 and others["p99_ms"] == 200.0
    assert others["by_status"]["429"] + others["answered"] == others["planned"]
    assert sum(second["planned"] for second in by_second(SURGE, came())) == len(came())


async def test_f53_a_stall_shows_in_every_request_that_was_planned_meanwhile() -> None:
    """20 requests a second; for one of the three seconds the server answers nobody."""
    began = time.monotonic()

    async def answer(request: web.Request) -> web.Response:
        late = began + 2.0 - time.monotonic()
        if 0.0 < late < 1.0:
            await asyncio.sleep(late)
        return web.Response(text="{}")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    surge = Surge(calm=20.0, peak=20.0, before=1.0, rise=1.0, hold=0.0, after=1.0, interactive=0.0)
    began = time.monotonic()
    found = await load(Order(url=f"http://127.0.0.1:{port}/v1", give_up=20.0, surge=surge))
    await runner.cleanup()
    assert len(found) == 60 and {each.status for each in found} == {200}
    slow = [each for each in found if each.seconds > 0.4]
    assert len(slow) >= 10, "who waits for an answer before the next request would see one"
    assert nearest_rank([each.seconds for each in found], 95) > 0.8


def test_a_small_surge_at_a_real_server(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ("--calm", "4", "--peak", "60", "--before", "1", "--rise", "1", "--hold", "1", "--after", "4")
    ended = bench("surge", tmp_path, *words, "--capacity", "20", "--concurrency", "5", "--html", str(page), "--json")
    assert ended.returncode in (0, 1), ended.stderr
    report = json.loads(ended.stdout)
    people, others = report["rows"]
    assert people["kept"] >= 0.9, report
    assert set(others["by_status"]) <= {"200", "429"}
    assert ended.returncode == (not all(goal["met"] for goal in report["goals"]))
    assert sum(second["planned"] for second in report["by_second"]) == people["planned"] + others["planned"]
    assert "interactive" in page.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_a_recovery_that_cannot_be_seen_is_refused_at_once(tmp_path: Path) -> None:
    ended = bench("surge", tmp_path, "--after", "3")
    assert ended.returncode == 2 and "watch 6 s or more" in ended.stderr
