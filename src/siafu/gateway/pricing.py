"""What a call costs. Prices are found by the exact model id, never by its beginning.

Order: the operator's own prices, then the table of genai-prices (bundled data; nothing is fetched) for the provider
the base URL belongs to, and for a base URL it does not know, the list price of the model's maker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from siafu.border.money import MOST, to_pico
from siafu.errors import ConfigError
from siafu.gateway.chat import Usage

_MEGA = 10**6
# Parts of a price that a text completion may owe and that token counts do not tell.
_UNKNOWN_PARTS = (
    "requests_kcount",
    "output_reasoning_mtok",
    "output_citation_mtok",
    "input_mchars",
    "input_text_messages_kcount",
)


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's price: USD per million tokens. `cached`, `cache_write`: None = as input. `date`: valid from this
    day on (ISO), empty = always; of several for a model the latest valid one counts.
    """

    model: str
    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    cache_write: Decimal | None = None
    source: str = "configured"
    date: str = ""


class Tier(msgspec.Struct, frozen=True):
    """Pico-dollars per token, for calls with more than `above` input tokens (all tokens of such a call)."""

    above: int
    input: int
    cached: int
    cache_write: int
    output: int


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """A model's price, ready to multiply. `tiers`: by rising `above`; the first starts at 0."""

    tiers: tuple[Tier, ...]
    source: str
    date: str = ""

    def cost(self, usage: Usage, calls: int = 1) -> int:
        """Pico-dollars of an answer, or of `calls` answers alike whose sums `usage` holds. Cached and written tokens
        are parts of the input and leave it before it is multiplied; reasoning tokens are parts of the output.
        """
        tier = self.tiers[0]
        for higher in self.tiers[1:]:
            if usage.input > higher.above * calls:
                tier = higher
        fresh = usage.input - usage.cached - usage.cache_write
        cost = (
            fresh * tier.input
            + usage.cached * tier.cached
            + usage.cache_write * tier.cache_write
            + usage.output * tier.output
        )
        return min(cost, MOST * calls)  # an upstream may report any number of tokens

    def saved(self, usage: Usage, cost: int) -> int:
        """Pico-dollars that the prompt cache saved in an answer: what the same tokens cost without it, less the `cost`
        that they had. Below 0 when writing into it cost more than reading from it saved.
        """
        if not usage.cached and not usage.cache_write:
            return 0
        return self.cost(msgspec.structs.replace(usage, cached=0, cache_write=0)) - cost

    def ceiling(self, input_tokens: int, output_tokens: int) -> int:
        """The most that a call with at most so many tokens can cost."""
        most = 0
        for tier in self.tiers:
            if tier.above < input_tokens or tier.above == 0:
                dearest = max(tier.input, tier.cached, tier.cache_write)
                most = max(most, input_tokens * dearest + output_tokens * tier.output)
        return min(most, MOST)


Lookup = Callable[[float], Rates | None]  # of seconds since 1970


class Prices:
    """Rates by model id. `base_url`: of the upstream they are for. `table`: False = the operator's prices only."""

    def __init__(self, overrides: Iterable[Price] = (), *, base_url: str = "", table: bool = True) -> None:
        self._overrides: dict[str, list[tuple[float, Rates]]] = {}  # since when, the latest first
        for price in overrides:
            self._overrides.setdefault(price.model, []).append((_since(price), _own(price)))
        for dated in self._overrides.values():
            dated.sort(key=lambda entry: entry[0])
            dated.reverse()
        self._base_url = base_url
        self._table = table
        self._found: dict[str, Rates | Lookup | None] = {}

    def rates(self, model: str, wall: float) -> Rates | None:
        """The rates of exactly this model at a time (seconds since 1970), None when there is no price."""
        try:
            found = self._found[model]
        except KeyError:
            if len(self._found) > 10_000:  # ids that an upstream makes up
                self._found.clear()
            found = self._found[model] = self._look_up(model)
        return found if found is None or isinstance(found, Rates) else found(wall)

    def _look_up(self, model: str) -> Rates | Lookup | None:
        """The rates, or a function of time when they change with it."""
        dated = self._overrides.get(model)
        if not dated:
            return _from_table(model, self._base_url) if self._table else None
        if len(dated) == 1 and dated[0][0] == -math.inf:
            return dated[0][1]

        def at(wall: float) -> Rates | None:
            for since, rates in dated:
                if since <= wall:
                    return rates
            return None

        return at


