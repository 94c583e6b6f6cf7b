"""Errors that a task has seen, written to its journal and raised again when it runs again.

Without them a task that went on after a failed call would, after a crash, make that call anew, get another outcome,
and so ask every later question differently: answers that were already paid for would no longer fit.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from siafu.border.canonical import dumps
from siafu.errors import (
    AccessRefused,
    BudgetReached,
    ModelError,
    Outage,
    Paused,
    QuotaExhausted,
    SiafuError,
    ToolArgumentsInvalid,
    ToolDenied,
    ToolFault,
    UnpricedModel,
    Unreachable,
)

# Say nothing about the task: every other would meet them too. They are never journaled, so that the task goes on
# where it stopped once there is money, a key, a price or an upstream that answers.
PAUSING = (BudgetReached, QuotaExhausted, AccessRefused, UnpricedModel, Outage, Paused)
# Raised before anything was sent, so the effect cannot have happened.
NOT_SENT = (ToolDenied, ToolArgumentsInvalid)


def unasked(error: BaseException | None) -> bool:
    """Whether no model was asked, as none can be reached now: that says nothing about the task."""
    if not isinstance(error, ModelError):
        return False
    return error.retryable and (isinstance(error, Unreachable) or not error.attempts)


class _Frozen(msgspec.Struct):
    code: str
    message: str
    fields: dict[str, str | int | float | bool | None]
    effect_key: str = ""


def freeze(error: SiafuError, effect_key: str = "") -> bytes:
    """`error` as JSON: its code, message and plain attributes. `effect_key`: of the call that ended with it."""
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}
    return dumps(_Frozen(error.code, error.message, fields, effect_key))


def thaw(data: bytes) -> SiafuError:
    """The error that `freeze` wrote, of the same class; a SiafuError when this version no longer knows its code."""
    frozen = msgspec.json.decode(data, type=_Frozen)
    kind = _KINDS.get(frozen.code, SiafuError)
    error = kind.__new__(kind)
    error.args = (frozen.message,)
    vars(error).update(frozen.fields)
    return error


def _tree(kind: type[SiafuError]) -> Iterator[type[SiafuError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


_KINDS = {kind.code: kind for base in (ModelError, ToolFault) for kind in _tree(base)}
