"""Webhooks: signed as receivers expect, told at least once over every failure, sent nowhere else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from cli.front import siafu
from siafu.border.secrets import Secret
from siafu.cli.tasks import _webhook
from siafu.config.checking import problems
from siafu.config.sections import WebhookSettings
from siafu.config.webhooks import Webhook, signing_key, webhook
from siafu.errors import ConfigError
from siafu.pace.clock import SystemClock
from siafu.service.tasks import posting, webhooks
from siafu.service.tasks.webhooks import PAUSES, pause, signed, told_webhooks
from siafu.store.database import Database
from siafu.store.task_desk import Which
from siafu.store.task_records import Succeeded
from siafu.store.task_schema import MIGRATIONS
from siafu.store.tasks import TaskStore
from siafu.store.webhooks import WebhookQueue

from .server import until
from .task_kit import TASKS, Tasked, asked, tasked
from .test_serve import Process

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_signature_is_the_one_of_the_standard() -> None:
    """The example of the Standard Webhooks libraries."""
    key = signing_key(Secret(SECRET))
    found = signed(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert (found["webhook-id"], found["webhook-timestamp"]) == ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330")
    other = signed(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265331, b'{"test": 2432232314}')
    assert other["webhook-signature"] != found["webhook-signature"]


@given(st.integers(1, 20), st.floats(0, 1))
def test_tries_lie_further_and_further_apart_and_end(attempts: int, draw: float) -> None:
    found = pause(attempts, draw)
    assert (found is None) == (attempts > len(PAUSES))
    if found is not None:
        assert PAUSES[attempts - 1] * 0.9 <= found <= PAUSES[attempts - 1] * 1.1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://shop.example.com/hook", "clear text"),
        ("https://user:pass@shop.example.com/", "user name or password"),
        ("ftp://shop.example.com/", "https://host/path"),
        ("https://10.0.0.7/hook", "allow_private"),
        ("https://169.254.169.254/latest", "allow_private"),
        ("https://[::ffff:169.254.169.254]/", "allow_private"),
        ("https://[fd00::1]/", "allow_private"),
        ("https://100.64.0.1/", "allow_private"),
        ("https://0.0.0.0/", "allow_private"),
        ("https://127.1/", "allow_private"),
        ("https://2130706433/", "allow_private"),
        ("https://0x7f.0x0.0x0.0x1/", "allow_private"),
        ("https://10.0.0.7./hook", "allow_private"),
    ],
)
def test_sec25_a_webhook_goes_to_no_private_address_that_is_written_out(
    url: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", SECRET)
    with pytest.raises(ConfigError, match=said):
        webhook("shop", WebhookSettings(url=url, secret="env:HOOK"))
    assert webhook("shop", WebhookSettings(url="https://shop.example.com/hook", secret="env:HOOK")).anywhere is False
    assert webhook("shop", WebhookSettings(url="https://93.184.215.14/", secret="env:HOOK")).anywhere is False
    assert webhook("shop", WebhookSettings(url="http://127.0.0.1:1/", secret="env:HOOK")).anywhere is True


def test_config_check_names_a_webhook_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", SECRET)
    file = tmp_path / "siafu.toml"
    file.write_text('[webhooks.shop]\nurl = "https://10.0.0.7/"\nsecret = "env:HOOK"\n')
    assert ["webhooks.shop.url" in problem for problem in problems(file)] == [True]
    file.write_text(f'[webhooks.shop]\nurl = "https://shop.example.com/"\nsecret = "{SECRET}"\n')
    found = "; ".join(problems(file))
    assert "env:NAME" in found and SECRET not in found
    file.write_text('[webhooks.shop]\nurl = "https://shop.example.com/"\nsecret = "env:HOOK"\n')
    assert list(problems(file)) == []


@pytest.mark.parametrize("secret", ["plain", "whsec_", "whsec_!!!", "whsec_c2hvcnQ=", "whsec_" + "A" * 100])
def test_sec22_a_secret_that_is_none_is_refused_and_not_repeated(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", secret)
    with pytest.raises(ConfigError, match="openssl rand") as caught:
        webhook("shop", WebhookSettings(url="https://shop.example.com/", secret="env:HOOK"))
    assert secret == "whsec_" or secret not in caught.value.message


async def test_sec25_a_name_that_leads_to_a_private_address_is_unknown(receiver: Receiver) -> None:
    """`localhost` stands for any name: it is looked up, and what it leads to is not connected to."""
    url = receiver.url.replace("127.0.0.1", "localhost")
    strict, free = posting.Poster(anywhere=False), posting.Poster(anywhere=True)
    try:
        answer = await strict.post(url, b"{}", {})
        assert isinstance(answer, str) and "no public network" in answer
        assert receiver.came == []
        assert await free.post(url, b"{}", {}) == 200  # the check can fail
        assert len(receiver.came) == 1
    finally:
        await strict.aclose()
        await free.aclose()


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("127\u30020\u30020\u30021", "no public network"),
        ("[::ffff:a9fe:a9fe]", "no public network"),
        ("a" * 64 + ".example.com", "too long"),
    ],
)
async def test_sec25_however_an_address_is_written_it_is_told_and_not_connected_to(host: str, said: str) -> None:
    strict = posting.Poster(anywhere=False)
    try:
        answer = await strict.post(f"https://{host}:1/", b"{}", {})
        assert isinstance(answer, str) and said in answer
    finally:
        await strict.aclose()


class Receiver:
    """A server that is told things. answers: statuses, one for each request; 200 afterwards; 0 = no answer at all."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[int] = []
        self.came: list[tuple[dict[str, str], bytes]] = []

    async def take(self, request: web.BaseRequest) -> web.StreamResponse:
        self.came.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        status = self.answers.pop(0) if self.answers else 200
        if not status:
            await asyncio.Event().wait()
        return web.Response(status=status, headers={"location": self.url + "elsewhere"} if status == 302 else {})

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.came]


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = web.Server(receiver.take)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield receiver
    finally:
        await runner.cleanup()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


