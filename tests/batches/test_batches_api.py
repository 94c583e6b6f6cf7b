"""Batches over HTTP: what a client asks for, what it is told, and how a batch ends."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from service.server import until
from siafu.apps.batches import asking, desk, life
from siafu.apps.batches.shelf import Shelf
from siafu.errors import (
    AccessRefused,
    BudgetReached,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    SiafuError,
    StoreError,
    UnpricedModel,
    Unreachable,
    UpstreamFault,
)
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import PlainReply, Reply, ReplyHead
from siafu.gateway.scripted import Answer, Scripted, say
from siafu.observe.calls import CallContext
from siafu.service.refusals import Refused
from siafu.service.shapes import read_body
from siafu.service.stored_records import CreateBatch
from siafu.store.batch_records import BATCH, Batch, new_id

from .front import Client, echo, front, line, lines


async def test_a_batch_from_its_upload_to_its_output(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        status, file = await client.upload(lines("가", "나", "다"))
        assert (status, file["object"], file["purpose"], file["filename"]) == (200, "file", "batch", "질문.jsonl")
        assert file["bytes"] == len(lines("가", "나", "다"))
        assert file["expires_at"] == file["created_at"] + 30 * 86_400
        status, batch = await client.create(file["id"], metadata={"이름": "첫째"})
        assert (status, batch["status"], batch["object"]) == (200, "validating", "batch")
        batch = await client.ended(batch["id"])
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert batch["error_file_id"] is None and batch["errors"] is None
        assert batch["metadata"] == {"이름": "첫째"}
        times = [batch[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed")]
        assert times == sorted(times)
        found = await client.content(batch["output_file_id"])
        texts = {each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in found}
        assert texts == {"가": "답 가", "나": "답 나", "다": "답 다"}
        assert {each["response"]["status_code"] for each in found} == {200}
        await until(lambda: not list((tmp_path / "home" / "batches").iterdir()))


class Gate:
    """An endpoint whose answers wait for `go`. `asked`: the texts that came in, `given_up`: calls that were."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked: list[str] = []
        self.contexts: list[CallContext] = []
        self.at_once = self.most = self.given_up = 0

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        self.asked.append(str(request.messages[-1]["content"]))
        self.contexts.append(context)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        finally:
            self.at_once -= 1
        return PlainReply(say(f"답 {self.asked[-1]}"), ReplyHead(upstream="behind"))


async def stopped(client: Client, gate: Gate) -> None:
    """Stop the server while lines are in flight, which get their answers then."""
    client.served.stops.asked.set()
    await asyncio.sleep(0)
    gate.go.set()
    assert client.served.ended is not None
    await client.served.ended


SURROGATE = rb'{"custom_id":"\ud83d","body":{"model":"m","messages":[{"role":"user","content":"\ud83d"}]}}'
GOOD = {
    "BOM, CRLF, blank lines, no end": (
        b"\xef\xbb\xbf" + lines("a", "b").replace(b"\n", b"\r\n") + b"\r\n   \r\n" + line("c").strip(),
        ["a", "b", "c"],
    ),
    "line separators within": (line("a", "한\u2028글\u2029\x85"), ["a"]),
    "half a pair of surrogates": (SURROGATE, ["\ufffd"]),
    "a line of 1 MB": (line("a", "가" * 350_000), ["a"]),
}
BAD = {
    "not JSON": (lines("a") + b'{"custom_id": \n' + lines("b"), [("invalid_json_line", 2)]),
    "not UTF-8": (lines("a") + line("b").replace(b"user", b"us\xff"), [("invalid_json_line", 2)]),
    "one id twice": (lines("a", "b", "a", "b"), [("duplicate_custom_id", 3), ("duplicate_custom_id", 4)]),
    "no id": (lines("a") + b'{"body":{}}\n', [("invalid_request", 2)]),
    "another address": (line("a", url="/v1/embeddings"), [("invalid_request", 1)]),
    "another method": (line("a", method="GET"), [("invalid_request", 1)]),
    "no messages": (line("a", body={"model": "m", "messages": []}), [("invalid_request", 1)]),
    "no model": (line("a", body={"messages": [{"role": "user", "content": "x"}]}), [("invalid_request", 1)]),
    "a swarm": (line("a").replace(b'"m"', b'"siafu/support"'), [("invalid_request", 1)]),
    "blank": (b"\n \n", [("empty_file", None)]),
    "too many": (b"{}\n" * 50_001, [("too_many_lines", None)]),
    "too many blank": (b"\n" * 100_001, [("too_many_lines", None)]),
    "many bad": (b"{}\n" * 200, [("invalid_request", number) for number in range(1, 101)]),
}


