"""Stored files over HTTP: whole or not at all, for their owner alone, and nothing else of the disk."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from service.server import until
from siafu.apps.batches import desk
from siafu.apps.batches.shelf import Shelf
from siafu.errors import InputError
from siafu.service import exchange, files
from siafu.store.batch_records import FILE, new_id

from .front import Client, front, line, lines

B = "--b\r\n"


def form(*parts: tuple[str, bytes], end: bytes = b"--b--\r\n") -> dict[str, Any]:
    """A form as it is sent. Parts: what follows `form-data; `, and the data."""
    data = b"".join(
        f"{B}Content-Disposition: form-data; {head}\r\n\r\n".encode() + body + b"\r\n" for head, body in parts
    )
    return {"data": data + end, "headers": {"Content-Type": "multipart/form-data; boundary=b"}}


PURPOSE, DATA = ('name="purpose"', b"batch"), ('name="file"; filename="a.jsonl"', lines("a"))
WRONG: list[tuple[dict[str, Any], int, str | None]] = [
    (form(DATA), 400, "purpose"),
    (form(('name="purpose"', b"vision"), DATA), 400, "purpose"),
    (form(PURPOSE), 400, "file"),
    (form(PURPOSE, PURPOSE, DATA), 400, "purpose"),
    (form(PURPOSE, DATA, DATA), 400, "file"),
    (form(PURPOSE, ('name="file"; filename="a"', b"")), 400, None),
    (form(('name="purpose"', b"x" * 2000), DATA), 400, "purpose"),
    (form(PURPOSE, DATA, end=b""), 400, None),
    (form(PURPOSE, DATA, ('name="expires_after[seconds]"', b"x")), 400, "expires_after.seconds"),
    (form(PURPOSE, DATA, ('name="expires_after[anchor]"', b"now")), 400, "expires_after.anchor"),
    (form(PURPOSE, DATA, ('name="expires_after[anchor]"', b"created_at"), ('name="expires_after[seconds]"', b"9")),
     400, "expires_after.seconds"),
    ({"json": {"purpose": "batch"}}, 400, None),
]  # fmt: skip


def stored(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "home" / "files").iterdir())


async def test_what_is_no_file_leaves_nothing(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        for how, status, param in WRONG:
            found, told = await client.ask("POST", "/v1/files", **how)
            assert (found, told["error"]["param"]) == (status, param), how
        assert (await client.ask("GET", "/v1/files"))[1]["data"] == []
        assert stored(tmp_path) == []


async def test_a_file_may_be_larger_than_what_else_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_BODY", 1000)
    async with front(tmp_path) as client:
        assert (await client.upload(lines("a" * 5000)))[0] == 200
        assert (await client.ask("POST", "/v1/chat/completions", json={"x": "a" * 5000}))[0] == 413


async def test_sec8_no_page_of_another_site_stores_a_file(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        how = form(PURPOSE, DATA)
        for origin in ("http://evil.example", "null"):
            from_page = {**how, "headers": {**how["headers"], "Origin": origin}}
            assert (await client.ask("POST", "/v1/files", **from_page))[0] == 403
        assert stored(tmp_path) == []
        assert (await client.ask("POST", "/v1/files", **how))[0] == 200


async def test_fields_in_any_order_and_how_long_it_is_kept(tmp_path: Path) -> None:
    kept = ('name="expires_after[seconds]"', b"3600"), ('name="expires_after[anchor]"', b"created_at")
    async with front(tmp_path) as client:
        status, file = await client.ask(
            "POST", "/v1/files", **form(DATA, *kept, PURPOSE, ('name="other"', b"x" * 2000))
        )
        assert (status, file["expires_at"] - file["created_at"], file["status"]) == (200, 3600, "processed")
        assert (await client.ask("GET", f"/v1/files/{file['id']}"))[1] == file
        assert await client.ask("GET", f"/v1/files/{file['id']}/content") == (200, lines("a"))
        assert (tmp_path / "home" / "files" / file["id"]).stat().st_mode & 0o777 == 0o600


async def test_a_name_is_for_people_and_no_path(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        for name, told in (
            ("../../etc/passwd", "passwd"),
            ("C:\\a\\질문.jsonl", "질문.jsonl"),
            ("\x1b[2Ja", "[2Ja"),
            ("a" * 999, "a" * 254 + "…"),
            ("..", "file"),
        ):
            _, file = await client.ask("POST", "/v1/files", **form(PURPOSE, (f'name=file; filename="{name}"', b"x")))
            assert file["filename"] in (told, name.replace("\\", "")), name
        assert all(name.startswith("file-") for name in stored(tmp_path))


async def test_a_file_that_is_too_large_or_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "MAX_FILE", 1000)
    monkeypatch.setattr(desk, "TOGETHER", 100)
    async with front(tmp_path, key_gigabytes=1500 / 1e9) as client:
        status, told = await client.upload(b"x" * 1001)
        assert (status, told["error"]["code"]) == (413, "too_large")
        assert (await client.upload(b"x" * 1000))[0] == 200
        assert (await client.upload(b"x" * 501))[0] == 400
        other = await client.with_key()
        with monkeypatch.context() as few:
            few.setattr(desk, "MAX_FILES", 0)
            assert (await other.upload(b"x"))[0] == 400
        assert (await other.upload(b"x" * 501))[0] == 200
        monkeypatch.setattr(files, "MAX_FORM", 2000)
        padded = form(PURPOSE, DATA, end=b"--b--\r\n" + b"x" * 2000)
        assert (await other.ask("POST", "/v1/files", **padded))[0] == 413
        assert len(stored(tmp_path)) == 2
        big = {"Content-Type": "multipart/form-data; boundary=b", "Content-Length": str(10**9)}
        assert (await other.ask("POST", "/v1/files", headers=big))[0] == 413  # before anything has arrived


async def test_who_uploads_too_slowly_or_leaves_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(desk, "TOGETHER", 10)
    monkeypatch.setattr(desk, "MAX_UPLOADS", 1)
    head = f'{B}Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode() + b"x" * 1000
    async with front(tmp_path) as client:

        async def slowly() -> Any:
            yield head
            await asyncio.sleep(60)

        how: dict[str, Any] = {"headers": {"Content-Type": "multipart/form-data; boundary=b"}}
        sending = asyncio.create_task(client.ask("POST", "/v1/files", data=slowly(), **how))
        await until(lambda: len(stored(tmp_path)) == 1)
        status, told = await client.upload(lines("a"))
        assert (status, told["error"]["code"]) == (429, "backlog_full")
        assert (await sending)[0] == 408
        assert stored(tmp_path) == []
        monkeypatch.setattr(files, "IDLE_SECONDS", 60.0)
        sending = asyncio.create_task(client.ask("POST", "/v1/files", data=slowly(), **how))
        await until(lambda: len(stored(tmp_path)) == 1)
        sending.cancel()
        await until(lambda: stored(tmp_path) == [])
        assert (await client.upload(lines("a")))[0] == 200


async def test_sec2_a_file_that_came_in_under_a_key_that_was_revoked_meanwhile_is_not_kept(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        owner = await client.with_key()
        body, ring = form(PURPOSE, DATA), client.served.ring

        async def slowly() -> AsyncIterator[bytes]:
            yield body["data"][:-30]
            await until(lambda: client.desk._uploads.total() == 1)
            (key,) = await client.served.parts.keys.all()
            await client.served.parts.keys.revoke(key.id)
            await ring.refresh()
            yield body["data"][-30:]

        status, told = await owner.ask("POST", "/v1/files", data=slowly(), headers=body["headers"])
        assert (status, told["error"]["code"]) == (401, "invalid_api_key")
        assert stored(tmp_path) == []


async def test_an_upload_needs_little_memory(tmp_path: Path) -> None:
    size = 24 * 2**20

    async def data() -> Any:
        yield f'{B}Content-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'.encode()
        yield f'{B}Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
        for _ in range(size // 2**16):
            yield b"x" * 2**16
        yield b"\r\n--b--\r\n"

    async with front(tmp_path) as client:
        tracemalloc.start()
        try:
            headers = {"Content-Type": "multipart/form-data; boundary=b"}
            status, file = await client.ask("POST", "/v1/files", data=data(), headers=headers)
            async with client.session.get(f"{client.served.url}/v1/files/{file['id']}/content") as reply:
                read = 0
                async for piece in reply.content.iter_chunked(2**16):
                    read += len(piece)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (status, file["bytes"], read) == (200, size, size)
        assert most < size / 4


async def test_a_deleted_file_is_gone_and_a_batch_that_has_it_goes_on(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        file = await client.file(lines("a", "b"))
        _, batch = await client.create(file)
        assert await client.ask("DELETE", f"/v1/files/{file}") == (
            200,
            {"id": file, "object": "file", "deleted": True},
        )
        assert (await client.ended(batch["id"]))["request_counts"]["completed"] == 2
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
            assert (await client.ask(method, f"/v1/files/{file}{path}"))[0] == 404
        assert len(stored(tmp_path)) == 1  # the output
        assert (await client.create(file))[0] == 404
        assert (await client.create(batch["id"]))[0] == 404
        _, outputs = await client.ask("GET", "/v1/files")
        status, told = await client.create(outputs["data"][0]["id"])
        assert (status, told["error"]["param"]) == (400, "input_file_id")


async def test_what_is_old_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "SWEEP", 0.0)
    monkeypatch.setattr(desk, "LOOK", 0.02)
    async with front(tmp_path, keep_days=2 / 86_400) as client:
        id = await client.begun(lines("a"))
        await client.ended(id)
        async with asyncio.timeout(15):
            while (await client.ask("GET", f"/v1/batches/{id}"))[0] != 404 or stored(tmp_path):
                await asyncio.sleep(0.05)
        assert (await client.ask("GET", "/v1/files"))[1]["data"] == []
    async with front(tmp_path, keep_days=0) as client:
        assert (await client.upload(lines("a")))[1]["expires_at"] is None


async def test_sec3_a_key_sees_its_own_files_and_batches_only(tmp_path: Path) -> None:
    async with front(tmp_path) as nobody:
        before = await nobody.begun(lines("a"))
        await nobody.ended(before)
        one, two = await nobody.with_key(), await nobody.with_key()
        file = await one.file(lines("a"))
        _, batch = await one.create(file)
        ended = await one.ended(batch["id"])
        paths = [
            ("GET", f"/v1/files/{file}"),
            ("GET", f"/v1/files/{file}/content"),
            ("GET", f"/v1/files/{ended['output_file_id']}/content"),
            ("GET", f"/v1/batches/{batch['id']}"),
            ("POST", f"/v1/batches/{batch['id']}/cancel"),
            ("GET", f"/v1/batches?after={batch['id']}"),
            ("GET", f"/v1/files?after={file}"),
            ("DELETE", f"/v1/files/{file}"),
        ]
        for method, path in paths:
            status, told = await two.ask(method, path)
            assert (status, told["error"]["code"]) == (404, "not_found"), path
            assert (await nobody.ask(method, path))[0] == 401, path
            assert (await one.ask(method, path))[0] != 404, path
        assert (await two.create(file))[0] == 404
        assert [(await two.ask("GET", path))[1]["data"] for path in ("/v1/files", "/v1/batches")] == [[], []]
        assert (await one.ask("GET", f"/v1/batches/{before}"))[0] == 404


TRAVERSAL = [
    "..", ".", "../keys.db", "..%2fkeys.db", "%2e%2e%2fkeys.db", "%2e%2e/keys.db", "..%5ckeys.db", "..\\keys.db",
    "%252e%252e%252fkeys.db", "/etc/passwd", "%2fetc%2fpasswd", "file-%00", "file-..", "link", "pipe", "folder",
    "file-" + "0" * 32, "file-" + "0" * 31 + "%00", "file-" + "0" * 32 + "%0a", "FILE-" + "0" * 32, "batch_" + "0" * 32,
    "~", "*", "%ff%fe", "가", "file-" + "０" * 32, "a" * 5000,
]  # fmt: skip


async def test_sec29_no_name_opens_anything_but_a_file_of_its_owner(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with front(tmp_path) as client:
        secret = home / "keys.db"
        secret.write_text("SECRET")
        (home / "files" / "link").symlink_to(secret)
        (home / "files" / ("file-" + "0" * 32)).symlink_to(secret)
        os.mkfifo(home / "files" / "pipe")
        (home / "files" / "folder").mkdir()
        for name in TRAVERSAL:
            for prefix, suffix in (("files/", ""), ("files/", "/content"), ("batches/", ""), ("batches/", "/cancel")):
                url = URL(f"{client.served.url}/v1/{prefix}{name}{suffix}", encoded=True)
                for method in ("GET", "DELETE", "POST"):
                    async with client.session.request(method, url) as reply:
                        text = await reply.text()
                    assert reply.status in (400, 404, 405), (method, url)
                    assert "SECRET" not in text
            assert (await client.create(name))[0] in (400, 404)
        assert secret.read_text() == "SECRET"


def shelf(folder: Path, id: str, data: bytes) -> Shelf:
    """A shelf that holds one file."""
    made = Shelf(folder)
    fd = made.begin(id)
    made.write(fd, data)
    made.seal(id, fd)
    made.let_go(id, fd)
    return made


@pytest.mark.parametrize("what", ["link", "pipe", "folder", "device", "nothing"])
def test_sec29_what_stands_in_the_place_of_a_file_is_not_opened(tmp_path: Path, what: str) -> None:
    id = new_id(FILE)
    found = shelf(tmp_path, id, b"mine")
    fd = found.open(id)
    assert os.read(fd, 100) == b"mine"  # the positive control
    os.close(fd)
    path = tmp_path / "files" / id
    path.unlink()
    if what == "link":
        path.symlink_to(tmp_path / "other")
        (tmp_path / "other").write_text("SECRET")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "device":
        path.symlink_to("/dev/zero")
    for open_it in (lambda: found.open(id), lambda: found.lay_out("batch_" + "0" * 32, id)):
        with pytest.raises(InputError):
            open_it()
    found.close()


def test_sec29_a_link_that_comes_and_goes_is_never_followed(tmp_path: Path) -> None:
    id = new_id(FILE)
    found = shelf(tmp_path, id, b"mine")
    (tmp_path / "other").write_text("SECRET")
    path, link, mine = tmp_path / "files" / id, tmp_path / "link", tmp_path / "mine"
    ending = threading.Event()

    def swap() -> None:
        while not ending.is_set():
            link.symlink_to(tmp_path / "other")
            link.replace(path)
            mine.write_text("mine")
            mine.replace(path)

    swapping = threading.Thread(target=swap)
    swapping.start()
    read, refused, until = list[bytes](), 0, time.monotonic() + 30
    try:
        while min(len(read), refused) < 50 and time.monotonic() < until:
            time.sleep(0)  # let the other thread have its turn
            try:
                fd = found.open(id)
            except InputError:
                refused += 1
                continue
            read.append(os.read(fd, 100))
            os.close(fd)
    finally:
        ending.set()
        swapping.join()
    assert set(read) == {b"mine"} and refused  # it was met in both states
    found.close()


def test_what_belongs_to_nothing_is_swept_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    kept, gone, half = (new_id(FILE) for _ in range(3))
    found = shelf(tmp_path, kept, b"x")
    shelf(tmp_path, gone, b"x").close()
    found.let_go("file-" + "1" * 32, found.begin("file-" + "1" * 32))
    os.close(found.begin(half))
    (tmp_path / "files" / "note.txt").write_text("a person's")
    found.lay_out("batch_" + "0" * 32, kept)
    found.lay_out("batch_" + "1" * 32, kept)
    found.sweep({kept}, {"batch_" + "1" * 32})
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == sorted([kept, "note.txt"])
    assert [path.name for path in (tmp_path / "batches").iterdir()] == ["batch_" + "1" * 32]
    found.close()


async def test_a_download_that_breaks_is_never_taken_for_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with front(tmp_path) as client:
        file = await client.file(line("a", "x" * 3_000_000))
        calls = 0

        def read(fd: int, size: int) -> bytes:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise OSError(5, "Input/output error")
            return b"x" * size

        monkeypatch.setattr(os, "read", read)
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.ask("GET", f"/v1/files/{file}/content")


async def test_without_them_there_are_no_such_paths(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        for method, path, status in (
            ("PUT", "/v1/files", 405),
            ("PATCH", f"/v1/files/{new_id(FILE)}", 405),
            ("GET", "/v1/files/a/b/c", 404),
            ("GET", "/v1/batch", 404),
        ):
            found, told = await client.ask(method, path)
            assert (found, told["error"]["type"]) == (status, "invalid_request_error")
        wrong = Client(client.served, client.desk, client.session, "sk-siafu-wrong")
        await client.with_key()
        assert (await wrong.ask("GET", "/v1/files"))[0] == 401