def hook(receiver: Receiver, **more: Any) -> Webhook:
    return Webhook(**{"url": receiver.url, "secret": Secret(SECRET), "tenants": None, "anywhere": True, **more})


@contextlib.asynccontextmanager
async def hooked(folder: Path, **hooks: Webhook) -> AsyncIterator[Tasked]:
    async with tasked(folder, webhooks=hooks) as at, told_webhooks(at.house, SystemClock()):
        await until(lambda: len(known(at)) == len(hooks))
        yield at


def known(at: Tasked) -> list[Any]:
    return list(at.database.transact(lambda tx: tx.rows("SELECT name FROM webhook")))


def left(at: Tasked) -> list[dict[str, Any]]:
    """What was not taken in."""
    sql = "SELECT * FROM webhook_delivery WHERE told_at IS NULL ORDER BY place"
    return [dict(row) for row in at.database.transact(lambda tx: tx.rows(sql))]


async def test_every_end_is_told_once_with_no_customers_words(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "LOOK_SECONDS", 0.02)
    collect, broken = WebhookQueue.collect, [ValueError("nobody thought of it")] * 2

    async def breaking(queue: WebhookQueue, name: str, tenants: Collection[str] | None) -> bool:
        if broken:
            raise broken.pop()
        return await collect(queue, name, tenants)

    monkeypatch.setattr(WebhookQueue, "collect", breaking)
    async with hooked(tmp_path, a=hook(receiver), b=hook(receiver, tenants=("other",))) as at:
        auth, other = await at.key(tenant="t"), await at.key(tenant="other")
        ids = [(await at.submit(auth, f"r{n}", run="월요일"))["id"] for n in range(3)]
        await at.end()
        await at.fail()
        await at.ask(f"/v1/swarm/tasks/{ids[2]}/cancel", method="POST", **auth)
        await until(lambda: len(receiver.came) == 3 and not left(at))
        assert {each["type"] for each in receiver.bodies} == {"task.succeeded", "task.failed", "task.cancelled"}
        data = next(each["data"] for each in receiver.bodies if each["type"] == "task.succeeded")
        assert data == {
            "id": ids[0], "object": "swarm.task", "kind": "support", "run": "월요일", "name": "r0", "tenant": "t",
            "state": "succeeded", "code": None,
        }  # fmt: skip
        for headers, body in receiver.came:
            said = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
            digest = hmac.new(base64.b64decode(SECRET[6:]), said, hashlib.sha256).digest()
            assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
            assert "됐어요" not in body.decode() and SECRET not in str(headers)
        assert len({headers["webhook-id"] for headers, _ in receiver.came}) == 3
        await at.submit(other, "r")
        await at.end()
        await until(lambda: len(receiver.came) == 5 and not left(at))  # of both


