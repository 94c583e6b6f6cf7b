"""Files that clients stored and batches that they asked for, as records; the states of a batch. Pure.

Times are whole seconds since 1970. owner: the id of the client key that asked, "" = nobody needs one.
"""

from __future__ import annotations

import uuid
from typing import Literal

import msgspec

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
Purpose = Literal["batch", "batch_output"]
OPEN: frozenset[Status] = frozenset({"validating", "in_progress", "finalizing", "cancelling"})
FILE, BATCH = "file-", "batch_"
SHOWN_ERRORS = 100


def new_id(prefix: str) -> str:
    """A name that nobody guesses, of letters that are safe everywhere."""
    return prefix + uuid.uuid4().hex


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """name: as the client called it, for people. expires_at: None = never."""

    id: str
    owner: str
    name: str
    purpose: Purpose
    bytes: int
    created_at: int
    expires_at: int | None = None


class BatchFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch failed. line: of its input, None = it is about all of it."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """output_seconds: how long its output is kept, None = as every file. faults: at most 100. total, completed, failed:
    lines; total is 0 until they were looked at.
    """

    id: str
    owner: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: Status = "validating"
    metadata: dict[str, str] | None = None
    output_seconds: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    faults: tuple[BatchFault, ...] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None

    def moved(self, to: Status, now: float) -> Batch:
        """The batch in another state, since `now`."""
        return msgspec.structs.replace(self, status=to, **{f"{to}_at": int(now)})
