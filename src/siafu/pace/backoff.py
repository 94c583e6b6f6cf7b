"""How long to wait before another try: exponential backoff with full jitter (Brooker, AWS Architecture Blog, 2015)."""

from __future__ import annotations

from random import Random


def full_jitter(attempt: int, rng: Random, *, base: float = 0.5, cap: float = 30.0) -> float:
    """Seconds to wait before try `attempt` + 1 (`attempt` counts from 1): uniform in [0, min(cap, base * 2^(n-1))]."""
    return rng.uniform(0.0, min(cap, base * 2 ** min(attempt - 1, 30)))
