"""How many calls may be under way at once: one small interface, and the policy that does not learn."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal, Protocol

import msgspec

START = 4  # where a limit begins that is learned or ramped up
CUT = 0.9  # what is left of a learned limit after a refusal

Outcome = Literal["ok", "refused", "timeout", "other"]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A call that ended. Times in seconds. `in_flight`: calls at once when it left, itself included. Of a whole answer,
    `first_token` is the time to it, None when it came in one piece, and `tokens` is the output, None = unknown.
    """

    sent_at: float
    now: float
    in_flight: int
    outcome: Outcome = "ok"
    first_token: float | None = None
    tokens: int | None = None


class Policy(Protocol):
    """`limit`: calls at once, now. `moves`: it is not always the same, so the policy is told of every call."""

    moves: bool

    @property
    def limit(self) -> int: ...

    def resize(self, most: int, rpm: float | None) -> None:
        """The most calls at once, and the requests a minute that the provider allows (None = unknown), are others."""
        ...

    def ready(self, now: float, in_flight: int) -> float:
        """Seconds until one more call may leave beside `in_flight`: 0.0 = now, infinite = when one has ended."""
        ...

    def take(self, now: float) -> None:
        """A call leaves."""
        ...

    def undo(self, now: float) -> None:
        """The call that was taken at `now` did not leave after all."""
        ...

    def ended(self, sample: Sample) -> None:
        """A call has ended."""
        ...


class Fixed:
    """Always `most`. `ramp`: seconds over which the first calls rise to it, from `START`; 0 = at once."""

    def __init__(self, most: int, ramp: float = 0.0) -> None:
        self.limit = most
        self.moves = ramp > 0
        self._ramp = ramp
        self._began: float | None = None

    def resize(self, most: int, rpm: float | None) -> None:
        self.limit = most

    def ready(self, now: float, in_flight: int) -> float:
        if in_flight >= self.limit:
            return math.inf
        if not self._ramp or in_flight < START:
            return 0.0
        began = now if self._began is None else self._began
        due = began + self._ramp * (in_flight + 1 - START) / max(1, self.limit - START)
        return max(0.0, due - now)

    def take(self, now: float) -> None:
        if self._began is None:
            self._began = now

    def undo(self, now: float) -> None:
        return None

    def ended(self, sample: Sample) -> None:
        return None


class Learned(ABC):
    """What policies with a limit that moves have in common: `_aim`, the limit before rounding, from 1 to `most`.
    Refusals and timeouts take a tenth off it and end the start; answers are judged by each policy.
    """

    moves = True

    def __init__(self, most: int) -> None:
        self._most = most
        self._aim = float(min(START, most))
        self._cut_at = -math.inf
        self._starting = True

    @property
    def limit(self) -> int:
        return int(self._aim + 1e-9)

    def resize(self, most: int, rpm: float | None) -> None:
        self._most, self._aim = most, min(self._aim, float(most))

    def ready(self, now: float, in_flight: int) -> float:
        return 0.0 if in_flight < self._aim - 1 + 1e-9 or in_flight == 0 else math.inf

    def take(self, now: float) -> None:
        return None

    def undo(self, now: float) -> None:
        return None

    def ended(self, sample: Sample) -> None:
        if sample.outcome in ("refused", "timeout"):
            if sample.sent_at > self._cut_at:  # calls that left before the last cut tell of the limit before it
                self._cut_at, self._starting = sample.now, False
                self._move(self._aim * CUT, sample.now)
        elif sample.outcome == "ok":
            self._answered(sample)

    @abstractmethod
    def _answered(self, sample: Sample) -> None:
        """A call was answered."""

    def _move(self, aim: float, now: float) -> None:
        self._aim = max(1.0, min(aim, float(self._most)))
