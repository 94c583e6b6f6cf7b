"""What the user wants: the text to answer, freed of what a prompt wraps around it."""

from __future__ import annotations

import re

import msgspec

from siafu.bench.simulator.request import Asked, text_of
from siafu.bench.simulator.words import is_korean

_TAGGED = re.compile(r"<([A-Za-z_][\w-]*)[^<>]*>(.*?)</\1>", re.DOTALL)
_FENCED = re.compile(r"```[\w-]*\n(.*?)```|\"\"\"(.*?)\"\"\"", re.DOTALL)
_LABELLED = re.compile(
    r"^\s*(?:text|message|request|question|input|customer|user|review|document|content|query|"
    r"문의|요청|내용|질문|고객|본문|메시지|입력)[^:\n]{0,20}[::]\s*(.+)\Z",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
MOST_CHARS = 20_000  # of what a user says; the rest is not read
MOST_WORDS = 2  # of an answer that is only a number or code
_TEXT_KEYS = ("text", "message", "content", "request", "question", "query", "body", "input", "내용", "문의")
_REPAIR = re.compile(r"\bjson\b|schema|invalid|not valid|one of|format|again|스키마|형식|다시", re.IGNORECASE)


class Reading(msgspec.Struct, frozen=True):
    """`text`: what the user wants, in their words. `around`: everything else that was said to the model by the caller.
    `results`: texts of tool messages since the user spoke. `korean`: the language to answer in.
    """

    text: str
    around: str
    korean: bool
    results: tuple[str, ...] = ()


def read_user(asked: Asked) -> Reading:
    """The last thing the user said; when that only asks to repair an answer, what was said before; when it only gives
    a number or code that the assistant asked for, with what was said before.
    """
    said = [text_of(message) for message in asked.messages if message["role"] == "user"]
    said = [text[:MOST_CHARS] for text in said]
    last = said[-1] if said else ""
    if len(said) > 1 and len(last) < 1_000 and _REPAIR.search(last) and "assistant" in _roles_between(asked):
        last = said[-2]
    text = payload(last)
    if _completes(asked, text):
        text = f"{payload(said[-2])}\n{text}"
    others = [text_of(message) for message in asked.messages if message["role"] in ("system", "developer")]
    around = "\n".join([*others, *said]).replace(text, "") if text else "\n".join(others)
    return Reading(text, around, is_korean(text), _results(asked))


def _completes(asked: Asked, text: str) -> bool:
    """Whether `text` is hardly more than a number or code, and what stands before it is a question to the user."""
    places = [number for number, message in enumerate(asked.messages) if message["role"] == "user"]
    if len(text.split()) > MOST_WORDS or not re.search(r"\d", text) or len(places) < 2:
        return False
    before = asked.messages[places[-1] - 1]
    return before["role"] == "assistant" and "?" in text_of(before)


def _roles_between(asked: Asked) -> list[str]:
    """Roles of the messages between the last two user messages."""
    places = [number for number, message in enumerate(asked.messages) if message["role"] == "user"]
    return [message["role"] for message in asked.messages[places[-2] + 1 : places[-1]]]


def _results(asked: Asked) -> tuple[str, ...]:
    found: list[str] = []
    for message in reversed(asked.messages):
        if message["role"] == "user":
            break
        if message["role"] == "tool":
            found.append(text_of(message))
    return tuple(reversed(found))


def payload(said: str) -> str:
    """The part of a user message that is the matter itself: inside tags, fences or JSON, or after a label."""
    if said.lstrip().startswith("{"):
        try:
            value = msgspec.json.decode(said)
        except (msgspec.DecodeError, RecursionError):
            value = None
        if isinstance(value, dict):
            strings = {key: text for key, text in value.items() if isinstance(text, str)}
            chosen = [text for key, text in strings.items() if key.lower() in _TEXT_KEYS]
            return "\n".join(chosen or strings.values()) or said
    tagged = _TAGGED.findall(said)
    if tagged:
        return str(max((inner for _, inner in tagged), key=len)).strip()
    fenced = _FENCED.search(said)
    if fenced:
        return (fenced[1] or fenced[2] or "").strip() or said
    labelled = _LABELLED.search(said)
    return labelled[1].strip() if labelled else said.strip()
