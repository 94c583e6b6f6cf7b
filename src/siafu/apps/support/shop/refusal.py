"""A tool's answer when it cannot help."""

from __future__ import annotations

from typing import Any

import msgspec


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's answer when it cannot help: `code` for machines, `message` for the model or the person.

    retry_after_ms: when to ask again with the same arguments; None = the shop cannot say. details: further facts.
    """

    code: str
    message: str
    retryable: bool = False
    retry_after_ms: int | None = None
    details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
