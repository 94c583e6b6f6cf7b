"""How a map runs, as one frozen value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from siafu.errors import ConfigError

MAX_CONCURRENCY = 100_000


class MapOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one map.

    run: its name in events, ledger and journal. key: names an item (text or a whole number); None = see `keys.py`.
    concurrency: most items worked on at once. lookahead: most items beyond those that are held, read ahead or finished
    and not yet taken by the reader; None = 4 x concurrency.
    priority: 1 (first) to 3 of an item; None = all 2. user, tenant: for whom an item is done.
    item_timeout: seconds for one item. deadline: seconds for the whole. None = no limit. grace: seconds that cancelled
    work gets to clean up, twice, before it is left to itself, with a warning (`run_sync` leaves it, too; `asyncio.run`
    waits for it until Ctrl-C).
    on_error: `isolate` gives an error result and goes on; `fail_fast` cancels the rest and raises.
    retry_failed: run items again that ended with an error in an earlier session.
    wait: seconds for which, once all else is done, items that wait (for a person's decision, or until a tool can act)
    are looked at again, now and then; needs a store. None = they are left to the next session.
    on_change: finished items of an earlier session that were done by other work: `rerun` them, `keep` their results,
    or `refuse` to start. version: tells states of an opaque work function apart; other
    functions are told by their names.
    ordered: results in the order of the items, not as they finish.
    value_type: what the values read back from a store become; plain JSON values by default.

    Raises: ConfigError for values outside their range.
    """

    run: str = "map"
    key: Callable[[Any], Any] | None = None
    concurrency: int = 100
    lookahead: int | None = None
    priority: Callable[[Any], int] | None = None
    user: Callable[[Any], str] | None = None
    tenant: Callable[[Any], str] | None = None
    item_timeout: float | None = None
    deadline: float | None = None
    grace: float = 5.0
    on_error: Literal["isolate", "fail_fast"] = "isolate"
    retry_failed: bool = False
    wait: float | None = None
    on_change: Literal["rerun", "keep", "refuse"] = "rerun"
    version: str = ""
    ordered: bool = False
    value_type: Any = Any

    def __post_init__(self) -> None:
        if not self.run:
            raise ConfigError("a run needs a name")
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ConfigError(f"concurrency must be 1 to {MAX_CONCURRENCY:,}, not {self.concurrency}")
        if self.lookahead is not None and self.lookahead < 0:
            raise ConfigError(f"lookahead must be 0 or more, not {self.lookahead}")
        for name in ("item_timeout", "deadline", "grace", "wait"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be more than 0 seconds, not {value}")
        for name, words in (("on_error", ("isolate", "fail_fast")), ("on_change", ("rerun", "keep", "refuse"))):
            if getattr(self, name) not in words:
                raise ConfigError(f"{name} is {' or '.join(words)}, not {getattr(self, name)!r}")

    @property
    def held(self) -> int:
        """Most items held at once."""
        return self.concurrency + (4 * self.concurrency if self.lookahead is None else self.lookahead)