async def test_f46_f48_odd_lines_that_can_be_used(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        for name, (data, ids) in GOOD.items():
            batch = await client.ended(await client.begun(data))
            assert (name, batch["status"], batch["errors"]) == (name, "completed", None)
            assert sorted(each["custom_id"] for each in await client.content(batch["output_file_id"])) == ids


async def test_f47_a_file_with_a_line_that_cannot_be_used_is_not_run(tmp_path: Path) -> None:
    endpoint = Scripted(echo)
    async with front(tmp_path, endpoint) as client:
        for name, (data, errors) in BAD.items():
            batch = await client.ended(await client.begun(data))
            assert (name, batch["status"], batch["output_file_id"]) == (name, "failed", None)
            assert (name, [(each["code"], each["line"]) for each in batch["errors"]["data"]]) == (name, errors)
            assert batch["failed_at"] and not batch["in_progress_at"]
        await until(lambda: not list((tmp_path / "home" / "batches").iterdir()))
    assert not endpoint.requests


async def test_a_line_that_fails_is_in_the_error_file_and_nothing_of_where_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "AWAY", 0.01)
    faults = 0

    def behind(request: ChatRequest, context: CallContext) -> Answer:
        nonlocal faults
        text = request.messages[-1]["content"]
        if text == "fault":
            faults += 1
            return UpstreamFault("http://10.0.0.7:9000 with sk-secret broke")
        return RequestRefused("no such model", status=404) if text == "refused" else "네"

    async with front(tmp_path, Scripted(behind)) as client:
        batch = await client.ended(await client.begun(lines("good", "fault", "refused")))
        assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 3, "completed": 1, "failed": 2})
        found = {each["custom_id"]: each for each in await client.content(batch["error_file_id"])}
        assert {id: each["error"]["code"] for id, each in found.items()} == {
            "fault": "upstream_fault",
            "refused": "request_refused",
        }
        assert "no such model" in found["refused"]["error"]["message"]
        assert "10.0.0.7" not in str(found) and "sk-secret" not in str(found)
        assert [each["custom_id"] for each in await client.content(batch["output_file_id"])] == ["good"]
    assert faults == 3


@pytest.mark.parametrize("patient", [True, False])
async def test_cancelled_once_what_was_under_way_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    if not patient:
        monkeypatch.setattr(life, "WIND_DOWN", 0.05)
    gate = Gate()
    async with front(tmp_path, gate, limits={"concurrency": 3}) as client:
        id = await client.begun(lines(*map(str, range(20))))
        await until(lambda: gate.at_once == 3)
        status, batch = await client.ask("POST", f"/v1/batches/{id}/cancel")
        assert (status, batch["status"]) == (200, "cancelling")
        assert (await client.ask("POST", f"/v1/batches/{id}/cancel"))[0] == 200
        if patient:
            assert gate.at_once == 3 and (await client.batch(id))["status"] == "cancelling"
            gate.go.set()
        batch = await client.ended(id)
        assert (batch["status"], len(gate.asked), gate.at_once) == ("cancelled", 3, 0)
        done = 3 if patient else 0
        assert gate.given_up == 3 - done
        assert batch["request_counts"] == {"total": 20, "completed": done, "failed": 0}
        assert len(await client.content(batch["output_file_id"])) == done
        assert batch["cancelled_at"] >= batch["cancelling_at"]
        assert (await client.ask("POST", f"/v1/batches/{id}/cancel"))[1]["status"] == "cancelled"


