"""The effect contract around a real MCP server that pays into a file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from siafu.errors import ConfigError, InputError, NotNow, OutcomeUnknown, ToolTimeout, ToolUnavailable
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.tools.effect_rules import EffectRule
from siafu.tools.effects import Effects
from siafu.tools.functions import Functions
from siafu.tools.toolset import ToolResult

from .cash import LOOKUP, Desk

Open = Callable[..., Desk]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[Desk] = []

    def make(*wishes: str, owner: str = "me:1", **rule: Any) -> Desk:
        opened.append(Desk(tmp_path, msgspec.convert(rule, EffectRule), *wishes, owner=owner))
        return opened[-1]

    yield make
    for each in opened:
        await each.aclose()


async def test_the_same_step_acts_once_and_another_step_again(desk: Open) -> None:
    cash = desk()
    first, *others = await asyncio.gather(*(cash.pay(amount=700) for _ in range(8)))
    assert first.structured == {"paid": {"order_id": "1001", "amount": 700}}
    assert others == [first] * 7
    assert len(cash.paid) == 1 and cash.paid[0]["key"].startswith("ef:")
    await cash.pay("#1", amount=700)
    assert len(cash.paid) == 2


async def test_two_processes_and_one_request_are_one_effect(desk: Open) -> None:
    here, there = (desk(key=["request", "order_id"], ignore=["reason"], owner=name) for name in ("a:1", "b:2"))
    asks = [
        each.pay(f"#{n}", reason=f"문장 {n}", order_id=order)
        for n, each in enumerate([here, there] * 4)
        for order in ("A-7", " ａ-7 ")  # one order, spelt twice
    ]
    results = await asyncio.gather(*asks, return_exceptions=True)
    assert len(here.paid) == 1
    kinds = {each.code if isinstance(each, ToolResult) else type(each).__name__ for each in results}
    assert kinds == {"", "idempotency_key_reused"}  # another spelling is another text: told, never done


async def test_a_tool_without_a_rule_is_left_alone(desk: Open) -> None:
    cash = desk()
    await asyncio.gather(*(cash.pay(name="look") for _ in range(3)))
    assert cash.calls == ["look"] * 3
    tools = {tool.name: tool for tool in await cash.tools.list()}
    assert tools["pay"].guarded and not tools["look"].guarded and tools["look"].read_only
    assert await cash.tools.list() is await cash.tools.list()


async def test_sec13_what_a_server_claims_relaxes_nothing(desk: Open) -> None:
    cash = desk("claims")
    pay = next(tool for tool in await cash.tools.list() if tool.name == "pay")
    assert (pay.guarded, pay.read_only, pay.idempotent) == (True, False, False)
    cash.wish("lose")  # a tool that only reads would be asked again
    with pytest.raises(OutcomeUnknown):
        await cash.pay()
    assert len(cash.paid) == 1
    free = Desk(cash.folder, None, "claims")  # the check can fail: without a rule the claim is believed
    free.wish("lose")
    assert not (await free.pay()).is_error
    assert len(cash.paid) == 3
    await free.aclose()


# ---- unclear outcomes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wish", ["lose", "fail"])
async def test_f29_without_anything_to_rest_on_it_is_left_to_a_person(desk: Open, wish: str) -> None:
    cash = desk()
    cash.wish(wish)
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            await cash.pay(amount=700)
    assert len(cash.paid) == 1 and cash.calls == ["pay"]
    assert await cash.state() == "manual_review"
    (effect,) = await cash.people.effects("manual_review")
    with pytest.raises(InputError, match="asked for it"):
        await cash.people.resolve(effect.id, done=True, by="kim", result="{}")
    await cash.people.resolve(effect.id, done=True, by="lee", result='{"text":"paid, as the bank says"}')
    assert (await cash.pay(amount=700)).text == "paid, as the bank says"
    assert len(cash.paid) == 1


@pytest.mark.parametrize("wish", ["lose", "fail"])
async def test_under_an_honoured_key_it_is_asked_again(desk: Open, wish: str) -> None:
    cash = desk("honours", honours_key=True)
    cash.wish(wish)
    assert (await cash.pay(amount=700)).structured == {"paid": {"order_id": "1001", "amount": 700}}
    assert len(cash.paid) == 1 and cash.calls == ["pay", "pay"]


async def test_an_honoured_key_may_still_be_left_to_a_person(desk: Open) -> None:
    cash = desk("honours", honours_key=True, unknown="review")
    cash.wish("lose")
    with pytest.raises(OutcomeUnknown):
        await cash.pay()
    assert await cash.state() == "manual_review"


async def test_a_look_up_tells_what_became_of_it(desk: Open) -> None:
    cash = desk(lookup=LOOKUP)
    cash.wish("lose")
    result = await cash.pay(amount=700)
    assert result.structured["refunds"][0]["amount"] == 700
    assert cash.calls == ["pay", "find"] and await cash.state() == "succeeded"


async def test_a_look_up_that_fails_leaves_it_open_until_the_next_time(desk: Open) -> None:
    cash = desk(lookup=LOOKUP)
    cash.wish("lose")
    cash.wish("blind")
    with pytest.raises(OutcomeUnknown, match="could not be looked up"):
        await cash.pay()
    assert await cash.state() == "unknown"
    assert not (await cash.pay()).is_error
    assert len(cash.paid) == 1 and cash.calls == ["pay", "find", "find"]


async def test_what_a_look_up_does_not_show_is_not_done_again(desk: Open) -> None:
    cash = desk(lookup={**LOOKUP, "arguments": {"key": "$argument.order_id"}})  # nothing is ever found by it
    cash.wish("lose")
    with pytest.raises(OutcomeUnknown, match="does not show it"):
        await cash.pay()
    assert await cash.state() == "manual_review" and len(cash.paid) == 1


async def test_f33_a_refusal_is_told_and_the_key_is_free_for_other_words(desk: Open) -> None:
    cash = desk(key="request")
    cash.wish("refuse")
    assert (await cash.pay("#0", amount=99_999)).code == "over_limit"
    assert not (await cash.pay("#1", amount=5)).is_error
    assert (await cash.pay("#2", amount=6)).code == "idempotency_key_reused"
    assert [each["amount"] for each in cash.paid] == [5]


@pytest.mark.parametrize("wish", ["refuse", "fail", "lose", "blind"])
async def test_f31_a_failure_is_never_the_answer_of_the_next_call(desk: Open, wish: str) -> None:
    """Only what has happened is kept: after a failure the next call reaches the server, and acts once."""
    cash = desk("honours", honours_key=True, lookup=LOOKUP)
    cash.wish(wish)
    if wish == "blind":  # a look-up that fails, after a lost answer
        cash.wish("lose")
        with pytest.raises(OutcomeUnknown):
            await cash.pay(amount=700)
    elif wish == "refuse":
        assert (await cash.pay(amount=700)).is_error
    asked = len(cash.calls)
    assert not (await cash.pay(amount=700)).is_error
    assert len(cash.calls) > asked and len(cash.paid) == 1
    asked = len(cash.calls)
    assert not (await cash.pay(amount=700)).is_error  # a success is kept
    assert len(cash.calls) == asked


async def test_what_the_server_keeps_for_a_person_is_asked_again_under_its_key(desk: Open) -> None:
    cash = desk("honours", honours_key=True)
    cash.wish("wait")
    kept = await cash.pay()
    assert (kept.code, kept.later) == ("pending_approval", True)
    assert await cash.state() == "waiting"
    assert not (await cash.pay()).is_error
    assert len(cash.paid) == 1


async def test_what_the_server_cannot_do_now_is_done_later_and_once(desk: Open) -> None:
    cash = desk()  # a refusal: nothing was done, so it needs neither keys nor a look-up to be asked again
    cash.wish("closed")
    later = await cash.pay()
    assert (later.code, later.later, await cash.state()) == ("closed", True, "refused")
    assert not (await cash.pay()).is_error
    assert not (await cash.pay()).is_error
    assert len(cash.paid) == 1


async def test_what_cannot_be_done_now_may_make_the_whole_item_wait(desk: Open) -> None:
    cash = desk(pending="wait")
    for word in ("closed", "wait"):
        cash.wish(word)
        with pytest.raises(NotNow) as told:
            await cash.pay()
        assert told.value.reason == {"closed": "closed", "wait": "pending_approval"}[word]
    assert cash.paid == []


async def test_a_function_may_say_that_it_can_act_later(desk: Open) -> None:
    closed = True

    async def act() -> ToolResult:
        not_yet = ToolResult(text="on Monday", is_error=True, code="closed", later=True)
        return not_yet if closed else ToolResult(text="ok")

    tools = Effects(Functions(act), {"act": EffectRule()}, desk().store, clock=SystemClock(), owner="me:1")
    context = CallContext(run="r", task="t", step="#0")
    assert (await tools.call("act", {}, context)).later
    closed = False
    assert (await tools.call("act", {}, context)).text == "ok"


async def test_a_server_that_cannot_be_reached_has_done_nothing(desk: Open, tmp_path: Path) -> None:
    cash = desk()
    await cash.tools.list()
    await cash.server.aclose()
    for _ in range(2):
        with pytest.raises(ToolUnavailable):
            await cash.pay()
    assert await cash.state() == "refused"


async def test_a_cancelled_call_is_kept_as_unknown(desk: Open, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def act() -> str:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    cash = desk()
    tools = Effects(Functions(act), {"act": EffectRule()}, cash.store, clock=SystemClock(), owner="me:1")
    context = CallContext(run="r", task="t", step="#0")
    task = asyncio.create_task(tools.call("act", {}, context))
    await asyncio.wait_for(begun.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await cash.state() == "unknown"
    with pytest.raises(OutcomeUnknown):
        await tools.call("act", {}, context)
    assert await cash.state() == "manual_review"


async def test_a_call_ends_before_its_lease_and_the_callers_deadline(desk: Open) -> None:
    ends: list[float | None] = []
    clock = SystemClock()

    class Inner(Functions):
        async def call(self, name: str, arguments: Any, context: CallContext) -> ToolResult:
            ends.append(context.deadline)
            return ToolResult(text="ok")

    def act() -> None:
        """Act."""

    tools = Effects(Inner(act), {"act": EffectRule(lease_seconds=10)}, desk().store, clock=clock, owner="me:1")
    for step, deadline in (("#0", None), ("#1", clock.now() + 900), ("#2", clock.now() + 3)):
        await tools.call("act", {}, CallContext(run="r", task="t", step=step, deadline=deadline))
    now = clock.now()
    assert [end is not None and end - now <= limit for end, limit in zip(ends, (7, 7, 3), strict=True)] == [True] * 3
    with pytest.raises(ToolTimeout):
        await tools.call("act", {}, CallContext(run="r", task="t", step="#3", deadline=now - 1))
    assert len(ends) == 3


async def test_an_exception_of_a_function_is_no_refusal(desk: Open) -> None:
    done: list[int] = []

    def act() -> None:
        """Act, then fail."""
        done.append(1)
        raise ConnectionResetError("after the effect")

    tools = Effects(Functions(act), {"act": EffectRule()}, desk().store, clock=SystemClock(), owner="me:1")
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            await tools.call("act", {}, CallContext(run="r", task="t", step="#0"))
    assert done == [1]


@pytest.mark.parametrize("honours", [True, False])
async def test_what_another_call_is_doing_just_now_is_waited_for(desk: Open, honours: bool) -> None:
    told = {"code": "in_progress", "retry_after_ms": 1}
    busy = ToolResult(text="", structured=told, is_error=True, code="in_progress")
    answers = [busy] * 4 + [ToolResult(text="paid")]

    class Inner(Functions):
        async def call(self, name: str, arguments: Any, context: CallContext) -> ToolResult:
            return answers.pop(0)

    def act() -> None:
        """Act."""

    rules = {"act": EffectRule(honours_key=honours, lease_seconds=30)}
    tools = Effects(Inner(act), rules, desk().store, clock=SystemClock(), owner="me:1")
    call = tools.call("act", {}, CallContext(run="r", task="t", step="#0"))
    if honours:
        assert (await call).text == "paid"
    else:  # asking once more could be acting once more
        with pytest.raises(OutcomeUnknown):
            await call
        assert len(answers) == 4


# ---- people, switches, caps, definitions --------------------------------------------------------------------------


async def test_sec18_above_the_limit_a_person_decides_on_exactly_this(desk: Open) -> None:
    cash = desk(key="request", approval={"argument": "amount", "above": 1000})
    for _ in range(2):
        assert (await cash.pay(amount=1001)).code == "pending_approval"
    (approval,) = await cash.people.approvals("pending")
    assert approval.arguments == '{"amount":1001,"order_id":"1001"}' and approval.requester == "kim"
    await cash.people.decide(approval.id, approve=True, by="lee")
    assert (await cash.pay(amount=2000)).code == "idempotency_key_reused"
    assert not (await cash.pay(amount=1001)).is_error
    assert [each["amount"] for each in cash.paid] == [1001]


@pytest.mark.parametrize("arguments", [{}, {"amount": "900"}, {"amount": 900.0}, {"amount": True}, {"amount": -5}])
async def test_an_amount_that_cannot_be_judged_is_for_a_person(desk: Open, arguments: dict[str, Any]) -> None:
    cash = desk(approval={"argument": "amount", "above": 1000})
    assert (await cash.pay(**arguments)).code == "pending_approval"
    assert not (await cash.pay("#1", amount=1000)).is_error  # the check can pass


async def test_sec19_a_switch_and_a_cap_count_at_once(desk: Open) -> None:
    cash = desk(daily_total={"argument": "amount", "max": 1000}, daily_calls=3)
    assert not (await cash.pay("#0", amount=600)).is_error
    limit = await cash.pay("#1", amount=600)
    assert (limit.code, limit.later) == ("daily_limit", True)
    needed = await cash.pay("#2")
    assert (needed.code, needed.later) == ("amount_needed", False)
    await cash.people.switch("cash.pay", "", on=False, by="lee")
    off = await cash.pay("#3", amount=1)
    assert (off.code, off.later) == ("tool_disabled", True)
    assert not (await cash.pay("#0", amount=600)).is_error  # nothing is sent for it
    await cash.people.switch("cash.pay", "", on=True, by="lee")
    assert not (await cash.pay("#3", amount=1)).is_error
    assert [each["amount"] for each in cash.paid] == [600, 1]


async def test_sec12_a_tool_that_changed_is_gone_until_a_person_accepts_it(
    desk: Open, caplog: pytest.LogCaptureFixture
) -> None:
    await desk().pay("#0")
    cash = desk("changed")
    with caplog.at_level(logging.WARNING, "siafu.tools"):
        assert [tool.name for tool in await cash.tools.list()] == ["find", "look"]
    assert "siafu effects accept cash.pay" in caplog.text
    assert (await cash.pay("#1")).code == "tool_changed"
    assert len(cash.paid) == 1
    await cash.people.accept("cash.pay", by="lee")
    assert [tool.name for tool in await cash.tools.list()] == ["find", "look", "pay"]
    assert not (await cash.pay("#1")).is_error
    assert (await desk().pay("#2")).code == "tool_changed"  # and the old one is another one now
    assert len(cash.paid) == 2


async def test_a_server_of_our_own_changes_with_us(desk: Open) -> None:
    first, second = desk(), desk("changed")
    for n, cash in enumerate((first, second)):
        rules = {"cash.pay": EffectRule()}
        tools = Effects(cash.server, rules, cash.store, clock=SystemClock(), owner="me:1", ours=True)
        context = CallContext(run="r", task="t", step=f"#{n}")
        assert not (await tools.call("pay", {}, context)).is_error
        assert "pay" in [tool.name for tool in await tools.list()]
    assert len(first.paid) == 2


async def test_a_rule_for_a_tool_that_is_not_there_stops_everything(desk: Open) -> None:
    cash = desk()
    wrong = Effects(cash.server, {"cash.pey": EffectRule()}, cash.store, clock=SystemClock(), owner="me:1")
    with pytest.raises(ConfigError, match=r"did you mean cash\.pay"):
        await wrong.list()
    with pytest.raises(ConfigError):
        await wrong.call("pay", {}, CallContext(task="t", step="#0"))
    assert cash.paid == []