async def test_what_fails_is_told_again_under_the_same_id_and_can_be_seen(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhooks, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(webhooks, "PAUSES", (0.0, 0.0, 60.0))
    receiver.answers = [500, 302, 404]
    async with hooked(tmp_path, a=hook(receiver)) as at:
        auth = await at.key()

        async def seen(id: str) -> dict[str, Any]:
            """What the client and the operator see, which is the same but for the words of an error."""
            status, _, task = await at.ask(f"{TASKS}/{id}", **auth)
            (shown,), (told,) = task["webhooks"], await at.house.desk.deliveries.told(id)
            times = told.told_at, told.next_at
            same = told.webhook, f"task.{told.what}", told.state, told.attempts, *times, told.status
            assert (status, tuple(shown.values())) == (200, same)
            return {**shown, "said": _webhook(told)}

        first = (await at.submit(auth))["id"]
        assert (await at.ask(f"{TASKS}/{first}", **auth))[2]["webhooks"] == []
        await at.end()
        await until(lambda: len(receiver.came) == 3 and left(at)[0]["status"] == 404)
        waiting = await seen(first)
        assert (waiting["state"], waiting["attempts"], waiting["sent_at"]) == ("waiting", 3, None)
        assert waiting["said"].startswith("a of succeeded: next try at 20") and waiting["next_at"] > time.time() + 40
        assert waiting["said"].endswith("Z, tried 3 times: it answered 404")
        at.database.transact(lambda tx: tx.change("UPDATE webhook_delivery SET next_at = 0"))
        await until(lambda: len(receiver.came) == 4 and not left(at))
        sent = await seen(first)
        assert (sent["state"], sent["status"], sent["next_at"]) == ("sent", 200, None)
        assert sent["said"].startswith("a of succeeded: told at 20") and sent["said"].endswith("tried 4 times (200)")
        assert (await at.ask(TASKS, **auth))[2]["data"][0]["webhooks"] is None
        monkeypatch.setattr(webhooks, "PAUSES", (0.0, 0.0, 0.0))
        assert len({headers["webhook-id"] for headers, _ in receiver.came}) == 1
        assert len({body for _, body in receiver.came}) == 1
        assert caplog.text.count("webhook a") == 1  # said once
        receiver.answers = [500] * 4
        second = (await at.submit(auth))["id"]
        await at.end()
        await until(lambda: len(receiver.came) == 8 and left(at)[0]["next_at"] is None)
        await until(lambda: "is not told" in caplog.text)
        assert (await seen(second))["said"] == "a of succeeded: given up, tried 4 times: it answered 500"
        receiver.answers = [410]
        await at.submit(await at.key())
        await at.end()
        await until(lambda: len(receiver.came) == 9 and len(left(at)) == 2)
        await until(lambda: all(row["next_at"] is None for row in left(at)))


async def test_one_that_does_not_answer_holds_up_no_other(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "LOOK_SECONDS", 0.02)
    async with receiving() as silent:
        silent.answers = [0] * 100
        async with hooked(tmp_path, silent=hook(silent), quick=hook(receiver)) as at:
            auth = await at.key()
            for n in range(12):
                await at.submit(auth, str(n))
                await at.end()
            await until(lambda: len(receiver.came) == 12)
            assert len(silent.came) <= webhooks.AT_ONCE


async def test_a_customer_who_is_forgotten_is_not_told_of(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "LOOK_SECONDS", 0.02)
    receiver.answers = [500]
    async with hooked(tmp_path, a=hook(receiver)) as at:
        await at.submit(await at.key())
        await at.end()
        await until(lambda: len(receiver.came) == 1 and left(at)[0]["said"] != "")
        await at.house.desk.forget("kim", "")
        assert left(at) == [] and not await at.house.desk.counts(Which())


async def submitted(process: Process, key: str, names: Sequence[str], told: dict[str, str]) -> None:
    """Submit tasks one after the other; `told`: the ids that were answered, by name. Ends with the server."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:
        for name in names:
            async with session.post(process.ready["control"] + TASKS, json=asked(name)) as reply:
                assert reply.status == 202
                told[name] = (await reply.json())["id"]


@pytest.mark.kill
async def test_p1_what_was_answered_and_what_was_to_be_told_survive_kill_9(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answers = [0]
    (tmp_path / "siafu.toml").write_text(f'[webhooks.shop]\nurl = "{receiver.url}"\nsecret = "env:HOOK"\n')
    made = await asyncio.to_thread(siafu, tmp_path, "keys", "create", "--name", "k", "--customer", "kim", "--json")
    key = json.loads(made.stdout)["key"]
    place = tmp_path / ".siafu" / "tasks.db"
    untold = "SELECT id FROM webhook_delivery WHERE told_at IS NULL"

    def rows(sql: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(place, isolation_level=None)) as db:
            return db.execute(sql).fetchall()

    names = [str(n) for n in range(300)]
    told: dict[str, str] = {}
    process = await asyncio.to_thread(Process, tmp_path, HOOK=SECRET)
    try:
        await until(lambda: len(rows("SELECT name FROM webhook")) == 1, 30)
        await submitted(process, key, ["first"], told)
        database = await asyncio.to_thread(Database, place, MIGRATIONS, what="the tasks", schema="tasks")
        store = TaskStore(database)
        (lease,) = await store.claim("w", "support", 1, 15.0)
        await store.end(lease.id, lease.epoch, Succeeded("{}"))
        await store.aclose()
        await database.aclose()
        await until(lambda: len(receiver.came) == 1, 30)  # and is not answered
        crowd = [asyncio.create_task(submitted(process, key, names[n::6], told)) for n in range(6)]
        await until(lambda: len(told) > 30, 30)
    finally:
        process.process.kill()
        await asyncio.to_thread(process.process.communicate)
    ends = await asyncio.gather(*crowd, return_exceptions=True)
    assert any(isinstance(end, aiohttp.ClientError) for end in ends), ends  # it was killed in the midst of them
    assert set(told.values()) <= {id for (id,) in rows("SELECT id FROM task")}
    assert len(rows(untold)) == 1
    rows("UPDATE webhook_delivery SET next_at = 0")  # its time with the first process is over
    process = await asyncio.to_thread(Process, tmp_path, HOOK=SECRET)
    try:
        again: dict[str, str] = {}
        await submitted(process, key, [*told, "new"], again)
        assert {name: again[name] for name in told} == told
        assert len(rows("SELECT DISTINCT once FROM task")) == len(rows("SELECT id FROM task"))
        await until(lambda: len(receiver.came) == 2 and not rows(untold), 30)
    finally:
        assert (await asyncio.to_thread(process.stop))[0] == 0
    ids = {headers["webhook-id"] for headers, _ in receiver.came}
    assert len(ids) == 1 and receiver.bodies[1]["data"]["id"] == lease.id
