"""Limits that change while calls are under way: nothing is forgotten, so no window holds more than the limits allow."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from siafu.pace.admission import Admission, Permit
from siafu.pace.aimd import Aimd
from siafu.pace.bucket import Bucket
from siafu.pace.concurrency import Fixed
from siafu.pace.share import Ask, Share, Whole
from siafu.pace.throttle import Throttle
from siafu.pace.tokens import TokenBucket
from siafu.pace.window import SlidingWindow

EDGE = 1e-4
rates = st.sampled_from([0.5, 1.0, 3.0, 10.0, 100.0])
gaps = st.lists(st.sampled_from([0.0, 0.001, 0.3, 2.0]), min_size=3, max_size=40)


class Forgetful(Bucket):
    """The mistake that the property must find: a new rate begins with a new bucket."""

    def change(self, rate: float, burst: int, now: float) -> None:
        self.__init__(rate, burst)  # type: ignore[misc]


def sent_after(bucket: Bucket, before: list[float], after: list[float], rate: float, burst: int) -> list[float]:
    """When requests left, from the burst before the change on, whose rate they have to keep too when it is lower."""
    now, sent = 1000.0, []
    for turn, waits in enumerate((before, after)):
        if turn:
            bucket.change(rate, burst, now)
        for gap in waits:
            now += gap
            now += bucket.ready(now)
            bucket.take(now)
            sent.append(now)
    return sent[len(before) :]


def keeps(sent: list[float], rate: float, burst: int) -> bool:
    return all(
        sum(start <= at <= start + span for at in sent) <= rate * span + burst + EDGE
        for start in sent
        for span in (0.0, 1 / rate, 3 / rate)
    )


@given(gaps, gaps, rates, rates, st.integers(1, 5), st.integers(1, 5))
def test_requests_keep_the_new_rate_from_the_change_on(
    before: list[float], after: list[float], old: float, new: float, burst: int, other: int
) -> None:
    sent = sent_after(Bucket(old, burst), before, after, new, other)
    assert keeps(sent, new, other)


def test_a_burst_is_not_given_twice() -> None:
    """The property can fail, too."""
    for kind, at_once in ((Bucket, 0), (Forgetful, 5)):
        bucket = kind(1.0, 5)
        for _ in range(5):
            bucket.take(0.0)
        bucket.change(10.0, 5, 0.0)
        count = 0
        while bucket.ready(0.0) == 0.0:
            bucket.take(0.0)
            count += 1
        assert count == at_once
        assert math.isclose(bucket.ready(0.0), 0.1)


Calls = list[tuple[float, int, float, bool]]  # gap, tokens, the share of them that is used, settled at once
calls = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 1.0, 7.0]), st.integers(1, 400), st.floats(0.0, 1.5), st.booleans()),
    min_size=2,
    max_size=25,
)


@given(calls, calls, rates, rates)
def test_what_calls_used_keeps_the_new_token_rate(before: Calls, after: Calls, old: float, new: float) -> None:
    """Calls reserve, and settle with more or less than that, some only after the change."""
    bucket, now, open_, used = TokenBucket(old), 1000.0, [], list[tuple[float, float]]()
    for turn, several in enumerate((before, after)):
        if turn:
            bucket.change(new, now)
        for gap, tokens, share, at_once in several:
            now += gap
            now += bucket.ready(now, tokens)
            open_.append((bucket.take(now, tokens), tokens * share, now, turn))
            if at_once:
                for reserved, amount, left_at, when in open_:
                    bucket.settle(reserved, amount, now)
                    if when:
                        used.append((left_at, amount))
                open_.clear()
    most = max((tokens * share for _, tokens, share, _ in after), default=0.0)
    for start, _ in used:
        for span in (0.0, 1.0, 10.0):
            total = sum(amount for at, amount in used if start <= at <= start + span)
            assert total <= new * span + bucket.burst + max(most, 600.0) + EDGE


def test_tokens_that_are_missing_stay_missing() -> None:
    bucket = TokenBucket(10.0)
    early = bucket.take(0.0, 50)
    bucket.change(100.0, 0.0)
    assert math.isclose(bucket.ready(0.0, 500), 0.5)  # 50 of 500 are missing
    bucket.settle(early, 0, 10.0)
    assert bucket.ready(10.0, 500) == 0.0
    bucket.take(10.0, 500)
    assert math.isclose(bucket.ready(10.0, 100), 1.0), "what came back too late brings nothing"


def admission(**limits: float | None) -> Admission:
    found = Admission(Throttle(), Fixed(2))
    found.change(0.0, most=2, rpm=None, tpm=limits.get("tpm"))
    return found


def fly(at: Admission, count: int, tokens: int = 0) -> list[Permit]:
    return [at.take(0.0, 1, tokens) for _ in range(count) if at.ready(0.0, 1, tokens) == 0.0]


def test_calls_under_way_count_in_the_new_concurrency() -> None:
    at = admission()
    under_way = fly(at, 5)
    assert len(under_way) == 2
    at.change(0.0, most=4, rpm=None, tpm=None)
    more = fly(at, 5)
    assert len(more) == 2
    at.change(0.0, most=1, rpm=None, tpm=None)
    for permit in (*under_way, *more)[:3]:
        at.ended(permit, 0.0)
        assert at.in_flight and not fly(at, 1)
    at.ended(more[1], 0.0)
    assert at.in_flight == 0 and len(fly(at, 5)) == 1, "no permit is lost, and none is made"


def test_tokens_begin_to_count_and_stop_to() -> None:
    at = admission()
    before = fly(at, 1)
    at.change(0.0, most=2, rpm=None, tpm=600.0)
    assert at.ready(0.0, 1, 10) > 0.0, "nobody knows what was used of late"
    assert at.ready(5.0, 1, 50) == 0.0
    late = at.take(5.0, 1, 50)
    at.change(5.0, most=3, rpm=None, tpm=None)
    assert at.ready(5.0, 1, 10_000) == 0.0
    for permit in (*before, late):
        at.ended(permit, 6.0, used=5)
    assert at.in_flight == 0


def test_policies_keep_what_they_have_learned() -> None:
    aimd = Aimd(100)
    aimd.resize(2, None)
    assert aimd.limit == 2
    aimd.resize(50, None)
    assert aimd.limit == 2, "it grows from there"
    window = SlidingWindow(100, 200)
    for _ in range(window.rpm):
        window.take(0.0)
    window.resize(100, 300)
    assert window.ready(1.0, 0) > 50, "what has left in this minute counts"
    window.resize(100, 10)
    assert (window.rpm, window.limit) == (10, 8)


def test_a_rate_where_there_was_none_begins_without_a_burst() -> None:
    throttle = Throttle()
    for _ in range(100):
        throttle.take(0.0)
    throttle.change(2.0, 2, 0.0)
    assert throttle.ready(0.0) == 0.0
    throttle.take(0.0)
    assert math.isclose(throttle.ready(0.0), 0.5)
    throttle.change(None, 1, 0.0)
    assert throttle.ready(0.0) == 0.0


def test_alone_a_process_takes_its_part_of_the_new_limits() -> None:
    share = Share(Whole(concurrency=10, requests=10.0, processes=2))
    share.lost(Ask(requests=1, tokens=0, owed=0, in_flight=0, slots=1), 0.0)
    share.change(Whole(concurrency=4, requests=2.0, processes=2), 0.0)
    assert share.ready(0.0, 2, 0) == math.inf
    share.take(0.0, 0)
    assert math.isclose(share.ready(0.0, 0, 0), 1.0)
