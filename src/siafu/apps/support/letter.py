"""What goes out to a customer. Of money and of people who take over, trusted code speaks, from what tools answered;
a model's words stand beside that, and only where they cannot contradict it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from siafu.apps.support.requests import Refund
from siafu.apps.support.routes import Route
from siafu.apps.support.shop.orders import money_text
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
        "환불할 금액을 알려 주세요 (예: 30,000원).",
        "Please tell us the amount to refund (such as $29.90).",
    ),
}
_LATER: Say = ("지금은 환불을 처리할 수 없습니다.", "Refunds cannot be made right now.")
WHY |= dict.fromkeys(("tool_disabled", "tool_changed", "tool_denied", "payments_unavailable"), _LATER)
WHY["amount_needed"] = WHY["amount_not_requested"]

LINK_REMOVED = "[link removed]"
_LINK = re.compile(
    r"(?:[a-z][a-z0-9+.-]{1,20}://|mailto:|www\.)[^\s<>\"'`)\]]+"
    r"|(?<![\w@.-])(?:[a-z0-9-]{1,63}\.){1,4}[a-z]{2,24}/[^\s<>\"'`)\]]*",
    re.IGNORECASE,
)


def letter(route: Route, refunds: Sequence[Refund], ticket: str | None, text: str, *, korean: bool) -> str:
    """The answer that goes out. `text`: the model's.

    Where money can move it begins with what became of it, and where a request is handed over, with the ticket. The
    model's words follow unless a refund was tried and not paid, or the request could not be handed over: then they
    could only promise what is not so.
    """
    facts = [_told(refund, korean) for refund in refunds]
    trusted = all(refund.state == "paid" for refund in refunds)
    if route.refunds and not refunds:
        facts.append(_say(NOTHING_PAID, korean))
    if route.hands_over:
        facts.append(_say(HANDED_OVER if ticket else NOT_HANDED_OVER, korean, ticket=ticket))
        trusted = trusted and ticket is not None
    parts = [*dict.fromkeys(facts), *([_outbound(text)] if trusted else [])]
    return "\n\n".join(part for part in parts if part.strip())


def _told(refund: Refund, korean: bool) -> str:
    if refund.state == "needs_info" and refund.code not in WHY:
        return _say(WHICH_ORDER, korean)
    table = {"paid": PAID, "pending_approval": PENDING, "not_yet": NOT_YET, "unknown": UNKNOWN}
    said = _say(table.get(refund.state, REFUSED), korean, order=refund.order_id, amount=_amount(refund, korean))
    why = WHY.get(refund.code) if refund.state in ("refused", "needs_info") else None
    return f"{said} {_say(why, korean)}" if why else said


def _amount(refund: Refund, korean: bool) -> str:
    if refund.amount_minor is None or refund.currency not in ("KRW", "USD"):
        return "요청하신" if korean else "it"
    return money_text(refund.amount_minor, refund.currency)


def _say(say: Say, korean: bool, **values: str | None) -> str:
    return say[0 if korean else 1].format(**values)


def _outbound(text: str) -> str:
    """A model's words without links, which it may have from anywhere, and without anything that looks like a key."""
    return redact(_LINK.sub(LINK_REMOVED, text))
