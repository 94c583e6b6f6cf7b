"""What the assistant says: call tools, fill a schema, or write; decided from the request alone."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from siafu.bench.simulator.choices import choose
from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.prose import acknowledge, ask_for, parsed, report
from siafu.bench.simulator.reading import Reading, read_user
from siafu.bench.simulator.reply import Answer, Call
from siafu.bench.simulator.request import Asked, forced_name, text_of
from siafu.bench.simulator.schemas import Source, fill
from siafu.bench.simulator.tokens import count, cut
from siafu.bench.simulator.tool_calls import Wish, insisted, wishes

_ONE_OF = re.compile(
    r"(?:one of|choose from|classify (?:it |this )?(?:as|into)|중 하나로?|다음 중)(?: the following)?\s*[::]?\s*"
    r"((?:[\"'`]?[\w-]+[\"'`]?\s*(?:,\s*(?:or |and )?|\||/|\bor\b|또는)\s*)+[\"'`]?[\w-]+)",
    re.IGNORECASE,
)
_KEY = re.compile(r"[\"“](\w+)[\"”]\s*:\s*([^\n,}]*)")


def answer_to(asked: Asked, draws: Draws, *, thinking: bool = False) -> Answer:
    """The answer to a valid request. `thinking`: with reasoning_content."""
    reading = read_user(asked)
    plan = _Plan(asked, reading, draws)
    calls = plan.calls()
    answer = Answer(calls=calls, finish="tool_calls") if calls else Answer(content=plan.text())
    if thinking:
        answer = msgspec.structs.replace(answer, reasoning=f"The user wants: {reading.text[:80]}")
    return _within(answer, asked)


class _Plan:
    """One request, read once."""

    def __init__(self, asked: Asked, reading: Reading, draws: Draws) -> None:
        self._asked, self._reading, self._draws = asked, reading, draws
        self._results = [parsed(text) for text in reading.results]
        self._made = _calls_made(asked)
        usable = asked.functions if asked.tool_choice != "none" else []
        self._wishes = wishes(reading.text, usable, self._results, draws) if usable else []

    def calls(self) -> tuple[Call, ...]:
        """The tool calls to make now; none that this conversation has made already."""
        choice, functions = self._asked.tool_choice, self._asked.functions
        wanted = [wish for wish in self._wishes if not wish.missing and wish.key not in self._made]
        if isinstance(choice, dict) or (choice == "required" and not wanted):
            allowed = [f for f in functions if isinstance(choice, str) or f["name"] == forced_name(choice or {})]
            wanted = [self._insisted(allowed)]
        if self._asked.parallel_tool_calls is False:
            wanted = wanted[:1]
        return tuple(self._call(wish, number) for number, wish in enumerate(wanted))

    def _insisted(self, functions: list[dict[str, Any]]) -> Wish:
        """A call that must be made: what the text does not tell is filled in."""
        wish = insisted(self._reading.text, functions, self._results, self._draws)
        function = next(function for function in functions if function["name"] == wish.name)
        filled = fill(function.get("parameters") or {"type": "object"}, self._source())
        return Wish(wish.name, {**(filled if isinstance(filled, dict) else {}), **wish.arguments})

    def _call(self, wish: Wish, number: int) -> Call:
        arguments = msgspec.json.encode(wish.arguments).decode()
        return Call("call_" + self._draws.text(f"call {number}", 24), wish.name, arguments)

    def text(self) -> str:
        """The answer in words, or in the JSON that was asked for."""
        form = self._asked.response_format or {}
        described = form.get("json_schema") if form.get("type") == "json_schema" else None
        if isinstance(described, dict) and isinstance(described.get("schema"), dict):
            return _json(fill(described["schema"], self._source(str(described.get("description", "")))))
        keys = _keys(self._reading.around)
        if form.get("type") == "json_object" or (keys and re.search(r"\bjson\b", self._reading.around, re.IGNORECASE)):
            return _json(fill(_schema_of(keys), self._source()))
        options = _ONE_OF.search(self._reading.around)
        if options:
            values = re.findall(r"[\w-]+", re.sub(r"\b(?:or|and)\b|또는", " ", options[1]))
            return str(choose(values, "answer", self._reading.around, self._reading.text, self._draws)[0])
        return self._prose()

    def _prose(self) -> str:
        missing = [name for wish in self._wishes for name in wish.missing]
        told = self._relevant()
        parts = [report(told, korean=self._reading.korean)] if told else []
        if missing:
            parts.append(ask_for(missing, korean=self._reading.korean))
        return " ".join(parts) or acknowledge(self._reading.text, korean=self._reading.korean)

    def _relevant(self) -> list[str]:
        """Results since the user spoke; else earlier ones of calls that would be made again."""
        if self._reading.results:
            return list(self._reading.results)
        return [self._made[wish.key] for wish in self._wishes if self._made.get(wish.key)]

    def _source(self, described: str = "") -> Source:
        return Source(
            self._reading.text, f"{described}\n{self._reading.around}", self._prose, self._draws, tuple(self._results)
        )


def _calls_made(asked: Asked) -> dict[tuple[str, str], str]:
    """Calls of this conversation (as Wish.key) -> the text of their result."""
    results = {str(m.get("tool_call_id")): text_of(m) for m in asked.messages if m["role"] == "tool"}
    made: dict[tuple[str, str], str] = {}
    for message in asked.messages:
        for call in (message.get("tool_calls") or []) if message["role"] == "assistant" else []:
            arguments = parsed(call["function"]["arguments"])
            if isinstance(arguments, dict):
                made[Wish(call["function"]["name"], arguments).key] = results.get(call["id"], "")
    return made


def _keys(around: str) -> dict[str, str]:
    """Keys of the JSON that a prompt shows -> what it shows as their value."""
    return {key: shown.strip() for key, shown in _KEY.findall(around)}


def _schema_of(keys: dict[str, str]) -> dict[str, Any]:
    """A schema for the JSON a prompt shows: "a|b|c" is a choice, "1-3" a range, true a yes or no, else text."""
    properties: dict[str, Any] = {}
    for key, shown in keys.items():
        plain = shown.strip("\"'<>. ")
        parts = re.fullmatch(r"(\d+)\s*[-–~]\s*(\d+)", plain)
        if parts:
            properties[key] = {"type": "integer", "minimum": int(parts[1]), "maximum": int(parts[2])}
        elif "|" in plain:
            properties[key] = {"enum": [option.strip("\"' ") for option in plain.split("|")]}
        elif plain in ("true", "false", "boolean"):
            properties[key] = {"type": "boolean"}
        elif re.fullmatch(r"\d+|int|integer|number", plain):
            properties[key] = {"type": "integer", "minimum": 0}
        else:
            properties[key] = {"type": "string"}
    properties = properties or {"answer": {"type": "string"}}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _within(answer: Answer, asked: Asked) -> Answer:
    """The answer within the request's stop words and maximum of tokens."""
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    content = answer.content
    for stop in filter(None, stops):
        content = content and content.split(stop)[0]
    answer = msgspec.structs.replace(answer, content=content)
    most = asked.most_tokens
    if most is None or answer.tokens <= most:
        return answer
    left = most - count(answer.reasoning or "")
    kept = []
    for call in answer.calls:
        left -= 3 + count(call.name)
        if left <= 0:
            break
        kept.append(Call(call.id, call.name, cut(call.arguments, left)))
        left -= count(call.arguments)
    return Answer(
        content=content and cut(content, max(0, left)),
        calls=tuple(kept),
        finish="length",
        reasoning=answer.reasoning and cut(answer.reasoning, most),
    )
