"""OpenAI-Batch lines: what is read, what is sent, what is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from siafu.agents.task import Surroundings
from siafu.apps.batch import BatchJob, check
from siafu.apps.filerun.job import Plan
from siafu.apps.filerun.place import place
from siafu.apps.filerun.prepare import FileOptions, ready
from siafu.apps.filerun.run import Outcome, run
from siafu.border.jsonl import LineError
from siafu.errors import InputError, RequestRefused
from siafu.gateway.chat import Usage
from siafu.gateway.scripted import Answer, Scripted, say
from siafu.pace.clock import SystemClock
from siafu.store.sqlite import SqliteStore
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapResult

MESSAGES = [{"role": "user", "content": "배송은 언제 되나요?\u2028급해요"}]


def line(key: Any = "q1", /, **body: Any) -> dict[str, Any]:
    body = {"model": "gpt-4.1-mini", "messages": MESSAGES, **body}
    return {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body}


class Quiet:
    def begin(self, plan: Plan) -> None: ...

    def ended(self, result: MapResult) -> None: ...

    def note(self, text: str) -> None:
        self.last = text


def batch(folder: Path, script: Callable[..., Answer], *rows: Any, **options: Any) -> tuple[Outcome, Scripted, Quiet]:
    source = folder / "requests.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    where = place(source, folder / "results.jsonl", folder / "results.errors.jsonl", folder / "home")
    endpoint, watch = Scripted(script), Quiet()

    async def go() -> Outcome:
        store = SqliteStore(where.journal).run(where.run)
        try:
            return await run(prepared, Surroundings(endpoint=endpoint, clock=SystemClock()), store, MapOptions(), watch)
        finally:
            await store.aclose()

    with ready(BatchJob(where.run, **options), where, FileOptions(), watch) as prepared:
        return asyncio.run(go()), endpoint, watch


def records(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) == text.count("\n")  # one line a record also for readers that split at U+2028
    return [json.loads(row) for row in text.splitlines()]


def test_a_result_has_openais_shape(tmp_path: Path) -> None:
    call = ("call_1", "get_order_status", '{"order_id":"주문-1"}')
    answer = say("내일\u2028도착", call, reasoning_content="흠")
    usage = Usage(input=30, output=5, cached=20, reasoning=2)

    def script(*_: Any) -> Answer:
        return type(answer)(
            message=answer.message, content=answer.content, finish_reason="tool_calls", usage=usage,
            model="gpt-4.1-mini-2025", id="chatcmpl-9",
        )  # fmt: skip

    batch(tmp_path, script, line())
    (found,) = records(tmp_path / "results.jsonl")
    assert list(found) == ["id", "custom_id", "response", "error"]
    assert (found["custom_id"], found["error"]) == ("q1", None)
    assert found["id"].startswith("batch_req_")
    assert list(found["response"]) == ["status_code", "request_id", "body"]
    body = found["response"]["body"]
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "id": "chatcmpl-9",
        "object": "chat.completion",
        "model": "gpt-4.1-mini-2025",
        "choices": [{"index": 0, "message": answer.message, "logprobs": None, "finish_reason": "tool_calls"}],
        "usage": {
            "prompt_tokens": 30,
            "completion_tokens": 5,
            "total_tokens": 35,
            "prompt_tokens_details": {"cached_tokens": 20},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }


def test_a_body_is_sent_as_it_is_without_streaming(tmp_path: Path) -> None:
    own = {"temperature": 0.2, "seed": 7, "x_future": {"a": [1, None]}, "max_completion_tokens": 9, "extra": 1}
    _, endpoint, watch = batch(
        tmp_path, lambda *_: "ok", line(**own, stream=True, stream_options={"include_usage": True})
    )
    assert endpoint.requests[0].body() == {"model": "gpt-4.1-mini", "messages": MESSAGES, **own}
    assert "stream" in watch.last


def test_another_model_may_be_asked(tmp_path: Path) -> None:
    _, endpoint, _ = batch(tmp_path, lambda *_: "ok", line(), line("q2", model=None), model="other")
    assert [request.model for request in endpoint.requests] == ["other", "other"]


def test_a_failed_line_goes_to_the_errors(tmp_path: Path) -> None:
    def script(request: Any, _: Any) -> Answer:
        return RequestRefused("no such model") if request.model == "bad" else "ok"

    outcome, _, _ = batch(tmp_path, script, line(), line("q2", model="bad"), [1])
    assert outcome.exit_code == 1
    assert [found["custom_id"] for found in records(tmp_path / "results.jsonl")] == ["q1"]
    by_id = {found["custom_id"]: found for found in records(tmp_path / "results.errors.jsonl")}
    assert by_id["q2"]["response"] is None
    assert by_id["q2"]["error"] == {"code": "request_refused", "message": "no such model"}
    assert by_id[None]["error"]["line"] == 3


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("text", "object"),
        (line(7), "custom_id"),
        (line(""), "custom_id"),
        (line("x" * 513), "custom_id"),
        ({**line(), "url": "/v1/embeddings"}, "url"),
        ({**line(), "method": "GET"}, "method"),
        ({"custom_id": "q1"}, "body must be"),
        (line(model=7), "body.model"),
        (line(messages=[]), "messages is empty"),
        (line(messages=["hi"]), r"body.messages\[0\]"),
        (line(max_tokens="9"), "body.max_tokens"),
        (line(tools={}), "body.tools"),
        (line(n=2), "choices"),
        (line(logprobs=True), "logprobs"),
    ],
)
def test_a_line_that_cannot_be_used_says_why(row: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        BatchJob("run").parse(row)


def test_method_and_url_may_be_left_away() -> None:
    row = line()
    assert BatchJob("run").parse({"custom_id": "q1", "body": row["body"]}) == BatchJob("run").parse(row)


def test_only_our_records_are_read_back() -> None:
    job = BatchJob("run")
    good = b'{"id":"batch_req_1","custom_id":"q1","response":{"status_code":200},"error":null}'
    assert job.read_back(good) is not None
    refused = json.dumps(job.refusal(LineError(3, "not_json", "line 3 ..."))).encode()
    found = job.read_back(refused)
    assert found is not None
    assert (found.key, found.ok) == (None, False)
    strange = [b"", b"{}", b"[]", good[:-1], good.replace(b"batch_req_", b"x"), good.replace(b'"q1"', b"1"), b"\xff"]
    assert [job.read_back(each) for each in strange] == [None] * len(strange)


def test_ids_of_lines_are_the_same_every_time_and_differ_between_runs() -> None:
    one, other = (BatchJob(name).refusal(LineError(1, "input", "")) for name in ("a", "b"))
    assert one == BatchJob("a").refusal(LineError(1, "input", ""))
    assert one["id"] != other["id"]


def test_check_counts_without_a_call(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    rows = [line("q1", max_tokens=10), line("q2", max_completion_tokens=5, model="other"), [1]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = check(path)
    assert (found.usable, found.bad, found.output_tokens_at_most) == (2, 1, 15)
    assert found.models == {"gpt-4.1-mini": 1, "other": 1}
    assert 20 < found.input_tokens_about < 60
    assert check(path, limit=1).bad == 0
    assert [file.name for file in tmp_path.iterdir()] == ["in.jsonl"]
