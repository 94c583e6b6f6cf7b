"""Runs a state machine over a house: what it acts on, with a database that is closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def any_order(world: type[RuleBasedStateMachine], house: Any, *, examples: int) -> None:
    machine = type("Machine", (world,), {"house": house})
    few = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )  # fmt: skip
    try:
        run_state_machine_as_test(machine, settings=few)
    finally:
        house.database.close()


def in_order(
    world: type[RuleBasedStateMachine],
    house: Any,
    steps: Sequence[tuple[Callable[..., Any], dict[str, Any]]],
    invariants: Sequence[Callable[[Any], None]],
) -> None:
    """These steps one after another, with the invariants after each."""
    machine = type("Machine", (world,), {"house": house})()
    try:
        for step, values in steps:
            step(machine, **values)
            for holds in invariants:
                holds(machine)
    finally:
        machine.teardown()
        house.database.close()
