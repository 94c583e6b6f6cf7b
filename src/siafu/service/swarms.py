"""A swarm as a model: `siafu/support` answers a customer of the shop, in the shape of a chat completion.

Who the customer is says the client key (its binding), or a signed token in `x-siafu-customer`; never the messages.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from siafu.apps.support.requests import MAX_TEXT, Answer, CustomerRequest, Turn
from siafu.border.identity import verify
from siafu.border.secrets import Secret
from siafu.border.text import clean
from siafu.config.swarms import NAMESPACE
from siafu.errors import ApprovalPending, IdentityInvalid
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.service.completions import DONE, STREAM_HEADERS, cost_header, spoken, usage
from siafu.service.exchange import Exchange, Header
from siafu.service.reading import Asked
from siafu.service.refusals import Refused, invalid, told
from siafu.store.client_keys import ClientKey
from siafu.swarm.results import MapResult

SUPPORT = f"{NAMESPACE}support"
AUDIENCE = "siafu-serve"
CUSTOMER = b"x-siafu-customer"
MAX_EARLIER = 20  # messages of the customer before the last one
_NOT_TAKEN = ("tools", "functions", "response_format", "tool_choice")
_NOTHING = (b"null", b"[]")


def customer_of(
    x: Exchange, key: ClientKey | None, identity_key: Secret | None, now: float, *, token: str | None = None
) -> str:
    """The customer that a request is for. now: seconds since 1970. token: given for a part of the request, counts
    instead of the header.

    Raises: Refused when none is proven, or two differ.
    """
    bound = "" if key is None else key.terms.customer
    token = token or x.header(CUSTOMER)
    if not token:
        if not bound:
            raise _unknown("bind the client key to one (siafu keys create --customer), or send a token signed with")
        return bound
    if identity_key is None:
        raise _unknown("the header x-siafu-customer cannot be checked without")
    try:
        subject = verify(token, identity_key, AUDIENCE, now).subject
    except IdentityInvalid as error:
        raise Refused(403, error.message, code="customer_refused", again=False) from None
    if bound and subject != bound:
        message = "this client key is for another customer than x-siafu-customer names"
        raise Refused(403, message, code="customer_refused", again=False)
    return subject


def _unknown(how: str) -> Refused:
    message = f"for which customer? {how} SIAFU_IDENTITY_KEY (siafu keys sign --customer)"
    return Refused(403, message, code="customer_required", again=False)


def customer_request(request: ChatRequest, customer: str, id: str) -> CustomerRequest:
    """What the customer asks: the last message, and those before it. System messages are left out: the swarm has its
    own instructions. Only the message right before the last may be completed by it; older ones were answered.

    Raises: Refused.
    """
    fields = {**request.extra, **request.given}
    for name in _NOT_TAKEN:
        if name in fields and bytes(fields[name]) not in _NOTHING:
            raise invalid(name, f"{SUPPORT} uses tools and a form of its own; leave {name} away")
    if fields.get("n", 1) != 1:
        raise invalid("n", f"{SUPPORT} gives one answer")
    turns: list[Turn] = []
    for message in _messages(fields["messages"]):
        role, text = message.get("role"), _content(message.get("content"))
        if role == "user":
            turns.append(Turn(text=text))
        elif role == "assistant" and turns and text:
            turns[-1] = Turn(text=turns[-1].text, answer=text, outcome="answered")
    if not turns or turns[-1].answer is not None:
        raise invalid("messages", "the last message must be the customer's (role user)")
    *earlier, last = turns[-MAX_EARLIER - 1 :]
    if earlier:
        earlier[-1] = msgspec.structs.replace(earlier[-1], outcome=None)
    if not 0 < len(last.text.strip()) <= MAX_TEXT:
        raise invalid("messages", f"the customer's message must have 1 to {MAX_TEXT:,} characters")
    return CustomerRequest(id=id, customer=customer, text=last.text, earlier=tuple(earlier))


def _messages(raw: msgspec.Raw) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(raw, type=list[dict[str, Any]])
    except msgspec.DecodeError:
        raise invalid("messages", "must be a list of messages") from None


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return clean(content or "")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise invalid("messages", f"{SUPPORT} reads text only")
    return clean("\n\n".join(map(str, texts)))


def request_name(key: ClientKey | None, customer: str, once: str) -> str:
    """The name of a request that the client sends again under the same Idempotency-Key: its effects happen once."""
    said = msgspec.json.encode([key.id if key else "", customer, once])
    return f"once_{hashlib.sha256(said).hexdigest()[:32]}"


async def send_result(x: Exchange, result: MapResult, asked: Asked, now: float) -> None:
    """A swarm's result as a chat completion, or as a stream of one delta. Raises: Refused when there is no answer."""
    answer = result.value
    if not isinstance(answer, Answer):
        code, message = (result.error.code, result.error.message) if result.error else ("internal_error", "")
        if result.status == "waiting":
            if code != ApprovalPending.code:  # the same key again asks for the same effect
                raise Refused(503, message, code=code)
            raise Refused(409, "a person has to decide first: " + message, code=code, again=False)
        raise told(code, message)
    headers: list[Header] = [(b"x-siafu-upstream", SUPPORT.encode())]
    if result.usd_pico is not None:
        headers.append(cost_header(result.usd_pico))
    chat = ChatAnswer(
        message={"role": "assistant", "content": answer.answer},
        model=SUPPORT,
        id=x.id,
        usage=Usage(input=result.input_tokens, cached=result.cached_tokens, output=result.output_tokens),
    )
    if asked.request.stream:
        await x.begin(200, STREAM_HEADERS + headers)
        await x.write(b"".join(spoken(chat, wants_usage=asked.wants_usage, created=now)) + DONE, more=False)
        return
    completion = {
        "id": x.id,
        "object": "chat.completion",
        "created": int(now),
        "model": SUPPORT,
        "choices": [{"index": 0, "message": chat.message, "finish_reason": "stop", "logprobs": None}],
        "usage": usage(result.input_tokens, result.output_tokens),
        "siafu": {
            "outcome": answer.outcome,
            "category": answer.category,
            "priority": answer.priority,
            "refunds": answer.refunds,
            "ticket": answer.ticket,
            "waiting": result.status == "waiting",
        },
    }
    await x.answer(msgspec.json.encode(completion), headers)
