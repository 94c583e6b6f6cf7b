from __future__ import annotations

from typing import Any

import msgspec

from siafu.gateway.chat import ChatRequest, Message
from siafu.gateway.prefix import FIRST_CALLS, Beginning, Difference, HeadWatch, PromptCache, beginning, spelled

SYSTEM: Message = {"role": "system", "content": "너는 쇼핑몰의 상담원이다. " * 20}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("order", "refund")]


def ask(*messages: Message, text: str = "주문 1?", **fields: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=[*messages, {"role": "user", "content": text}], **fields)


def named(request: ChatRequest) -> str:
    found = beginning(request, 100)
    assert found is not None
    return found.name


def test_calls_begin_alike_when_model_tools_format_and_system_text_are_the_same() -> None:
    base = named(ask(SYSTEM, tools=TOOLS))
    assert named(ask(SYSTEM, tools=TOOLS, text="환불해 주세요", temperature=0.5, max_tokens=9)) == base
    later = ChatRequest(model="m", messages=[SYSTEM, {"role": "assistant", "content": "네"}], tools=TOOLS)
    assert named(later) == base
    others = [
        msgspec.structs.replace(ask(SYSTEM, tools=TOOLS), model="other"),
        ask(SYSTEM, tools=TOOLS[::-1]),
        ask(SYSTEM, tools=TOOLS, response_format={"type": "json_object"}),
        ask(SYSTEM, {"role": "developer", "content": "짧게."}, tools=TOOLS),
        ask({**SYSTEM, "content": "지금은 12시다. " + str(SYSTEM["content"])}, tools=TOOLS),
    ]
    assert len({base, *map(named, others)}) == 6


def test_without_a_long_system_text_the_first_tokens_of_the_whole_count() -> None:
    shared = "문서: " + "가나다라 " * 40
    assert named(ask(text=shared + "질문 1")) == named(ask(text=shared + "질문 2"))
    assert named(ask(text="1 " + shared)) != named(ask(text="2 " + shared))
    assert beginning(ask(text="짧다"), 100) is None
    passed_on = {"messages": msgspec.Raw(msgspec.json.encode([SYSTEM])), "tools": msgspec.Raw(b"[]")}
    found = beginning(ChatRequest(model="m", messages=(), given=passed_on), 100)
    assert found is not None and found.head == b""


def test_a_broken_character_ends_nothing() -> None:
    assert named(ask(SYSTEM, text="\ud800")) == named(ask(SYSTEM))


def test_marks_and_key_stand_where_they_are_wanted_and_nowhere_else() -> None:
    request = ask(SYSTEM, tools=TOOLS)
    found = beginning(request, 100)
    assert found is not None
    assert spelled(request, PromptCache(lead=True), found) is request
    marked = spelled(request, PromptCache(marks="5m"), found)
    part = {"type": "text", "text": SYSTEM["content"], "cache_control": {"type": "ephemeral", "ttl": "5m"}}
    assert marked.messages == [{**SYSTEM, "content": [part]}, request.messages[1]]
    assert request.messages[0] == SYSTEM  # the caller's own is as it was
    plain = spelled(request, PromptCache(marks="ephemeral"), found).messages[0]["content"]
    assert plain[0]["cache_control"] == {"type": "ephemeral"}
    keyed = spelled(request, PromptCache(key=True), found)
    assert keyed.extra == {"prompt_cache_key": f"siafu-{found.name[:24]}"}
    assert keyed.messages is request.messages


def test_what_its_author_said_stays() -> None:
    both = PromptCache(marks="1h", key=True)
    mark = {"cache_control": {"type": "ephemeral"}}
    own_part = {"role": "user", "content": [{"type": "text", "text": "긴 문서", **mark}, "odd"]}
    for request in (
        ask(SYSTEM, own_part, extra={"prompt_cache_key": "mine"}),
        ask(SYSTEM, tools=[{**TOOLS[0], **mark}], extra={"prompt_cache_key": "mine"}),
        ask(SYSTEM, extra={**mark, "prompt_cache_key": "mine"}),
    ):
        found = beginning(request, 100)
        assert found is not None and spelled(request, both, found) is request


def test_a_mark_goes_to_the_last_part_of_the_last_system_text() -> None:
    parts = [{"type": "text", "text": "하나"}, {"type": "text", "text": "둘"}]
    request = ask(SYSTEM, {"role": "system", "content": parts})
    found = beginning(request, 100)
    assert found is not None
    marked = spelled(request, PromptCache(marks="5m"), found).messages
    assert marked[0] == SYSTEM and "cache_control" not in marked[1]["content"][0]
    assert marked[1]["content"][1] == {**parts[1], "cache_control": {"type": "ephemeral", "ttl": "5m"}}
    for odd in ([], ["x"], None, 5):
        request = ask(SYSTEM, {"role": "system", "content": odd})
        found = beginning(request, 100)
        assert found is not None
        assert list(spelled(request, PromptCache(marks="5m"), found).messages) == list(request.messages)


def heads(*requests: ChatRequest) -> list[Difference]:
    watch = HeadWatch()
    found = [watch.saw(("run", "role", "m"), beginning(request, 100) or Beginning("", b"")) for request in requests]
    return [each for each in found if each is not None]


def test_f57_a_clock_in_the_prefix_is_told_once_with_its_place() -> None:
    clocked = [ask({**SYSTEM, "content": f"지금은 12:00:{n:02} {SYSTEM['content']}"}) for n in range(FIRST_CALLS)]
    (told,) = heads(*clocked, *clocked)
    assert told == Difference("system", len("지금은 12:00:0"))


def test_tools_in_another_order_each_time_are_told() -> None:
    many = [{"type": "function", "function": {"name": f"t{n}"}} for n in range(FIRST_CALLS)]
    assert heads(*(ask(SYSTEM, tools=many[n:] + many[:n]) for n in range(FIRST_CALLS))) == [Difference("tools")]
    forms = [{"type": "json_schema", "json_schema": {"name": f"f{n}"}} for n in range(FIRST_CALLS)]
    assert heads(*(ask(SYSTEM, response_format=form) for form in forms)) == [Difference("format")]


def test_a_few_kinds_of_prompts_are_no_difference() -> None:
    roles = [ask({**SYSTEM, "content": f"역할 {n % 5} {SYSTEM['content']}"}) for n in range(3 * FIRST_CALLS)]
    assert heads(*roles) == []
    assert heads(*(ask(text=f"{n} " + "가나다라 " * 40) for n in range(FIRST_CALLS))) == []  # no system text