async def test_what_has_ended_cannot_be_cancelled(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        id = await client.begun(lines("a"))
        await client.ended(id)
        status, told = await client.ask("POST", f"/v1/batches/{id}/cancel")
        assert (status, told["error"]["code"]) == (409, "batch_ended")


async def test_when_its_window_ends_what_is_done_is_there_and_the_rest_says_so(tmp_path: Path) -> None:
    gate = Gate()
    async with front(tmp_path, gate, limits={"concurrency": 2}) as client:
        file = await client.file(lines(*map(str, range(5))))
        now = int(time.time())
        batch = Batch(
            id=new_id(BATCH), owner="", input_file_id=file, completion_window="1h", created_at=now, expires_at=now + 1
        )
        await client.desk.create(batch, None)
        await until(lambda: gate.at_once == 2)
        await until(lambda: time.time() > now + 2.2)  # it looks once a second
        gate.go.set()
        ended = await client.ended(batch.id)
        assert (ended["status"], len(gate.asked)) == ("expired", 2)
        assert ended["request_counts"] == {"total": 5, "completed": 2, "failed": 3}
        assert len(await client.content(ended["output_file_id"])) == 2
        codes = [each["error"]["code"] for each in await client.content(ended["error_file_id"])]
        assert codes == ["batch_expired"] * 3


async def test_what_keeps_a_batch_from_going_on_is_told_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "REST", 0.02)
    monkeypatch.setattr(asking, "AWAY", 0.02)
    wrong: list[SiafuError] = []

    def behind(request: ChatRequest, context: CallContext) -> Answer:
        return wrong[0] if wrong else "네"

    async with front(tmp_path, Scripted(behind)) as client:
        for error, code in (
            (BudgetReached("the budget of 1 USD is reached"), "budget_reached"),
            (QuotaExhausted("no credit"), "insufficient_quota"),
            (AccessRefused("the key sk-x at http://10.0.0.7"), "access_refused"),
            (Unreachable("http://10.0.0.7 refused"), "unreachable"),
            (RateLimited("slow down", wait=0.02), "rate_limit_exceeded"),
            (UpstreamFault("http://10.0.0.7 is left alone", status=503, attempts=0), "upstream_fault"),
            (StoreError("/home/of/somebody/serve.db is full"), "store"),
        ):
            wrong[:] = [error]
            id = await client.begun(lines("a", "b"))
            async with asyncio.timeout(10):
                while "waits_for" not in (batch := await client.batch(id))["siafu"]:
                    await asyncio.sleep(0.01)
            assert (batch["status"], batch["siafu"]["waits_for"]["code"]) == ("in_progress", code)
            assert "10.0.0.7" not in str(batch) and "somebody" not in str(batch)
            wrong.clear()
            batch = await client.ended(id)
            assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
            assert batch["siafu"] == {"simulated": True}


async def test_a_model_without_a_price_under_a_budget_fails_its_line_only(tmp_path: Path) -> None:
    def behind(request: ChatRequest, context: CallContext) -> Answer:
        return UnpricedModel("no price", attempts=0) if request.messages[-1]["content"] == "b" else "네"

    async with front(tmp_path, Scripted(behind)) as client:
        batch = await client.ended(await client.begun(lines("a", "b", "c")))
        assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}


