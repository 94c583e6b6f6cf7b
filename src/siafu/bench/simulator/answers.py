"""What the assistant says."""

from __future__ import annotations

from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.reply import Answer
from siafu.bench.simulator.request import Asked, text_of


def answer_to(asked: Asked, draws: Draws, *, thinking: bool) -> Answer:
    return Answer(content="(simulated) " + text_of(asked.messages[-1])[:200])
