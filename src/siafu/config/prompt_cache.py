"""What an upstream's prompt cache wants, as a user sets it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from siafu.gateway.prefix import Marks, PromptCache

_Seconds = Annotated[float, Field(gt=0, le=86_400)]


class PromptCacheSettings(BaseModel):
    """`prompt_cache` of an endpoint. lead: send one of calls that begin alike first. marks: `cache_control` at the end
    of the system text. key: `prompt_cache_key`. min_tokens: shorter beginnings are left alone. keep_seconds: how long
    the endpoint keeps one. wait_seconds: how long a call waits for the first one at most.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    lead: bool = False
    marks: Marks | None = None
    key: bool = False
    min_tokens: int = Field(default=1024, ge=1, le=1_000_000)
    keep_seconds: _Seconds = 300.0
    wait_seconds: _Seconds = 30.0

    def wanted(self) -> PromptCache | None:
        """None = nothing is done for it."""
        if not (self.lead or self.marks or self.key):
            return None
        return PromptCache(
            lead=self.lead,
            marks=self.marks,
            key=self.key,
            min_tokens=self.min_tokens,
            keep=self.keep_seconds,
            wait=self.wait_seconds,
        )