async def test_a_full_disk_stops_uploads_and_batches_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "REST", 0.02)
    async with front(tmp_path) as client:
        file = await client.file(lines("a", "b"))
        room = Shelf.room
        monkeypatch.setattr(Shelf, "room", lambda self: -1)
        status, told = await client.upload(lines("c"))
        assert (status, told["error"]["code"], told["error"]["type"]) == (507, "disk_full", "server_error")
        _, batch = await client.create(file)
        async with asyncio.timeout(10):
            while "waits_for" not in (batch := await client.batch(batch["id"]))["siafu"]:
                await asyncio.sleep(0.01)
        assert batch["siafu"]["waits_for"]["code"] == "disk_full"
        monkeypatch.setattr(Shelf, "room", room)
        assert (await client.ended(batch["id"]))["request_counts"]["completed"] == 2
        with monkeypatch.context() as full:
            full.setattr(os, "write", _no_space)
            assert (await client.upload(lines("c")))[0] == 507
        names = sorted(path.name for path in (tmp_path / "home" / "files").iterdir())
        assert len(names) == 2 and not any(name.endswith(".part") for name in names)


def _no_space(fd: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_batch_keeps_the_terms_of_its_key(tmp_path: Path) -> None:
    gate = Gate()
    async with front(tmp_path, gate) as plain:
        terms = {"models": ("m",), "concurrency": 2, "day_pico": 10**12, "tenant": "seoul", "customer": "kim"}
        client = await plain.with_key(**terms)
        first, second = [await client.begun(lines(*"abc")) for _ in range(2)]
        await until(lambda: gate.at_once == 2)
        gate.go.set()
        assert {(await client.ended(id))["status"] for id in (first, second)} == {"completed"}
        assert (gate.most, len(gate.asked)) == (2, 6)
        key = gate.contexts[0].agent
        assert key.startswith("key_")
        assert {context.task for context in gate.contexts} == {
            f"{key}/{id}/{name}" for id in (first, second) for name in "abc"
        }
        assert {(c.priority, c.tenant, c.user, c.run[: len(key)]) for c in gate.contexts} == {(3, "seoul", "kim", key)}
        refused = await client.ended(await client.begun(line("a").replace(b'"m"', b'"other"')))
        assert (refused["status"], refused["errors"]["data"][0]["line"]) == ("failed", 1)


async def test_requests_a_minute_of_a_key_are_kept(tmp_path: Path) -> None:
    endpoint = Scripted(echo)
    async with front(tmp_path, endpoint) as plain:
        client = await plain.with_key(rpm=1200)  # one each 50 ms
        began = time.monotonic()
        await client.ended(await client.begun(lines(*"abcde")))
        assert time.monotonic() - began >= 4 * 0.05


async def test_a_revoked_key_spends_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "REST", 0.02)
    gate = Gate()
    async with front(tmp_path, gate, limits={"concurrency": 1}) as plain:
        client = await plain.with_key()
        id = await client.begun(lines(*"abc"))
        await until(lambda: gate.at_once == 1)
        owner = gate.contexts[0].agent
        await client.served.parts.keys.revoke(owner)
        await client.served.ring.refresh()
        gate.go.set()
        async with asyncio.timeout(10):
            while (batch := await client.desk.batch(id, owner)).status != "failed":
                await asyncio.sleep(0.01)
        assert (batch.faults[0].code, batch.completed, len(gate.asked)) == ("invalid_api_key", 1, 1)


