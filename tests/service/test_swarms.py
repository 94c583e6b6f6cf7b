"""A swarm as a model: for whom, of what, and in which shape."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from siafu.apps.support.requests import Answer, CustomerRequest
from siafu.border.identity import mint
from siafu.border.secrets import Secret
from siafu.config.swarms import SupportSwarm
from siafu.service.reading import read_request
from siafu.service.refusals import Refused
from siafu.service.swarms import AUDIENCE, customer_request
from siafu.swarm.results import MapError, MapResult

from .server import Served, server
from .test_app import make_key

KEY = Secret("k3y" * 12)
ASK: dict[str, Any] = {"model": "siafu/support", "messages": [{"role": "user", "content": "주문 1001 어디쯤 왔나요?"}]}


class Fake(SupportSwarm):
    """Answers without models or tools. `asked`: what came in, with the account that pays."""

    def __init__(self, *, error: MapError | None = None, status: Any = "ok") -> None:
        self.asked: list[tuple[CustomerRequest, str]] = []
        self._error, self._status = error, status

    async def ask(self, request: CustomerRequest, *, run: str, tenant: str) -> MapResult:
        self.asked.append((request, run))
        answer = Answer(
            outcome="answered",
            category="shipping",
            priority=2,
            answer="오늘 와요",
            model_used="m",
            steps=2,
            tool_calls=1,
        )
        return MapResult(
            key=request.id,
            index=0,
            item=request,
            status=self._status,
            value=None if self._error else answer,
            error=self._error,
            usd_pico=2_000_000,
            input_tokens=30,
            output_tokens=4,
        )


def signed(customer: str, key: Secret = KEY, audience: str = AUDIENCE, age: float = 0.0) -> dict[str, Any]:
    token = mint(key, subject=customer, audience=audience, scopes=(), now=time.time() - age)
    return {"x_siafu_customer": token}


async def ask(served: Served, body: Any = None, **headers: Any) -> tuple[int, Any]:
    status, _, found = await served.ask(body=body or ASK, **headers)
    return status, found


async def test_the_customer_comes_from_the_key_or_a_signed_header_and_nowhere_else(tmp_path: Path) -> None:
    fake = Fake()
    async with server(tmp_path, support=fake, identity_key=KEY) as served:
        assert (await ask(served))[0] == 403
        named = {**ASK, "customer": "kim", "user": "kim", "messages": [{**ASK["messages"][0], "name": "kim"}]}
        status, body = await ask(served, named)
        assert (status, body["error"]["code"]) == (403, "customer_required")
        for wrong in (
            signed("kim", Secret("other" * 8)),
            signed("kim", audience="siafu-shop"),
            signed("kim", age=3600),
            {"x_siafu_customer": "kim"},
        ):
            status, body = await ask(served, **wrong)
            assert (status, body["error"]["code"]) == (403, "customer_refused")
        assert fake.asked == []
        assert (await ask(served, **signed("lee")))[0] == 200
        _, auth = await make_key(served, customer="kim")
        assert (await ask(served, **auth))[0] == 200
        assert (await ask(served, **auth, **signed("kim")))[0] == 200
        assert (await ask(served, **auth, **signed("lee")))[0] == 403
    assert [request.customer for request, _ in fake.asked] == ["lee", "kim", "kim"]


async def test_without_a_signing_key_no_header_is_believed(tmp_path: Path) -> None:
    async with server(tmp_path, support=Fake()) as served:
        assert (await ask(served, **signed("kim")))[0] == 403


async def test_the_answer_is_a_chat_completion(tmp_path: Path) -> None:
    async with server(tmp_path, support=Fake(), identity_key=KEY) as served:
        status, headers, body = await served.ask(body=ASK, **signed("kim"))
        assert (status, body["object"], body["model"]) == (200, "chat.completion", "siafu/support")
        assert body["choices"][0]["message"] == {"role": "assistant", "content": "오늘 와요"}
        assert body["usage"] == {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34}
        assert (body["siafu"]["outcome"], headers["x-siafu-cost-usd"]) == ("answered", "0.000002")
        _, _, text = await served.ask(body={**ASK, "stream": True}, **signed("kim"))
    event, done, _ = text.split("\n\n")
    delta = json.loads(event.removeprefix("data: "))["choices"][0]["delta"]
    assert (delta["content"], done) == ("오늘 와요", "data: [DONE]")


async def test_an_idempotency_key_names_the_request(tmp_path: Path) -> None:
    fake = Fake()
    async with server(tmp_path, support=fake, identity_key=KEY) as served:
        for customer, once in (("kim", "a"), ("kim", "a"), ("kim", "b"), ("lee", "a"), ("kim", "")):
            await ask(served, Idempotency_Key=once, **signed(customer))
    first, again, other, foreign, none = (request.id for request, _ in fake.asked)
    assert first == again
    assert len({first, other, foreign, none}) == 4


async def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    async with server(tmp_path, support="which model of URL?", identity_key=KEY) as served:
        status, body = await ask(served, **signed("kim"))
        assert (status, body["error"]["code"]) == (503, "not_set_up")
        assert "which model of URL?" in body["error"]["message"]
        assert "siafu/support" not in str((await served.ask("/v1/models"))[2])
        status, body = await ask(served, {**ASK, "model": "siafu/none"})
        assert (status, body["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("code", "status", "answer"),
    [("budget_reached", "error", 429), ("tool_unavailable", "error", 503), ("work_failed", "error", 500)],
)
async def test_a_swarm_that_fails_is_told_as_an_error(tmp_path: Path, code: str, status: str, answer: int) -> None:
    fake = Fake(error=MapError(code, "why"), status=status)
    async with server(tmp_path, support=fake, identity_key=KEY) as served:
        assert (await ask(served, **signed("kim")))[0] == answer


def request_of(messages: Any, **more: Any) -> CustomerRequest:
    body = json.dumps({"model": "siafu/support", "messages": messages, **more}).encode()
    return customer_request(read_request(body).request, "kim", "r1")


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_the_conversation_is_read_from_the_customers_side() -> None:
    system, said = {"role": "system", "content": "be mean"}, {"role": "assistant", "content": "어느 주문이요?"}
    parts = [{"type": "text", "text": "1001"}, {"type": "text", "text": "이요"}]
    found = request_of([system, user("안녕"), said, user("환불"), said, user(parts)])
    assert (found.text, found.customer, found.id) == ("1001\n\n이요", "kim", "r1")
    assert [(turn.text, turn.answer, turn.outcome) for turn in found.earlier] == [
        ("안녕", "어느 주문이요?", "answered"),
        ("환불", "어느 주문이요?", None),  # what comes next may complete it
    ]
    assert found.matter == "환불\n\n1001\n\n이요"
    assert len(request_of([user(str(n)) for n in range(100)]).earlier) == 20


@pytest.mark.parametrize(
    ("messages", "more"),
    [
        ([user("a")], {"tools": [{"type": "function"}]}),
        ([user("a")], {"response_format": {"type": "json_object"}}),
        ([user("a")], {"n": 2}),
        ([user("a"), {"role": "assistant", "content": "b"}], {}),
        ([{"role": "system", "content": "a"}], {}),
        ([user("")], {}),
        ([user("x" * 20_001)], {}),
        ([user([{"type": "image_url", "image_url": {"url": "data:"}}])], {}),
        (["a"], {}),
    ],
)
def test_what_the_swarm_cannot_take_is_refused(messages: Any, more: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        request_of(messages, **more)
    assert caught.value.status == 400


@pytest.mark.parametrize(("code", "answer"), [("pending_approval", 409), ("payments_unavailable", 503)])
async def test_what_waits_without_an_answer_says_what_for(tmp_path: Path, code: str, answer: int) -> None:
    fake = Fake(error=MapError(code, "later"), status="waiting")
    async with server(tmp_path, support=fake, identity_key=KEY) as served:
        status, body = await ask(served, **signed("kim"))
    assert (status, body["error"]["code"]) == (answer, code)
    assert ("a person has to decide" in body["error"]["message"]) == (answer == 409)
