"""Bells: they say that there may be news in the store, and nothing else. A ring that is lost costs the time until the
next look, so a bell may be anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class Doorbell:
    """Rings within this process. `ring` may be called on the event loop only, and never fails."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def ring(self) -> None:
        for listener in self._listeners:
            listener()

    @contextlib.contextmanager
    def heard(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` at every ring while the block runs. It must be quick and must not raise."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)
