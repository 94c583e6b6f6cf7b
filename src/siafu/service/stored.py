"""The routes of files and batches, and for whom they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from siafu.apps.batches.desk import BatchDesk
from siafu.errors import Paused
from siafu.service import batches, files
from siafu.service import stored_records as shapes
from siafu.service.access import KeyRing
from siafu.service.budgets import Budgets
from siafu.service.exchange import Exchange
from siafu.service.refusals import told_of_line
from siafu.service.route import Route
from siafu.service.shapes import MAX_ONCE, word
from siafu.store.client_keys import ClientKey, KeyTerms
from siafu.swarm.results import MapError

HELD = 2**20  # bytes of memory that such a request may take
FILES, BATCHES = "/v1/files", "/v1/batches"
ONE_FILE, ONE_BATCH = FILES + "/{id}", BATCHES + "/{id}"
_NOBODY = KeyTerms(name="")
_ONCE = word("Names the batch: asked for again under the same key it is the same", max_length=MAX_ONCE)
ROUTES = (
    Route(
        method="POST", path=FILES, name="createFile", summary="Store a file", form=shapes.UploadForm,
        says={200: shapes.FileObject},
    ),
    Route(
        method="GET", path=FILES, name="listFiles", summary="List files", query=shapes.FilesQuery,
        says={200: shapes.FileList},
    ),
    Route(
        method="GET", path=ONE_FILE, name="retrieveFile", summary="Look at a file", id=shapes.FileId,
        says={200: shapes.FileObject},
    ),
    Route(
        method="DELETE", path=ONE_FILE, name="deleteFile", summary="Delete a file", id=shapes.FileId,
        says={200: shapes.FileDeleted},
    ),
    Route(
        method="GET", path=ONE_FILE + "/content", name="downloadFile", summary="The bytes of a file", id=shapes.FileId,
        says={200: bytes},
    ),
    Route(
        method="POST", path=BATCHES, name="createBatch", summary="Have the lines of a file asked",
        body=shapes.CreateBatch, headers={"idempotency-key": _ONCE}, says={200: shapes.BatchObject},
    ),
    Route(
        method="GET", path=BATCHES, name="listBatches", summary="List batches", query=shapes.BatchesQuery,
        says={200: shapes.BatchList},
    ),
    Route(
        method="GET", path=ONE_BATCH, name="retrieveBatch", summary="Look at a batch", id=shapes.BatchId,
        says={200: shapes.BatchObject},
    ),
    Route(
        method="POST", path=ONE_BATCH + "/cancel", name="cancelBatch", summary="Cancel a batch", id=shapes.BatchId,
        says={200: shapes.BatchObject},
    ),
)  # fmt: skip
# by the name of the route; called with the exchange, the desk, the client key's id and that in the path
HANDLES: Mapping[str, Callable[[Exchange, BatchDesk, str, str], Awaitable[None]]] = {
    "createFile": files.upload,
    "listFiles": files.list_files,
    "retrieveFile": files.get_file,
    "deleteFile": files.delete_file,
    "downloadFile": files.content,
    "createBatch": batches.create,
    "listBatches": batches.list_batches,
    "retrieveBatch": batches.get_batch,
    "cancelBatch": batches.cancel,
}


class Keys:
    """Client keys as those for whom batches are run (`Patrons`)."""

    def __init__(self, ring: KeyRing, budgets: Budgets) -> None:
        self._ring = ring
        self._budgets = budgets

    def terms(self, owner: str, /) -> KeyTerms | None:
        key = self._key(owner)
        return _NOBODY if not owner else None if key is None else key.terms

    async def account(self, owner: str, /) -> str:
        key = self._key(owner)
        if owner and key is None:
            raise Paused("the client key is good no more")
        return await self._budgets.account(key)

    def tell(self, code: str, message: str, /) -> MapError:
        return MapError(*told_of_line(code, message))

    def _key(self, owner: str) -> ClientKey | None:
        return self._ring.known(owner) if owner else None
