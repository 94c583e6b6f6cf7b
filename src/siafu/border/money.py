"""US dollars as exact integers.

Inside, an amount is an `int` of pico-dollars (10^-12 USD): one token at a price of 0.000001 USD per million tokens
is one unit, so every product of tokens and price is exact and sums in SQL are sums of integers. Outside, amounts
are Decimal and are printed without exponent and with at most nine decimals.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal, InvalidOperation

import msgspec

from siafu.errors import ConfigError

PICO = 10**12
MOST = 10_000 * PICO  # that one call or item is booked at: the store's rows hold no more, so that no sum overflows
_NANO = Decimal("0.000000001")
# Commas only between groups of three: "1,50" is one and a half to many people, and a hundred and fifty to no one.
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+(?:_\d+)*)(?:\.\d+)?|\.\d+"
_AMOUNT = re.compile(rf"(?:USD|US\$|\$)?\s*({_NUMBER})\s*(?:USD|US\$|\$)?", re.IGNORECASE | re.ASCII)


def parse_usd(value: str | int | Decimal) -> int:
    """`"5 USD"`, `"$0.50"`, `5` or `Decimal("0.5")` in pico-dollars.

    Floats are refused, as they are not the number that was written.

    Raises: ConfigError.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise ConfigError(f'an amount is written like "5 USD" or Decimal("0.50"), not {value!r}')
    text = str(value)
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f'{text[:40]!r} is no amount in US dollars; write it like "5 USD" or "$0.50"')
        text = match.group(1).replace(",", "").replace("_", "")
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise ConfigError(f"{text[:40]!r} is no amount in US dollars") from None
    if not amount.is_finite() or amount < 0 or amount > 1_000_000:
        raise ConfigError(f"{text[:40]} USD is outside 0 to 1,000,000")
    return to_pico(amount)


def to_pico(usd: Decimal) -> int:
    """Pico-dollars, rounded up: we never claim to have spent less than we did."""
    return int((usd * PICO).to_integral_value(ROUND_CEILING))


def to_usd(pico: int) -> Decimal:
    """Decimal USD with at most nine decimals and no trailing zeros. Write it with `format(amount, "f")`: `str` of a
    Decimal below 0.000001 has an exponent.
    """
    amount = (Decimal(pico) / PICO).quantize(_NANO, ROUND_HALF_EVEN).normalize()
    return amount.quantize(Decimal(1)) if amount == amount.to_integral_value() else amount


def json_usd(pico: int | None) -> msgspec.Raw | None:
    """The amount as a JSON number for records: at most nine decimals, never an exponent; None = unknown."""
    return None if pico is None else msgspec.Raw(f"{to_usd(pico):f}".encode())


def show_usd(pico: int | None, places: int = 4) -> str:
    """For people: `$0.0123`; `?` when unknown."""
    return "?" if pico is None else f"${Decimal(pico) / PICO:,.{places}f}"


def show_least(pico: int) -> str:
    """For people, an amount that is needed: rounded up."""
    return show_usd(-(-pico // 10**8) * 10**8)
