"""What a line of an input will ask of models, told from the line alone: what is known before anything was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from siafu.apps.support import classify
from siafu.apps.support.routes import DEFAULT_CATEGORY, ROUTES, Tier, instructions
from siafu.apps.support.swarm import MAX_TOKENS
from siafu.border.canonical import canonical

BYTES_PER_TOKEN = 4
USUAL_OUTPUT = 300  # tokens of an answer, when nothing says more
DESK_CALLS = 2  # of a support agent: one that looks something up, one that answers
TOOLS_TOKENS = 600  # the definitions of a role's tools, and what they return


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one kind that a line will make. Tokens are those of one call; most_output: that the request allows, None
    = it names no limit.
    """

    role: str
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    most_output: int | None


Guessing = Callable[[Any], list[Guess]]


def batch_guess(model: str | None) -> Guessing:
    """For the values of usable lines of a batch. `model`: asked whatever the lines say."""

    def guess(value: Any) -> list[Guess]:
        body = value["body"]
        size = len(canonical(body["messages"])) + len(canonical(body.get("tools")))
        own = body.get("max_completion_tokens") or body.get("max_tokens")
        most = own if isinstance(own, int) and own > 0 else None
        usual = min(USUAL_OUTPUT, most or USUAL_OUTPUT)
        tokens = size // BYTES_PER_TOKEN
        name = model or body["model"]
        return [Guess(role="", model=name, calls=1, input_tokens=tokens, output_tokens=usual, most_output=most)]

    return guess


def support_guess(models: Mapping[Tier, str]) -> Guessing:
    """For the values of usable lines of support requests: one call that sorts, then those of a desk."""
    sorting = len(classify.INSTRUCTIONS.encode()) + len(canonical(classify.SCHEMA))
    answering = len(instructions(ROUTES[DEFAULT_CATEGORY]).encode())

    def guess(value: Any) -> list[Guess]:
        text = len(value["text"].encode("utf-8", "replace"))
        return [
            Guess(
                role="classify", model=models["strong"], calls=1, input_tokens=(sorting + text) // BYTES_PER_TOKEN,
                output_tokens=40, most_output=classify.MAX_TOKENS,
            ),
            Guess(
                role="desk", model=models["cheap"], calls=DESK_CALLS,
                input_tokens=(answering + text) // BYTES_PER_TOKEN + TOOLS_TOKENS,
                output_tokens=USUAL_OUTPUT // DESK_CALLS, most_output=MAX_TOKENS,
            ),
        ]  # fmt: skip

    return guess
