"""A decision that a person has to make before an effect may happen, and the desk where such decisions lie."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

ApprovalState = Literal["pending", "approved", "denied", "expired", "used"]


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. It binds exactly `arguments` (canonical JSON; `arguments_sha256` of them): what runs after it is
    this and nothing else, once.

    requester: who wants the effect, and may not approve it. reason: the rule that asks for a person. Times: seconds
    since 1970, by the database's clock. decided_by: None while pending. approved: not carried out yet; used: it is.
    """

    id: str
    tool: str
    arguments: str
    arguments_sha256: str
    requester: str
    reason: str
    state: ApprovalState
    created_at: float
    expires_at: float
    decided_by: str | None = None
    decided_at: float | None = None
    note: str = ""


class ApprovalDesk(Protocol):
    """Where a person decides. Each database that holds decisions has one."""

    async def approvals(self, state: ApprovalState | None = None) -> list[Approval]:
        """All of this state (None = all), oldest first."""
        ...

    async def approval(self, approval_id: str) -> Approval | None: ...

    async def decide(self, approval_id: str, *, approve: bool, by: str, note: str = "") -> Approval:
        """Record a person's decision; returns the approval as it is now.

        Raises: InputError when it is unknown, already decided, expired, or `by` is the requester.
        """
        ...
