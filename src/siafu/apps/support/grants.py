"""What a customer's own words name: order numbers, and amounts of money of each, in Korean and English.

A grant is a bound and no instruction: it says what may be acted on, and never that something is to be done. So what
is unclear names nothing, and the customer is asked. Tool results, notes and answers are never read here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal

from siafu.apps.support.beside import AMOUNT, ORDER, Marked, pairs
from siafu.border.identity import Amount, Grants

MOST = 20  # orders, and amounts in all, the newest; a token has a largest size
MOST_MINOR = 10**12

# Full width, as in １００１ and ￦; and nobody else writes the marks.
_ASCII = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0xFFE6: "₩", ord(ORDER): " ", ord(AMOUNT): " "}
_RUN = r"[0-9][0-9,.]*+"  # whole, also when it is no number: half of one must never count
_UNITS = {"십": 10, "백": 100, "천": 1000, "만": 10**4, "억": 10**8}
_DIGITS = "일이삼사오육칠팔구"
_RUN_HEAD = rf"(?<![0-9])(?<![0-9][,.]){_RUN}"  # from its first digit on
# 30,000 / 3만 5천 / 2천만 / 오천 / 만
_SUM = (
    rf"(?:{_RUN_HEAD}|(?<![가-힣])(?<![0-9]\s)[{_DIGITS}]?[십백천만억])"
    rf"(?:[십백천만억]|(?<=[십백천만억])\s?(?:{_RUN}|[{_DIGITS}](?=[십백천만억]))){{0,12}}+"
)
# 원 is also how 원피스 (a dress), 원해요 (I want) and 원래 (originally) begin.
_WON = r"(?:원(?!피스|두|목|단|래)|\s원(?=[을은이만도씩과]|짜리|정도|으로|[^가-힣]|$))"
# In "1001 USD 30" the currency belongs to what follows, in "29.90 USD 1001" to what precedes.
_OWN = r"(?:(?<=[.,][0-9]{2})|(?<=,[0-9]{3})|(?!\s?(?:us|\$|krw)[a-z$]{0,3}\s?[0-9]))"
_MONEY = re.compile(
    rf"(?:us\$|\$|\busd)\s?(?P<dollars>{_RUN})"
    rf"|(?:₩|\bkrw)\s?(?P<won>{_SUM})"
    rf"|(?P<dollars_>{_RUN_HEAD}){_OWN}(?:\$|\s?(?:usd|dollars?|달러))(?![a-z])"
    rf"|(?P<won_>{_SUM}){_OWN}(?:{_WON}|\s?(?:won(?!['’])|krw)(?![a-z]))",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]{1,2})?|[0-9]+(?:\.[0-9]{1,2})?")
_PART = re.compile(rf"{_RUN}|[{_DIGITS}]|[십백천만억]")
# Dates, times, telephone and card numbers, and numbers with separators but no currency.
_OTHER = re.compile(
    r"(?<![0-9])(?:[0-9]++(?:[-.:][0-9]++)+|[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])"
    r"|[0-9]{1,4}/[0-9]{1,2}(?:/[0-9]{1,4})?(?![0-9]))"
)
_ORDER = re.compile(
    r"(?:\b(?:order|ord|no)[-_.]?|(?<![A-Za-z0-9_$€£¥₩+])(?<![A-Za-z]-)(?<!sku\s))"
    r"(?P<id>[0-9]{4,10})(?![A-Za-z0-9_]|년|개|원|명|점|회|포인트)",
    re.IGNORECASE,
)


def named(messages: Iterable[str]) -> Grants:
    """The orders that a customer's messages, newest first, name, and the amounts that stand beside each: at most 20
    orders and 20 amounts, newest first.

    An order number has 4 to 10 digits: 1001, #1001, 주문번호 1001번, １００１. An amount has a currency: 30,000원, 3만
    5천원, 15000 won, $29.90; it is given as KRW or USD and minor units (won, cents). No digit counts twice: an order
    number is never read as an amount, nor an amount as an order number.

    An amount is of the order that `beside.pairs` finds beside it. In a message without an order it is of the one order
    that the nearest messages with any, before and after it, name; of none when they name several.
    """
    read = [_marked(message) for message in messages]
    orders = dict.fromkeys(itertools.islice(dict.fromkeys(order for marked in read for order in marked.orders), MOST))
    found = dict.fromkeys(
        (order, amount)
        for n, marked in enumerate(read)
        for order, amount in (pairs(marked) if marked.orders else itertools.product(_near(read, n), marked.amounts))
        if order in orders
    )
    newest = list(found)[:MOST]
    return Grants(orders={order: tuple(amount for of, amount in newest if of == order) for order in orders})


def amounts(text: str) -> tuple[Amount, ...]:
    """Every amount of money in a text, as `named` reads them, in the order of the first of each."""
    return tuple(dict.fromkeys(_marked(text).amounts))


def _marked(message: str) -> Marked:
    sums: list[Amount] = []
    numbers: list[str] = []

    def amount(found: re.Match[str]) -> str:
        if (minor := _minor(found)) is None:
            return " "
        sums.append(minor)
        return AMOUNT + found[0][len(found[0].rstrip(",.")) :]

    def order(found: re.Match[str]) -> str:
        numbers.append(found["id"])
        return ORDER

    text = _ORDER.sub(order, _OTHER.sub(" ", _MONEY.sub(amount, message.translate(_ASCII))))
    return Marked(text=text, orders=tuple(numbers), amounts=tuple(sums))


def _near(read: Sequence[Marked], n: int) -> set[str]:
    """The one order of the nearest messages that name any; empty when there are none or several."""
    older = next((set(marked.orders) for marked in read[n + 1 :] if marked.orders), set())
    newer = next((set(marked.orders) for marked in reversed(read[:n]) if marked.orders), set())
    near = older | newer
    return near if len(near) == 1 else set()


def _minor(found: re.Match[str]) -> Amount | None:
    """The currency and minor units of a match of `_MONEY`; None when it is no clear amount."""
    if found.string[: found.start()][-1:] == "-":
        return None
    dollars = found["dollars"] or found["dollars_"]
    value = _sum(dollars.rstrip(".,")) if dollars else _sum((found["won"] or found["won_"]).rstrip(".,"))
    minor = None if value is None else value * (100 if dollars else 1)
    if minor is None or minor != int(minor) or not 0 < minor <= MOST_MINOR:
        return None
    return "USD" if dollars else "KRW", int(minor)


def _sum(text: str) -> Decimal | None:
    """The value of digits with Korean units: 3만 5천 is 35,000. None when a part of it is no number."""
    total = section = Decimal(0)
    last: Decimal | None = None
    for part in _PART.findall(text):
        unit = _UNITS.get(part)
        if unit is None:
            if last is not None or not (part in _DIGITS or _NUMBER.fullmatch(part)):
                return None
            last = Decimal(_DIGITS.index(part) + 1 if part in _DIGITS else part.replace(",", ""))
        elif unit < 10**4:
            section, last = section + (Decimal(1) if last is None else last) * unit, None
        else:
            total, section, last = total + (section + (last or 0) or 1) * unit, Decimal(0), None
    return total + section + (last or 0)
