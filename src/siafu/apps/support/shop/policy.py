"""The refund policy, as customers read it, and its figures."""

from __future__ import annotations

from collections.abc import Mapping

from siafu.apps.support.shop.orders import Currency

CHANGE_OF_MIND_DAYS, FAULTY_DAYS = 7, 30  # after delivery
CHECKED_ABOVE: Mapping[Currency, int] = {"KRW": 100_000, "USD": 80_00}  # minor units

REFUND_POLICY = """\
# 환불 정책

- 단순 변심: 배송완료 후 7일 이내에 환불을 요청할 수 있습니다. 왕복 배송비는 고객이 부담합니다.
- 불량 또는 오배송: 배송완료 후 30일 이내에 환불을 요청할 수 있습니다. 배송비는 상점이 부담합니다.
- 결제완료, 상품준비중 상태의 주문은 배송 전이므로 전액 취소할 수 있습니다.
- 배송중인 주문은 상품을 받은 뒤에 환불을 요청해 주세요.
- 식품, 개봉한 화장품, 개봉한 위생용품은 단순 변심으로 환불할 수 없습니다.
- 이미 취소되거나 환불된 주문은 다시 환불되지 않습니다.
- 환불 금액은 원래의 결제 수단으로 영업일 기준 3일 이내에 돌려드립니다. 100,000원을 넘는 환불은 담당자가 확인합니다.

# Refund policy

- Change of mind: a refund can be requested within 7 days after delivery. The customer pays shipping both ways.
- Faulty or wrong item: a refund can be requested within 30 days after delivery. The shop pays shipping.
- Orders that are paid or being prepared have not left yet and can be cancelled in full.
- For an order on its way, please wait for it to arrive and ask then.
- Food, opened cosmetics and opened hygiene products are not refunded for a change of mind.
- An order that was cancelled or refunded is not refunded again.
- The money goes back to the original means of payment within 3 business days. A person checks refunds above
  100,000 KRW or 80 USD.
"""
