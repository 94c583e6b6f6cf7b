"""The shop's tools that change something: refunds, reservations, tickets.

Each brings about one effect a key, however often the call is repeated. The key comes from trusted values: the request
in the caller's token, the effect key that the caller's program sends beside the arguments, or else what is asked for,
as long as the same is still open.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from siafu.apps.support.shop import stock, tickets
from siafu.apps.support.shop.calling import Caller, Effect, ToolSpec
from siafu.apps.support.shop.catalogue import Sku
from siafu.apps.support.shop.database import find_order
from siafu.apps.support.shop.money.keys import request_key
from siafu.apps.support.shop.money.records import TOOL, RefundAsk, RefundDone
from siafu.apps.support.shop.orders import OrderId
from siafu.apps.support.shop.reading import order_not_found
from siafu.apps.support.shop.refusal import Refusal
from siafu.border.text import clean
from siafu.store.database import Transaction
from siafu.store.effect_people import AGENT


class RefundQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    order_id: OrderId
    amount: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10**12)] | None,
        msgspec.Meta(
            description="Whole won or US cents (환불 금액), in the order's currency. Leave it away to refund all that "
            "remains; give it only when the customer named an amount."
        ),
    ] = None
    reason: Annotated[
        # Some models' interfaces take an enumeration only with its type.
        Annotated[
            Literal["change_of_mind", "faulty", "wrong_item", "other"],
            msgspec.Meta(extra_json_schema={"type": "string"}),
        ]
        | None,
        msgspec.Meta(description="Why the customer wants the money back (환불 사유), if they said so."),
    ] = None


class ReserveQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sku: Sku
    quantity: Annotated[int, msgspec.Meta(ge=1, le=stock.MOST_PIECES, description="How many pieces (수량).")]


class ReleaseQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reservation_id: stock.ReservationId


class TicketQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    subject: Annotated[
        str, msgspec.Meta(min_length=1, max_length=200, description="What it is about (제목), one line.")
    ]
    summary: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=4000,
            description="What the customer wants and what was tried (내용), for a person who has read nothing else.",
        ),
    ]


def _process_refund(tx: Transaction, caller: Caller, question: RefundQuestion) -> RefundAsk | Refusal:
    customer = caller.customer or ""
    order = find_order(tx, caller.tenant, customer, question.order_id)
    if order is None:
        return order_not_found()
    known = caller.run and caller.request
    return RefundAsk(
        tenant=caller.tenant,
        customer=customer,
        order=order,
        amount_minor=question.amount,
        reason=question.reason or "",
        key=request_key(caller.run, caller.request, order.order_id) if known else "",
        expected_refunded_minor=caller.expected_refunded_minor,
        actor=f"{AGENT}{caller.run}" if caller.run else customer,
        run=caller.run,
        task=caller.request,
        grants=caller.grants,
        role=caller.role,
    )


def _reserve_stock(tx: Transaction, caller: Caller, question: ReserveQuestion) -> stock.Reservation | Refusal:
    who = (caller.tenant, caller.customer or "")
    return stock.reserve(tx, *who, question.sku, question.quantity, caller.effect_key)


def _release_stock(tx: Transaction, caller: Caller, question: ReleaseQuestion) -> stock.Reservation | Refusal:
    return stock.release(tx, caller.tenant, caller.customer or "", question.reservation_id)


def _open_ticket(tx: Transaction, caller: Caller, question: TicketQuestion) -> tickets.Ticket | Refusal:
    who = (caller.tenant, caller.customer or "")
    return tickets.open_ticket(tx, *who, clean(question.subject), clean(question.summary), caller.effect_key)


WRITING: tuple[ToolSpec, ...] = (
    ToolSpec(
        name=TOOL,
        title="Refund",
        description="Refund an order of the current customer, in full (no amount) or a part. 환불 처리. "
        "One request of the customer is one refund: repeat a call with the same arguments when its answer was lost; "
        "it pays once. Never call it with other arguments to get around an error. Error pending_approval: a person "
        "decides first, nothing is paid yet. Error unknown_outcome: the shop finds out by itself, do not ask again. "
        "Error in_progress: the same refund is under way, repeat the call a little later. Other errors say why there "
        "is no refund.",
        takes=RefundQuestion,
        gives=RefundDone,
        for_customer=True,
        run=_process_refund,
        effect=Effect(destructive=True, outside=True),
    ),
    ToolSpec(
        name="reserve_stock",
        title="Reserve stock",
        description="Set pieces of one product aside for the current customer until they are released. 재고 예약. "
        "Repeating a call does not reserve more. Error insufficient_stock: fewer are left. Error sku_not_found: no "
        "such product.",
        takes=ReserveQuestion,
        gives=stock.Reservation,
        for_customer=True,
        run=_reserve_stock,
        effect=Effect(),
    ),
    ToolSpec(
        name="release_stock",
        title="Release reserved stock",
        description="Give a reservation of the current customer back. 예약 취소. Releasing it again changes nothing. "
        "Error reservation_not_found: this customer has no such reservation.",
        takes=ReleaseQuestion,
        gives=stock.Reservation,
        for_customer=True,
        run=_release_stock,
        effect=Effect(destructive=True),
    ),
    ToolSpec(
        name="open_ticket",
        title="Hand over to a person",
        description="Hand the current customer's matter over to a person of the shop, who answers later. 상담원 연결. "
        "For complaints and everything the other tools cannot do. Repeating a call opens no second ticket.",
        takes=TicketQuestion,
        gives=tickets.Ticket,
        for_customer=True,
        run=_open_ticket,
        effect=Effect(),
    ),
)
