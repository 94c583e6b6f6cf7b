"""Where items come from: any iterable or async iterable, one item at a time, made ready to be worked on."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from siafu.errors import ConfigError, InputError
from siafu.swarm.keys import Name, name_item
from siafu.swarm.options import MapOptions

END: Final = object()


class Entry(msgspec.Struct):
    """An item on its way. `journaled`: it was begun in an earlier session. `retried`: it ended with an error there."""

    index: int
    item: Any
    name: Name
    priority: int = 2
    user: str = ""
    tenant: str = ""
    journaled: bool = False
    retried: bool = False


class Source:
    """Reads `items` one by one.

    A plain iterator runs in the event loop, so one that waits (for a socket, a queue) belongs into an async iterator.

    Raises: ConfigError when `items` is one text or a mapping, or nothing to iterate over.
    """

    def __init__(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._slow: AsyncIterator[Any] | None = None
        self._quick: Iterator[Any] = iter(())
        if isinstance(items, AsyncIterable):
            self._slow = aiter(items)
        elif isinstance(items, Iterable) and not isinstance(items, str | bytes | Mapping):
            self._quick = iter(items)
        else:
            raise ConfigError(f"items are a list, an iterator or an async iterator, not {type(items).__name__}")

    async def next(self) -> Any:
        """The next item, or END. Raises what the iterator raises."""
        return next(self._quick, END) if self._slow is None else await anext(self._slow, END)


def make_entry(item: Any, index: int, options: MapOptions, *, durable: bool) -> Entry:
    """The Entry of an item.

    Raises: InputError when it cannot be used; whatever the caller's key, priority, user or tenant raise.
    """
    priority = 2 if options.priority is None else options.priority(item)
    if priority not in (1, 2, 3):
        raise InputError(f"the priority of an item is 1, 2 or 3, not {priority!r}")
    return Entry(
        index=index,
        item=item,
        name=name_item(item, index, options.key, durable=durable),
        priority=priority,
        user="" if options.user is None else str(options.user(item)),
        tenant="" if options.tenant is None else str(options.tenant(item)),
    )
