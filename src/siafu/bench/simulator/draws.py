"""Chance as a function of the request: the same request draws the same numbers, in whatever order requests arrive."""

from __future__ import annotations

from hashlib import blake2b
from statistics import NormalDist

_NORMAL = NormalDist()


class Draws:
    """Numbers drawn from the hash of `parts`. A label names a number; asking again gives the same one."""

    __slots__ = ("_root",)

    def __init__(self, *parts: bytes | str | int) -> None:
        root = blake2b(digest_size=32)
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode("utf-8", "replace")
            root.update(len(data).to_bytes(8, "big") + data)
        self._root = root.digest()

    def number(self, label: str) -> int:
        """An integer in [0, 2**64)."""
        return int.from_bytes(blake2b(label.encode(), key=self._root, digest_size=8).digest(), "big")

    def uniform(self, label: str) -> float:
        """A number in [0, 1)."""
        return (self.number(label) >> 11) / 2**53

    def normal(self, label: str) -> float:
        """A number from the standard normal distribution."""
        return _NORMAL.inv_cdf((self.number(label) % (2**53 - 1) + 1) / 2**53)

    def text(self, label: str, length: int) -> str:
        """`length` hexadecimal characters, at most 64."""
        return blake2b(label.encode(), key=self._root, digest_size=32).hexdigest()[:length]
