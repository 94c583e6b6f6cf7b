"""Who makes a call, for whom and by when: the labels that travel with every model and tool call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from siafu.errors import Tried


class Heat:
    """One of the two requests that a call may have. left_at: when it was sent (monotonic seconds), None = not yet.
    spare: it is the second one, so it is sent at once or not at all. lost: it is given up, as the other was quicker.
    tried: where it went.
    """

    __slots__ = ("left_at", "lost", "spare", "tried")

    def __init__(self, *, spare: bool = False) -> None:
        self.left_at: float | None = None
        self.spare = spare
        self.lost = False
        self.tried: Tried | None = None


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """Labels and limits of one call. The gateway reads run, task, agent and role as opaque account labels.

    run, task: the run and the item this call belongs to. agent, role: who asks. tenant, user: for whom. category: what
    it is about, for rules that route by it.
    step: the logical step (`path#seq` in the journal); all physical attempts of a step share it.
    deadline: on the monotonic clock, seconds; None = no deadline.
    attempts: physical attempts already made at this step by an earlier delivery.
    priority: 1 (first) to 3 (last).
    since: when this call first asked for admission (monotonic seconds), so that one that was refused and asks again
    keeps its place; None = now. Only the gateway sets it.
    tried: where this call has failed. heat: which of its requests this is, None = there is one. bucket: its side of a
    canary (`gateway.canary`), "" = none. Only the gateway sets them.
    identity: a token that proves `user` to tools configured for it; never sent to models.
    effect_key: names this effect to a tool that does it once a key: the same for every attempt, "" = none.
    bound: arguments that trusted code gives to a tool beside those of the model.
    """

    run: str = "run"
    task: str = ""
    agent: str = ""
    role: str = ""
    tenant: str = ""
    user: str = ""
    category: str = ""
    step: str = ""
    deadline: float | None = None
    attempts: int = 0
    priority: int = 2
    since: float | None = None
    tried: tuple[Tried, ...] = ()
    heat: Heat | None = None
    bucket: str = ""
    identity: str | None = None
    effect_key: str = ""
    bound: Mapping[str, Any] = {}