def _since(price: Price) -> float:
    """The beginning of its day, in UTC."""
    try:
        day = date.fromisoformat(price.date) if price.date else None
        return -math.inf if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
    except ValueError:
        raise ConfigError(f"the price of {price.model} has the date {price.date!r}; write it as 2026-01-31") from None


def _own(price: Price) -> Rates:
    given = (price.input, price.cached, price.cache_write, price.output)
    if any(part is not None and (not part.is_finite() or part < 0) for part in given):
        raise ConfigError(f"the price of {price.model} must be made of amounts of 0 or more")
    tier = _tier(0, price.input, price.cached, price.cache_write, price.output)
    return Rates(tiers=(tier,), source=price.source, date=price.date)


def _tier(above: int, fresh: Decimal, cached: Decimal | None, written: Decimal | None, output: Decimal) -> Tier:
    parts = (fresh, fresh if cached is None else cached, fresh if written is None else written, output)
    return Tier(above, *(to_pico(part / _MEGA) for part in parts))


def _from_table(model: str, base_url: str) -> Rates | Lookup | None:
    """The price of a model of genai-prices; it may change by date and by time of day."""
    import genai_prices  # noqa: PLC0415 (200 ms, and only wanted when a model is looked up)

    info = _find(model, base_url)
    if info is None:
        return None
    source = f"genai-prices {genai_prices.__version__}"
    if not isinstance(info.prices, list):
        return _table_rates(info.prices, source, "")
    dated = [
        (entry.constraint, _table_rates(entry.prices, source, str(getattr(entry.constraint, "start_date", ""))))
        for entry in info.prices
    ]

    def at(wall: float) -> Rates | None:
        now = datetime.fromtimestamp(wall, UTC)
        active = (rates for constraint, rates in reversed(dated) if constraint is None or constraint.active(now))
        return next(active, dated[0][1])

    return at


def _find(model: str, base_url: str) -> Any:
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415

    snapshot = get_snapshot()
    try:
        provider = snapshot.find_provider(None if base_url else model, None, base_url or None)
    except LookupError:
        try:
            provider = snapshot.find_provider(model, None, None)
        except LookupError:
            return None
    names = [provider.id, *(provider.fallback_model_providers or ())]
    by_id = {each.id: each for each in snapshot.providers}
    models = (info for name in names if name in by_id for info in by_id[name].models)
    return next((info for info in models if info.id == model or model in _spelled_out(info.match)), None)


def _spelled_out(match: Any) -> set[str]:
    """The ids that a match clause names in full."""
    clauses = getattr(match, "or_", [match])
    return {clause.equals for clause in clauses if hasattr(clause, "equals")}


def _table_rates(prices: Any, source: str, day: str) -> Rates | None:
    """None for a price with parts that we could not charge for."""
    fresh, output = prices.input_mtok, prices.output_mtok
    if fresh is None or output is None or any(getattr(prices, part, None) is not None for part in _UNKNOWN_PARTS):
        return None
    parts = (fresh, prices.cache_read_mtok, prices.cache_write_mtok, output)
    starts = sorted({0, *(tier.start for part in parts for tier in getattr(part, "tiers", ()))})
    tiers = []
    for above in starts:
        fresh_price, cached, written, spoken = (_at_tier(part, above) for part in parts)
        tiers.append(_tier(above, fresh_price, cached, written, spoken))
    return Rates(tiers=tuple(tiers), source=source, date=day)


def _at_tier(part: Any, above: int) -> Any:
    """The price of one part for calls with more than `above` input tokens."""
    if not hasattr(part, "tiers"):
        return part
    return next((tier.price for tier in reversed(part.tiers) if tier.start <= above), part.base)
