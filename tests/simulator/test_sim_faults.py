"""Every fault, as a client without any cleverness sees it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.faults import KINDS, Faults, parse_rates
from sim import Sim, running_sim

from .chat import body, called, dechunk, post, raw, say, tool, until

STATUS = tool("job_status", "State of a print job", job_id={"type": "string", "pattern": r"^J\d+$"})
ASKING = body("Status of J1 and J2?", tools=[STATUS])


def once(sim: Sim, kind: str, **more: Any) -> None:
    sim.set_faults({"kind": kind, **more})


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("400", 400, None),
        ("401", 401, "invalid_api_key"),
        ("402", 402, "invalid_request_error"),
        ("403", 403, "permission_denied"),
        ("404", 404, "model_not_found"),
        ("408", 408, "timeout"),
        ("409", 409, "conflict"),
        ("413", 413, "request_too_large"),
        ("422", 422, "unprocessable"),
        ("429", 429, "rate_limit_exceeded"),
        ("quota", 429, "insufficient_quota"),
        ("500", 500, None),
        ("503", 503, "overloaded"),
        ("504", 504, "gateway_timeout"),
        ("529", 529, "overloaded_error"),
    ],
)
async def test_f05_refusals(sim: Sim, kind: str, status: int, code: str | None) -> None:
    once(sim, kind)
    found, reply, headers = await post(sim, body())
    assert found == status and reply["error"]["code"] == code and reply["error"]["message"]
    if kind == "402":
        assert reply["error"]["message"] == "Insufficient Balance"
    if kind == "quota":
        assert reply["error"]["type"] == "insufficient_quota" and "retry-after" not in headers
    assert (await post(sim, body()))[0] == 200
    assert [record["fault"] for record in sim.requests()] == [kind, None]


async def test_f58_401_repeats_the_key(sim: Sim) -> None:
    once(sim, "401")
    _, reply, _ = await post(sim, body(), Authorization="Bearer sk-test-0123456789")
    assert "sk-test-0123456789" in reply["error"]["message"]


async def test_f09_502_is_a_page_of_20_kb(sim: Sim) -> None:
    once(sim, "502")
    head, data, _ = await raw(sim, body())
    assert b" 502 " in head and b"text/html" in head and len(data) > 20_000 and data.startswith(b"<html>")


@pytest.mark.parametrize(
    ("form", "header", "value"),
    [
        ("seconds", "retry-after", "3"),
        ("fractional", "retry-after", "2.500"),
        ("ms", "retry-after-ms", "2500"),
        ("x-ms", "x-ms-retry-after-ms", "2500"),
        ("reset-requests", "x-ratelimit-reset-requests", "2.5s"),
        ("reset-tokens", "x-ratelimit-reset-tokens", "2.5s"),
        ("zero", "retry-after", "0"),
        ("negative", "retry-after", "-1"),
        ("garbage", "retry-after", "soon"),
        ("none", "retry-after", None),
    ],
)
async def test_every_form_of_retry_after(sim: Sim, form: str, header: str, value: str | None) -> None:
    once(sim, "429", form=form, wait=2.5)
    status, _, headers = await post(sim, body())
    assert status == 429 and headers.get(header) == value


async def test_f02_retry_after_as_date(sim: Sim) -> None:
    sim.set_faults({"kind": "429", "form": "http-date", "wait": 30}, {"kind": "429", "form": "past-date"})
    ahead, past = [(await post(sim, body()))[2]["retry-after"] for _ in range(2)]
    assert 20 < parsedate_to_datetime(ahead).timestamp() - time.time() < 40
    assert parsedate_to_datetime(past).timestamp() < time.time() - 30


@pytest.mark.parametrize(
    ("kind", "end", "sees"),
    [
        ("hang", "silence", "nothing"),
        ("hang-after-headers", "silence", "head"),
        ("slow", "silence", "drops"),
        ("reset-before", "reset", "nothing"),
        ("reset", "reset", "half"),
        ("cut", "closed", "half"),
        ("long-length", "closed", "less"),
        ("short-length", "closed", "more"),
    ],
)
async def test_wire_faults_of_plain_answers(sim: Sim, kind: str, end: str, sees: str) -> None:
    whole = (await raw(sim, body()))[1]
    once(sim, kind, wait=0.1)
    head, data, ended = await raw(sim, body(), seconds=0.8)
    assert ended == end
    claimed = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) if head else 0
    assert {
        "nothing": not head and not data,
        "head": bool(head) and not data,
        "drops": 0 < len(data) < 20,
        "half": 0 < len(data) < len(whole) == claimed,
        "less": data == whole and claimed > len(data),
        "more": data == whole and claimed < len(data),
    }[sees]
    assert sim.requests()[-1]["fault"] == kind


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        ("html", lambda data: data.startswith(b"<html>")),
        ("error-object", lambda data: json.loads(data)["error"]["code"] == 500 and json.loads(data)["choices"] is None),
        ("null-choices", lambda data: json.loads(data)["choices"] is None),
        ("empty-choices", lambda data: json.loads(data)["choices"] == []),
        ("missing-choices", lambda data: "choices" not in json.loads(data)),
        ("null-usage", lambda data: json.loads(data)["usage"] is None and json.loads(data)["choices"]),
        ("missing-usage", lambda data: "usage" not in json.loads(data) and json.loads(data)["choices"]),
        ("empty-body", lambda data: data == b""),
        ("not-json", lambda data: data.startswith(b"{") and not data.endswith(b"}")),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_f07_f08_f16_malformed_200s(sim: Sim, kind: str, check: Any, stream: bool) -> None:
    once(sim, kind)
    head, data, _ = await raw(sim, body(stream=stream and not kind.endswith("usage")))
    assert b" 200 " in head and check(data)


async def test_streams_without_usage(sim: Sim) -> None:
    asked = body(stream=True, stream_options={"include_usage": True})
    once(sim, "missing-usage")
    assert b'"choices":[]' not in (await raw(sim, asked))[1]
    assert b'"choices":[]' in (await raw(sim, asked))[1]


async def test_malformed_draws_one_of_them() -> None:
    with running_sim(faults="malformed:100%") as sim:
        seen = {(await raw(sim, body(f"{n}")))[1][:30] for n in range(12)}
        assert len(seen) >= 3
        assert sim.stats()["by_fault"] == {"malformed": 12}


@pytest.mark.parametrize(
    ("kind", "ids", "arguments"),
    [
        ("tool-ids-repeated", ["call:0", "call:0"], ['{"job_id":"J1"}', '{"job_id":"J2"}']),
        ("tool-ids-empty", ["", ""], ['{"job_id":"J1"}', '{"job_id":"J2"}']),
        ("tool-args-cut", None, ['{"job_id":"J1"}', '{"job_i']),
        ("tool-args-empty", None, ["", ""]),
        ("tool-args-double", None, ['"{\\"job_id\\":\\"J1\\"}"', '"{\\"job_id\\":\\"J2\\"}"']),
    ],
)
async def test_f10_f11_f12_tool_call_oddities(sim: Sim, kind: str, ids: list[str] | None, arguments: list[str]) -> None:
    once(sim, kind)
    await say(sim, body("고마워요"))  # no tool call: the fault waits for one
    calls = (await say(sim, ASKING))["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == arguments
    assert ids is None or [call["id"] for call in calls] == ids
    assert called(await say(sim, ASKING)) == [("job_status", {"job_id": "J1"}), ("job_status", {"job_id": "J2"})]


async def test_f13_length_with_arguments_that_parse(sim: Sim) -> None:
    once(sim, "length")
    _, reply, _ = await post(sim, ASKING)
    assert reply["choices"][0]["finish_reason"] == "length"
    assert len(called(reply["choices"][0]["message"])) == 2


STREAM = body("Hello there", stream=True, stream_options={"include_usage": True})


async def test_f15_stream_styles(sim: Sim) -> None:
    once(sim, "comments+crlf+no-space+split+empty-first")
    _, data, end = await raw(sim, STREAM)
    pieces, content = data.count(b"\r\n") // 2, dechunk(data)
    assert end == "closed" and pieces > 10
    lines = [line for line in content.split(b"\r\n") if line]
    assert b": PROCESSING" in lines and b":ping" in lines
    sent = [line.removeprefix(b"data:") for line in lines if line.startswith(b"data:")]
    assert sent[-1] == b"[DONE]" and not any(line.startswith(b" ") for line in sent)
    chunks = [json.loads(line) for line in sent[:-1]]
    assert chunks[0]["choices"] == []
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text.startswith("I read your message")


async def test_f18_error_event_inside_a_200(sim: Sim) -> None:
    once(sim, "error-event")
    content = dechunk((await raw(sim, STREAM))[1])
    assert b'"engine died"' in content and content.endswith(b"data: [DONE]\n\n") and b'"stop"' not in content


@pytest.mark.parametrize(
    ("kind", "end"), [("cut", "closed"), ("reset", "reset"), ("slow", "silence"), ("hang-after-headers", "silence")]
)
async def test_streams_that_break_off(sim: Sim, kind: str, end: str) -> None:
    once(sim, kind, wait=0.05)
    head, data, ended = await raw(sim, STREAM, seconds=0.5)
    assert b" 200 " in head and ended == end and b'finish_reason":"stop' not in data and b"[DONE]" not in data
    if kind == "cut":
        assert data.endswith(b"0\r\n\r\n")  # in good order, as far as HTTP goes


@pytest.mark.parametrize("kind", ["hang", "reset-before"])
async def test_streams_that_never_begin(sim: Sim, kind: str) -> None:
    once(sim, kind)
    head, _, ended = await raw(sim, STREAM, seconds=0.4)
    assert not head and ended == ("silence" if kind == "hang" else "reset")


async def test_say_and_reply(sim: Sim) -> None:
    call = {"name": "f", "arguments": {"a": 1}, "id": "f:0"}
    sim.set_faults(
        {"kind": "say", "content": "billing", "match": "청구"},
        {"kind": "say", "tool_calls": [call], "match": "call"},
        {"kind": "reply", "status": 418, "headers": {"x-a": "b"}, "body": {"찻": 1}, "match": "tea"},
    )
    assert (await post(sim, body("tea")))[::2][0] == 418
    assert called(await say(sim, body("call it"))) == [("f", {"a": 1})]
    _, reply, _ = await post(sim, body("청구서"))
    assert reply["choices"][0]["message"]["content"] == "billing" and reply["usage"]["completion_tokens"] == 2


async def test_script_skips_matches_and_runs_out(sim: Sim) -> None:
    sim.set_faults(
        {"kind": "503", "match": "환불", "skip": 1, "times": 2},
        {"kind": "500", "model": "other", "times": None},
    )
    statuses = [(await post(sim, body(text)))[0] for text in ("환불", "배송", "환불", "환불", "환불")]
    assert statuses == [200, 200, 503, 503, 200]
    assert [(await post(sim, body(model="other")))[0] for _ in range(3)] == [500] * 3
    assert [rule["matched"] for rule in sim.control("GET", "faults")["rules"]] == [3, 3]


async def test_rates_are_drawn_from_the_request_and_its_attempt() -> None:
    with running_sim(faults="429:30%", seed=4) as sim:
        first = [(await post(sim, body(f"{n}"), **{"x-siafu-attempt": "1"}))[0] for n in range(100)]
        again = [(await post(sim, body(f"{n}"), **{"x-siafu-attempt": "1"}))[0] for n in range(100)]
        second = [(await post(sim, body(f"{n}"), **{"x-siafu-attempt": "2"}))[0] for n in range(100)]
        assert first == again and first != second and 15 <= first.count(429) <= 45
        refused = first.index(429)
        for _ in range(20):  # without the header, coming again is another attempt
            if (await post(sim, body(f"{refused}")))[0] == 200:
                break
        else:
            pytest.fail("a client without the attempt header can never succeed")


def test_shares_come_out_as_given() -> None:
    faults = Faults(parse_rates("429:5%,500:1%,hang:0.5%"), [])
    picked = [faults.pick(prompt="", model="m", stream=False, has_calls=False, draws=Draws(n)) for n in range(20_000)]
    shares = {
        kind: sum(rule is not None and rule.kind == kind for rule in picked) / 20_000 for kind in ("429", "500", "hang")
    }
    assert shares["429"] == pytest.approx(0.05, rel=0.15) and shares["500"] == pytest.approx(0.01, rel=0.3)
    assert shares["hang"] == pytest.approx(0.005, rel=0.4)


def test_every_kind_is_seen_by_a_test_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    named = {kind for text in re.findall(r'"([\w+-]+)"', source) for kind in text.split("+")}
    assert set(KINDS) <= named


async def test_a_client_that_leaves_is_recorded(sim: Sim) -> None:
    once(sim, "hang")
    task = asyncio.create_task(raw(sim, body()))
    await until(lambda: sim.stats()["in_flight"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not sim.stats()["in_flight"])
    record = sim.requests()[-1]
    assert record["client_left"] and record["status"] == 0 and record["ended"] is not None
