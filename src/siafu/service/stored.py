"""The routes of files and batches, and for whom they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from siafu.apps.batches.desk import BatchDesk
from siafu.errors import Paused
from siafu.service import batches, files
from siafu.service.access import KeyRing
from siafu.service.budgets import Budgets
from siafu.service.exchange import Exchange
from siafu.service.refusals import told_of_line
from siafu.service.stored_records import BatchList, BatchObject, CreateBatch, FileDeleted, FileList, FileObject
from siafu.store.client_keys import ClientKey, KeyTerms
from siafu.swarm.results import MapError

ID = "{id}"
HELD = 2**20  # bytes of memory that such a request may take
_NOBODY = KeyTerms(name="")
Handle = Callable[[Exchange, BatchDesk, str, str], Awaitable[None]]


class Route(NamedTuple):
    """path: `{id}` stands for one segment. asks: the JSON that it takes, None = none. answers: the JSON that it gives,
    None = the bytes of a file. handle: called with the exchange, the desk, the client key's id and the path's.
    """

    method: str
    path: str
    handle: Handle
    asks: type[msgspec.Struct] | None
    answers: type[msgspec.Struct] | None


ROUTES = (
    Route("POST", "/v1/files", files.upload, None, FileObject),
    Route("GET", "/v1/files", files.list_files, None, FileList),
    Route("GET", "/v1/files/{id}", files.get_file, None, FileObject),
    Route("DELETE", "/v1/files/{id}", files.delete_file, None, FileDeleted),
    Route("GET", "/v1/files/{id}/content", files.content, None, None),
    Route("POST", "/v1/batches", batches.create, CreateBatch, BatchObject),
    Route("GET", "/v1/batches", batches.list_batches, None, BatchList),
    Route("GET", "/v1/batches/{id}", batches.get_batch, None, BatchObject),
    Route("POST", "/v1/batches/{id}/cancel", batches.cancel, None, BatchObject),
)


def find(method: str, path: str) -> tuple[Route | None, str, set[str]]:
    """The route of a request and the id in its path; and which methods the path has."""
    words, known = path.split("/"), set()
    for route in ROUTES:
        places = route.path.split("/")
        if len(words) == len(places) and all(each in (word, ID) for word, each in zip(words, places, strict=True)):
            known.add(route.method)
            if route.method == method:
                return route, words[places.index(ID)] if ID in places else "", known
    return None, "", known


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
