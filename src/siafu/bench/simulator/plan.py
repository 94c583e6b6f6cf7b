"""One request, one plan: what will be answered, what it costs and how long it takes. Pure."""

from __future__ import annotations

import msgspec

from siafu.bench.simulator.answers import answer_to
from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.latency import Latency, Pace, Speed, default_speed, pace
from siafu.bench.simulator.reply import Answer, Head
from siafu.bench.simulator.request import Asked, text_of
from siafu.bench.simulator.tokens import PER_MESSAGE, PER_REQUEST, count


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What answers depend on besides the request. `models`: None = any model, at a speed guessed from its name."""

    seed: int = 0
    latency: Latency = Latency()
    models: dict[str, Speed] | None = None
    thinking: bool = False


class Plan(msgspec.Struct, frozen=True):
    """`prompt`: the request as the model would read it; `pace`: how fast the answer comes."""

    asked: Asked
    draws: Draws
    answer: Answer
    pace: Pace
    prompt: str
    prompt_tokens: int

    @property
    def head(self) -> Head:
        """Also the time of creation is drawn: two runs give the same bytes."""
        draws = self.draws
        return Head(
            "chatcmpl-" + draws.text("id", 24), 1_700_000_000 + draws.number("created") % 10**7, self.asked.model
        )

    @property
    def seconds(self) -> float:
        """What an idle server needs for this answer."""
        return self.pace.seconds(self.answer.tokens)


def plan(asked: Asked, body: bytes, attempt: str | None, world: World) -> Plan:
    """The plan for a request that `request.read` accepted. `attempt`: the attempt header, None when there is none."""
    draws = Draws(world.seed, asked.model, body, attempt or "")
    parts = _prompt(asked)
    tokens = PER_REQUEST + PER_MESSAGE * len(asked.messages) + sum(map(count, parts))
    speed = (world.models or {}).get(asked.model) or default_speed(asked.model)
    answer = answer_to(asked, draws, thinking=world.thinking)
    return Plan(asked, draws, answer, pace(world.latency, speed, tokens, draws), "\x1e".join(parts), tokens)


def _prompt(asked: Asked) -> list[str]:
    """The request as a model would read it: tools and format first, then the messages in order."""
    parts = [msgspec.json.encode(part).decode() for part in (asked.tools, asked.response_format) if part]
    for message in asked.messages:
        parts.append(f"\x1f{message['role']}\x1f")
        parts.append(text_of(message))
        if message.get("tool_calls"):
            parts.append(msgspec.json.encode(message["tool_calls"]).decode())
    return parts
