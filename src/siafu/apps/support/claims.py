"""Whether a model's words claim a payment that no tool has made. Pure, Korean and English.

Where no money can move, such words are false, unless they report a refund that a tool has shown. They are looked for
clause by clause: one that asks, denies or supposes claims nothing. A promise is looked at with its whole sentence, as
`we refund it once it has arrived` explains the policy.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from siafu.apps.support.grants import amounts
from siafu.border.identity import Amount

_NEAR = r"[^.!?\n]{0,40}"
_BUT = r"(?:\s+(?:just|already|now|also|successfully|gladly|fully|been|being|today))*\s+"
_REFUND = r"\brefund\b(?!\s+(?:request|polic|question|inquir|rule|term|window|period))"
_KO = r"(?:환불|환급|결제\s?취소|카드\s?취소)"
# The act and its verb: 환불 처리했, 환불을 완료했, 환불 금액 30,000원을 입금했.
_KO_ACT = (
    rf"(?:{_KO}(?:(?:을|를|이|가|은|는|도)?\s?(?:신청|접수))?|{_KO}[^.!?\n]{{0,25}}?(?:처리|완료|진행|승인|지급|입금|송금))"
    r"(?:을|를|이|가|은|는|도)?\s?"
)
# Somebody has acted: never a report of what was there before.
_DEED = re.compile(
    rf"\b(?:I|we)(?:\s+have|['’]ve)?{_BUT}(?:refunded|reimbursed|credited|compensated|paid\b{_NEAR}\bback\b"
    rf"|(?:issued|processed|made|initiated|completed|sent|approved|arranged)\b{_NEAR}{_REFUND}"
    rf"|(?:returned|sent|transferred)\b{_NEAR}\bmoney\b)"
    rf"|(?:{_KO_ACT}|(?:입금|송금)(?:을|를)?\s?)(?:했|하였|시켰|해\s?드렸|시켜\s?드렸|해\s?놓았)|(?:돌려|보상해)\s?드렸",
    re.IGNORECASE,
)
# A state of things, which may be one that a tool has shown.
_STATE = re.compile(
    rf"{_REFUND}{_NEAR}\b(?:has|have|was|were|is|are){_BUT}(?:issued|processed|completed?|done|made|sent|approved"
    rf"|successful|in\s+progress|under\s+way|on\b{_NEAR}\bway)\b"
    rf"|\b(?:has|have|was|were|(?:is|are)\s+(?:now|being|already)){_BUT}?\s*(?:refunded|reimbursed|credited|paid\s+back)\b"
    rf"|\bmoney\b{_NEAR}(?:\bon\s+(?:its|the)\s+way|\b(?:has|have|was){_BUT}(?:returned|sent|transferred|paid))\b"
    rf"|{_REFUND}(?:\s+\w+)?\s+(?:complete|successful|done|processed|issued|confirmed)\b|(?:^|[✅!:])\s*refunded\b"
    rf"|{_KO_ACT}(?:되었|됐|되셨|되고\s?있|중입니다|중이에요)|{_KO}\s?(?:처리\s?)?완료\s*(?:입니다|[.!✅🎉]|$)"
    r"|환불이?\s?끝났|돈이\s?(?:반환|환불)(?:되었|됐)",
    re.IGNORECASE | re.MULTILINE,
)
_PROMISE = re.compile(
    rf"\b(?:I|we)(?:\s+am|\s+are|['’]m|['’]re|\s+will|['’]ll|\s+shall){_BUT}(?:refund|reimburs|compensat|pay\w*\b{_NEAR}\bback\b"
    rf"|(?:issu|process|mak|send|arrang|initiat)\w*\b{_NEAR}{_REFUND}|(?:return|send)\w*\b{_NEAR}\bmoney\b)"
    rf"|\b(?:will|going\s+to){_BUT}?\s*be{_BUT}?\s*(?:refunded|reimbursed|credited|paid\s+back)\b"
    rf"|(?:{_KO_ACT}|(?:입금|송금)(?:을|를)?\s?)(?:하겠|해\s?드리겠|해\s?드릴게|할게요|될\s?예정|될\s?겁니다|될\s?것입니다)"
    r"|(?:돌려|보상해)\s?드리(?:겠|ㄹ게|는\s?중)",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(r"\b(?:if|whether|unless|until|once|when|whenever|after|before)\b", re.IGNORECASE)
_DENIED = re.compile(r"n['’]t\b|\b(?:not|never|nothing|none|no|nor|cannot)\b", re.IGNORECASE)
_ASKED = re.compile(r"\w{0,3}(?:는지|은지|을지|나요|까요|다면|으면|다고\s?하)|[^,;]*\?")  # behind the claim
# Anywhere in the sentence of a promise.
_OPEN = re.compile(r"\?|시면|하면|되면|으면|경우|후에|뒤에|이후|않|못|없|아닙|아니")
_EXPLAINED = re.compile(
    r"\b(?:within|usually|normally|policy|as\s+soon\s+as|can|could|may|might|would|days?)\b|이내|정책|규정|통상|보통|까지|수\s?있",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?。])\s+|\n+")
_CLAUSE = re.compile(r",\s|;|\s(?:and|but|so)\s|(?<=[며고])\s|(?<=지만)\s|(?<=는데)\s|(?<=으니)\s")


def claims_payment(text: str, shown: Collection[Amount]) -> bool:
    """Whether `text` says that money was, is being or will be paid back. `shown`: what tools have shown as refunded, as
    currencies and minor units; a report of it is no claim, as long as it names no other sum.
    """
    return any(_claims(" ".join(sentence.split()), shown) for sentence in _SENTENCE.split(text))


def _claims(sentence: str, shown: Collection[Amount]) -> bool:
    reported = bool(shown) and set(amounts(sentence)) <= set(shown)
    for clause in _CLAUSE.split(sentence):
        if any(_said(found) for found in _DEED.finditer(clause)):
            return True
        if not reported and any(
            _said(found) and not _DENIED.search(clause, 0, found.end()) for found in _STATE.finditer(clause)
        ):
            return True
    held = (_SUPPOSED, _DENIED, _OPEN, _EXPLAINED)
    return bool(_PROMISE.search(sentence)) and not any(words.search(sentence) for words in held)


def _said(found: re.Match[str]) -> bool:
    """Whether it is neither supposed nor asked."""
    return not (_SUPPOSED.search(found.string, 0, found.start()) or _ASKED.match(found.string, found.end()))
