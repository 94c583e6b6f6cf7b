"""The judgement of one program: pure functions over what the endpoint and the shop recorded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

import msgspec

from siafu.bench.demo.payouts import Refunds
from siafu.bench.demo.seen import Seen
from siafu.gateway.chat import Usage

IN_FLIGHT_SECONDS = 0.1
DEFINITIONS = (
    ("answered", "answered at the endpoint, and one line with it in the results"),
    ("lost", "not answered in the end"),
    ("run twice", "answered before the kill, and asked about again after it"),
    ("calls wasted", "answers begun, so billed, beyond one whole one to a question"),
    ("in flight", f"open at the kill, or ended in the last {IN_FLIGHT_SECONDS} s: perhaps not read"),
    ("explanation", "a line for such a call in the program's own cost records"),
    ("tool calls twice", "before the kill and after it: same request, tool, arguments"),
    ("refunds paid", "of those that the requests entitle to; by the payments ledger"),
    ("a person", "decides above 100,000 KRW or 80 USD: the shop's policy"),
    ("paid twice", "a refund that was due, paid again"),
    ("paid wrongly", "nobody was entitled to it or asked for it, or another amount"),
    ("the model", "is simulated: it asks for every refund that a customer wants"),
    ("USD in all", "siafu has complaints and refunds answered by the strong model"),
)

Priced = Callable[[str, Usage], int | None]
Paid = tuple[str, int, int, int]  # model, input, cached and output tokens of one answer


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What a program itself wrote down about its calls. known: calls of known usage. unknown: (model, the most it can
    cost in pico-dollars) of calls it knows it made and whose usage it never learned.
    """

    known: Counter[Paid]
    unknown: list[tuple[str, int]] = []


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call at the shop. what: equal for equal calls. at: seconds since 1970."""

    what: Hashable
    at: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one program's work.

    requests: ids. calls: in order of arrival. killed_at: seconds since 1970, on the endpoint's clock. answers: how many
    lines with an answer the results file holds for each id. tool_calls: those at the shop, refunds apart. refunds: what
    became of these. wall: seconds from the first start to the last end.
    """

    requests: Collection[str]
    calls: Sequence[Seen]
    killed_at: float
    answers: Mapping[str, int]
    tool_calls: Sequence[ToolCall]
    refunds: Refunds
    notes: Notes
    wall: float


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One program's column of the table; see DEFINITIONS. Amounts: pico-dollars at list prices, None = no price.

    calls: all that reached the endpoint. refused: those answered 429. failed: 5xx. wasted_pico: what the wasted calls
    cost. usd_pico: what all cost.
    """

    answered: int
    lost: int
    run_twice: int
    calls: int
    wasted: int
    wasted_pico: int | None
    in_flight: int
    refused: int
    failed: int
    usd_pico: int | None
    unexplained_pico: int | None
    tool_calls: int
    tool_calls_twice: int
    refunds: Refunds
    wall: float

    @property
    def clean(self) -> bool:
        """Nothing lost, nothing done twice, everything explained."""
        explained = self.unexplained_pico == 0 and self.wasted <= self.in_flight
        return not (self.lost or self.run_twice) and explained and self.refunds.clean


def judge(found: Evidence, price: Priced) -> Column:
    """The column of one program. `price`: pico-dollars of an answer by model, None = it has no price."""
    calls = found.calls
    given = {call.request for call in calls if call.final}
    answered = sum(found.answers.get(request, 0) == 1 and request in given for request in found.requests)
    billed = [call for call in calls if call.usage is not None]
    wasted = _wasted(billed)
    return Column(
        answered=answered,
        lost=len(found.requests) - answered,
        run_twice=len(_finished_before(calls, found.killed_at) & _asked_after(calls, found.killed_at)),
        calls=len(calls),
        wasted=len(wasted),
        wasted_pico=_sum(wasted, price),
        in_flight=sum(_in_flight(call, found.killed_at) for call in calls),
        refused=sum(call.status == 429 for call in calls),
        failed=sum(call.status >= 500 for call in calls),
        usd_pico=_sum(billed, price),
        unexplained_pico=unexplained(billed, found.notes, price),
        tool_calls=len(found.tool_calls),
        tool_calls_twice=_made_again(found.tool_calls, found.killed_at),
        refunds=found.refunds,
        wall=found.wall,
    )


def unexplained(billed: Iterable[Seen], notes: Notes, price: Priced) -> int | None:
    """What the calls cost that no line of `notes` accounts for; each line accounts for one call.

    A line of known usage explains a call of exactly this usage; a line of unknown usage one of its model that costs no
    more than it allows for. None when such a call has no price.
    """
    known, unknown = Counter(notes.known), sorted(notes.unknown, key=lambda line: line[1])
    rest: list[tuple[int, str]] = []
    for call in billed:
        usage = call.usage or Usage()
        key = (call.model, usage.input, usage.cached, usage.output)
        cost = price(call.model, usage)
        if known[key]:
            known[key] -= 1
        elif cost is None:
            return None
        else:
            rest.append((cost, call.model))
    total = 0
    for cost, model in sorted(rest):  # the cheapest takes the smallest line that is large enough
        line = next((line for line in unknown if line[0] == model and line[1] >= cost), None)
        if line is None:
            total += cost
        else:
            unknown.remove(line)
    return total


def _wasted(billed: Sequence[Seen]) -> list[Seen]:
    """All but the first complete answer to each question."""
    by_question: defaultdict[str, list[Seen]] = defaultdict(list)
    for call in billed:
        by_question[call.question].append(call)
    wasted = []
    for asked in by_question.values():
        used = next((call for call in asked if call.complete), None)
        wasted += [call for call in asked if call is not used]
    return wasted


def _finished_before(calls: Iterable[Seen], killed_at: float) -> set[str | None]:
    """Requests whose answer the program had for certain when it was killed."""
    return {
        call.request
        for call in calls
        if call.final and call.ended is not None and call.ended < killed_at - IN_FLIGHT_SECONDS
    }


def _asked_after(calls: Iterable[Seen], killed_at: float) -> set[str | None]:
    return {call.request for call in calls if call.request is not None and call.arrived > killed_at}


def _made_again(calls: Iterable[ToolCall], killed_at: float) -> int:
    """Calls whose answer the program had for certain when it was killed, and that it made again."""
    before = Counter(call.what for call in calls if call.at < killed_at - IN_FLIGHT_SECONDS)
    after = Counter(call.what for call in calls if call.at > killed_at)
    return (before & after).total()


def _in_flight(call: Seen, killed_at: float) -> bool:
    """Whether an admitted call was open, or its answer perhaps unread, when the program was killed."""
    ended = call.ended is not None and call.ended < killed_at - IN_FLIGHT_SECONDS
    return call.arrived <= killed_at and not ended and call.status in (0, 200)


def _sum(calls: Iterable[Seen], price: Priced) -> int | None:
    total = 0
    for call in calls:
        cost = price(call.model, call.usage or Usage())
        if cost is None:
            return None
        total += cost
    return total
