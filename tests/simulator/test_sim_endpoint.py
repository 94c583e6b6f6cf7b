"""The endpoint over a real socket: OpenAI's formats, refusals, limits, cache, records; and the process around it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from here import command
from siafu.cli.ready import write_ready
from siafu.errors import InputError
from sim import SRC, Sim, running_sim

from .chat import Json, body, dechunk, post, raw, say, tool, until

STATUS = tool("job_status", "State of a print job", job_id={"type": "string", "pattern": r"^J\d+$"})
ASKING = body("Status of J1 and J2?", tools=[STATUS])


def events(data: bytes) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_plain_answer_has_openai_shape(sim: Sim) -> None:
    status, reply, headers = await post(sim, body())
    assert status == 200 and reply["object"] == "chat.completion" and reply["model"] == "sim-small"
    assert reply["id"].startswith("chatcmpl-") and isinstance(reply["created"], int)
    (choice,) = reply["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] == "stop" and choice["message"]["role"] == "assistant"
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 2
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert headers["x-simulated"] and headers["x-request-id"].startswith("req-")


async def test_stream_says_the_same_in_chunks(sim: Sim) -> None:
    plain = (await post(sim, body("Hello there")))[1]
    head, data, end = await raw(sim, body("Hello there", stream=True, stream_options={"include_usage": True}))
    assert end == "closed" and b"text/event-stream" in head
    chunks = events(dechunk(data))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["object"] == "chat.completion.chunk" and chunk["id"] == chunks[0]["id"] for chunk in chunks)
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text == plain["choices"][0]["message"]["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert (
        chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    )


async def test_stream_of_tool_calls_in_pieces_by_index(sim: Sim) -> None:
    _, data, _ = await raw(sim, {**ASKING, "stream": True})
    calls: dict[int, Json] = {}
    for chunk in events(dechunk(data)):
        assert "usage" not in chunk
        for delta in chunk["choices"][0]["delta"].get("tool_calls", []):
            call = calls.setdefault(delta["index"], {"arguments": ""})
            call.setdefault("id", delta.get("id"))
            call["arguments"] += delta["function"]["arguments"]
    assert [json.loads(call["arguments"]) for call in calls.values()] == [{"job_id": "J1"}, {"job_id": "J2"}]
    assert len({call["id"] for call in calls.values()}) == 2


async def test_models_and_helpful_404(sim: Sim) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{sim.url}/models") as reply:
            listed = await reply.json()
        async with session.get(f"{sim.url}/completions") as reply:
            missing = await reply.json()
            assert reply.status == 404
    assert listed["object"] == "list" and {model["id"] for model in listed["data"]} == {"sim-strong", "sim-small"}
    assert "/v1/chat/completions" in missing["error"]["message"] and missing["error"]["code"] == "unknown_url"


def after(*messages: Json, **fields: Any) -> Json:
    return body(messages=[{"role": "user", "content": "hi"}, *messages], **fields)


CALLS = [{"id": i, "type": "function", "function": {"name": "job_status", "arguments": "{}"}} for i in ("a", "b")]
ASSISTANT = {"role": "assistant", "content": None, "tool_calls": CALLS}


def result(call_id: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


@pytest.mark.parametrize(
    ("request_body", "word"),
    [
        ({"model": "m"}, "messages"),
        ({"messages": []}, "model"),
        (body(messages=[]), "messages"),
        (body(messages="hi"), "messages"),
        (body(model=5), "model"),
        (body(messages=[{"role": "wizard", "content": "x"}]), "wizard"),
        (body(messages=[{"role": "user", "content": 5}]), "content"),
        (body(messages=[{"role": "user"}]), "content"),
        (body(n=3), "one choice"),
        (body(max_tokens=0), "at least 1"),
        (body(tool_choice="auto"), "tool_choice"),
        (body(tools=[STATUS, STATUS]), "duplicate"),
        (body(tools=[{"type": "function"}]), "tools"),
        (body(tools=[STATUS], tool_choice={"type": "function", "function": {"name": "x"}}), "tool_choice"),
        (after(result("a")), "preceding tool call"),
        (after(ASSISTANT, result("a")), "did not have response messages: b"),
        (after(ASSISTANT, result("a"), {"role": "user", "content": "and?"}, result("b")), "did not have response"),
        (after(ASSISTANT, result("a"), result("a"), result("b")), "Duplicate tool message"),
        (after(ASSISTANT, result("a"), result("b"), result("c")), "preceding tool call"),
        (after({**ASSISTANT, "tool_calls": [CALLS[0], CALLS[0]]}, result("a")), "Duplicate tool call id"),
        (after({**ASSISTANT, "tool_calls": [{**CALLS[0], "id": ""}]}, result("")), "non-empty id"),
    ],
)
async def test_f12_requests_that_providers_refuse(sim: Sim, request_body: Json, word: str) -> None:
    status, reply, _ = await post(sim, request_body)
    assert status == 400
    assert word in reply["error"]["message"] and set(reply["error"]) == {"message", "type", "param", "code"}
    assert sim.requests()[-1]["status"] == 400


async def test_that_the_good_neighbours_of_those_pass(sim: Sim) -> None:
    await say(sim, after(ASSISTANT, result("b"), result("a")))
    await say(
        sim,
        after(
            ASSISTANT,
            result("a"),
            result("b"),
            {"role": "assistant", "content": "x"},
            ASSISTANT,
            result("a"),
            result("b"),
        ),
    )
    await say(
        sim,
        body(
            messages=[
                {"role": "developer", "content": [{"type": "text", "text": "x"}]},
                {"role": "user", "content": "y"},
            ]
        ),
    )


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"a":"\\ud83d"}', b"[" * 50_000])
async def test_bodies_that_are_no_request(sim: Sim, data: bytes) -> None:
    async with aiohttp.ClientSession() as session, session.post(f"{sim.url}/chat/completions", data=data) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["type"] == "invalid_request_error"


async def test_keys(sim: Sim) -> None:
    assert (await post(sim, body(), Authorization="Bearer anything"))[0] == 200
    assert (await post(sim, body(), Authorization="Bearer "))[0] == 401
    with running_sim(require_key=True) as strict:
        assert (await post(strict, body()))[0] == 401
        assert (await post(strict, body(), Authorization="Bearer x"))[0] == 200


async def test_thinking_wants_its_reasoning_back() -> None:
    with running_sim(thinking=True) as sim:
        first = await say(sim, ASKING)
        assert first["reasoning_content"]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in first["tool_calls"]]
        request = {**ASKING, "messages": [*ASKING["messages"], first, *results]}
        assert (await post(sim, request))[0] == 200
        del first["reasoning_content"]
        status, reply, _ = await post(sim, request)
        assert status == 400 and "reasoning_content" in reply["error"]["message"]


async def test_answers_do_not_depend_on_the_order_of_arrival() -> None:
    requests = [body(f"예약 {n} 상태 {'알려주세요' * (n % 3)}", model=f"m{n % 2}", tools=[STATUS]) for n in range(40)]
    seen: list[dict[int, bytes]] = []
    for order in (1, 2):
        with running_sim(seed=5, faults="500:20%,malformed:10%") as sim:
            numbers = list(range(40))
            random.Random(order).shuffle(numbers)
            replies = await asyncio.gather(*(raw(sim, requests[n], headers="x-siafu-attempt: 1\r\n") for n in numbers))
            seen.append({n: reply[1] for n, reply in zip(numbers, replies, strict=True)})
            services = {r["sha256"]: r["service_seconds"] for r in sim.requests()}
            assert len(services) == 40
    assert seen[0] == seen[1]
    assert any(b"server had an error" in reply for reply in seen[0].values())


async def test_another_seed_or_attempt_draws_anew() -> None:
    with running_sim(seed=5) as five, running_sim(seed=6) as six:
        ids = [
            (await post(five, body(), **{"x-siafu-attempt": "1"}))[1]["id"],
            (await post(five, body(), **{"x-siafu-attempt": "2"}))[1]["id"],
            (await post(six, body(), **{"x-siafu-attempt": "1"}))[1]["id"],
        ]
        assert len(set(ids)) == 3
        again = (await post(five, body(), **{"x-siafu-attempt": "1"}))[1]["id"]
        assert again == ids[0]


async def test_requests_over_a_limit_get_429_with_the_true_wait(sim: Sim) -> None:
    sim.set_limits(rpm=600, burst=0.1)
    first, (status, reply, headers) = await post(sim, body()), await post(sim, body())
    assert first[0] == 200 and first[2]["x-ratelimit-limit-requests"] == "600"
    assert first[2]["x-ratelimit-remaining-requests"] == "0"
    assert status == 429 and reply["error"]["code"] == "rate_limit_exceeded"
    wait = int(headers["retry-after-ms"]) / 1000
    assert 0 < wait <= 0.1 and headers["retry-after"] == "1" and headers["x-ratelimit-reset-requests"].endswith("ms")
    await asyncio.sleep(wait)
    assert (await post(sim, body()))[0] == 200
    assert sim.stats()["limited"] == {"requests": 1}


async def test_tokens_over_a_limit(sim: Sim) -> None:
    sim.set_limits(tpm=6_000, burst=1)
    status, reply, headers = await post(sim, body("word " * 300))
    assert status == 429 and "Request too large" in reply["error"]["message"] and "retry-after" not in headers
    status, _, headers = await post(sim, body("word " * 20))
    assert status == 200 and 0 < int(headers["x-ratelimit-remaining-tokens"]) < 100


async def test_answers_at_once_are_limited_and_counted(sim: Sim) -> None:
    sim.set_limits(max_concurrency=2)
    sim.set_faults({"kind": "hang", "times": 2})
    hanging = [asyncio.create_task(raw(sim, body(f"{n}"))) for n in range(2)]
    await until(lambda: sim.stats()["in_flight"] == 2)
    status, reply, _ = await post(sim, body())
    assert status == 429 and reply["error"]["code"] == "concurrency_limit_exceeded"
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    await until(lambda: not sim.stats()["in_flight"])
    stats = sim.stats()
    assert stats["peak_in_flight"] == 2 and stats["in_flight"] == 0 and stats["client_left"] == 2
    assert [r["client_left"] for r in sim.requests()] == [True, True, False]


async def test_beyond_the_slots_requests_wait_in_order(sim: Sim) -> None:
    sim.set_limits(slots=2)
    sim.set_faults({"kind": "hang", "times": 2})
    hanging = [asyncio.create_task(raw(sim, body(f"{n}"))) for n in range(2)]
    await until(lambda: sim.stats()["in_flight"] == 2)
    waiting = []
    for n in range(4):
        waiting.append(asyncio.create_task(post(sim, body(f"waits {n}"))))
        await until(lambda: sim.stats()["in_flight"] == len(waiting) + 2)
    waiting.pop(1).cancel()  # who leaves the line keeps nobody
    await until(lambda: sim.stats()["in_flight"] == 5)
    assert not any(task.done() for task in waiting) and sim.stats()["completed"] == 0
    hanging[0].cancel()
    assert [(await task)[0] for task in waiting] == [200, 200, 200]
    ended = [each["ended"] for each in sim.requests() if each["status"] == 200]
    assert ended == sorted(ended)
    sim.set_limits(slots=1)
    late = asyncio.create_task(post(sim, body("late")))
    await until(lambda: sim.stats()["in_flight"] == 2)
    assert not late.done(), "the other one still has its slot"
    sim.set_limits(slots=None)
    assert (await late)[0] == 200
    hanging[1].cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


async def test_f57_prompt_cache_credit(sim: Sim) -> None:
    system = {"role": "system", "content": "규칙: 항상 정중하게 답하세요. " * 120}

    def ask(text: str, clock: str = "") -> Json:
        return body(messages=[{**system, "content": clock + system["content"]}, {"role": "user", "content": text}])

    cached = [
        (await post(sim, ask(text, clock)))[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        for text, clock in (("첫째", ""), ("둘째", ""), ("셋째", "12:00:01 "))
    ]
    assert cached[0] == 0 and cached[1] >= 1_024 and cached[1] % 128 == 0 and cached[2] == 0
    assert sim.stats()["tokens"]["cached"] == cached[1]


async def test_records_tell_what_happened(sim: Sim) -> None:
    request = body("안녕하세요", user="kim", metadata={"task": "t1"})
    before = time.time()
    _, reply, headers = await post(sim, request, **{"x-siafu-attempt": "2"})
    (record,) = sim.requests()
    assert record["id"] == headers["x-request-id"] and record["status"] == 200 and record["model"] == "sim-small"
    assert before - 1 <= record["arrived"] <= record["first_byte"] <= record["ended"] <= time.time() + 1
    assert (record["attempt"], record["user"], record["metadata"]) == ("2", "kim", {"task": "t1"})
    assert record["usage"] == reply["usage"] and record["finish_reason"] == "stop"
    assert json.loads(record["body"]) == request and json.loads(record["reply"]) == reply
    assert sim.requests(since=record["n"]) == []
    stats = sim.stats()
    assert (
        stats["requests"] == stats["completed"] == 1
        and stats["by_status"] == {"200": 1}
        and stats["by_model"] == {"sim-small": 1}
    )
    assert stats["tokens"]["completion"] == reply["usage"]["completion_tokens"]


async def test_service_time_is_what_an_idle_server_needs() -> None:
    with running_sim(models={"a": (50, 2), "b": (100, 1)}, latency="default") as sim:
        for model in ("a", "b"):
            await post(sim, body(model=model))
            _, _, end = await raw(sim, body(model=model, stream=True))
            assert end == "closed"
        for record in sim.requests():
            took = record["ended"] - record["arrived"]
            assert 0.02 < record["service_seconds"] <= took + 0.005
        status, reply, _ = await post(sim, body(model="c"))
        assert status == 404 and reply["error"]["code"] == "model_not_found"


async def test_memory_is_bounded() -> None:
    with running_sim(keep=50) as sim:
        async with aiohttp.ClientSession() as session:
            for n in range(120):
                async with session.post(f"{sim.url}/chat/completions", json=body(f"{n}")) as reply:
                    assert reply.status == 200
        kept = sim.requests()
        assert [record["n"] for record in kept] == list(range(71, 121))
        assert sim.stats()["requests"] == 120 and sim.stats()["kept"] == 50


def test_control_refuses_what_it_does_not_know(sim: Sim) -> None:
    for path, wrong in (
        ("faults", {"rules": [{"kind": "nope"}]}),
        ("faults", {"rules": [{"kind": "429", "typo": 1}]}),
        ("faults", {"rates": "429:200%"}),
        ("faults", [{"kind": "429", "form": "nope"}]),
        ("faults", [{"kind": "429+split"}]),
        ("limits", {"rpm": -1}),
        ("limits", {"rps": 1}),
    ):
        with pytest.raises(AssertionError, match="error"):
            sim.control("POST", path, wrong)


def test_ready_file_and_plain_line(tmp_path: Path) -> None:
    ready = tmp_path / "준비.json"
    words = [sys.executable, "-m", "siafu", "sim", "--ready-file", str(ready)]
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout
        try:
            line = process.stdout.readline()
            found = json.loads(ready.read_text(encoding="utf-8"))
            assert line.startswith(found["url"]) and "SIMULATED" in line and found["pid"] == process.pid
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


@pytest.mark.parametrize(("name", "says"), [("pipe", "is no regular file"), ("none/x", "cannot be written: No such")])
def test_a_ready_file_takes_the_place_of_nothing_else(tmp_path: Path, name: str, says: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=says):
        write_ready(tmp_path / name, "http://127.0.0.1:1")
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


def test_wrong_use_says_what_to_do() -> None:
    for flags, word in (
        (["--faults", "oops"], "429:5%"),
        (["--latency", "slow"], "fixed:200ms"),
        (["--rpm", "0"], "rpm"),
        (["--faults", "none.json"], "cannot read"),
        (["--host", "198.51.100.1"], "cannot listen"),
    ):
        done = command(Path(), "sim", *flags, environment=os.environ)
        assert done.returncode == 2 and word in done.stderr and "Traceback" not in done.stderr


def test_ends_when_its_parent_is_killed() -> None:
    script = (
        "import os, subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'siafu', 'sim', '--json', '--parent-pid', str(os.getpid())])\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout
        pid = json.loads(parent.stdout.readline())["pid"]
        os.kill(pid, 0)  # it lives
        parent.kill()
        assert parent.stdout.read() == b""  # ends only when the last holder of the pipe, the endpoint, is gone
