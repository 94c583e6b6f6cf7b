"""Writing: short answers in Korean or English, from what tools returned."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from siafu.bench.simulator.words import clauses, concepts

MOST_CHARS, MOST_FIELDS, MOST_ROWS = 700, 12, 5
_FAILED = re.compile(
    r"^\W*(?:error|fail|could not|cannot|can't|unable|denied|refused|invalid|not found|no such|time ?out|timed out|"
    r"unknown|unavailable|오류|실패|거부|찾을 수 없|없는|에러|시간 초과)",
    re.IGNORECASE,
)
# names of fields and topics that a Korean reader would rather not read in English
_KOREAN_NAMES = {
    "order id": "주문 번호", "id": "번호", "status": "상태", "name": "이름", "title": "제목",
    "price": "가격", "quantity": "수량", "stock": "재고", "available": "남은 수", "items": "품목",
    "carrier": "택배사", "date": "날짜", "tracking number": "송장 번호", "tracking": "송장 번호",
    "eta": "도착 예정", "total": "합계", "ordered at": "주문일", "created at": "등록일",
    "amount": "금액", "currency": "통화", "sku": "상품 코드", "category": "분류", "room": "객실",
    "author": "저자", "due date": "반납일", "message": "안내", "description": "설명", "count": "개수",
    "results": "결과", "refund": "환불", "delivery": "배송", "product": "제품", "order": "주문",
    "complaint": "불편", "cancel": "취소", "exchange": "교환", "question": "문의", "recommend": "추천",
    "damage": "파손", "reserve": "예약", "payment": "결제", "book": "도서", "discount": "할인",
}  # fmt: skip
_YES_NO = {True: {True: "예", False: "아니요"}, False: {True: "yes", False: "no"}}


def parsed(result: str) -> Any:
    """A tool's result as a value; text that is no JSON stays text."""
    if result.lstrip()[:1] not in ("{", "["):
        return result
    try:
        return msgspec.json.decode(result)
    except (msgspec.DecodeError, RecursionError):
        return result


def failure(value: Any) -> str | None:
    """What went wrong, when a tool's result is an error; None when it is none."""
    if isinstance(value, dict):
        error = value.get("error") or value.get("isError") or value.get("is_error")
        if not error and value.get("success") is not False and value.get("ok") is not False:
            return None
        inner = error.get("message") if isinstance(error, dict) else error if isinstance(error, str) else None
        return str(inner or value.get("message") or value.get("detail") or value.get("code") or "error")[:300]
    return value.strip()[:300] if isinstance(value, str) and _FAILED.match(value) else None


def report(results: Iterable[str], *, korean: bool) -> str:
    """An answer from tool results; failures are told as failures."""
    facts: list[str] = []
    wrongs: list[str] = []
    for value in map(parsed, results):
        wrong = failure(value)
        if wrong is not None:
            wrongs.append(f"확인하지 못했습니다: {wrong}" if korean else f"I could not look that up: {wrong}")
        else:
            nothing = "찾은 내용이 없습니다." if korean else "Nothing was found."
            facts.append(_facts(value, korean) or nothing)
    if facts:
        facts[0] = ("확인한 내용입니다. " if korean else "Here is what I found. ") + facts[0]
    return "\n".join([*facts, *wrongs])[:MOST_CHARS]


def _facts(value: Any, korean: bool, depth: int = 0) -> str:
    """A value as one line of "name: value" pairs."""
    if isinstance(value, bool):
        return _YES_NO[korean][value]
    if isinstance(value, list):
        rows = [_facts(row, korean, depth + 1) for row in value[:MOST_ROWS]]
        rest = len(value) - MOST_ROWS
        more = [f"외 {rest}건" if korean else f"and {rest} more"] if rest > 0 else []
        return " / ".join(filter(None, [*rows, *more]))
    if isinstance(value, dict):
        shown = [(k, _facts(v, korean, depth + 1)) for k, v in list(value.items())[:MOST_FIELDS] if v is not None]
        line = ", ".join(f"{_name(key, korean)}: {text}" for key, text in shown if text)
        return f"({line})" if depth > 1 and line else line
    return str(value).strip()[:300]


def _name(key: str, korean: bool) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", key).replace("_", " ").lower()
    return _KOREAN_NAMES.get(words, words) if korean else words


def ask_for(missing: Iterable[str], *, korean: bool) -> str:
    """A question for what a tool needs and nobody told."""
    names = ", ".join(dict.fromkeys(_name(name, korean) for name in missing))
    if korean:
        return f"확인을 도와드리려면 다음 내용이 필요합니다: {names}. 알려 주시겠어요?"
    return f"To look into that I need: {names}. Could you tell me?"


def acknowledge(text: str, *, korean: bool) -> str:
    """What can be said honestly without a tool and without a model."""
    strongest = sorted(concepts(text).items(), key=lambda pair: (-pair[1], pair[0]))
    topics = [_name(name, korean) for name, _ in strongest if not korean or name in _KOREAN_NAMES][:2]
    first = (clauses(text) or [""])[0]
    gist = first if len(first) <= 60 else first[:60] + "…"
    if korean:
        about = f" {', '.join(topics)} 관련 내용으로 이해했습니다." if topics else ""
        rules = "모델 없이 규칙으로 만든 답이라 이 이상은 답할 수 없습니다."
        return f"말씀해 주신 내용(“{gist}”)을 잘 읽었습니다.{about} {rules}"
    about = f" I understand it is about {' and '.join(topics)}." if topics else ""
    return f"I read your message (“{gist}”).{about} Rules wrote this answer, no model, so I cannot say more."
