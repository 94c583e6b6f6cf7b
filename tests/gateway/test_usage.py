"""Tokens in the spellings of real upstreams, also wrong ones."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.gateway.chat import Usage
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.usage import read_usage

PRICE = Price(
    model="m", input=Decimal("0.60"), cached=Decimal("0.15"), cache_write=Decimal("0.75"), output=Decimal("2.50")
)
RATES = Prices([PRICE], table=False).rates("m", 0.0)
OPENAI = {"prompt_tokens": 2006, "completion_tokens": 300, "total_tokens": 2306}
ANTHROPIC = {"input_tokens": 21, "output_tokens": 393}

NONSENSE = {"prompt_tokens": 10**11, "completion_tokens": 1}


@pytest.mark.parametrize(
    "usage", [None, {}, "x", {"prompt_tokens": None, "completion_tokens": 1}, {"total_tokens": 3}, NONSENSE, [1]]
)
def test_f16_missing_usage_is_unknown_and_not_zero(usage: Any) -> None:
    assert read_usage(usage) is None


@pytest.mark.parametrize(
    ("told", "cached", "written", "reasoning"),
    [
        # OpenAI, Azure, xAI, Gemini's and vLLM's compatible endpoints
        ({"prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 0}}, 1920, 0, 0),
        ({"prompt_tokens_details": None}, 0, 0, 0),  # vLLM, not told to tell
        ({"prompt_tokens_details": {"cached_tokens": None}, "cached_tokens": None}, 0, 0, 0),
        # DeepSeek, alone and through a gateway that fills the standard field with 0
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 1942}, 64, 0, 0),
        ({"prompt_tokens_details": {"cached_tokens": 0}, "prompt_cache_hit_tokens": 5}, 5, 0, 0),
        ({"cached_tokens": 128}, 128, 0, 0),  # Moonshot
        # OpenRouter, DashScope, LiteLLM: parts of the input, some of them told twice
        ({"prompt_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 900}}, 1000, 900, 0),
        ({"prompt_tokens_details": {"cached_tokens": 0, "cache_creation_input_tokens": 1605}}, 0, 1605, 0),
        (
            {
                "prompt_tokens_details": {"cached_tokens": 100, "cache_creation_tokens": 200},
                "cache_read_input_tokens": 100,
                "cache_creation_input_tokens": 200,
            },
            100,
            200,
            0,
        ),
        ({"cache_read_input_tokens": 100, "cache_creation_input_tokens": 200}, 100, 200, 0),
        ({"completion_tokens_details": {"reasoning_tokens": 40}}, 0, 0, 40),
        ({"completion_tokens_details": {"reasoning_tokens": 4000}}, 0, 0, 300),
        # nonsense under one name hides nothing under another
        ({"prompt_tokens_details": 7, "input_tokens_details": {"cache_write_tokens": 40}}, 0, 40, 0),
        ({"completion_tokens_details": [2], "output_tokens_details": {"reasoning_tokens": 24}}, 0, 0, 24),
        ({"completion_tokens_details": {"reasoning_tokens": -1}, "reasoning_tokens": 24}, 0, 0, 24),
    ],
)
def test_parts_of_the_input(told: dict[str, Any], cached: int, written: int, reasoning: int) -> None:
    usage = read_usage({**OPENAI, **told})
    assert usage == Usage(input=2006, output=300, cached=cached, cache_write=written, reasoning=reasoning)


@pytest.mark.parametrize(
    ("told", "total", "output", "cached", "written"),
    [
        # Anthropic's own names: what the cache gave or took is not in the input
        ({**ANTHROPIC, "cache_read_input_tokens": 188086, "cache_creation_input_tokens": 0}, 188107, 393, 188086, 0),
        ({**ANTHROPIC, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 188086}, 188107, 393, 0, 188086),
        # passed through under OpenAI's names: more than the input can hold, or the total says it
        ({"prompt_tokens": 12, "completion_tokens": 5, "cache_read_input_tokens": 2495}, 2507, 5, 2495, 0),
        (
            {"prompt_tokens": 500, "completion_tokens": 5, "total_tokens": 605, "cache_read_input_tokens": 100},
            600,
            5,
            100,
            0,
        ),
        # the Responses API's names count like OpenAI's
        ({"input_tokens": 125, "output_tokens": 48, "input_tokens_details": {"cached_tokens": 98}}, 125, 48, 98, 0),
        (ANTHROPIC, 21, 393, 0, 0),
    ],
)
def test_beside_the_input(told: dict[str, Any], total: int, output: int, cached: int, written: int) -> None:
    assert read_usage(told) == Usage(input=total, output=output, cached=cached, cache_write=written)


@pytest.mark.parametrize(
    ("told", "cached", "written"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 99999}}, 2006, 0),
        ({"prompt_tokens_details": {"cached_tokens": 2000, "cache_write_tokens": 50}}, 2000, 6),
        ({"prompt_tokens_details": {"cached_tokens": -5}}, 0, 0),
        ({"prompt_tokens_details": {"cached_tokens": "1920"}}, 0, 0),
        ({"prompt_tokens_details": {"cached_tokens": 1920}, "cached_tokens": 64}, 64, 0),  # the dearer of the two
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 64}, 64, 0),
    ],
)
def test_what_cannot_be_is_cut_and_flagged(told: dict[str, Any], cached: int, written: int) -> None:
    usage = read_usage({**OPENAI, **told})
    assert usage == Usage(input=2006, output=300, cached=cached, cache_write=written, doubtful=True)


def test_f39_cached_tokens_are_charged_once() -> None:
    usage = read_usage({**OPENAI, "prompt_tokens_details": {"cached_tokens": 1920}})
    assert usage is not None and RATES is not None
    assert RATES.cost(usage) == 1_089_600_000  # 0.0010896 USD
    assert RATES.saved(usage, RATES.cost(usage)) == 1920 * 450_000


def test_what_a_cache_costs_more_is_a_saving_below_zero() -> None:
    assert RATES is not None
    written, plain = Usage(input=2000, cache_write=1500), Usage(input=2000)
    assert RATES.saved(written, RATES.cost(written)) == -1500 * 150_000
    assert RATES.saved(plain, RATES.cost(plain)) == 0


_COUNTS = st.one_of(st.none(), st.integers(-10, 10**10), st.floats(), st.booleans(), st.text(max_size=3))
_NAMES = (
    "prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens", "cached_tokens",
    "prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "cache_read_input_tokens", "cache_creation_input_tokens",
)  # fmt: skip
_DETAILS = st.dictionaries(st.sampled_from(["cached_tokens", "cache_write_tokens", "reasoning_tokens"]), _COUNTS)


@given(st.dictionaries(st.sampled_from(_NAMES), _COUNTS), st.one_of(_COUNTS, _DETAILS))
def test_money_is_never_below_zero_whatever_is_told(told: dict[str, Any], details: Any) -> None:
    usage = read_usage({**told, "prompt_tokens_details": details, "completion_tokens_details": details})
    if usage is not None:
        assert RATES is not None
        assert min(usage.cached, usage.cache_write, usage.input - usage.cached - usage.cache_write) >= 0
        assert 0 <= usage.reasoning <= usage.output
        assert RATES.cost(usage) >= 0
