"""What has been said so far, as one frozen value. The agent's instructions are no part of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from siafu.border.text import clean
from siafu.errors import InputError
from siafu.gateway.chat import ChatAnswer, Message

ROLES = ("user", "assistant", "tool")


class Conversation(msgspec.Struct, frozen=True):
    """Chat messages in order. Every method returns a new conversation; this one stays as it is."""

    messages: tuple[Message, ...] = ()

    def append(self, *messages: Message) -> Conversation:
        return Conversation(self.messages + messages)

    def user(self, text: str) -> Conversation:
        return self.append({"role": "user", "content": clean(text)})

    def assistant(self, answer: ChatAnswer) -> Conversation:
        """With the model's message as it came: upstreams want their own fields back (`reasoning_content`). Only tool
        arguments that are no JSON object become `{}`, since servers whose chat template parses them refuse the rest
        of the conversation; what was wrong stands in the call's tool message.
        """
        if not any(_broken(call.arguments) for call in answer.tool_calls):
            return self.append(answer.message)
        calls = [
            {**call, "function": {**call["function"], "arguments": "{}"}} if _broken(parsed.arguments) else call
            for call, parsed in zip(answer.message["tool_calls"], answer.tool_calls, strict=True)
        ]
        return self.append({**answer.message, "tool_calls": calls})

    def distinct(self, answer: ChatAnswer) -> ChatAnswer:
        """`answer` with tool-call ids that no earlier turn has: some models count from 0 in every turn, and servers
        refuse a conversation in which two results have the same id.
        """
        earlier = {message.get("tool_call_id") for message in self.messages}
        if earlier.isdisjoint(call.id for call in answer.tool_calls):
            return answer
        taken = earlier | {call.id for call in answer.tool_calls}
        calls, raw = [], []
        for call, given in zip(answer.tool_calls, answer.message["tool_calls"], strict=True):
            id, number = call.id, 2
            while id in earlier or (id != call.id and id in taken):
                id, number = f"{call.id}_{number}", number + 1
            taken.add(id)
            calls.append(msgspec.structs.replace(call, id=id))
            raw.append({**given, "id": id})
        return msgspec.structs.replace(answer, tool_calls=tuple(calls), message={**answer.message, "tool_calls": raw})

    def tool(self, call_id: str, text: str) -> Conversation:
        return self.append({"role": "tool", "tool_call_id": call_id, "content": clean(text)})


def _broken(arguments: str) -> bool:
    try:
        return not isinstance(msgspec.json.decode(arguments), dict)
    except msgspec.DecodeError:
        return True


def opening(user_input: str | Sequence[Message]) -> Conversation:
    """The conversation that a run starts with: the user's text, or messages of an earlier one.

    Raises: InputError for a message that is not of the user, the assistant or a tool. Instructions belong to the
    agent; nothing that comes in with an item may take their place.
    """
    if isinstance(user_input, str):
        return Conversation().user(user_input)
    for message in user_input:
        if message.get("role") not in ROLES:
            raise InputError(f"an agent takes messages of {', '.join(ROLES)}, not of {message.get('role')!r}")
    return Conversation(tuple(user_input))
