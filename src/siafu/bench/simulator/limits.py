"""The endpoint's limits: requests and tokens a minute, and answers at once.

They hold for the whole endpoint. Tokens are those of the prompt and of the answer, known in advance here. A request
over a limit is refused and costs nothing; only for one of the slots it waits, as at model servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator

import msgspec


class Gcra:
    """The generic cell rate algorithm in its virtual scheduling form (ITU-T I.371): at most rate x W + burst units in
    any window of W seconds. `rate`: units a second. `burst`: units that may come at once after a pause.
    """

    __slots__ = ("_full_at", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._full_at = -math.inf  # when everything taken will have flowed back

    def wait(self, now: float, cost: float) -> float:
        """Seconds until `cost` units may be taken: 0 = now, infinity = never, as it is more than the burst."""
        if cost > self.burst:
            return math.inf
        return max(0.0, max(now, self._full_at) + (cost - self.burst) / self.rate - now)

    def take(self, now: float, cost: float) -> None:
        """Take `cost` units; the caller has seen that `wait` is 0."""
        self._full_at = max(now, self._full_at) + cost / self.rate

    def left(self, now: float) -> float:
        """Units that could be taken now."""
        return self.burst - self.reset(now) * self.rate

    def reset(self, now: float) -> float:
        """Seconds until nothing is missing any more."""
        return max(0.0, self._full_at - now)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests and tokens a minute, and answers at once; None = no limit. `burst`: seconds' worth that may come at once
    (at least one request). `slots`: answers at once too, but requests beyond wait in order."""

    rpm: float | None = None
    tpm: float | None = None
    max_concurrency: int | None = None
    slots: int | None = None
    burst: float = 6.0

    def __post_init__(self) -> None:
        for name in ("rpm", "tpm", "max_concurrency", "slots"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be more than 0; leave it away for no limit")
        if not 0 < self.burst <= 3600:
            raise ValueError("burst must be more than 0 and at most 3600 seconds")


class Slots:
    """Who is being answered, and in order who waits to be. `most`: None = nobody waits."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A slot while the block runs."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self.fill()
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():
                self._busy -= 1
                self.fill()

    def fill(self) -> None:
        """Give free slots to those who wait."""
        while self._waiting and (self.most is None or self._busy < self.most):
            turn = self._waiting.popleft()
            if not turn.cancelled():
                self._busy += 1
                turn.set_result(None)


class Refusal(msgspec.Struct, frozen=True):
    """`limit`: requests, tokens or concurrency. `wait`: seconds; None = unknown, infinity = never."""

    limit: str
    wait: float | None
    allowed: float
    wanted: float


class Limits:
    """The limits and what is taken of them. Clock readings are passed in, in seconds."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._requests = _bucket(settings.rpm, settings.burst, at_least=1.0)
        self._tokens = _bucket(settings.tpm, settings.burst, at_least=0.0)

    def refuse(self, now: float, tokens: int, in_flight: int) -> Refusal | None:
        """Take one request of `tokens` tokens; or say why not, taking nothing."""
        most = self.settings.max_concurrency
        if most is not None and in_flight >= most:
            return Refusal("concurrency", None, most, in_flight + 1)
        wanted = [
            ("requests", self._requests, 1.0, self.settings.rpm),
            ("tokens", self._tokens, float(tokens), self.settings.tpm),
        ]
        waits = [(bucket.wait(now, cost), name, cost, rate) for name, bucket, cost, rate in wanted if bucket and rate]
        longest = max(waits, default=(0.0, "", 0.0, 0.0))
        if longest[0] > 0:
            return Refusal(longest[1], longest[0], longest[3], longest[2])
        for _, bucket, cost, _ in wanted:
            if bucket:
                bucket.take(now, cost)
        return None

    def headers(self, now: float) -> dict[str, str]:
        """The x-ratelimit headers of an answer sent now."""
        found = {}
        for name, bucket, rate in (
            ("requests", self._requests, self.settings.rpm),
            ("tokens", self._tokens, self.settings.tpm),
        ):
            if bucket and rate:
                found[f"x-ratelimit-limit-{name}"] = f"{rate:.0f}"
                found[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.left(now) + 1e-6)))
                found[f"x-ratelimit-reset-{name}"] = go_duration(bucket.reset(now))
        return found


def _bucket(per_minute: float | None, burst: float, at_least: float) -> Gcra | None:
    return Gcra(per_minute / 60, max(at_least, per_minute / 60 * burst)) if per_minute else None


def go_duration(seconds: float) -> str:
    """Seconds as Go writes a duration, rounded up to a millisecond: `0s`, `12ms`, `1.5s`, `1m30s`, `1h0m0s`."""
    millis = math.ceil(seconds * 1000 - 1e-6)
    if millis < 1000:
        return f"{millis}ms" if millis > 0 else "0s"
    minutes, rest = divmod(millis, 60_000)
    tail = f"{rest / 1000:g}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{tail}" if hours else f"{minutes}m{tail}" if minutes else tail
