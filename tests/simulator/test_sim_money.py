"""Requests to pay money back: by tools and prompts that siafu has never heard of, however they are named."""

from __future__ import annotations

from typing import Any

import pytest

from siafu.bench.simulator.finding import numbers, sums
from sim import Sim

from .chat import Json, body, called, say, tool

NUMBER = {"type": "string", "pattern": "^[A-Z]-[0-9]{5}$"}
CENTS = "Sum in cents for dollars, else in won. Optional."
TICKETS = [
    tool("look_up", "State of a ticket order: seats, price, date", booking=NUMBER),
    tool("search_shows", "Find shows by name", query={"type": "string"}),
    tool("hold_seats", "Set seats aside, when some are available", show=NUMBER, seats={"type": "integer"}),
]
# (name, description, how its sum is named and described)
WORDINGS: list[tuple[str, str, str, Json]] = [
    ("reimburse", "Give money back for an order", "total", {"type": "integer", "description": CENTS}),
    ("환불처리", "고객에게 돈을 돌려줍니다", "금액", {"type": "integer", "description": "달러는 센트, 아니면 원화"}),
    (
        "pay_back",
        "Refunds an order.",
        "amount",
        {"description": CENTS, "anyOf": [{"type": "null"}, {"type": "integer"}]},
    ),
]


@pytest.mark.parametrize(("name", "description", "amount", "schema"), WORDINGS)
@pytest.mark.parametrize("prompt", ["{}", "Customer writes: {}", "<mail>\n{}\n</mail>\nHelp them.", "고객: {}"])
@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("주문 T-10233 환불해 주세요.", None),
        ("I want my money back for order T-10233", None),
        ("T-10233 두 자리 중 하나만요. 45,000원만 환불해 주세요.", 45_000),
        ("Please refund $29.90 of order T-10233: one of us is ill.", 2990),
    ],
)
async def test_a_refund_is_asked_for_whatever_its_tool_is_called(
    sim: Sim, name: str, description: str, amount: str, schema: Json, prompt: str, text: str, paid: int | None
) -> None:
    tools = [*TICKETS, tool(name, description, ["booking"], booking=NUMBER, **{amount: schema})]
    calls = called(await say(sim, body(prompt.format(text), tools=tools)))
    wanted: Json = {"booking": "T-10233"} | ({} if paid is None else {amount: paid})
    assert (name, wanted) in calls
    assert [called for called, _ in calls].count(name) == 1


@pytest.mark.parametrize(
    "text",
    [
        "주문 T-10233 좌석이 어디인지 알려주세요.",
        "What is the state of my order T-10233?",
        "My order T-10233 is a disaster, the seats were broken!",
    ],
)
async def test_money_is_not_paid_back_unasked(sim: Sim, text: str) -> None:
    name, description, amount, schema = WORDINGS[0]
    tools = [*TICKETS, tool(name, description, ["booking"], booking=NUMBER, **{amount: schema})]
    assert name not in [called for called, _ in called(await say(sim, body(text, tools=tools)))]


async def test_further_tools_do_not_drown_the_right_one(sim: Sim) -> None:
    seats = tool("free_seats", "How many seats of a show are available, and their price", show=NUMBER)
    more = [
        tool(f"{verb}_seats", f"{verb} seats of a show, while they are available", show=NUMBER)
        for verb in ("hold", "release", "swap", "upgrade")
    ]
    text = "Is Hamlet available, and what does it cost?"
    for tools in ([], more):
        calls = called(await say(sim, body(text, tools=[TICKETS[1], seats, *tools])))
        assert calls == [("search_shows", {"query": "Hamlet"})]


@pytest.mark.parametrize(
    ("text", "cents", "found"),
    [
        ("18,000원만", True, [18_000]),
        ("3만 원", True, [30_000]),
        ("₩5,500 또는 5천원", True, [5_500, 5_000]),
        ("$29.90", True, [2_990]),
        ("$29.90", False, [29.9]),
        ("1,029.05 USD and 7 dollars", True, [102_905, 700]),
        ("12달러", True, [1_200]),
        ("주문 1012, 2개, 2026-11-30, 010-1234-5678", True, []),
    ],
)
def test_sums_of_money(text: str, cents: bool, found: list[Any]) -> None:
    assert sums(text, cents=cents) == found


def test_a_sum_is_no_order_number() -> None:
    text = "주문 1012 취소해 주세요"
    assert numbers("amount", "In won, of the order", text, own=True) == []
    assert numbers("order", "Number of the order", text, own=True) == [1012], "and this test can see it"
