"""What `/v1/files` and `/v1/batches` take and answer, in OpenAI's words. Times are seconds since 1970."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from siafu.apps.batch import URL
from siafu.store.batch_records import Batch, Purpose, Status, StoredFile

FileId = Annotated[str, Meta(pattern="^file-[0-9a-f]{32}$")]
BatchId = Annotated[str, Meta(pattern="^batch_[0-9a-f]{32}$")]
Kept = Annotated[int, Meta(ge=3600, le=30 * 86_400)]  # seconds that a client may have a file kept
_WINDOW = "^([1-9]|[1-9][0-9]|[1-6][0-9]{2}|7[01][0-9]|720)h$|^([1-9]|[12][0-9]|30)d$"
_Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class UploadForm(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"anchor": "expires_after[anchor]", "seconds": "expires_after[seconds]"},
):
    """file: of at most 200 MiB. seconds: how long it is kept, from when it was made; else as the server says."""

    file: Annotated[str, Meta(min_length=1, extra_json_schema={"contentMediaType": "application/octet-stream"})]
    purpose: Literal["batch"]
    anchor: Literal["created_at"] = "created_at"
    seconds: Kept | UnsetType = UNSET


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True):
    """anchor: when the file was made."""

    anchor: Literal["created_at"]
    seconds: Kept


class CreateBatch(msgspec.Struct, frozen=True, kw_only=True):
    """completion_window: `24h`, or other whole hours or days from `1h` to `30d`; what is not done by then has the error
    `batch_expired`.
    """

    input_file_id: str
    endpoint: Literal["/v1/chat/completions"]
    completion_window: Annotated[str, Meta(pattern=_WINDOW)]
    metadata: _Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class FilesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """after: the id of the last file of the page before."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    after: str = ""
    order: Literal["asc", "desc"] = "desc"
    purpose: str = ""


class BatchesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """after: the id of the last batch of the page before."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    after: str = ""


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: Purpose
    expires_at: int | None
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"
    status_details: str | None = None


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class FileDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    deleted: bool = True
    object: Literal["file"] = "file"


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    """line: of the input file, from 1; None = it is about all of it."""

    code: str
    message: str
    line: int | None
    param: str | None


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    data: list[BatchError]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """total: 0 until the lines were looked at."""

    total: int
    completed: int
    failed: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """siafu: beyond OpenAI's fields, `waits_for` (code and message) while something keeps the batch from going on, and
    `simulated` when rules answer instead of a model.
    """

    id: str
    input_file_id: str
    completion_window: str
    status: Status
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    output_file_id: str | None
    error_file_id: str | None
    errors: BatchErrors | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None
    object: Literal["batch"] = "batch"
    endpoint: str = URL
    siafu: dict[str, Any] | UnsetType = UNSET


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


_SAME = tuple(name for name in BatchObject.__struct_fields__ if name in Batch.__struct_fields__)


def file_object(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.bytes,
        created_at=file.created_at,
        filename=file.name,
        purpose=file.purpose,
        expires_at=file.expires_at,
    )


def batch_object(batch: Batch, rests: tuple[str, str] | None, *, simulated: bool) -> BatchObject:
    """rests: code and message of what keeps it from going on."""
    errors = [BatchError(**msgspec.structs.asdict(fault)) for fault in batch.faults]
    own: dict[str, Any] = {"simulated": True} if simulated else {}
    if rests is not None:
        own["waits_for"] = {"code": rests[0], "message": rests[1]}
    return BatchObject(
        **{name: getattr(batch, name) for name in _SAME},
        errors=BatchErrors(data=errors) if errors else None,
        request_counts=RequestCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
        siafu=own or UNSET,
    )
