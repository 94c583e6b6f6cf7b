from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from siafu.observe.counts import Counts
from siafu.observe.events import (
    AttemptEnded,
    Event,
    ItemEnded,
    ItemStarted,
    LaneClosed,
    LimitsShared,
    SettingsChanged,
    ToolCalled,
    Waited,
)
from siafu.observe.figures import MOST_NAMES, OTHER, Histogram, Labels, nearest_rank


def rows(counts: Counts, name: str) -> dict[Labels, Any]:
    (family,) = [family for family in counts.families() if family.name == name]
    return dict(family.rows)


def attempt(**fields: Any) -> AttemptEnded:
    whole = {"model": "m", "upstream": "u", "role": "r", "seconds": 0.2, "usd_pico": 10**12}
    return AttemptEnded(**{**whole, **fields})


def seen(*events: Event) -> Counts:
    counts = Counts({"named"})
    for event in events:
        counts(event)
    return counts


def test_calls_are_told_by_outcome_and_their_tokens_and_cost_by_who_asked() -> None:
    counts = seen(
        attempt(input_tokens=700, cached_tokens=600, output_tokens=20),
        attempt(input_tokens=300, output_tokens=5, usd_pico=500, code="usage_doubtful"),
        attempt(outcome="refused", code="rate_limited", status=429, usd_pico=0),
        attempt(outcome="failed", code="call_timeout", usd_pico=None, role="그 역할"),
        ItemStarted(task="t"),  # is no number
    )
    assert rows(counts, "siafu_model_calls") == {
        ("m", "u", "r", "ok"): 2,
        ("m", "u", "r", "refused"): 1,
        ("m", "u", "그 역할", "failed"): 1,
    }
    assert rows(counts, "siafu_input_tokens")["m", "u", "r"] == 1000
    assert rows(counts, "siafu_cached_input_tokens")["m", "u", "r"] == 600
    assert rows(counts, "siafu_output_tokens")["m", "u", "r"] == 25
    assert rows(counts, "siafu_cost_usd")["m", "u", "r"] == 1.0000000005
    assert rows(counts, "siafu_unpriced_calls") == {("m", "u", "r"): 0, ("m", "u", "그 역할"): 1}
    assert rows(counts, "siafu_model_call_errors") == {("u", "rate_limited"): 1, ("u", "call_timeout"): 1}


def test_f52_quick_refusals_do_not_make_calls_look_fast() -> None:
    refusals = [attempt(outcome="refused", code="rate_limited", seconds=0.005)] * 40
    (found,) = rows(seen(*[attempt(seconds=0.9)] * 60, *refusals), "siafu_model_call_seconds").values()
    assert (sum(found.counts), round(found.total, 6)) == (60, 54.0)


def test_sec42_models_have_a_label_once_they_are_named_or_have_answered() -> None:
    made_up = [attempt(model=f"made-up-{n}", outcome="refused", code="request_refused") for n in range(1000)]
    counts = seen(*made_up, attempt(model="named", outcome="failed"), attempt(model="new"), attempt(model="new"))
    assert rows(counts, "siafu_model_calls") == {
        (OTHER, "u", "r", "refused"): 1000,
        ("named", "u", "r", "failed"): 1,
        ("new", "u", "r", "ok"): 2,
    }


@given(st.lists(st.tuples(st.sampled_from([f"m{n}" for n in range(120)]), st.sampled_from(["ok", "failed"]))))
def test_no_call_is_lost_and_labels_stay_few(calls: list[tuple[str, str]]) -> None:
    found = rows(seen(*(attempt(model=model, outcome=outcome) for model, outcome in calls)), "siafu_model_calls")
    assert sum(found.values()) == len(calls)
    assert len({labels[0] for labels in found}) <= MOST_NAMES + 1


def test_sec42_what_stands_in_labels_is_never_a_task_a_run_or_a_user() -> None:
    marked: dict[str, Any] = {"run": "SECRET-run", "task": "SECRET-task"}
    counts = seen(
        attempt(**marked, key="SECRET-key", bucket="7/new", outcome="failed", code="overloaded"),
        ToolCalled(**marked, tool="look", outcome="ok"),
        ItemEnded(**marked, ok=False, code="tool_timeout"),
        Waited(**marked, upstream="u", reason="backoff", seconds=1.0),
        LaneClosed(run="SECRET-run", lane="u", reason="access_refused"),
    )
    assert "SECRET" not in str([(family.name, family.labels, list(family.rows)) for family in counts.families()])
    assert rows(counts, "siafu_canary_calls") == {("7", "new", "failed"): 1}


def test_tasks_are_told_under_the_names_of_older_dashboards() -> None:
    counts = seen(
        ItemEnded(seconds=0.2),
        ItemEnded(seconds=4.0),
        ItemEnded(ok=False, code="tool_timeout", seconds=9.0),
        ItemEnded(ok=False, waits=True, code="pending_approval"),
        ItemEnded(restored=True),
    )
    assert rows(counts, "agent_swarm_task") == {(): 3}
    assert rows(counts, "agent_swarm_task_error") == {("tool_timeout",): 1}
    assert rows(counts, "agent_swarm_task_latency_ms")[()].counts == [0, 1, 0, 0, 0, 0, 0, 1, 1]
    assert {labels: sum(each.counts) for labels, each in rows(counts, "siafu_item_seconds").items()} == {
        ("ok",): 2,
        ("failed",): 1,
        ("waiting",): 1,
        ("restored",): 1,
    }


def test_settings_that_were_read_again() -> None:
    counts = seen(SettingsChanged(places=("limits.rpm",)), SettingsChanged(refused="no"), SettingsChanged())
    assert rows(counts, "siafu_settings_reloads") == {("applied",): 2, ("refused",): 1}


def test_limits_that_are_not_shared_now() -> None:
    counts = seen(
        LimitsShared(upstream="u", alone=True), LimitsShared(upstream="v", alone=True), LimitsShared(upstream="u")
    )
    assert rows(counts, "siafu_limits_alone") == {("u",): 0, ("v",): 1}


def test_sec42_a_name_that_is_a_key_or_a_book_is_no_label() -> None:
    found = rows(seen(attempt(model="sk-test-0123456789abcdefghij"), attempt(model="가" * 10**6)), "siafu_model_calls")
    assert {labels[0] for labels in found} == {"***", "가" * 99 + "…"}


@given(st.lists(st.floats(0, 1000)))
def test_each_number_is_in_the_first_bucket_that_holds_it(values: list[float]) -> None:
    histogram = Histogram((1.0, 10.0, 100.0))
    for value in values:
        histogram.add(value)
    for at, bound in enumerate(histogram.bounds):
        assert sum(histogram.counts[: at + 1]) == sum(value <= bound for value in values)
    assert sum(histogram.counts) == len(values)


def test_f51_a_percentile_of_a_hundred_is_not_the_largest() -> None:
    numbers = [float(n) for n in range(1, 101)]
    assert [nearest_rank(numbers, percent) for percent in (50, 95, 99, 100)] == [50, 95, 99, 100]
