"""What goes out to a customer. Of money and of people who take over, trusted code speaks, from what tools answered;
a model's words stand beside that, and only where they cannot contradict it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Sequence

from siafu.apps.support.claims import claims_payment
from siafu.apps.support.requests import Refund
from siafu.apps.support.routes import Route
from siafu.apps.support.shop.orders import money_text
from siafu.apps.support.shop.refusal import Reason, Why
from siafu.border.identity import Amount
from siafu.border.secrets import redact

Say = tuple[str, str]  # Korean, English

PAID: Say = (
    "주문 {order}: {amount} 환불이 처리되었습니다. 원래의 결제 수단으로 돌려드립니다.",
    "Order {order}: {amount} has been refunded to the original means of payment.",
)
PENDING: Say = (
    "주문 {order}: 환불 요청이 담당자의 확인을 기다리고 있습니다. 아직 환불되지 않았습니다.",
    "Order {order}: the refund waits for a person to approve it. Nothing has been refunded yet.",
)
NOT_YET: Say = (
    "주문 {order}: 지금은 환불을 처리할 수 없어 아직 환불되지 않았습니다. 거절된 것은 아니니 나중에 이 주문에 대해 "
    "다시 물어봐 주세요.",
    "Order {order}: refunds cannot be made right now, so nothing has been refunded yet. It is not refused; please ask "
    "about this order later.",
)
UNKNOWN: Say = (
    "주문 {order}: 환불되었는지 아직 확인되지 않았습니다. 다시 요청하지 마시고 나중에 주문 상태를 물어봐 주세요.",
    "Order {order}: it is not known yet whether the refund was made. Please do not ask for it again; ask for the state "
    "of the order later.",
)
REFUSED: Say = ("주문 {order}: 환불되지 않았습니다.", "Order {order}: nothing was refunded.")
WHICH_ORDER: Say = (
    "환불된 금액은 없습니다. 환불할 주문의 번호를 알려 주세요.",
    "Nothing was refunded. Please tell us the number of the order.",
)
NOTHING_PAID: Say = ("이번 문의로 환불된 금액은 없습니다.", "This message has not led to a refund.")
HANDED_OVER: Say = (
    "담당자에게 전달했습니다. 접수 번호는 {ticket}입니다.",
    "A person will read this. The ticket number is {ticket}.",
)
NOT_HANDED_OVER: Say = (
    "지금은 담당자에게 전달하지 못했습니다. 잠시 후에 다시 보내 주세요.",
    "This could not be handed over to a person just now. Please send it again later.",
)
# Why a refund was not made, or what it lacks; a code that is not here is told without a reason.
WHY: dict[str, Say] = {
    "not_refundable": ("환불 정책에 따라 환불할 수 없습니다.", "The refund policy does not allow it."),
    "exceeds_refundable": (
        "이미 환불했거나 환불 중인 금액을 빼면 그만큼 남아 있지 않습니다.",
        "Beside what is refunded already or being refunded, not that much is left.",
    ),
    "declined": ("환불이 거절되었습니다.", "The refund was declined."),
    "approval_denied": ("담당자가 환불을 승인하지 않았습니다.", "A person decided against it."),
    "approval_expired": ("담당자의 승인이 제때 나지 않았습니다.", "Nobody approved it in time."),
    "stale_refund_total": (
        "그사이에 이 주문의 환불 금액이 바뀌었습니다. 확인하신 뒤에 다시 요청해 주세요.",
        "What is refunded of this order has changed meanwhile. Please check it and ask again.",
    ),
    "daily_limit": ("하루 환불 한도를 넘었습니다.", "It is more than can be refunded in one day."),
    "order_not_found": ("주문번호를 확인해 주세요.", "Please check the order number."),
    "amount_not_requested": (
        "환불할 금액을 주문번호와 나란히 알려 주세요 (예: {order}번 30,000원).",
        "Please tell us the amount to refund beside the number of the order (such as: $29.90 of order {order}).",
    ),
}
_LATER: Say = ("지금은 환불을 처리할 수 없습니다.", "Refunds cannot be made right now.")
WHY |= dict.fromkeys(("tool_disabled", "tool_changed", "tool_denied", "payments_unavailable"), _LATER)
WHY |= dict.fromkeys(("not_in_scope", "identity_required", "identity_invalid", "input"), _LATER)
WHY["amount_needed"] = WHY["amount_not_requested"]
# What the shop says beside the code. A reason whose figures the shop did not send is told by its code.
BECAUSE: dict[Reason, Say] = {
    "being_refunded": (
        "남은 금액은 이미 환불이 진행 중입니다: {reserved}.",
        "What is left of it is being refunded already: {reserved}.",
    ),
    "partly_refunded": (
        "{captured} 중 이미 환불된 금액은 {refunded}{when}, 남은 금액은 {left}입니다.",
        "{refunded} of {captured} refunded already{when}, {left} left.",
    ),
    "partly_reserved": (
        "{captured} 중 이미 환불된 금액은 {refunded}, 환불 중인 금액은 {reserved}, 남은 금액은 {left}입니다.",
        "{refunded} of {captured} refunded already, {reserved} being refunded, {left} left.",
    ),
    "more_than_paid": ("결제하신 금액은 {captured}입니다.", "What was paid for it is {captured}."),
    "changed": (
        "그사이에 환불된 금액이 바뀌었습니다: {captured} 중 환불 {refunded}, 환불 중 {reserved}, 남은 금액 {left}. "
        "확인하신 뒤에 다시 요청해 주세요.",
        "What is refunded of it has changed meanwhile: {refunded} of {captured} refunded, {reserved} being refunded, "
        "{left} left. Please check it and ask again.",
    ),
    "cancelled": (
        "취소된 주문이라 돌려드릴 금액이 없습니다.",
        "The order was cancelled, so there is nothing to give back.",
    ),
    "on_its_way": (
        "배송 중인 주문은 상품을 받으신 뒤에 요청해 주세요.",
        "It is on its way; please ask once it has arrived.",
    ),
    "return_window": (
        "단순 변심 환불은 배송완료 후 {days}일까지입니다 (배송완료: {arrived}). 불량이나 오배송이면 알려 주세요.",
        "A change of mind can be refunded up to {days} days after delivery, which was on {arrived}. If the goods are "
        "faulty or wrong, please tell us.",
    ),
    "fault_window": (
        "불량이나 오배송의 환불은 배송완료 후 {days}일까지입니다 (배송완료: {arrived}).",
        "Faulty or wrong goods can be refunded up to {days} days after delivery, which was on {arrived}.",
    ),
    "final_sale": (
        "식품은 단순 변심으로 환불되지 않습니다: 이 주문의 식품은 {kept}, 환불할 수 있는 금액은 {left}까지입니다.",
        "Food is not refunded for a change of mind, and {kept} of it is food; up to {left} can be refunded.",
    ),
    "denied": WHY["approval_denied"],
    "expired": WHY["approval_expired"],
    "not_carried_out": (
        "승인된 환불이 제때 처리되지 않았습니다. 다시 요청해 주세요.",
        "It was approved, but not carried out in time. Please ask again.",
    ),
    "not_made": ("확인해 보니 환불이 이루어지지 않았습니다.", "We looked into it, and it was not made."),
    "by_provider": (
        "결제사가 환불을 거절했습니다. 결제 수단을 확인해 주세요.",
        "The payment provider declined it. Please check your means of payment.",
    ),
}
# Said instead of REFUSED, not after it.
INSTEAD: dict[Reason, Say] = {
    "already_refunded": (
        "주문 {order}: 이미 환불된 주문입니다: {refunded}{when}. 이번에 더 환불된 금액은 없습니다.",
        "Order {order}: already refunded: {refunded}{when}. Nothing more was refunded now.",
    ),
}
ON: Say = (" ({date})", " on {date}")
LAST_ON: Say = (" (마지막: {date})", ", the last of it on {date}")

LINK_REMOVED = "[link removed]"
_LINK = re.compile(
    r"(?:[a-z][a-z0-9+.-]{1,20}://|mailto:|www\.)[^\s<>\"'`)\]]+"
    r"|(?<![\w@.-])(?:[a-z0-9-]{1,63}\.){1,4}[a-z]{2,24}/[^\s<>\"'`)\]]*",
    re.IGNORECASE,
)


def letter(
    route: Route,
    refunds: Sequence[Refund],
    ticket: str | None,
    text: str,
    *,
    korean: bool,
    shown: Collection[Amount] = (),
) -> str:
    """The answer that goes out. `text`: the model's. `shown`: refunds that tools have shown, as in `claims_payment`.

    Where money can move it begins with what became of it, and where a request is handed over, with the ticket. The
    model's words follow unless a refund was tried and not paid, or the request could not be handed over: then they
    could only promise what is not so. Where no money can move, words that claim a payment are followed by a sentence
    that denies it.
    """
    facts = [_told(refund, korean) for refund in refunds]
    trusted = all(refund.state == "paid" for refund in refunds)
    if route.refunds and not refunds:
        facts.append(_say(NOTHING_PAID, korean))
    if route.hands_over:
        facts.append(_say(HANDED_OVER if ticket else NOT_HANDED_OVER, korean, ticket=ticket))
        trusted = trusted and ticket is not None
    parts = [*dict.fromkeys(facts), *([_outbound(text)] if trusted else [])]
    if trusted and not route.refunds and claims_payment(text, shown):
        parts.append(_say(NOTHING_PAID, korean))
    return "\n\n".join(part for part in parts if part.strip())


def _told(refund: Refund, korean: bool) -> str:
    if refund.state == "needs_info" and refund.code not in WHY:
        return _say(WHICH_ORDER, korean)
    values = {"order": refund.order_id, "amount": _amount(refund, korean)}
    table = {"paid": PAID, "pending_approval": PENDING, "not_yet": NOT_YET, "unknown": UNKNOWN}
    said = _say(table.get(refund.state, REFUSED), korean, **values)
    if refund.state not in ("refused", "needs_info"):
        return said
    if refund.why is not None:
        figures = values | _figures(refund.why, korean)
        with contextlib.suppress(KeyError):  # figures that the words need are not there
            if refund.why.reason in INSTEAD:
                return _say(INSTEAD[refund.why.reason], korean, **figures)
            return f"{said} {_say(BECAUSE[refund.why.reason], korean, **figures)}"
    why = WHY.get(refund.code)
    return f"{said} {_say(why, korean, **values)}" if why else said


def _figures(why: Why, korean: bool) -> dict[str, str]:
    """What the shop knows, as texts; what it does not know is not there."""
    sums = {
        "captured": why.captured_minor,
        "refunded": why.refunded_minor,
        "reserved": why.reserved_minor,
        "left": why.refundable_minor,
        "kept": why.kept_minor,
    }
    found = {
        name: money_text(minor, why.currency) for name, minor in sums.items() if minor is not None and why.currency
    }
    on = LAST_ON if (why.refunds or 1) > 1 else ON
    found["when"] = _say(on, korean, date=f"{why.refunded_at:%Y-%m-%d}") if why.refunded_at else ""
    if why.days is not None:
        found["days"] = str(why.days)
    return found | ({"arrived": f"{why.delivered_at:%Y-%m-%d}"} if why.delivered_at else {})


def _amount(refund: Refund, korean: bool) -> str:
    if refund.amount_minor is None or refund.currency not in ("KRW", "USD"):
        return "요청하신" if korean else "it"
    return money_text(refund.amount_minor, refund.currency)


def _say(say: Say, korean: bool, **values: str | None) -> str:
    return say[0 if korean else 1].format(**values)


def _outbound(text: str) -> str:
    """A model's words without links, which it may have from anywhere, and without anything that looks like a key."""
    return redact(_LINK.sub(LINK_REMOVED, text))
