"""What is done about upstreams that fail or are slow, as settings."""

from __future__ import annotations

from decimal import Decimal

from pydantic import BaseModel, ConfigDict, Field


class PatienceSettings(BaseModel):
    """How long calls wait. `outage_seconds`: for an upstream that fails and has answered before. `quota_seconds`: for
    an account without credit or quota. 0 = not at all: they fail at once. `quota_probe_seconds`: until such an account
    is asked again, doubled each time, up to ten times as long.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    outage_seconds: float = Field(default=600.0, ge=0, le=86_400)
    quota_seconds: float = Field(default=600.0, ge=0, le=86_400)
    quota_probe_seconds: float = Field(default=30.0, gt=0, le=3_600)


class HedgingSettings(BaseModel):
    """Second requests for calls that are slow. `share`: of the calls of a model, and of the money of a run, that they
    may add.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = False
    share: Decimal = Field(default=Decimal("0.05"), gt=0, le=Decimal("0.5"))
