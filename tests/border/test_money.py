from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.border.money import PICO, parse_usd, show_usd, to_pico, to_usd
from siafu.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "usd"),
    [
        ("5 USD", "5"),
        ("$0.50", "0.5"),
        ("US$ 1,234.56", "1234.56"),
        ("1_000", "1000"),
        (".5", "0.5"),
        ("0", "0"),
        ("0.000000000001", "0.000000000001"),
        (5, "5"),
        (Decimal("0.50"), "0.5"),
        (Decimal("1E+3"), "1000"),
    ],
)
def test_amounts_are_read_exactly(written: str | int | Decimal, usd: str) -> None:
    assert parse_usd(written) == int(Decimal(usd) * PICO)


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            "five",
            "5 EUR",
            "-1",
            "1,50",
            "1,5000",
            "1.2.3",
            "1e3",
            "$",
            "NaN",
            "1000001",
            "5 USD each",
            "٥",
            "1__0",
        ),
        *(-1, True, Decimal("NaN"), Decimal("Infinity"), Decimal("-0.01"), 0.5, None),
    ],
)
def test_what_is_no_amount_is_refused(written: object) -> None:
    with pytest.raises(ConfigError):
        parse_usd(written)  # type: ignore[arg-type]


@given(st.integers(0, 10**18))
def test_pico_to_usd_and_back_is_exact_in_nano(pico: int) -> None:
    usd = to_usd(pico)
    assert abs(int(usd * PICO) - pico) <= 500
    text = format(usd, "f")
    assert "E" not in text.upper()
    assert len(text.partition(".")[2]) <= 9
    assert not (text.partition(".")[2]).endswith("0")


@given(st.decimals(0, 1_000_000, places=15))
def test_we_never_claim_to_have_spent_less(usd: Decimal) -> None:
    assert Decimal(to_pico(usd)) / PICO >= usd


def test_amounts_for_people() -> None:
    assert show_usd(1_089_600_000) == "$0.0011"
    assert show_usd(1_089_600_000, 7) == "$0.0010896"
    assert show_usd(None) == "?"
