"""Python functions as tools."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pytest

from siafu.errors import BudgetReached, ConfigError, ToolArgumentsInvalid, ToolDenied, ToolTimeout
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.tools.bounds import MAX_RESULT_BYTES
from siafu.tools.functions import MAX_THREADS, Functions, FunctionTool, tool
from siafu.tools.toolset import ToolResult

CONTEXT = CallContext(task="t1", user="kim")


@dataclass
class Address:
    city: str
    zip: int = 0


class Line(msgspec.Struct):
    sku: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


def order(
    order_id: Annotated[str, msgspec.Meta(description="번호", min_length=4)],
    lines: list[Line],
    to: Address,
    context: CallContext,
    kind: Literal["home", "shop"] = "home",
    note: str | None = None,
    tags: list[str] = ["new"],  # noqa: B006 - what is tested
) -> str:
    """Place an order.

    주문을 넣습니다.
    """
    tags.append("seen")
    return f"{order_id} {lines[0].sku}x{lines[0].count} {to.city} {kind} {note} {tags} {context.user}"


async def plus(a: int, b: int = 1) -> int:
    return a + b


async def call(function: Callable[..., Any], **arguments: Any) -> ToolResult:
    functions = Functions(function)
    (only,) = await functions.list()
    return await functions.call(only.name, arguments, CONTEXT)


async def test_the_schema_comes_from_the_hints() -> None:
    (found,) = await Functions(order).list()
    assert found.name == "order"
    assert found.description == "Place an order.\n\n주문을 넣습니다."
    schema = found.input_schema
    assert schema["type"] == "object"
    assert schema["required"] == ["order_id", "lines", "to"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["order_id"] == {"type": "string", "description": "번호", "minLength": 4}
    assert schema["properties"]["kind"] == {"enum": ["home", "shop"], "default": "home"}
    assert "context" not in schema["properties"]
    assert all(part["additionalProperties"] is False for part in schema["$defs"].values())
    assert found.function()["function"]["parameters"] is schema


async def test_arguments_arrive_as_the_types_asked_for() -> None:
    given = {"order_id": "1001", "lines": [{"sku": "A", "count": 2}], "to": {"city": "서울"}}
    for _ in range(2):  # a default that the function changes is fresh the next time
        result = await call(order, **given)
        assert result.text == "1001 Ax2 서울 home None ['new', 'seen'] kim"
        assert not result.is_error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "a is missing"),
        ({"a": "10"}, "a must be integer, not string '10'"),
        ({"a": True}, "a must be integer, not boolean True"),
        ({"a": float("nan")}, "a must be integer"),
        ({"a": 1, "c": 1}, "unknown c; known: a, b"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolArgumentsInvalid, match=says):
        await call(plus, **arguments)


async def test_nested_arguments_are_strict_too() -> None:
    with pytest.raises(ToolArgumentsInvalid, match="unknown color in lines"):
        await call(order, order_id="1001", lines=[{"sku": "A", "color": "red"}], to={"city": "서울"})


@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        ("그대로", "그대로", None),
        (3, "3", 3),
        (None, "null", None),
        ({"a": [1, "나"]}, '{"a":[1,"나"]}', {"a": [1, "나"]}),
        (Address("부산", 1), '{"city":"부산","zip":1}', {"city": "부산", "zip": 1}),
        (Line("A"), '{"sku":"A","count":1}', {"sku": "A", "count": 1}),
        (Decimal("1.10"), '"1.10"', "1.10"),
        ({"a": float("nan")}, '{"a":null}', {"a": None}),
        ("ok \ud83d 끝\x00", "ok \ufffd 끝\ufffd", None),
        ({"a\ud83d": ["\ud83d"]}, '{"a\ufffd":["\ufffd"]}', {"a\ufffd": ["\ufffd"]}),
        (ToolResult(text="no", is_error=True, code="gone"), "no", None),
    ],
)
async def test_what_functions_return(value: Any, text: str, structured: Any) -> None:
    def give() -> Any:
        return value

    result = await call(give)
    assert (result.text, result.structured) == (text, structured)
    assert result.code == ("gone" if isinstance(value, ToolResult) else "")


async def test_large_results_are_cut_with_a_note() -> None:
    def much() -> str:
        return "가" * 200_000

    def more() -> list[str]:
        return ["x" * 400_000]

    result = await call(much)
    assert len(result.text.encode()) < MAX_RESULT_BYTES + 100
    assert result.text.endswith("[cut here: the result has 600,000 bytes, the limit is 262,144]")
    assert (await call(more)).structured is None


async def test_exceptions_become_results_without_a_traceback() -> None:
    def broken() -> None:
        raise LookupError("no order 7, key sk-abcdefghijklmnopqrstuv " + "x" * 5000)

    async def broken_too() -> None:
        raise TimeoutError

    def leaves() -> None:
        raise SystemExit(3)

    def odd() -> Any:
        return object()

    result = await call(broken)
    assert result.is_error and result.code == "LookupError"
    assert result.text.startswith("LookupError: no order 7, key ***")
    assert len(result.text) < 600 and "Traceback" not in result.text
    assert (await call(broken_too)).text == "TimeoutError"
    assert (await call(leaves)).text == "RuntimeError: SystemExit: 3"
    assert "JSON cannot hold" in (await call(odd)).text


async def test_errors_of_siafu_go_on_to_the_caller() -> None:
    def spends() -> None:
        raise BudgetReached("the budget is spent")

    with pytest.raises(BudgetReached):
        await call(spends)


async def test_f30_blocking_functions_freeze_nobody() -> None:
    gate = threading.Event()

    def blocks() -> str:
        gate.wait(20)
        return "done"

    functions = Functions(blocks, plus)
    try:
        blocked = [asyncio.create_task(functions.call("blocks", {}, CONTEXT)) for _ in range(5)]
        async with asyncio.timeout(5):
            results = await asyncio.gather(*(functions.call("plus", {"a": i}, CONTEXT) for i in range(20)))
        assert [result.structured for result in results] == list(range(1, 21))
        assert not any(task.done() for task in blocked)
    finally:
        gate.set()
    assert [result.text for result in await asyncio.gather(*blocked)] == ["done"] * 5


async def test_threads_are_bounded_and_a_late_one_keeps_its_place() -> None:
    gate = threading.Event()
    running = 0
    lock = threading.Lock()

    @tool(timeout=0.2)
    def blocks() -> None:
        nonlocal running
        with lock:
            running += 1
        gate.wait(20)

    @tool(timeout=20)
    def instant() -> str:
        return "here"

    functions = Functions(blocks, instant)
    try:
        calls = [functions.call("blocks", {}, CONTEXT) for _ in range(MAX_THREADS + 8)]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(failure, ToolTimeout) for failure in failures)
        assert running == MAX_THREADS
        waiting = asyncio.create_task(functions.call("instant", {}, CONTEXT))
        await asyncio.sleep(0)
        assert not waiting.done()
    finally:
        gate.set()
    async with asyncio.timeout(5):
        assert (await waiting).text == "here"


async def test_a_function_set_serves_one_event_loop_after_another() -> None:
    functions = Functions(order, plus)
    given = {"order_id": "1001", "lines": [{"sku": "A"}], "to": {"city": "서울"}}

    async def many() -> list[ToolResult]:
        return await asyncio.gather(*(functions.call("order", given, CONTEXT) for _ in range(MAX_THREADS * 2)))

    for _ in range(2):
        results = await asyncio.to_thread(asyncio.run, many())
        assert len(results) == MAX_THREADS * 2


async def test_timeout_and_deadline() -> None:
    ended: list[str] = []

    @tool(timeout=0.05)
    async def slow() -> None:
        try:
            await asyncio.sleep(20)
        finally:
            ended.append("cancelled")

    functions = Functions(slow)
    with pytest.raises(ToolTimeout, match=r"slow did not answer within 0\.05 s"):
        await functions.call("slow", {}, CONTEXT)
    assert ended == ["cancelled"]
    late = CallContext(deadline=SystemClock().now() - 1)
    with pytest.raises(ToolTimeout, match="was not called"):
        await functions.call("slow", {}, late)
    assert ended == ["cancelled"]


async def test_cancelling_the_caller_cancels_a_coroutine_function() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        try:
            await asyncio.sleep(20)
        finally:
            ended.set()

    task = asyncio.create_task(call(slow))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_context_variables_reach_the_thread() -> None:
    word: contextvars.ContextVar[str] = contextvars.ContextVar("word")
    word.set("안녕")

    def read() -> str:
        return f"{word.get()} {threading.current_thread().daemon}"

    assert (await call(read)).text == "안녕 True"


async def test_the_decorator_keeps_the_function_callable() -> None:
    @tool
    def twice(n: int) -> int:
        """Doubles."""
        return n * 2

    @tool(name="look-up", description="Finds.", read_only=True, idempotent=True)
    def find(q: str) -> str:
        return q

    assert twice(4) == 8
    first, second = await Functions(twice, find).list()
    assert (first.name, first.description, first.read_only) == ("twice", "Doubles.", False)
    assert (second.name, second.description, second.read_only, second.idempotent) == ("look-up", "Finds.", True, True)


async def test_methods_are_tools_too() -> None:
    class Shop:
        def __init__(self) -> None:
            self.stock = {"A": 3}

        def check(self, sku: str) -> int:
            return self.stock[sku]

    assert (await call(Shop().check, sku="A")).text == "3"


def no_hint(a) -> None:  # type: ignore[no-untyped-def]
    pass


def many(*values: int) -> None:
    pass


def unknown(a: complex) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (no_hint, "parameter a needs a type hint"),
        (many, "not a parameter with one name"),
        (unknown, "unknown cannot be a tool"),
        (lambda: None, "is no tool name"),
        ("환불", "a tool is a function, not str"),
    ],
)
def test_functions_that_cannot_be_tools_are_refused_at_once(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Functions(function)


async def test_names_are_distinct_and_known() -> None:
    with pytest.raises(ConfigError, match="two functions are called 'plus'"):
        Functions(plus, FunctionTool(order, name="plus"))
    with pytest.raises(ToolDenied, match="no tool 'minus'"):
        await Functions(plus).call("minus", {}, CONTEXT)


async def test_the_thread_is_not_waited_for_when_the_caller_leaves() -> None:
    gate = threading.Event()

    def blocks() -> None:
        gate.wait(20)

    began = time.monotonic()
    task = asyncio.create_task(call(blocks))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 10
    gate.set()
