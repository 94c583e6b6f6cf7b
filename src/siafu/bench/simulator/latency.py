"""How long an answer takes: a first token after a while, then a token every so often, each model at its own speed.

Both are lognormal around the model's median, drawn from the request's hash; reading the prompt adds to the first.
"""

from __future__ import annotations

import math
import re

import msgspec

from siafu.bench.simulator.draws import Draws
from siafu.errors import ConfigError

FIRST_SPREAD, TOKEN_SPREAD = 0.35, 0.15  # sigma of the logarithm
PREFILL = 1 / 10_000  # seconds a prompt token
_SMALL = re.compile(r"mini|nano|small|lite|flash|turbo|haiku|cheap|fast|\b[1-9]b\b", re.IGNORECASE)


class Speed(msgspec.Struct, frozen=True):
    """Medians of one model, in seconds: to the first token, and for each token after it."""

    first_token: float
    per_token: float


STRONG, SMALL = Speed(0.45, 0.016), Speed(0.22, 0.006)


class Latency(msgspec.Struct, frozen=True):
    """`scale` multiplies every time (0 = at once). `fixed`: seconds every answer takes, whatever its length."""

    scale: float = 1.0
    fixed: float | None = None


class Pace(msgspec.Struct, frozen=True):
    """Seconds of one answer: to the first token, and for each further one."""

    first: float
    per_token: float

    def seconds(self, tokens: int) -> float:
        """What an idle server needs for the whole answer."""
        return self.first + self.per_token * max(0, tokens - 1)


def default_speed(model: str) -> Speed:
    """The speed of a model nobody described: by its name, small or strong."""
    return SMALL if _SMALL.search(model) else STRONG


def pace(latency: Latency, speed: Speed, prompt_tokens: int, draws: Draws) -> Pace:
    """The pace of one answer."""
    if latency.fixed is not None:
        return Pace(latency.fixed, 0.0)
    if not latency.scale:
        return Pace(0.0, 0.0)
    first = speed.first_token * math.exp(FIRST_SPREAD * draws.normal("first token")) + PREFILL * prompt_tokens
    per_token = speed.per_token * math.exp(TOKEN_SPREAD * draws.normal("per token"))
    return Pace(first * latency.scale, per_token * latency.scale)


def seconds(text: str) -> float:
    """Seconds of `200ms`, `1.5s` or `0.2`.

    Raises: ConfigError.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|)", text.strip())
    if not found:
        raise ConfigError(f"{text[:40]!r} is no time; write 200ms, 1.5s or 0.2")
    return float(found[1]) / (1000 if found[2] == "ms" else 1)


def parse_latency(spec: str) -> Latency:
    """`default`, `none`, `scale:0.2` or `fixed:200ms`.

    Raises: ConfigError.
    """
    name, _, value = spec.strip().partition(":")
    if spec.strip() == "default":
        return Latency()
    if spec.strip() == "none":
        return Latency(scale=0.0)
    if name == "fixed":
        return Latency(fixed=seconds(value))
    if name == "scale" and re.fullmatch(r"\d+(\.\d+)?", value):
        return Latency(scale=float(value))
    raise ConfigError(f"--latency {spec[:40]!r} is unknown; write default, none, scale:0.2 or fixed:200ms")


def parse_speed(spec: str) -> tuple[str, Speed]:
    """A model and its speed from `name=ttft_ms,per_token_ms`, or from `name` alone.

    Raises: ConfigError.
    """
    name, given, times = spec.strip().partition("=")
    found = re.fullmatch(r"(\d+(?:\.\d+)?),(\d+(?:\.\d+)?)", times)
    if not name or (given and not found):
        raise ConfigError(f"--model {spec[:60]!r} must look like name=ttft_ms,per_token_ms, e.g. small=200,6")
    return name, Speed(float(found[1]) / 1000, float(found[2]) / 1000) if found else default_speed(name)
