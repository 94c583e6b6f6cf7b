"""How the upstreams and the budgets stand, as metrics."""

from __future__ import annotations

from collections.abc import Sequence

from siafu.border.money import PICO
from siafu.gateway.accounts import Accounts
from siafu.gateway.client import Gateway
from siafu.gateway.routed import Lane
from siafu.observe.figures import Family
from siafu.pace.breaker import State
from siafu.pace.clock import Clock

_STATES: dict[State, int] = {"closed": 0, "returning": 1, "open": 2}
_BREAKER = "Of the model that stands worst there: 0 closed, 1 returning, 2 open or its key is refused"


def gateway_families(gateway: Gateway, clock: Clock) -> list[Family]:
    return [*lane_families(gateway.lanes, clock.now()), *budget_families(gateway.accounts)]


def lane_families(lanes: Sequence[Lane], now: float) -> list[Family]:
    """A lane is an upstream, or one of its keys. now: monotonic seconds."""

    def gauge(name: str, text: str, values: Sequence[float]) -> Family:
        rows = [((lane.id,), value) for lane, value in zip(lanes, values, strict=True)]
        return Family(f"siafu_lane_{name}", "gauge", text, ("lane",), rows)

    ends = [lane.endpoint for lane in lanes]
    return [
        gauge("in_flight", "Calls under way", [end.in_flight for end in ends]),
        gauge("limit", "Calls at once, as they are allowed now", [end.limit for end in ends]),
        gauge("queue", "Calls that wait for a permit", [end.waiting for end in ends]),
        gauge("pause_seconds", "Until the wait that the upstream asked for is over", [end.pause(now) for end in ends]),
        gauge("breaker_state", _BREAKER, [2 if lane.shut else _worst(lane) for lane in lanes]),
    ]


def _worst(lane: Lane) -> int:
    return max((_STATES[gate.breaker.state] for gate in lane.endpoint.gates), default=0)


def budget_families(accounts: Accounts) -> list[Family]:
    found = {"day" if kind == "shared" else kind: used for kind, used in accounts.budgets().items()}
    left = [((kind,), max(0, whole - used) / PICO) for kind, (used, whole) in found.items()]
    sizes = [((kind,), whole / PICO) for kind, (_, whole) in found.items()]
    return [
        Family("siafu_budget_left_usd", "gauge", "What is neither spent nor reserved of a budget", ("budget",), left),
        Family("siafu_budget_usd", "gauge", "The whole budget", ("budget",), sizes),
    ]
