"""How much a tool may answer and how long it may take."""

from __future__ import annotations

from siafu.border.text import clean
from siafu.errors import ToolTimeout
from siafu.observe.calls import CallContext
from siafu.pace.clock import Clock

MAX_RESULT_BYTES = 256 * 1024


def fitted(text: str) -> str:
    """`text` without lone surrogates and NUL, and cut to 256 KiB of UTF-8 with a note that says so."""
    text = clean(text)
    if len(text) * 4 <= MAX_RESULT_BYTES:
        return text
    data = text.encode()
    if len(data) <= MAX_RESULT_BYTES:
        return text
    head = data[:MAX_RESULT_BYTES].decode("utf-8", "ignore")
    return f"{head}\n[cut here: the result has {len(data):,} bytes, the limit is {MAX_RESULT_BYTES:,}]"


def seconds_left(tool: str, context: CallContext, clock: Clock) -> float | None:
    """Seconds until the caller's deadline; None = there is none.

    Raises: ToolTimeout when it has passed, so that nothing is sent.
    """
    if context.deadline is None:
        return None
    left = context.deadline - clock.now()
    if left <= 0:
        raise ToolTimeout(f"{tool} was not called, as the deadline had passed", tool=tool)
    return left
