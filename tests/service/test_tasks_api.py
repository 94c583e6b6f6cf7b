"""Tasks over HTTP: accepted for good, named once, seen by nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from siafu.border.identity import mint
from siafu.errors import StoreError
from siafu.service.swarms import AUDIENCE
from siafu.store.database import Database
from siafu.store.task_desk import TaskDesk, Which
from siafu.store.task_schema import MIGRATIONS
from siafu.store.workers import Standing

from .server import server
from .task_kit import EVENTS, IDENTITY, TASKS, asked, tasked


async def test_what_was_accepted_is_on_disk_and_goes_its_way(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key(tenant="t")
        told = await at.submit(auth, "r1", run="월요일", priority=1, deadline_seconds=60)
        other = await asyncio.to_thread(Database, tmp_path / "일감.db", MIGRATIONS, what="x", schema="tasks")
        (task,) = await TaskDesk(other).find(Which(), limit=5)
        await other.aclose()
        assert (task.id, task.state, task.tenant, task.customer) == (told["id"], "ready", "t", "kim")
        request = json.loads(task.payload)
        assert (request["id"], request["customer"], request["text"]) == ("r1", "kim", "주문 1001 어디 있나요?")
        assert (told["object"], told["name"], told["run"], told["priority"]) == ("swarm.task", "r1", "월요일", 1)
        assert told["deadline_at"] == pytest.approx(told["created_at"] + 60)
        assert (told["state"], told["result"], told["error"], told["ended_at"]) == ("ready", None, None, None)
        await at.end()
        status, _, seen = await at.ask(f"{TASKS}/{told['id']}", **auth)
        assert (status, seen["state"], seen["result"]) == (200, "succeeded", {"answer": "됐어요"})
        _, _, page = await at.ask(TASKS, **auth)
        assert [each["state"] for each in page["data"]] == ["succeeded"]
        assert page["data"][0]["result"] is None  # in lists never
        assert (page["object"], page["has_more"]) == ("list", False)


async def test_an_id_or_a_header_makes_it_one_task(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key()
        once = {**auth, "Idempotency-Key": "열쇠-7".encode().decode("latin-1")}
        first = await at.submit(auth, "r1")
        assert (await at.submit(auth, "r1"))["id"] == first["id"]
        assert (await at.submit(auth, "r1", run="other"))["id"] != first["id"]
        status, headers, told = await at.ask(TASKS, asked("r1", input={"text": "other"}), **auth)
        assert (status, told["error"]["code"], headers["x-should-retry"]) == (409, "key_reused", "false")
        assert first["id"] in told["error"]["message"]
        second = await at.submit(once)
        assert (await at.submit(once))["id"] == second["id"]
        assert (await at.submit(auth))["id"] not in (first["id"], second["id"])  # nothing names it: a new one
        listed = [asked(), asked()]
        ids = [[each["id"] for each in (await at.ask(TASKS, listed, **once))[2]["data"]] for _ in range(2)]
        assert ids[0] == ids[1]
        assert len(set(ids[0])) == 2


async def test_slashes_in_a_run_or_an_id_make_no_other_task_of_it(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key()
        told = [await at.submit(auth, id, run=run) for run, id in (("a/b", "c"), ("a", "b/c"), ("a/b", "c"))]
        assert [each["name"] for each in told] == ["c", "b/c", "c"]
        assert told[0]["id"] == told[2]["id"] != told[1]["id"]


async def test_who_works_on_a_task_goes_on_with_its_trace(tmp_path: Path) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with tasked(tmp_path) as at:
        auth = await at.key()
        for sent, kept in ((parent, parent), ("00-forged", "")):
            await at.submit({**auth, "traceparent": sent})
            assert (await at.claim()).trace == kept


async def test_of_a_list_each_is_told_what_became_of_it(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key()
        first = await at.submit(auth, "r1")
        nobody = "t_" + "0" * 32
        many = [asked("r1", input={"text": "다른 말"}), asked("r2", needs=[first["id"]]), asked("r3", needs=[nobody])]
        status, _, told = await at.ask(TASKS, many, **auth)
        assert status == 202
        assert [each.get("error") and each["error"]["code"] for each in told["data"]] == [
            "key_reused",
            None,
            "need_unknown",
        ]
        assert (told["data"][1]["state"], told["data"][2]["name"]) == ("blocked", "r3")
        assert (await at.submit(auth, "r4", needs=["r1"]))["state"] == "blocked"  # by its name, too
        for run, need in (("other", "r1"), ("support", "r5")):
            status, _, told = await at.ask(TASKS, asked("r5", run=run, needs=[need]), **auth)
            assert (status, told["error"]["code"]) == (409, "need_unknown") and f"task {need}," in told["error"][
                "message"
            ]
        status, _, told = await at.ask(TASKS, [asked("x"), asked("x", input={"text": "y"})], **auth)
        assert (status, told["error"]["param"]) == (400, "id")


WRONG: list[tuple[Any, str | None]] = [
    (b"", None),
    (b"{", None),
    (b'{"kind":"support","kind":"support","input":{"text":"x"}}', None),
    (b'{"kind":"support","input":{"text":"x"},"deadline_seconds":NaN}', None),
    ("text", "body"),
    ([], "body"),
    ([asked()] * 101, "body"),
    (asked(kind="shell"), "kind"),
    ({"kind": "support"}, "body"),
    (asked(tenant="other"), "tenant"),
    (asked(customer="lee"), "customer"),
    (asked(input={"text": "a", "customer": "lee"}), "input.customer"),
    (asked(input={"text": " \n"}), "input.text"),
    (asked(input={"text": "가" * 20_001}), "input.text"),
    (asked(input={"text": 5}), "input.text"),
    ([asked(), asked(priority=4)], "[1].priority"),
    (asked(priority=True), "priority"),
    (asked(deadline_seconds=0), "deadline_seconds"),
    (asked(deadline_seconds="5"), "deadline_seconds"),
    (asked(id=""), "id"),
    (asked(id="a\nb"), "id"),
    (asked(run="x" * 65), "run"),
    (asked(needs=["a\nb"]), "needs[0]"),
    (asked(needs=["t_" + "0" * 32] * 101), "needs"),
]


async def test_a_wrong_body_is_refused_by_its_place(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key()
        for body, param in WRONG:
            status, headers, told = await at.ask(TASKS, body, **auth)
            assert (status, told["error"]["param"], told["error"]["type"]) == (400, param, "invalid_request_error"), (
                told
            )
            assert headers["x-should-retry"] == "false"
        assert not await at.house.desk.counts(Which())


async def test_sec32_a_submission_has_a_megabyte(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key()
        room = 2**20 - len(json.dumps(asked(input={"text": "x"})))
        for size, status in ((0, 202), (room, 202), (room + 1, 413)):
            body = json.dumps(asked(input={"text": "x"})) + " " * size
            assert (await at.ask(TASKS, body.encode(), **auth))[0] == status
        assert (await at.ask(TASKS, b"[" * 100_000, **auth))[0] == 413


async def test_a_wrong_question_is_refused(tmp_path: Path) -> None:
    wrong = ["limit=0", "limit=101", "limit=x", "limit=1&limit=2", "state=lost", "after=x", "no=1"]
    wrong += ["after=WyJ4Il0=", "after=WzEsIlx1MDAwMCJd"]  # of the form of a place: ["x"], and [1, NUL]
    async with tasked(tmp_path) as at:
        auth = await at.key()
        for query in [*wrong, "%ff=1", "x"]:
            status, _, told = await at.ask(f"{TASKS}?{query}", **auth)
            assert (query, status, told["error"]["code"]) == (query, 400, "invalid_value")


async def test_pages_are_stable_under_inserts_and_filters_hold(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key()
        await at.ask(TASKS, [asked(f"r{n}", run="a" if n % 2 else "b") for n in range(10)], **auth)
        seen: list[str] = []
        after = ""
        while True:
            _, _, page = await at.ask(f"{TASKS}?limit=3{after}", **auth)
            seen += [each["name"] for each in page["data"]]
            if len(seen) < 12:
                await at.submit(auth, f"r{9 + len(seen)}")
            if not page["has_more"]:
                break
            after = f"&after={page['next']}"
        assert seen[:10] == [f"r{n}" for n in range(10)]
        assert len(seen) == len(set(seen)) >= 12
        _, _, none_yet = await at.ask(f"{TASKS}?after={page['next']}", **auth)
        assert (none_yet["data"], none_yet["next"]) == ([], page["next"])
        await at.submit(auth, "new")
        _, _, more = await at.ask(f"{TASKS}?after={none_yet['next']}", **auth)
        assert [each["name"] for each in more["data"]] == ["new"]
        _, _, odd = await at.ask(f"{TASKS}?run=a", **auth)
        assert {each["run"] for each in odd["data"]} == {"a"} and len(odd["data"]) == 5
        await at.end()
        _, _, ended = await at.ask(f"{TASKS}?state=succeeded", **auth)
        assert len(ended["data"]) == 1


async def test_sec3_nobody_sees_or_changes_tasks_of_others(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        kim = await at.key(tenant="a")
        task = await at.submit(kim, "r1")
        strangers = [await at.key(tenant="b"), await at.key(tenant="a", customer="lee"), await at.key(tenant="")]
        whole = await at.key(tenant="a", customer="")
        unknown = "t_" + "f" * 32
        for auth in strangers:
            for method, tail in (("GET", ""), ("POST", "/cancel"), ("POST", "/retry"), ("GET", "/events")):
                found = [await at.ask(f"{TASKS}/{id}{tail}", method=method, **auth) for id in (task["id"], unknown)]
                said = [
                    (status, told["error"]["message"].replace(id, ""))
                    for (status, _, told), id in zip(found, (task["id"], unknown), strict=True)
                ]
                assert said[0] == said[1] and said[0][0] == 404, said
            assert (await at.ask(TASKS, **auth))[2]["data"] == []
            # the same id is another task, and a need that is another's is none
            assert (await at.submit(auth, "r1"))["id"] != task["id"]
        status, _, told = await at.ask(TASKS, asked("r2", needs=[task["id"]]), **strangers[0])
        assert (status, told["error"]["code"]) == (409, "need_unknown")
        assert (await at.ask(f"{TASKS}/{task['id']}", **kim))[2]["state"] == "ready"
        assert len((await at.ask(TASKS, **whole))[2]["data"]) == 2  # a key that is bound to nobody sees its tenant


async def test_for_whom_says_the_key_or_a_signed_token_and_nothing_else(tmp_path: Path) -> None:
    def token(customer: str) -> str:
        return mint(IDENTITY, subject=customer, audience=AUDIENCE, scopes=(), now=time.time())

    async with tasked(tmp_path) as at:
        desk = await at.key(customer="")
        status, _, told = await at.ask(TASKS, asked(), **desk)
        assert (status, told["error"]["code"]) == (403, "customer_required")
        many = [asked("a", customer_token=token("lee")), asked("b")]
        _, _, told = await at.ask(TASKS, many, **desk, **{"x-siafu-customer": token("kim")})
        found = {task.once: task.customer for task in await at.house.desk.find(Which(), limit=9)}
        assert found == {"support/a": "lee", "support/b": "kim"}
        bound = await at.key(customer="kim")
        status, _, told = await at.ask(TASKS, asked(customer_token=token("lee")), **bound)
        assert (status, told["error"]["code"]) == (403, "customer_refused")


@pytest.mark.parametrize(
    ("terms", "code"), [({"models": ("gpt-*",)}, "model_not_allowed"), ({"day_pico": 1}, "budget_not_kept")]
)
async def test_a_key_that_may_not_use_the_swarm_may_not_submit(tmp_path: Path, terms: Any, code: str) -> None:
    async with tasked(tmp_path) as at:
        status, _, told = await at.ask(TASKS, asked(), **await at.key(**terms))
        assert (status, told["error"]["code"]) == (403, code)
        assert not await at.house.desk.counts(Which())


async def test_sec34_a_key_makes_so_many_requests_a_minute_and_submits_no_more(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key(rpm=3)
        assert [(await at.ask(path, **auth))[0] for path in (TASKS, EVENTS + "?after=9")] == [200, 409]
        assert (await at.ask(TASKS, asked("r1"), **auth))[0] == 202
        status, headers, told = await at.ask(TASKS, asked("r2"), **auth)
        assert (status, told["error"]["type"]) == (429, "rate_limit_error") and int(headers["retry-after"]) >= 1
        assert await at.house.desk.counts(Which()) == {"ready": 1}


async def test_cancel_and_retry(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key()
        waiting = await at.submit(auth, "waiting")
        _, _, told = await at.ask(f"{TASKS}/{waiting['id']}/cancel", method="POST", **auth)
        assert (told["state"], told["error"]) == ("cancelled", {"code": "cancelled", "message": ""})
        assert (await at.ask(f"{TASKS}/{waiting['id']}/cancel", method="POST", **auth))[0] == 200  # as it is
        await at.submit(auth, "running")
        lease = await at.claim()
        _, _, told = await at.ask(f"{TASKS}/{lease.id}/cancel", method="POST", **auth)
        assert (told["state"], told["cancel_requested"]) == ("leased", True)
        status, _, told = await at.ask(f"{TASKS}/{lease.id}/retry", method="POST", **auth)
        assert (status, told["error"]["code"]) == (409, "not_retryable")
        _, _, told = await at.ask(f"{TASKS}/{waiting['id']}/retry", method="POST", **auth)
        assert told["state"] == "ready"
        failed = await at.fail()
        _, _, told = await at.ask(f"{TASKS}/{failed}", **auth)
        assert told["error"]["code"] == "unreachable" and "10.0.0.7" not in str(told)  # SEC37: no client's business


async def test_a_full_queue_refuses_and_keeps_nothing(tmp_path: Path) -> None:
    async with tasked(tmp_path, most_open=2) as at:
        auth = await at.key()
        await at.submit(auth, "r1")
        status, headers, told = await at.ask(TASKS, [asked("r2"), asked("r3")], **auth)
        assert (status, told["error"]["code"], told["error"]["type"]) == (429, "backlog_full", "rate_limit_error")
        assert int(headers["retry-after"]) >= 1 and "x-should-retry" not in headers
        assert await at.house.desk.counts(Which()) == {"ready": 1}
        await at.end()
        async with asyncio.timeout(10):  # it is counted now and then only
            while (await at.ask(TASKS, [asked("r2"), asked("r3")], **auth))[0] != 202:
                await asyncio.sleep(0.02)


async def test_it_says_when_no_worker_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key()
        for _ in range(2):
            _, headers, _ = await at.ask(TASKS, asked("r1"), **auth)
            assert headers["x-siafu-notice"] == "accepted, but no worker is there"
        assert caplog.text.count("siafu worker") == 1
        assert (await at.ask("/health/readiness"))[0] == 200
        standing = Standing(name="w", host="h", pid=1, version="1", slots=1, least=1, most=1)
        await at.house.workers.say(standing, ["support"])
        _, headers, _ = await at.ask(TASKS, asked("r2"), **auth)
        assert "x-siafu-notice" not in headers
        at.database.transact(lambda tx: tx.change("UPDATE worker SET seen_at = seen_at - 11"))
        _, headers, _ = await at.ask(TASKS, asked("r3"), **auth)
        assert "x-siafu-notice" in headers  # one that said nothing for so long is not there


async def test_without_a_database_of_tasks_all_else_is_served(tmp_path: Path) -> None:
    async with server(tmp_path, tasks="/secret/tasks.db was written by a newer version") as served:
        status, headers, told = await served.ask(TASKS, asked())
        assert (status, told["error"]["code"], headers["x-should-retry"]) == (503, "not_set_up", "false")
        assert "/secret" not in str(told)
        assert (await served.ask("/v1/models"))[0] == 200


async def test_sec37_a_store_that_fails_is_told_as_such_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise StoreError("/secret/tasks.db is full")

    async with tasked(tmp_path) as at:
        auth = await at.key()
        monkeypatch.setattr(at.house.store, "accept", broken)
        status, headers, told = await at.ask(TASKS, asked(), **auth)
        assert (status, told["error"]["code"], "x-should-retry" in headers) == (503, "store_unavailable", False)
        assert "/secret" not in str(told) and "/secret/tasks.db" in caplog.text


def verbatim(url: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """What is answered to a path that no client has put in order."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


