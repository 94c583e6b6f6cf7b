"""A support swarm without processes: a scripted model, and the shop's tools as plain functions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

from agents.agent_fakes import FakeTools
from siafu.agents.task import Surroundings
from siafu.apps.support.requests import Answer, CustomerRequest
from siafu.apps.support.shop.calling import schema
from siafu.apps.support.shop.tools import TOOLS
from siafu.apps.support.swarm import Support
from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.gateway.endpoint import Endpoint
from siafu.gateway.scripted import Scripted, say
from siafu.observe.calls import CallContext
from siafu.pace.clock import Clock, SystemClock
from siafu.swarm.map import MapRun, map_items
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapResult
from siafu.tools.toolset import Tool, ToolResult, ToolSet

SUPPORT = Support(models={"strong": "big", "cheap": "small"})
ORDER = ToolResult(text="1001: shipped", structured={"order_id": "1001", "status": "shipped"})
TICKET = ToolResult(text="{}", structured={"ticket_id": "tkt-7", "state": "open", "subject": "complaint"})
GONE = ToolResult(text="no such order", is_error=True, code="order_not_found")
EMPTY = ToolResult(text='{"products": []}', structured={"products": []})


def shop(**bodies: Any) -> FakeTools:
    """The shop's tools, which answer with an order unless told otherwise."""
    tools = [
        Tool(
            name=spec.name,
            description=spec.description,
            input_schema=schema(spec.takes),
            read_only=spec.effect is None,
            idempotent=True,
        )
        for spec in TOOLS.values()
    ]
    return FakeTools(tools, **{tool.name: ORDER for tool in tools} | {"open_ticket": TICKET} | bodies)


def request(text: str = "주문 1001 어디쯤 왔나요?", *, id: str = "r1", customer: str = "kim") -> CustomerRequest:
    return CustomerRequest(id=id, customer=customer, text=text)


def ticket(category: str = "order_status", priority: Any = 2, hint: Any = "cheap", **more: Any) -> str:
    return json.dumps({"category": category, "priority": priority, "sub_agent_model": hint, **more})


def model(sort: Callable[[str], str | ChatAnswer], *turns: str | ChatAnswer) -> Scripted:
    """Sorts by `sort(text)`, then answers each conversation with `turns` in order; without any: looks an order up."""
    script: tuple[str | ChatAnswer, ...] = turns or (
        say(None, ("c1", "get_order_status", '{"order_id": "1001"}')),
        "배송 중입니다.",
    )

    def play(asked: ChatRequest, context: CallContext) -> str | ChatAnswer:
        if context.role == "classify":
            return sort(str(asked.messages[1]["content"]))
        return script[turn(asked)]

    return Scripted(play)


def turn(asked: ChatRequest) -> int:
    """How often the model has spoken in this conversation."""
    return sum(1 for message in asked.messages if message["role"] == "assistant")


def start(
    items: Iterable[CustomerRequest],
    endpoint: Endpoint,
    tools: ToolSet | None = None,
    *,
    support: Support = SUPPORT,
    clock: Clock | None = None,
    **options: Any,
) -> MapRun:
    around = Surroundings(endpoint=endpoint, clock=clock or SystemClock(), tools=tools or shop())
    return map_items(support, items, around=around, options=MapOptions(key=lambda item: item.id, **options))


async def answers(
    items: Iterable[CustomerRequest], endpoint: Endpoint, *given: Any, seconds: float = 20, **more: Any
) -> list[MapResult]:
    async with asyncio.timeout(seconds), start(items, endpoint, *given, **more) as run:
        return [result async for result in run]


async def answer(item: CustomerRequest, endpoint: Endpoint, *given: Any, **more: Any) -> Answer:
    """The answer to one request; raises the error it ended with."""
    (result,) = await answers([item], endpoint, *given, **more)
    if result.exception is not None:
        raise result.exception
    assert isinstance(result.value, Answer)
    return result.value
