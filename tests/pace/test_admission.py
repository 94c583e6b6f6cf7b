"""One decision for all limits: what was counted before a limit was known."""

from __future__ import annotations

from siafu.pace.admission import Admission
from siafu.pace.announced import Left
from siafu.pace.concurrency import Fixed
from siafu.pace.throttle import Throttle


def test_a_call_that_was_undone_before_the_limit_was_told_gives_back_no_more_than_it_took() -> None:
    admission = Admission(Throttle(), Fixed(10))
    admission.undo(admission.take(0.0, 2, 500), 0.0)  # its tokens counted for turns only
    heard = admission.take(0.0, 2, 100)
    admission.heard(heard, None, Left(limit=1000, remaining=100, reset=60.0))
    assert admission.ready(0.0, 2, 200) == 60.0
    admission.heard(heard, None, Left(limit=1000, remaining=900, reset=60.0))
    assert admission.ready(0.0, 2, 200) == 0.0