async def test_sec29_what_stands_for_an_id_is_no_path(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        auth = await at.key()
        task = (await at.submit(auth, "r1"))["id"]
        odd = ["..", "../..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%5c..%5c", "%00", "t_%00", "%252e%252e", "*", "%ff"]
        for id in [*odd, f"{task}%00", f"{task}/..", task.upper(), task[:-1], "%ed%a0%80", "%ea%b0%80" * 1000]:
            for tail in ("", "/events"):
                status, told = await asyncio.to_thread(verbatim, at.served.url, f"{TASKS}/{id}{tail}", auth)
                assert (status, json.loads(told)["error"]["type"]) == (404, "invalid_request_error"), (id, told)
        assert (await asyncio.to_thread(verbatim, at.served.url, f"{TASKS}/{task}", auth))[0] == 200


async def test_sec34_a_wrong_key_is_told_the_same_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        good = await at.key()
        await at.key(name="old")
        old = (await at.served.parts.keys.all())[-1]
        await at.served.parts.keys.revoke(old.id)
        await at.served.ring.refresh()
        near = good["Authorization"][:-1] + ("x" if good["Authorization"][-1] != "x" else "y")
        wrong = [near, "Bearer sk-siafu-" + "A" * 43, "Bearer x", "Bearer ", "Basic eDp5", "Bearer " + "한" * 9]
        told = []
        for auth in wrong:
            text = auth.encode().decode("latin-1")
            status, headers, body = await at.ask(TASKS, Authorization=text)
            told.append((status, headers["www-authenticate"], json.dumps(body)))
        assert len(set(told)) == 1 and told[0][0] == 401
        found = [(await at.ask(TASKS, Authorization="Bearer wrong"))[0] for _ in range(30)]
        assert found.count(429) > 5 and set(found) == {401, 429}
        assert (await at.ask(TASKS, **good))[0] == 200
