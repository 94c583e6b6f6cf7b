from __future__ import annotations

import math

import pytest

from siafu.pace.share import HELD, HOLD, LOOK_AGAIN, Ask, Lease, Share, Whole


def leased(share: Share, now: float, **given: float) -> None:
    values = {"requests": 0, "tokens": 0, "slots": 0, "wait": 0.0, "processes": 1, **given}
    share.leased(Lease(**values), now, now)  # type: ignore[arg-type]


def test_nobody_leaves_before_something_was_leased() -> None:
    share = Share(Whole(concurrency=4))
    assert share.ready(0.0, 0, 0) == LOOK_AGAIN and share.short
    leased(share, 0.0, slots=2)
    assert share.ready(0.0, 1, 0) == 0.0
    assert share.ready(0.0, 2, 0) > 0.0


def test_slots_of_one_who_was_not_heard_of_for_long_are_no_longer_its_own() -> None:
    share = Share(Whole(concurrency=4))
    leased(share, 0.0, slots=2)
    assert share.ready(HELD - 0.1, 0, 0) == 0.0
    assert share.ready(HELD, 0, 0) > 0.0


def test_requests_on_lease_are_used_up_or_lost_in_time() -> None:
    share = Share(Whole(concurrency=10, requests=20.0))
    leased(share, 0.0, slots=10, requests=2)
    for _ in range(2):
        assert share.ready(0.0, 0, 0) == 0.0
        share.take(0.0, 0)
    assert share.ready(0.0, 0, 0) > 0.0
    leased(share, 1.0, slots=10, requests=2)
    assert share.ready(1.0 + HOLD, 0, 0) > 0.0, "what was not used in time is lost"
    leased(share, 5.0, slots=10, requests=1)
    share.take(5.0, 0)
    assert share.ready(5.0, 0, 0) > 0.0


def test_it_asks_for_a_batch_and_never_for_more_than_wait() -> None:
    share = Share(Whole(concurrency=100, requests=50.0))
    assert share.ask(0.0, 0, 0, 0) == Ask(requests=0, tokens=0, owed=0, in_flight=0, slots=0)
    assert share.ask(0.0, 1, 2, 0).requests == 2
    assert share.ask(0.0, 1, 200, 0) == Ask(requests=5, tokens=0, owed=0, in_flight=1, slots=100)


def test_it_looks_again_when_more_may_be_there() -> None:
    share = Share(Whole(concurrency=4, requests=1.0))
    leased(share, 0.0, slots=4, wait=0.7)
    assert share.ready(0.0, 0, 0) == pytest.approx(0.7)
    assert share.until_more(0.5) == pytest.approx(0.2)


def test_what_calls_used_beyond_their_lease_is_told_once() -> None:
    share = Share(Whole(concurrency=4, tokens=20.0))  # 100 at once
    leased(share, 0.0, slots=4, tokens=100)
    assert share.ready(0.0, 0, 500) == 0.0
    share.take(0.0, 500)
    share.settle(500, 300)
    assert share.ask(0.1, 0, 0, 0).owed == 200
    assert share.ask(0.1, 0, 0, 0).owed == 0


def test_alone_it_takes_its_part_and_begins_with_nothing() -> None:
    share = Share(Whole(concurrency=10, requests=10.0, tokens=100.0))
    leased(share, 0.0, slots=10, requests=5, processes=4)
    share.lost(share.ask(0.5, 0, 1, 10), 0.5)
    assert share.alone
    assert share.ready(0.5, 2, 10) == math.inf, "a fourth of ten"
    wait = share.ready(0.5, 0, 10)
    assert 0.0 < wait < 2.0
    share.take(0.5 + wait, 10)
    assert share.ready(0.5 + wait, 1, 10) >= 0.39, "a fourth of ten requests a second"
    leased(share, 9.0, slots=10, requests=5, tokens=50)
    assert share.ready(9.0, 9, 10) == 0.0, "on lease again"


def test_alone_from_the_beginning_it_believes_the_settings() -> None:
    share = Share(Whole(concurrency=10, processes=5))
    share.lost(share.ask(0.0, 0, 1, 0), 0.0)
    assert share.ready(0.0, 1, 0) == 0.0
    assert share.ready(0.0, 2, 0) == math.inf
    share = Share(Whole(concurrency=2, processes=5))
    share.lost(share.ask(0.0, 0, 1, 0), 0.0)
    assert share.ready(0.0, 0, 0) == 0.0, "one at least"
