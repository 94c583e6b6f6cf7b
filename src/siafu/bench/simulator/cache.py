"""Prompt-cache credit, as providers give it: for a byte prefix that an earlier answer of the same model began with.

The prompt is cut into blocks of 256 bytes; a block is known by the hash of itself and everything before it. A request
earns the longest run of known blocks from its start, in tokens rounded down to 128, and nothing below 1,024. A prompt
becomes known when its answer *begins*: siblings sent at the same moment earn nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from siafu.bench.simulator.tokens import count

BLOCK_BYTES, STEP_TOKENS, LEAST_TOKENS = 256, 128, 1_024
MOST_BLOCKS = 200_000


class PrefixCache:
    """`ttl`: seconds that a prefix stays known after its last use; 0 = no cache. Holds at most MOST_BLOCKS blocks."""

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._used: OrderedDict[bytes, float] = OrderedDict()  # block -> last use, oldest first

    def credit(self, blocks: list[bytes], prompt: bytes, now: float) -> int:
        """Cached tokens of a request whose prompt has these `blocks`."""
        known = 0
        for block in blocks:
            if now - self._used.get(block, float("-inf")) >= self._ttl:
                break
            known += 1
        if not known:
            return 0
        tokens = count(prompt[: known * BLOCK_BYTES].decode("utf-8", "ignore")) // STEP_TOKENS * STEP_TOKENS
        return tokens if tokens >= LEAST_TOKENS else 0

    def remember(self, blocks: list[bytes], now: float) -> None:
        """The answer to the prompt with these blocks has begun."""
        for block in blocks:
            self._used[block] = now
            self._used.move_to_end(block)
        while len(self._used) > MOST_BLOCKS:
            self._used.popitem(last=False)

    def clear(self) -> None:
        self._used.clear()


def blocks_of(model: str, prompt: bytes) -> list[bytes]:
    """The names of the whole blocks of `prompt`; none when it is too short to earn anything."""
    if len(prompt) < LEAST_TOKENS:
        return []
    chain, names = blake2b(model.encode(), digest_size=16), []
    for start in range(0, len(prompt) - BLOCK_BYTES + 1, BLOCK_BYTES):
        chain.update(prompt[start : start + BLOCK_BYTES])
        names.append(chain.digest())
    return names
