"""What the end of a request says of the task that it was."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from siafu.agents.task import Surroundings
from siafu.apps.support.asking import SupportTasks
from siafu.errors import (
    CallTimeout,
    Outage,
    Overloaded,
    RequestRefused,
    SiafuError,
    ToolUnavailable,
    Unreachable,
    UpstreamFault,
)
from siafu.gateway.meter import MemoryLedger
from siafu.gateway.scripted import Scripted
from siafu.pace.clock import VirtualClock
from siafu.store.task_records import Failed, Later
from siafu.swarm.results import MapError
from siafu.tools.patience import AT_ONCE, ToolPatience

from .test_record import JOB, result


class Away(ToolPatience):
    away = True


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unreachable("nothing listens", attempts=3), Later),
        (UpstreamFault("not sent, as u has failed for 9 s", attempts=0), Later),
        (Overloaded("not sent, as u has failed for 9 s", attempts=0), Later),
        (Outage("u has failed for 600 s", attempts=0), Later),
        (Outage("broken (other calls there fail too)", attempts=3), Later),
        (UpstreamFault("broken", attempts=3), Failed),
        (CallTimeout("no answer in 60 s", phase="total"), Failed),
        (RequestRefused("no upstream offers the model 'm'", attempts=0), Failed),
    ],
)
def test_an_upstream_that_cannot_be_reached_costs_a_task_none_of_its_deliveries(
    error: SiafuError, expected: type[Any]
) -> None:
    around = Surroundings(endpoint=Scripted([]), clock=VirtualClock())
    told = msgspec.structs.replace(result(None, MapError(error.code, error.message)), exception=error)
    outcome = SupportTasks(JOB, around, MemoryLedger(), "r")._outcome(told)
    assert type(outcome) is expected and isinstance(outcome, Later | Failed)
    assert (outcome.code, outcome.message) == (error.code, error.message)
    assert outcome.failed if isinstance(outcome, Later) else outcome.passing == error.retryable


@pytest.mark.parametrize(
    ("patience", "expected"), [(AT_ONCE, Failed), (Away(0.0, clock=VirtualClock(), rng=Random()), Later)]
)
def test_a_tool_server_that_is_away_costs_a_task_none_of_its_deliveries(
    patience: ToolPatience, expected: type[Any]
) -> None:
    around = Surroundings(endpoint=Scripted([]), clock=VirtualClock(), patience=patience)
    error = ToolUnavailable("nothing could be looked up")
    told = msgspec.structs.replace(result(None, MapError(error.code, error.message)), exception=error)
    assert type(SupportTasks(JOB, around, MemoryLedger(), "r")._outcome(told)) is expected
