"""What is done about upstreams and tool servers that fail or are slow, as settings."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import Field

from siafu.config.sections import Section

Wait = Annotated[float, Field(ge=0, le=86_400)]


class PatienceSettings(Section):
    """How long calls wait for what fails."""

    outage_seconds: Wait = 600.0
    quota_seconds: Wait = 600.0
    quota_probe_seconds: Annotated[float, Field(gt=0, le=3_600)] = 30.0


class HedgingSettings(Section):
    """Second requests for calls that are slow."""

    enabled: bool = False
    share: Annotated[Decimal, Field(gt=0, le=Decimal("0.5"), strict=False)] = Decimal("0.05")
