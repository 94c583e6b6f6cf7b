from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import genai_prices
import pytest
from genai_prices import Usage as TableUsage
from hypothesis import given
from hypothesis import strategies as st

from siafu.border.money import MOST, PICO, to_usd
from siafu.errors import ConfigError
from siafu.gateway.chat import Usage
from siafu.gateway.pricing import Price, Prices, Rates

WALL = 1_795_910_400.0  # 2026-11-29 00:00 UTC
OPENAI = "https://api.openai.com/v1"
PRICE = Price(model="kimi", input=Decimal("0.60"), cached=Decimal("0.15"), output=Decimal("2.50"))


def found(prices: Prices, model: str, wall: float = WALL) -> Rates:
    rates = prices.rates(model, wall)
    assert rates is not None
    return rates


def test_f39_cached_tokens_are_charged_once() -> None:
    rates = found(Prices([PRICE], table=False), "kimi")
    assert to_usd(rates.cost(Usage(input=2006, cached=1920, output=300))) == Decimal("0.0010896")
    assert to_usd(rates.cost(Usage(input=2006, output=300))) == Decimal("0.0019536")


def test_written_and_reasoning_tokens() -> None:
    price = Price(model="m", input=Decimal(1), output=Decimal(2), cache_write=Decimal("1.25"))
    rates = found(Prices([price], table=False), "m")
    usage = Usage(input=1000, cached=100, cache_write=200, output=10, reasoning=5)
    assert rates.cost(usage) == (700 + 100) * 1_000_000 + 200 * 1_250_000 + 10 * 2_000_000


@pytest.mark.parametrize("model", ["kimi-k2.5-swarm", "kimi-k2.5-preview-x", "KIMI-K2.5", "gpt-4.1-x", "gpt", "", "x"])
@pytest.mark.parametrize("base_url", ["", OPENAI, "https://api.moonshot.ai/v1", "http://localhost:1/v1"])
def test_f40_only_the_exact_id_has_a_price(model: str, base_url: str) -> None:
    assert Prices(base_url=base_url).rates(model, WALL) is None


@pytest.mark.parametrize(
    ("model", "base_url"),
    [
        ("gpt-4.1", OPENAI),
        ("gpt-4.1-2025-04-14", OPENAI),
        ("kimi-k2.5", "https://api.moonshot.ai/v1"),
        ("gpt-4.1", "http://localhost:1/v1"),
        ("gpt-4.1", ""),
    ],
)
def test_exact_ids_are_found(model: str, base_url: str) -> None:
    rates = found(Prices(base_url=base_url), model)
    assert rates.source == f"genai-prices {genai_prices.__version__}"
    assert rates.cost(Usage(input=10**6)) > 0


def test_a_provider_does_not_lend_its_price_to_another() -> None:
    assert Prices(base_url=OPENAI).rates("kimi-k2.5", WALL) is None


@pytest.mark.parametrize("tokens", [1000, 199_999, 200_000, 200_001, 300_000])
@pytest.mark.parametrize(
    ("model", "provider", "base_url"),
    [
        ("gpt-4.1", "openai", OPENAI),
        ("claude-haiku-5-5", "anthropic", "https://api.anthropic.com/v1"),
        ("gemini-2.5-pro", "google", "https://generativelanguage.googleapis.com/v1beta/openai"),
        ("deepseek-chat", "deepseek", "https://api.deepseek.com/v1"),
    ],
)
def test_our_sum_is_the_sum_of_the_price_table_also_in_higher_tiers(
    model: str, provider: str, base_url: str, tokens: int
) -> None:
    rates = found(Prices(base_url=base_url), model)
    ours = rates.cost(Usage(input=tokens, cached=tokens // 2, output=700))
    theirs = genai_prices.calc_price(
        TableUsage(input_tokens=tokens, cache_read_tokens=tokens // 2, output_tokens=700),
        model,
        provider_id=provider,
        genai_request_timestamp=datetime.fromtimestamp(WALL, UTC),
    ).total_price
    assert Decimal(ours) / PICO == theirs
    assert rates.ceiling(tokens, 700) >= ours


def test_prices_by_time_of_day_follow_the_clock() -> None:
    prices = Prices(base_url="https://api.deepseek.com/v1")
    night, day = (found(prices, "deepseek-chat", WALL + hour * 3600) for hour in (20, 10))
    assert night.cost(Usage(input=1000)) != day.cost(Usage(input=1000))


def test_own_prices_come_first_and_the_latest_valid_one_counts() -> None:
    prices = Prices(
        [
            Price(model="gpt-4.1", input=Decimal(3), output=Decimal(9), date="2026-12-01"),
            Price(model="gpt-4.1", input=Decimal(1), output=Decimal(3)),
            Price(model="gpt-4.1", input=Decimal(2), output=Decimal(6), date="2026-06-01", source="contract"),
        ],
        base_url=OPENAI,
    )
    assert found(prices, "gpt-4.1").source == "contract"
    assert found(prices, "gpt-4.1").date == "2026-06-01"
    at = [found(prices, "gpt-4.1", WALL + days * 86400).cost(Usage(input=1)) for days in (-365, 0, 3)]
    assert at == [1_000_000, 2_000_000, 3_000_000]


def test_f40_a_price_of_zero_is_a_price() -> None:
    rates = found(Prices([Price(model="local", input=Decimal(0), output=Decimal(0))], table=False), "local")
    assert rates.cost(Usage(input=10**9, output=10**9)) == 0


@pytest.mark.parametrize(
    "wrong", [{"input": Decimal(-1)}, {"output": Decimal("NaN")}, {"cached": Decimal("Infinity")}, {"date": "soon"}]
)
def test_impossible_prices_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="kimi"):
        Prices([Price(**{"model": "kimi", "input": Decimal(1), "output": Decimal(1), **wrong})])  # type: ignore[arg-type]


def test_nonsense_is_booked_at_the_most_that_a_row_holds() -> None:
    rates = found(Prices([PRICE], table=False), "kimi")
    assert rates.cost(Usage(input=3 * 10**9, output=4 * 10**9)) == rates.ceiling(10, 10**30) == MOST
    assert rates.ceiling(10, 10**9) < MOST


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**5))
def test_no_answer_costs_more_than_its_ceiling(fresh: int, cached: int, written: int, output: int) -> None:
    for prices, model in ((Prices([PRICE], table=False), "kimi"), (TABLE, "claude-haiku-5-5")):
        rates = found(prices, model)
        usage = Usage(input=fresh + cached + written, cached=cached, cache_write=written, output=output)
        assert 0 <= rates.cost(usage) <= rates.ceiling(usage.input, output)
        assert rates.ceiling(usage.input, output) <= rates.ceiling(usage.input + 1, output + 1)


TABLE = Prices(base_url="https://api.anthropic.com/v1")


def test_the_price_table_is_not_imported_before_it_is_wanted() -> None:
    code = "import sys, siafu.gateway.client; sys.exit('genai_prices' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
