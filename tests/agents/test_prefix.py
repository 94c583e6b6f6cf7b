"""The part of a request that all runs of an agent share is the same to the byte, so that prompt caches hit."""

from __future__ import annotations

from siafu.agents.agent import Agent
from siafu.border.canonical import dumps
from siafu.gateway.scripted import Scripted, say
from siafu.observe.calls import CallContext
from siafu.pace.clock import VirtualClock

from .agent_fakes import FakeTools, context

AGENT = Agent(
    name="desk", role="order_status", instructions="You answer customers. 짧게.", tools=("ping", "get_order_status")
)


def before(body: bytes, text: str) -> bytes:
    head, found, _ = body.partition(dumps(text))
    assert found
    return head


async def bodies(agents: list[Agent]) -> tuple[list[bytes], list[bytes]]:
    """First and second requests of one run an agent, a minute and a customer apart."""
    clock, first, second = VirtualClock(), [], []
    for n, agent in enumerate(agents):
        endpoint, tools = Scripted([say(None, ("a", "ping", "{}")), "ok"]), FakeTools()
        if n % 2:  # the server lists its tools in another order
            tools.tools = tuple(reversed(tools.tools))
        call = CallContext(run=f"run{n}", task=f"task{n}", user=f"user{n}", tenant=f"t{n}", deadline=clock.now() + 99)
        ctx = await context(endpoint, tools, clock=clock, call=call)
        await agent.ask(ctx, f"손님 {n}: where is order {n}?")
        await clock.sleep(60)
        first.append(dumps(endpoint.requests[0].body()))
        second.append(dumps(endpoint.requests[1].body()))
    return first, second


async def test_f57_a_hundred_runs_share_their_prefix() -> None:
    first, second = await bodies([AGENT] * 100)
    heads = {before(body, f"손님 {n}: where is order {n}?") for n, body in enumerate(first)}
    assert len(heads) == 1
    (head,) = heads
    assert dumps(AGENT.instructions) in head
    assert b"get_order_status" in head
    # and each later turn goes on from the whole turn before it
    for one, two in zip(first, second, strict=True):
        assert two.startswith(one.removesuffix(b"]}"))


async def test_the_check_can_fail() -> None:
    clocked = [Agent(name="desk", instructions=f"It is {n} o'clock.") for n in range(2)]
    first, _ = await bodies(clocked)
    assert before(first[0], "손님 0: where is order 0?") != before(first[1], "손님 1: where is order 1?")
