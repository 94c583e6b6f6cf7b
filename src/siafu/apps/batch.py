"""Files of OpenAI-Batch lines: what a line asks, and the line that answers it."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from siafu.agents.task import TaskContext
from siafu.apps.filerun.check import Checked, checked
from siafu.apps.filerun.job import Task, Written
from siafu.apps.filerun.place import opened
from siafu.border.canonical import canonical, fingerprint
from siafu.border.jsonl import LineError, disk
from siafu.errors import InputError
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.swarm.results import MapResult

URL = "/v1/chat/completions"
MAX_ID = 512
MOST_MODELS = 1000  # that are remembered
_PREFIX = "batch_req_"
_OWN = frozenset(ChatRequest.__struct_fields__) - {"stream", "extra"}
_STREAMING = frozenset({"stream", "stream_options"})
_BYTES_PER_TOKEN = 4


class BatchJob:
    """`siafu batch`: each line's body goes to the endpoint as it is, fields that siafu does not know included.

    run: the run's name; ids of output lines derive from it. model: asked instead of the one each line names; None =
    the line's own. `models`: those that the lines parsed so far ask, the first 1,000.
    """

    starts = b'{"id":"' + _PREFIX.encode()

    def __init__(self, run: str, model: str | None = None) -> None:
        self._run = run
        self._model = model
        self._streamed = False
        self.models: set[str] = set()

    def parse(self, value: Any) -> Task:
        """Raises: InputError naming the field."""
        if not isinstance(value, dict):
            raise InputError('a line is an object like {"custom_id": "q1", "method": "POST", "url": ..., "body": ...}')
        key = value.get("custom_id")
        if key is None and {"customer", "text"} <= value.keys():
            raise InputError("this looks like a support request: these are for siafu support run, or submit support")
        if not isinstance(key, str) or not 0 < len(key) <= MAX_ID:
            raise InputError(f"custom_id must be a text of 1 to {MAX_ID} characters")
        if value.get("method", "POST") != "POST" or value.get("url", URL) != URL:
            raise InputError(f'method and url must be "POST" and "{URL}"')
        body = value.get("body")
        if not isinstance(body, dict):
            raise InputError("body must be an object")
        if body.get("n") not in (None, 1) or body.get("logprobs"):
            raise InputError("body asks for several choices (n) or for logprobs, which siafu does not keep")
        request = self._request(body)
        if not request.messages:
            raise InputError("body.messages is empty")
        self._streamed = self._streamed or bool(body.get("stream"))
        if len(self.models) < MOST_MODELS:
            self.models.add(request.model)
        return Task(key, request)

    def _request(self, body: dict[str, Any]) -> ChatRequest:
        own = {name: body[name] for name in _OWN & body.keys()}
        rest = {name: value for name, value in body.items() if name not in _OWN | _STREAMING}
        if self._model is not None:
            own["model"] = self._model
        try:
            return msgspec.convert({**own, "extra": rest}, ChatRequest)
        except msgspec.ValidationError as error:
            raise InputError(f"body: {str(error).replace('`$.', '`body.')}") from None

    def remarks(self) -> list[str]:
        return ['"stream" is left away: a file gets whole answers'] if self._streamed else []

    def fingerprint(self) -> str:
        return fingerprint(["batch", self._model])

    async def work(self, item: ChatRequest, ctx: TaskContext, /) -> dict[str, Any]:
        """One call; the value is a chat.completion object."""
        answer = await ctx.model(item)
        return completion(answer, item.model, int(ctx.clock.wall()))

    def record(self, result: MapResult) -> dict[str, Any]:
        key, error = result.item.key, result.error
        line: dict[str, Any] = {"id": self._id(key), "custom_id": key, "response": None, "error": None}
        if error is None:
            line["response"] = {"status_code": 200, "request_id": "", "body": result.value}
        else:
            line["error"] = {"code": error.code, "message": error.message}
        return line

    def refusal(self, error: LineError) -> dict[str, Any]:
        told = {"code": error.code, "message": error.message, "line": error.line}
        return {"id": self._id(f"line {error.line}"), "custom_id": None, "response": None, "error": told}

    def claims(self, value: Any) -> None:
        """Such a record tells its line alone."""

    def _id(self, key: str) -> str:
        return _PREFIX + hashlib.sha256(f"{self._run}\n{key}".encode()).hexdigest()[:24]

    def read_back(self, line: bytes) -> Written | None:
        try:
            found = msgspec.json.decode(line, type=_Record)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return Written(found.custom_id, found.error is None) if found.id.startswith(_PREFIX) else None


class _Record(msgspec.Struct):
    id: str
    custom_id: str | None
    response: dict[str, msgspec.Raw] | None
    error: dict[str, msgspec.Raw] | None


def completion(answer: ChatAnswer, asked: str, created: int) -> dict[str, Any]:
    """A whole answer as a chat.completion object. `created`: seconds since 1970; `asked`: the model of the request. One
    by a cheaper model, to keep a budget, says which it stands in for.
    """
    choice = {"index": 0, "message": answer.message, "logprobs": None, "finish_reason": answer.finish_reason}
    body = {
        "id": answer.id or "chatcmpl-" + hashlib.sha256(canonical(answer.message)).hexdigest()[:24],
        "object": "chat.completion",
        "created": created,
        "model": answer.model or asked,
        "choices": [choice],
    }
    if answer.instead_of:
        body["siafu"] = {"instead_of": answer.instead_of}
    return body if answer.usage is None else {**body, "usage": _usage(answer.usage)}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


class BatchCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of requests holds. input_tokens_about: a guess of four bytes a token. output_tokens_at_most: None
    when a request sets no maximum. models: requests by model.
    """

    usable: int
    bad: int
    first_bad: tuple[LineError, ...]
    models: dict[str, int]
    input_tokens_about: int
    output_tokens_at_most: int | None


def check(source: Path, *, limit: int | None = None) -> BatchCheck:
    """Look at every line of `source`; no call is made and nothing is written.

    Raises: InputError when there is nothing to do; StoreError.
    """
    models: Counter[str] = Counter()
    size = 0
    most: int | None = 0

    def see(value: Any) -> None:
        nonlocal size, most
        body = value["body"]
        models[body["model"]] += 1
        size += len(canonical(body["messages"])) + len(canonical(body.get("tools")))
        own = body.get("max_completion_tokens") or body.get("max_tokens")
        most = None if most is None or not isinstance(own, int) else most + own

    with opened(source) as file, disk(source):
        found: Checked = checked(BatchJob("check"), file, limit=limit, see=see)
    found.index.close()
    return BatchCheck(
        usable=found.usable,
        bad=found.bad,
        first_bad=found.first_bad,
        models=dict(models.most_common(20)),
        input_tokens_about=size // _BYTES_PER_TOKEN,
        output_tokens_at_most=most,
    )