async def test_asked_for_again_under_an_idempotency_key_it_is_the_same_batch(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        file = await client.file(lines("a"))
        asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        made = [
            (await client.ask("POST", "/v1/batches", json=asked, headers={"Idempotency-Key": "하나".encode().hex()}))[1]
            for _ in range(2)
        ]
        assert made[0]["id"] == made[1]["id"] != (await client.create(file))[1]["id"]
        await client.ask("DELETE", f"/v1/files/{file}")  # after which it is the same batch still
        for word, status in (("하나".encode().hex(), 200), ("another", 404), ("x" * 256, 400)):
            told = await client.ask("POST", "/v1/batches", json=asked, headers={"Idempotency-Key": word})
            assert told[0] == status
            assert status != 200 or told[1]["id"] == made[0]["id"]
        async with asyncio.timeout(10):
            while list((tmp_path / "home" / "batches").iterdir()):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1w"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"metadata": {"a" * 65: ""}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor"),
    ],
)
def test_what_a_batch_cannot_be(more: dict[str, Any], param: str) -> None:
    asked = {"input_file_id": "f", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    read_body(json.dumps(asked).encode(), CreateBatch)
    with pytest.raises(Refused) as caught:
        read_body(json.dumps(asked | more).encode(), CreateBatch)
    assert (caught.value.status, caught.value.param) == (400, param)


async def test_pages_of_batches_and_files(tmp_path: Path) -> None:
    async with front(tmp_path) as client:
        file = await client.file(lines("a"))
        made = [(await client.ended((await client.create(file))[1]["id"]))["id"] for _ in range(5)]
        pages: list[Any] = []
        while not pages or pages[-1]["has_more"]:
            after = f"&after={pages[-1]['last_id']}" if pages else ""
            pages.append((await client.ask("GET", f"/v1/batches?limit=2{after}"))[1])
        assert [each["id"] for page in pages for each in page["data"]] == made[::-1]
        assert (pages[0]["object"], pages[0]["first_id"]) == ("list", made[-1])
        _, outputs = await client.ask("GET", "/v1/files?purpose=batch_output&order=asc")
        assert [each["id"] for each in outputs["data"]] == [(await client.batch(id))["output_file_id"] for id in made]
        assert [each["filename"] for each in outputs["data"]] == [f"{id}_output.jsonl" for id in made]
        assert (await client.ask("GET", "/v1/files?limit=1"))[1]["has_more"]
        assert (await client.ask("GET", "/v1/files?purpose=vision"))[1]["data"] == []
        for wrong in ("limit=0", "limit=101", "limit=x", "after=batch_" + "0" * 32):
            assert (await client.ask("GET", f"/v1/batches?{wrong}"))[0] in (400, 404)
        assert (await client.ask("GET", "/v1/files?order=up"))[0] == 400


async def test_batches_of_an_owner_that_have_not_ended_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "MAX_OPEN", 2)
    gate = Gate()
    async with front(tmp_path, gate, at_once=1) as client:
        file = await client.file(lines("a"))
        first, _ = [(await client.create(file))[1]["id"] for _ in range(2)]
        status, told = await client.create(file)
        assert (status, told["error"]["code"]) == (429, "backlog_full")
        await until(lambda: gate.at_once == 1)
        assert gate.most == 1 and (await client.batch(first))["status"] == "in_progress"
        gate.go.set()
        await client.ended(first)
        assert (await client.create(file))[0] == 200


async def test_a_server_that_is_stopped_lets_lines_end_and_the_next_one_asks_none_again(tmp_path: Path) -> None:
    gate = Gate()
    async with front(tmp_path, gate, limits={"concurrency": 3}) as client:
        id = await client.begun(lines(*map(str, range(9))))
        await until(lambda: gate.at_once == 3)
        await stopped(client, gate)
    assert (len(gate.asked), gate.given_up) == (3, 0)
    async with front(tmp_path, gate) as client:
        batch = await client.ended(id)
        assert batch["request_counts"] == {"total": 9, "completed": 9, "failed": 0}
    assert sorted(gate.asked) == sorted(map(str, range(9)))


async def test_an_input_that_another_program_changed_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "REST", 0.02)
    gate = Gate()
    async with front(tmp_path, gate, limits={"concurrency": 1}) as client:
        id = await client.begun(lines("a", "b"))
        await until(lambda: gate.at_once == 1)
        await stopped(client, gate)
    (changed,) = (tmp_path / "home" / "batches" / id).glob("input.jsonl")
    changed.write_bytes(line("a", "other") + line("b"))
    async with front(tmp_path, gate) as client:
        batch = await client.ended(id)
    assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "files_changed")
    assert str(tmp_path) not in str(batch) and gate.asked == ["a"]
    assert batch["output_file_id"] and batch["request_counts"]["completed"] == 1
