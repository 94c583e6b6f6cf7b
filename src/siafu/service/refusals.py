"""What a client is told when there is no answer: a status, and an error in the shape of OpenAI's."""

from __future__ import annotations

import math

import msgspec

from siafu.border.secrets import redact
from siafu.border.text import clean
from siafu.errors import BacklogFull, ModelError, SiafuError

_MORE = "; siafu's log has more under this request id"
_INSIDE = "something went wrong inside siafu"
INTERNAL = _INSIDE + _MORE
# in place of words that name addresses, keys and what else is no client's business
_BEHIND = {
    "access_refused": "the endpoint behind siafu does not take siafu's key",
    "unreachable": "the endpoint behind siafu cannot be reached",
    "upstream_fault": "the connection to the endpoint behind siafu broke",
    "malformed_reply": "the endpoint behind siafu gave no answer that can be used",
    "call_timeout": "the endpoint behind siafu did not answer in time",
    "deadline_reached": "there was no answer within the time that a request may take",
    "tool_unavailable": "a tool that the answer needs cannot be reached",
    "tool_timeout": "a tool that the answer needs took too long",
}
_RETRY = b"x-should-retry"  # OpenAI's clients obey it


class Refused(Exception):
    """An answer other than the one that was wanted. `wait`: seconds after which asking again makes sense, None = not
    known. `again`: False = asking the same again will not help, whatever the status suggests. `log`: what the client is
    not told. `allow`: the methods that are taken instead.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        wait: float | None = None,
        again: bool = True,
        log: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.wait = wait
        self.again = again
        self.log = log
        self.allow = ""

    def body(self) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}`."""
        error = {"message": self.message, "type": self._type(), "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        found = []
        if self.wait is not None:
            found.append((b"retry-after", str(max(1, math.ceil(self.wait))).encode()))
        if not self.again:
            found.append((_RETRY, b"false"))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        if self.allow:
            found.append((b"allow", self.allow.encode()))
        return found

    def _type(self) -> str:
        if self.code in _NO_MONEY:
            return "insufficient_quota"
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"


_NO_MONEY = ("insufficient_quota", "budget_reached")
# by the code of our error: status, code for the client (None = the same), whether asking again can help
_ANSWERS: dict[str, tuple[int, str | None, bool]] = {
    "rate_limited": (429, "rate_limit_exceeded", True),
    "overloaded": (503, None, True),
    "backlog_full": (429, None, True),
    "quota_exhausted": (429, "insufficient_quota", False),
    "budget_reached": (429, None, False),
    "access_refused": (502, None, False),  # siafu's key, not the client's
    "unpriced_model": (400, None, False),
    "call_timeout": (504, None, True),
    "deadline_reached": (504, None, True),
    "upstream_fault": (502, None, True),
    "unreachable": (502, None, True),
    "malformed_reply": (502, None, True),
    "request_refused": (400, None, False),
    "input": (400, None, False),
    "too_large": (413, None, False),
    "not_json": (400, "invalid_json", False),
    "boundary": (400, None, False),
    "agent_stopped": (502, None, True),
    "step_limit": (502, None, True),
    "token_limit": (502, None, True),
    "reply_truncated": (502, None, True),
    "output_invalid": (502, None, True),
    "tool_unavailable": (503, None, True),
    "tool_timeout": (504, None, True),
    "disk_full": (507, None, False),
}


def refusal(error: SiafuError) -> Refused:
    """How an error of ours is told to a client. What only concerns the operator (store, settings, where siafu asks and
    with which key) is not repeated; what an endpoint itself says is.
    """
    found = told(error.code, error.message)
    found.wait = error.retry_after if isinstance(error, BacklogFull) else None
    if not isinstance(error, ModelError):
        return found
    if error.code == "upstream_fault" and error.status is not None:
        found.message, found.log = clean(redact(error.message)), ""
    found.wait = error.wait
    found.param = error.param
    if error.code == "request_refused":
        given = error.status or 400
        found.status = given if 400 <= given < 500 else 502
        found.code = error.provider_code or found.code
    return found


def told(code: str, message: str) -> Refused:
    """The same for an error of which only code and message are left."""
    answer = _ANSWERS.get(code)
    text, log = clean(redact(message)), ""
    if answer is None:
        return Refused(500, INTERNAL, code="internal_error", log=f"{code}: {text}")
    status, other, again = answer
    if code in _BEHIND:
        text, log = _BEHIND[code] + _MORE, f"{code}: {text}"
    return Refused(status, text, code=other or code, again=again, log=log)


def told_of_line(code: str, message: str) -> tuple[str, str]:
    """Code and message of the same error for one line of a batch, which has no request id."""
    found = told(code, message)
    text = found.message if not found.log else _BEHIND.get(code, _INSIDE)
    return found.code or code, text


def invalid(param: str, message: str) -> Refused:
    """For a field of the body that is wrong."""
    return Refused(400, message, code="invalid_value", param=param, again=False)
