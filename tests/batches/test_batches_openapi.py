"""What `/openapi.json` says of files and batches is true."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.test_openapi import STORED, only, wrong
from siafu.service import access
from siafu.service.openapi import document

from .front import front, lines


async def test_the_document_and_the_server_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "WRONG_KEYS_AT_ONCE", 1000)  # it asks without a key, too
    told = document()
    described = only(told, *(path for path in told["paths"] if path.startswith(STORED)))
    assert sum(map(len, described["paths"].values())) == 9
    async with front(tmp_path) as nobody:
        client = await nobody.with_key()
        await client.ended(await client.begun(lines("a")))
        asked, found = 0, dict[str, str]()
        for phase in ("fuzzing", "coverage"):
            more, differ = await asyncio.to_thread(wrong, described, client.served.url, client.headers, phase)
            asked, found = asked + more, found | differ
    assert found == {}
    assert asked > 100
