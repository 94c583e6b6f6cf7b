from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from siafu.apps.sla import HOUR, Period, Sla, SlaReport, Targets
from siafu.store.task_records import BOUND
from siafu.store.task_times import TaskTimes

NOW = 1_000 * HOUR + 1800.0
TARGETS = Targets(p95=30.0, success=Decimal("0.99"))


def task(id: str, state: Any = "succeeded", *, took: float | None = 1.0, ago: float = 60.0, **more: Any) -> TaskTimes:
    at = NOW - ago
    ended = None if took is None else at + took
    fields: dict[str, Any] = {"run": "월요일", "once": f"월요일/{id}", "code": "", **more}
    return TaskTimes(id=id, state=state, created_at=at, ended_at=ended, **fields)


def report(*tasks: TaskTimes, targets: Targets = TARGETS, most: int = 100) -> SlaReport:
    sla = Sla(targets, NOW, most=most)
    for each in tasks:
        sla.add([each])
    return sla.report()


def test_f51_the_percentiles_of_a_hundred_tasks() -> None:
    found = report(*(task(str(n), took=float(n)) for n in range(1, 101))).total
    assert (found.p50, found.p95) == (50.0, 95.0)


def test_f52_failures_are_a_share_and_never_a_time() -> None:
    good = [task(f"g{n}", took=1.0) for n in range(60)]
    bad = [task(f"b{n}", "failed", took=0.005, code="tool_timeout") for n in range(40)]
    found = report(*good, *bad)
    assert (found.total.succeeded, found.total.failed, found.total.p50) == (60, 40, 1.0)
    assert found.total.success == Decimal("0.6")
    assert found.total.met is False
    assert found.missed == 40


def test_f53_who_came_while_everything_stood_still_counts_in_that_hour() -> None:
    stood_still = [task(f"s{n}", took=3 * HOUR - 60.0 * n, ago=3 * HOUR + 900 - 60.0 * n) for n in range(10)]
    later = [task(f"l{n}", took=0.1) for n in range(1000)]
    found = report(*stood_still, *later)
    assert [(hour.accepted, hour.met) for hour in found.hours] == [(10, False), (1000, True)]
    assert found.hours[0].p50 == 3 * HOUR - 300
    assert found.total.p95 == 0.1  # of all of them: the hours show what that hides


def test_an_open_task_that_is_late_has_missed_it_whatever_comes_of_it() -> None:
    found = report(task("late", "leased", took=None, ago=31.0), task("new", "ready", took=None, ago=5.0))
    assert (found.total.open, found.total.overdue, found.total.success) == (2, 1, Decimal(0))
    assert found.total.met is False
    assert [(miss.id, miss.state, miss.seconds) for miss in found.misses] == [("late", "leased", 31.0)]
    assert report(task("new", "ready", took=None, ago=5.0)).total.met is None


def test_overdue_tasks_are_slower_than_any_that_ended() -> None:
    quick = [task(f"q{n}", took=1.0) for n in range(19)]
    late = [task(f"l{n}", "waiting", took=None, ago=31.0) for n in range(2)]
    only_time = Targets(p95=30.0)
    assert report(*quick, late[0], targets=only_time).total.met is True  # one of twenty
    assert report(*quick, *late, targets=only_time).total.met is False
    assert report(*quick, *late, targets=only_time).total.p95 == 1.0


def test_cancelled_tasks_are_nobody_s_fault() -> None:
    found = report(task("a"), task("c", "cancelled", took=900.0, ago=1000.0))
    assert (found.total.cancelled, found.total.success, found.total.met, found.missed) == (1, Decimal(1), True, 0)


def test_misses_are_listed_with_what_is_needed_to_find_them() -> None:
    found = report(
        task("t_2", took=31.5, ago=70.0, code="old_error", once=f"월요일/t_2{BOUND}kim"),
        task("t_1", "dead_letter", ago=80.0, code="worker_lost"),
    )
    told = [(miss.id, miss.run, miss.key, miss.state, miss.code, miss.seconds) for miss in found.misses]
    assert told == [
        ("t_1", "월요일", "월요일/t_1", "dead_letter", "worker_lost", 1.0),
        ("t_2", "월요일", "월요일/t_2", "succeeded", "", 31.5),
    ]
    assert [miss.accepted_at for miss in found.misses] == [NOW - 80, NOW - 70]


def test_of_many_misses_the_first_are_kept_and_all_are_counted() -> None:
    found = report(*(task(f"{n:05}", "failed", ago=3000.0 - n / 10) for n in range(5000)), most=3)
    assert [miss.id for miss in found.misses] == ["00000", "00001", "00002"]
    assert found.missed == 5000


def test_without_targets_nothing_is_judged() -> None:
    found = report(task("slow", took=9_000.0, ago=10_000.0), task("bad", "failed"), targets=Targets())
    assert [hour.met for hour in found.hours] == [None, None]
    assert [miss.id for miss in found.misses] == ["bad"]
    nothing = report()
    assert (nothing.hours, nothing.total.accepted, nothing.total.met) == ([], 0, None)


states = st.sampled_from(["succeeded", "failed", "expired", "dead_letter", "cancelled", "ready", "waiting"])


@given(st.lists(st.tuples(states, st.floats(0.001, 50_000), st.floats(0, 100_000))))
def test_every_task_is_counted_once_in_its_hour_and_in_the_sum(drawn: list[tuple[str, float, float]]) -> None:
    tasks = [
        task(str(n), state, took=None if state in ("ready", "waiting") else took, ago=ago)
        for n, (state, took, ago) in enumerate(drawn)
    ]
    found = report(*tasks)

    def parts(period: Period) -> int:
        return period.succeeded + period.failed + period.cancelled + period.open

    assert sum(hour.accepted for hour in found.hours) == found.total.accepted == len(tasks)
    assert all(parts(period) == period.accepted for period in (*found.hours, found.total))
    total = found.total
    assert found.missed == total.failed + total.slow + total.overdue
