"""Which whole answers are used again, as a user sets it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from siafu.gateway.reuse import ReuseRule


class ReuseSettings(BaseModel):
    """Answers to calls that fit every condition given here are used again for `seconds`. Lists of names."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    seconds: float = Field(gt=0, le=86_400)
    model: list[str] | None = None
    role: list[str] | None = None
    tenant: list[str] | None = None


def reuse_rules(given: Sequence[ReuseSettings]) -> list[ReuseRule]:
    return [
        ReuseRule(
            seconds=rule.seconds,
            models=None if rule.model is None else frozenset(rule.model),
            roles=None if rule.role is None else frozenset(rule.role),
            tenants=None if rule.tenant is None else frozenset(rule.tenant),
        )
        for rule in given
    ]
