"""Tool sets around tool sets: filtered, joined, validated; and how names are chosen."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.errors import ConfigError, ToolArgumentsInvalid, ToolDenied, ToolUnavailable
from siafu.observe.calls import CallContext
from siafu.tools.filtered import Filtered
from siafu.tools.functions import Functions
from siafu.tools.joined import Joined
from siafu.tools.naming import distinct_names
from siafu.tools.toolset import Tool, ToolResult, ToolSet
from siafu.tools.validated import Validated

CONTEXT = CallContext()


class Recorded:
    """A tool set that answers with its own name and keeps what it was called with."""

    def __init__(self, server: str, *names: str, **more: Any) -> None:
        self.server = server
        self.tools: tuple[Tool, ...] = tuple(Tool(name=name, server=server, **more) for name in names)
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.down = False
        self.answer = ToolResult(text="from " + server)

    async def list(self) -> Sequence[Tool]:
        if self.down:
            raise ToolUnavailable(f"{self.server} is down")
        return self.tools

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        self.calls.append((name, arguments))
        return self.answer


async def names(tools: ToolSet) -> list[str]:
    return [tool.name for tool in await tools.list()]


async def test_sec10_a_role_sees_and_calls_only_its_tools() -> None:
    inner = Recorded("shop", "get_order_status", "process_refund", "search_products")
    role = Filtered(inner, ["get_order_status", "search_*"])
    assert await names(role) == ["get_order_status", "search_products"]
    assert (await role.call("get_order_status", {"a": 1}, CONTEXT)).text == "from shop"
    assert inner.calls == [("get_order_status", {"a": 1})]


@pytest.mark.parametrize(
    "name",
    [
        "process_refund",
        "Get_order_status",
        "GET_ORDER_STATUS",
        "gеt_order_status",  # a Cyrillic letter
        "ｇｅｔ_order_status",  # full width
        "get_order_status ",
        "get_order_status\n",
        "get_order_status\u200b",
        "shop.get_order_status",
        "get_*",
        "*",
        "",
    ],
)
async def test_sec10_every_other_name_is_denied_and_nothing_is_sent(name: str) -> None:
    inner = Recorded("shop", "get_order_status", "process_refund")
    role = Filtered(inner, ["get_order_status"])
    with pytest.raises(ToolDenied, match="usable: get_order_status") as caught:
        await role.call(name, {}, CONTEXT)
    assert "refund" not in caught.value.message.removeprefix(f"there is no tool {name!r}")
    assert inner.calls == []


async def test_nothing_allowed_is_nothing_offered() -> None:
    inner = Recorded("shop", "a")
    assert await names(Filtered(inner, [])) == []
    with pytest.raises(ToolDenied, match="usable: none"):
        await Filtered(inner, []).call("a", {}, CONTEXT)
    assert await names(Filtered(inner, "a")) == ["a"]  # one name is not taken for its letters
    with pytest.raises(ToolDenied):
        await Filtered(inner, ["b*"]).call("b1", {}, CONTEXT)  # fits the pattern, but there is no such tool
    assert inner.calls == []


async def test_f26_one_name_on_two_servers() -> None:
    first, second = Recorded("s1", "post_note", "read"), Recorded("s2", "post_note")
    both = Joined([first, second])
    assert await names(both) == ["s1_post_note", "read", "s2_post_note"]
    assert (await both.call("s2_post_note", {"text": "메모"}, CONTEXT)).text == "from s2"
    assert (first.calls, second.calls) == ([], [("post_note", {"text": "메모"})])
    with pytest.raises(ToolDenied):
        await both.call("post_note", {}, CONTEXT)
    assert await names(Joined([second, first])) == ["s2_post_note", "s1_post_note", "read"]


async def test_f26_prefixes_that_make_a_new_clash() -> None:
    sets = [Recorded("a_b", "c"), Recorded("a", "b_c"), Recorded("x", "c", "b_c")]
    joined = Joined(sets)
    found = await names(joined)
    assert len(set(found)) == 4
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", name) for name in found)
    for name in found:
        await joined.call(name, {}, CONTEXT)
    assert [one.calls for one in sets] == [[("c", {})], [("b_c", {})], [("c", {}), ("b_c", {})]]
    assert set(await names(Joined(sets[::-1]))) == set(found)


async def test_f26_two_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match="'note' of 's' and 'note' of 's'"):
        await Joined([Recorded("s", "note"), Recorded("s", "note")]).list()


async def test_f21_a_server_that_is_down_does_not_stop_the_others() -> None:
    up, down = Recorded("up", "a"), Recorded("down", "b")
    joined = Joined([up, down])
    down.down = True
    with pytest.raises(ToolUnavailable, match="down is down"):
        await joined.list()
    down.down = False
    await joined.list()
    down.down = True
    assert (await joined.call("a", {}, CONTEXT)).text == "from up"


async def test_lists_follow_the_inner_set() -> None:
    inner = Recorded("s", "a")
    outer = Filtered(Validated(Joined([inner])), ["*"])
    assert await outer.list() is await outer.list()
    inner.tools = (*inner.tools, Tool(name="b", server="s"))
    assert await names(outer) == ["a", "b"]


server_names = st.text("ab_", min_size=1, max_size=3)


@given(st.sets(st.tuples(server_names, st.text("abc_.한", min_size=1, max_size=4)), max_size=30))
def test_names_are_valid_distinct_and_independent_of_order(tools: set[tuple[str, str]]) -> None:
    ordered = sorted(tools)
    found = distinct_names(ordered)
    assert len(set(found)) == len(found)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", name) for name in found)
    backwards = distinct_names(ordered[::-1])
    assert found == backwards[::-1]


def test_long_names_are_cut_and_stay_distinct() -> None:
    found = distinct_names([("s", "x" * 80 + "1"), ("s", "x" * 80 + "2"), ("s" * 60, "note"), ("t" * 60, "note")])
    assert len(set(found)) == 4
    assert all(len(name) <= 64 for name in found)


STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("arguments", [{}, {"n": "1"}, {"n": True}, {"n": float("nan")}, {"n": 1, "x": 2}])
async def test_sec11_arguments_that_do_not_fit_never_reach_the_tool(arguments: dict[str, Any]) -> None:
    inner = Recorded("s", "f", input_schema=STRICT)
    with pytest.raises(ToolArgumentsInvalid):
        await Validated(inner).call("f", arguments, CONTEXT)
    assert inner.calls == []
    await Validated(inner).call("f", {"n": 1}, CONTEXT)
    assert inner.calls == [("f", {"n": 1})]


async def test_a_tool_with_an_unusable_schema_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = Recorded("s", "good"), Recorded("t", "bad", input_schema={"$ref": "http://example.com"})
    with caplog.at_level(logging.WARNING, "siafu.tools"):
        checked = Validated(Joined([good, bad]))
        assert await names(checked) == ["good"]
        assert await names(checked) == ["good"]
    assert len(caplog.records) == 1
    with pytest.raises(ToolDenied):
        await checked.call("bad", {}, CONTEXT)
    assert bad.calls == []


async def test_data_that_breaks_the_output_schema_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    inner = Recorded("s", "f", output_schema=STRICT)
    for structured, kept in (({"n": 1}, {"n": 1}), ({"n": "1"}, None)):
        inner.answer = ToolResult(text="본문", structured=structured)
        result = await Validated(inner).call("f", {}, CONTEXT)
        assert (result.text, result.structured) == ("본문", kept)
    inner.answer = ToolResult(text="no", structured={"code": "gone"}, is_error=True)
    assert (await Validated(inner).call("f", {}, CONTEXT)).structured == {"code": "gone"}


async def test_functions_join_with_servers() -> None:
    def note(text: str) -> str:
        return text

    joined = Joined([Functions(note), Recorded("s", "note")])
    assert await names(joined) == ["note", "s_note"]
    assert (await joined.call("note", {"text": "x"}, CONTEXT)).text == "x"
