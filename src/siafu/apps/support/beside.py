"""Which order an amount of money stands beside, in the words of a customer.

Only what is clear makes a pair. Words that belong together are looked at from the large to the small: the message, its
lines, sentences, clauses, and what `and` joins. The first that has one order gives it the amounts in it. Of `$5 of 1001
and 1002` nobody can say whose the $5 are: such lists are never taken apart, and make no pair.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import msgspec

from siafu.border.identity import Amount

ORDER, AMOUNT = "\ue000", "\ue001"  # stand in a text for what was read there
Pair = tuple[str, Amount]


class Marked(msgspec.Struct, frozen=True, kw_only=True):
    """A text with a mark in the place of each order and amount, and what they are, in the order of the text."""

    text: str
    orders: tuple[str, ...]
    amounts: tuple[Amount, ...]


# A line that goes on in the next, and a dot that ends no sentence.
_UNFINISHED = re.compile(
    r"(\b(?:of|from|for|on|in|to|and|or|the|my|orders?|number|no\.?)|주문|번호|[은는을를과와의,]|에서|이랑|하고)"
    r"[ \t]{0,20}\n(?!\s{0,20}\n)",
    re.IGNORECASE,
)
_SHORT = re.compile(r"\b(no|nr|num|ord|approx|ca|amt)\.(?=\s)", re.IGNORECASE)
# What may stand between the members of a list: 1001번과 1002번, 5,000원하고 3,000원, orders 1001, 1002 and 1003.
_JOINED = re.compile(
    rf"(?<=([{ORDER}{AMOUNT}]))"
    r"(?:[\s,、&+/#()]|번|호|을|를|도|주문|이랑|랑|하고|그리고|와|과|및|또는|이나|and\b|or\b|orders?\b|no\b\.?)*+(?=\1)",
    re.IGNORECASE,
)
_CLAUSES = (
    re.compile(r"[,、]"),
    re.compile(r"\b(?:and|but|then|plus|while)\b|그리고|(?:고|며|지만|는데|인데|요|니다)(?=\s)", re.IGNORECASE),
)
_CUTS = (
    # An empty line, and lines that begin as the items of a list do; others may be one sentence that was wrapped.
    re.compile(
        rf"\n[ \t]{{0,20}}\n|\n(?=\s{{0,20}}(?:[-*•·]|[0-9]{{1,2}}[.)]\s"
        rf"|(?:주문|주문번호|번호|금액|환불|환불액|환불금액|orders?|amount|refund|no\.?|number)?\s{{0,20}}[#(:]?\s{{0,20}}[{ORDER}{AMOUNT}]))",
        re.IGNORECASE,
    ),
    re.compile(r"[.!?]+(?=\s|$)|[;。…]"),
    *_CLAUSES,
)
_MARK = re.compile(f"[{ORDER}{AMOUNT}]")
_TURNS = re.compile(f"(?:{ORDER}{AMOUNT})+")
_OF = re.compile(
    rf"{AMOUNT}[^{ORDER}{AMOUNT}]*?(?:[은는을를(]|\b(?:of|from|for|on|in|to|off)\b)[^{ORDER}{AMOUNT}]*+{ORDER}",
    re.IGNORECASE,
)
_LISTS = re.compile(f"({ORDER}{{2,}})({AMOUNT}{{2,}})|({AMOUNT}{{2,}})({ORDER}{{2,}})")
_RESPECTIVELY = re.compile(
    rf"[{ORDER}{AMOUNT}][^{ORDER}{AMOUNT}]{{0,20}}각각\s*(?:주문\s*)?[{ORDER}{AMOUNT}]|\brespectively\b", re.IGNORECASE
)
_ONE_FOR_ALL = re.compile(f"{ORDER}{{2,}}{AMOUNT}|{AMOUNT}{ORDER}{{2,}}")
_EACH = re.compile(rf"(?:각각|\beach)\s*{AMOUNT}|{AMOUNT}(?:\s?씩|\s+(?:for\s+|from\s+|of\s+)?each\b)", re.IGNORECASE)


def pairs(marked: Marked) -> Iterator[Pair]:
    """The orders and the amounts that clearly stand beside them. Where a text has one order, all its amounts do."""
    if len(set(marked.orders)) == 1:
        return itertools.product(marked.orders[:1], marked.amounts)
    text = _JOINED.sub(" ", _SHORT.sub(r"\1 ", _UNFINISHED.sub(r"\1 ", marked.text)))
    return _within(msgspec.structs.replace(marked, text=text), _CUTS)


def _within(part: Marked, cuts: Sequence[re.Pattern[str]]) -> Iterator[Pair]:
    """`cuts`: those that are left; what none of them separates is one clause."""
    marks = "".join(_MARK.findall(part.text))
    of = set(part.orders)
    if not of or not part.amounts:
        return iter(())
    if len(of) == 1 and marks[0] == ORDER:
        return itertools.product(part.orders[:1], part.amounts)
    # An amount before its order must be in its clause, which in `1001, $5 and 1002` it is not, and joined to it by a
    # word; and only the last one is, as in `1001, $5, $3 of 1002`. With amounts on both sides of an order, one of them
    # may be of another.
    if len(of) == 1 and marks[-1] == ORDER and not cuts and _OF.search(part.text):
        return itertools.product(part.orders[:1], part.amounts[-1:])
    if _LISTS.fullmatch(marks) and len(part.orders) == len(part.amounts) and _RESPECTIVELY.search(part.text):
        return zip(part.orders, part.amounts, strict=True)
    if _ONE_FOR_ALL.fullmatch(marks) and _EACH.search(part.text):
        return itertools.product(part.orders, part.amounts)
    parts = list(_cut(part, cuts[0])) if cuts else []
    if _TURNS.fullmatch(marks):
        if _astray(part.text, cuts):
            return iter(())
        in_one_sentence = len(cuts) <= len(_CLAUSES)
        if in_one_sentence or all(len(one.orders) + len(one.amounts) <= 1 for one in parts):
            return zip(part.orders, part.amounts, strict=True)
    return itertools.chain.from_iterable(_within(one, cuts[1:]) for one in parts)


def _astray(text: str, cuts: Sequence[re.Pattern[str]]) -> bool:
    """Of orders and amounts in turn: whether an amount has the next order in its clause, but not the one before it."""
    clauses = [text]
    for cut in cuts:
        clauses = [piece for clause in clauses for piece in cut.split(clause)]
    at = [n for n, clause in enumerate(clauses) for _ in _MARK.findall(clause)]
    return any(at[n] != at[n + 1] == at[n + 2] for n in range(0, len(at) - 2, 2))


def _cut(part: Marked, at: re.Pattern[str]) -> Iterator[Marked]:
    orders, amounts = iter(part.orders), iter(part.amounts)
    for text in at.split(part.text):
        yield Marked(
            text=text,
            orders=tuple(itertools.islice(orders, text.count(ORDER))),
            amounts=tuple(itertools.islice(amounts, text.count(AMOUNT))),
        )
