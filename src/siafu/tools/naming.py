"""Names of tools as models see them: valid, distinct, and the same whatever the order of the servers."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from siafu.errors import ConfigError

MAX_NAME = 64
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


def distinct_names(tools: Sequence[tuple[str, str]]) -> list[str]:
    """One name for each (server, tool), in order.

    A tool keeps its own name while no other has it; else it is called `server_tool` (a tool of no server stays as it
    is); when that is taken too (server `a_b` with `c` beside server `a` with `b_c`), both get a short hash of
    (server, tool) behind it. Characters other than [A-Za-z0-9_-] become `_`; more than 64 are cut, with the hash.

    Raises: ConfigError, naming both, when two tools cannot be told apart.
    """
    plain = [_valid(tool, server, tool) for server, tool in tools]
    count = Counter(plain)
    names = [
        name if count[name] == 1 else _valid(f"{server}_{tool}" if server else tool, server, tool)
        for name, (server, tool) in zip(plain, tools, strict=True)
    ]
    count = Counter(names)
    names = [
        name if count[name] == 1 else _marked(name, server, tool)
        for name, (server, tool) in zip(names, tools, strict=True)
    ]
    seen: dict[str, tuple[str, str]] = {}
    for name, (server, tool) in zip(names, tools, strict=True):
        if name in seen:
            other = seen[name]
            raise ConfigError(
                f"two tools cannot be told apart: {other[1]!r} of {other[0] or 'the functions'!r} and {tool!r} of "
                f"{server or 'the functions'!r}; rename one of them or its server"
            )
        seen[name] = (server, tool)
    return names


def _valid(name: str, server: str, tool: str) -> str:
    fitting = _FOREIGN.sub("_", name) or "_"
    return fitting if len(fitting) <= MAX_NAME else _marked(fitting, server, tool)


def _marked(name: str, server: str, tool: str) -> str:
    mark = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[: MAX_NAME - 9]}_{mark}"
