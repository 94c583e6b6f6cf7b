from __future__ import annotations

from typing import Any

import pytest

from siafu.agents.replay import Replay
from siafu.agents.task import Surroundings, TaskContext
from siafu.apps.support.classify import Ticket, classify
from siafu.apps.support.routes import DEFAULT_CATEGORY
from siafu.gateway.chat import ChatAnswer
from siafu.gateway.scripted import Answer, Scripted, say
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock

GOOD = '{"category":"refund","priority":1,"sub_agent_model":"strong"}'


async def sorted_by(*answers: Answer) -> tuple[Ticket, list[list[Any]]]:
    """The ticket, and the messages of each request."""
    endpoint = Scripted(answers)
    ctx = TaskContext(Surroundings(endpoint=endpoint, clock=SystemClock()), CallContext(), Replay("t", None, ()))
    ticket = await classify(ctx, "\ub3c8\uc744 \ub3cc\ub824\uc8fc\uc138\uc694", "m")
    return ticket, [list(request.messages) for request in endpoint.requests]


@pytest.mark.parametrize("text", [GOOD, f"```json\n{GOOD}\n```"])
async def test_a_good_answer_takes_one_call(text: str) -> None:
    ticket, sent = await sorted_by(text)
    assert ticket == Ticket(category="refund", priority=1, hint="strong")
    assert len(sent) == 1


@pytest.mark.parametrize(
    "odd", ['{"category":"refund"}', '{"category":"refund","priority":true,"sub_agent_model":7,"more":1}']
)
async def test_only_the_category_must_be_right(odd: str) -> None:
    ticket, sent = await sorted_by(odd)
    assert ticket == Ticket(category="refund")
    assert len(sent) == 1


async def test_f20_a_made_up_category_twice_is_the_flagged_default() -> None:
    ticket, sent = await sorted_by('{"category":"billing"}', '{"category":"billing"}')
    assert ticket == Ticket(category=DEFAULT_CATEGORY, flagged=True)
    assert [message["role"] for message in sent[1]] == ["system", "user", "assistant", "user"]
    assert "order_status" in sent[1][-1]["content"]


@pytest.mark.parametrize(
    ("first", "roles"),
    [
        (say(None), ["system", "user", "user"]),
        (say(" \n", reasoning_content="hm"), ["system", "user", "user"]),
        (say("let me look", ("a", "get_order_status", "{}")), ["system", "user", "assistant", "user"]),
        (say(None, ("a", "get_order_status", "{}")), ["system", "user", "user"]),
    ],
)
async def test_the_repair_turn_repeats_nothing_that_upstreams_refuse(first: ChatAnswer, roles: list[str]) -> None:
    ticket, sent = await sorted_by(first, GOOD)
    assert ticket.category == "refund"
    assert [message["role"] for message in sent[1]] == roles
    assert all(message["content"].strip() and "tool_calls" not in message for message in sent[1])
