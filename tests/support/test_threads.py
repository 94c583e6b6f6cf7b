"""Conversations that go on: kept by thread and customer, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from siafu.apps.support import threads as module
from siafu.apps.support.requests import Turn
from siafu.apps.support.threads import MIGRATIONS, Threads
from siafu.config.settings import Settings
from siafu.config.threads import support_threads
from siafu.errors import InputError
from siafu.store.database import Database
from support.desk import request


@pytest.fixture
async def threads(sql_url: str) -> AsyncIterator[Threads]:
    database = await asyncio.to_thread(Database, sql_url, MIGRATIONS, what="the conversations", schema="support")
    yield Threads(database)
    await database.aclose()


async def test_a_message_brings_along_what_was_said_before(threads: Threads) -> None:
    first = await threads.ask("kim-1", request("환불해 주세요"))
    assert (first.text, first.earlier) == ("환불해 주세요", ())
    await threads.answered(first.id, "어느 주문인가요?", "needs_info")
    second = await threads.ask(" kim-1 ", request("1001이요 \U0001f64f"))
    assert second.earlier == (Turn(text="환불해 주세요", answer="어느 주문인가요?", outcome="needs_info"),)
    third = await threads.ask("kim-1", request("빨리요"))  # nobody has answered yet
    assert third.earlier[1:] == (Turn(text="1001이요 \U0001f64f"),)
    assert len({first.id, second.id, third.id}) == 3


async def test_the_same_message_again_is_the_same_request_until_it_is_answered(threads: Threads) -> None:
    first = await threads.ask("kim-1", request("1001 환불"))
    again = await threads.ask("kim-1", request("1001 환불"))
    assert again == first  # so whatever it brings about, it brings about once
    await threads.answered(first.id, "환불했습니다", "answered")
    later = await threads.ask("kim-1", request("1001 환불"))
    assert later.id != first.id
    assert [turn.text for turn in later.earlier] == ["1001 환불"]
    await threads.answered(first.id, "다른 답", "refused")  # the first answer stays
    assert (await threads.ask("kim-1", request("1001 환불"))).earlier[0].answer == "환불했습니다"


async def test_the_thread_of_another_customer_is_refused_and_shows_nothing(threads: Threads) -> None:
    await threads.ask("shared", request("주문 1001의 비밀", customer="kim"))
    with pytest.raises(InputError) as refused:
        await threads.ask("shared", request("뭐라고 했나요?", customer="lee"))
    assert "another customer" in refused.value.message
    assert "kim" not in refused.value.message
    assert (await threads.ask("shared", request("네", customer="kim"))).earlier == (Turn(text="주문 1001의 비밀"),)
    assert (await threads.ask("lee-1", request("안녕하세요", customer="lee"))).earlier == ()


@pytest.mark.parametrize("name", ["", " \n", "x" * 201])
async def test_a_name_that_cannot_be_used(threads: Threads, name: str) -> None:
    with pytest.raises(InputError, match="200"):
        await threads.ask(name, request())


async def test_many_at_once_lose_no_message(threads: Threads) -> None:
    asked = await asyncio.gather(*(threads.ask("kim-1", request(f"질문 {n}")) for n in range(20)))
    assert len({one.id for one in asked}) == 20
    last = await threads.ask("kim-1", request("끝"))
    assert sorted(turn.text for turn in last.earlier) == sorted(f"질문 {n}" for n in range(20))
    twice = await asyncio.gather(*(threads.ask("kim-1", request("두 번")) for _ in range(8)))
    assert len({one.id for one in twice}) == 1


async def test_only_the_newest_messages_come_along(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(30):
        made = await threads.ask("kim-1", request(f"질문 {n}"))
        await threads.answered(made.id, f"답 {n}", "answered")
    turns = (await threads.ask("kim-1", request("끝"))).earlier
    assert [turn.text for turn in turns] == [f"질문 {n}" for n in range(10, 30)]
    monkeypatch.setattr(module, "MAX_CHARACTERS", 20)
    assert [turn.text for turn in (await threads.ask("kim-1", request("끝"))).earlier] == ["질문 28", "질문 29"]


async def test_what_was_said_outlives_the_process(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "집")
    async with support_threads(settings) as kept:
        first = await kept.ask("kim-1", request("환불"))
        await kept.answered(first.id, "어느 주문?", "needs_info")
    async with support_threads(settings) as kept:
        assert (await kept.ask("kim-1", request("1001"))).earlier[0].answer == "어느 주문?"
    assert (tmp_path / "집" / "support.db").stat().st_mode & 0o077 == 0
    elsewhere = Settings(home=tmp_path, database_url=f"sqlite:///{tmp_path / 'other.db'}")
    async with support_threads(elsewhere) as kept:
        assert (await kept.ask("kim-1", request("1001"))).earlier == ()


def test_the_conversation_for_a_model_takes_turns() -> None:
    a, b, c = Turn(text="하나"), Turn(text="둘", answer="답"), Turn(text="셋", answer="")
    item = msgspec.structs.replace(request("넷"), earlier=(a, b, c))
    said = [(message["role"], message["content"]) for message in item.messages]
    assert said == [("user", "하나\n\n둘"), ("assistant", "답"), ("user", "셋\n\n넷")]
    assert item.own_words == ("넷", "셋", "둘", "하나")
    assert item.matter == "하나\n\n둘\n\n셋\n\n넷"
    assert request("하나").messages == [{"role": "user", "content": "하나"}]
