"""The line of a results file, byte for byte."""

from __future__ import annotations

import json

import msgspec
import pytest

from siafu.apps.filerun.job import Task, Written
from siafu.apps.support.job import SupportJob
from siafu.apps.support.requests import Answer, Refund, parse_request
from siafu.apps.support.shop.refusal import Why
from siafu.border.jsonl import LineError
from siafu.errors import InputError
from siafu.swarm.results import MapError, MapResult
from support.desk import SUPPORT, request

JOB = SupportJob(SUPPORT)
ANSWER = Answer(
    outcome="answered",
    category="refund",
    priority=1,
    answer="환불은 담당자가 확인합니다.",
    model_used="big",
    steps=3,
    tool_calls=1,
)
OK = (
    '{"id":"r1","user_id":"kim","status":"ok","outcome":"answered","category":"refund","priority":1,'
    '"answer":"환불은 담당자가 확인합니다.","model_used":"big","steps":3,"tool_calls":1,"latency_ms":1235,'
    '"tokens":{"input":1200,"cached":1000,"output":80},"usd":0.000000012,"bucket":null,"error":null,'
    '"refunds":[],"ticket":null}'
)
ERROR = (
    '{"id":"r1","user_id":"kim","status":"error","outcome":"unknown","category":null,"priority":null,'
    '"answer":null,"model_used":null,"steps":2,"tool_calls":1,"latency_ms":1235,'
    '"tokens":{"input":1200,"cached":1000,"output":80},"usd":null,"bucket":null,'
    '"error":{"code":"call_timeout","message":"no answer in 60 s"},"refunds":[],"ticket":null}'
)
BAD_LINE = (
    '{"id":null,"user_id":null,"status":"error","outcome":"unknown","category":null,"priority":null,'
    '"answer":null,"model_used":null,"steps":0,"tool_calls":0,"latency_ms":0,'
    '"tokens":{"input":0,"cached":0,"output":0},"usd":0,"bucket":null,'
    '"error":{"code":"not_json","message":"line 3 is not valid JSON","line":3},"refunds":[],"ticket":null}'
)


def result(value: Answer | None = ANSWER, error: MapError | None = None, usd_pico: int | None = 12_345) -> MapResult:
    return MapResult(
        key="r1",
        index=0,
        item=Task("r1", request()),
        status="ok" if error is None else "error",
        value=value,
        error=error,
        seconds=1.2346,
        usd_pico=usd_pico,
        input_tokens=1200,
        cached_tokens=1000,
        output_tokens=80,
        calls=2,
        tool_calls=1,
    )


def line(record: object) -> str:
    return msgspec.json.encode(record).decode()


def test_an_answered_request() -> None:
    assert line(JOB.record(result())) == OK


def test_a_failed_request_has_the_same_fields() -> None:
    failed = result(None, MapError("call_timeout", "no answer in 60 s"), usd_pico=None)
    assert line(JOB.record(failed)) == ERROR
    assert list(json.loads(ERROR)) == list(json.loads(OK))


def test_a_line_that_cannot_be_used_has_the_same_fields() -> None:
    assert line(JOB.refusal(LineError(3, "not_json", "line 3 is not valid JSON"))) == BAD_LINE
    assert list(json.loads(BAD_LINE)) == list(json.loads(OK))


@pytest.mark.parametrize(
    ("value", "id", "user_id"),
    [
        ({"id": "r7", "text": "?"}, "r7", None),
        ({"id": 7, "customer": "kim", "text": " "}, "7", "kim"),
        ({"id": "r7", "customer": ["kim"]}, "r7", None),
        ({"id": " ", "customer": "kim", "text": "?"}, None, "kim"),
        ({"id": True, "customer": 5}, None, None),
        ({"id": "x" * 201, "customer": "kim\ud800"}, None, "kim\ufffd"),
        (["r7"], None, None),
        (None, None, None),
    ],
)
def test_a_line_that_cannot_be_used_keeps_the_id_and_customer_that_it_has(
    value: object, id: str | None, user_id: str | None
) -> None:
    told = JOB.refusal(LineError(3, "input", "line 3: no", value))
    assert (told["id"], told["user_id"], list(told)) == (id, user_id, list(json.loads(OK)))
    assert JOB.read_back(line(told).encode()) == Written(None, False)  # no record of a request


def test_refunds_and_tickets_stand_in_the_record() -> None:
    paid = Refund(order_id="1001", state="paid", amount_minor=30_000, currency="KRW")
    waits = Refund(order_id="1002", state="pending_approval", code="pending_approval")
    why = Why(reason="already_refunded", currency="KRW", refunded_minor=5)
    no = Refund(order_id="1003", state="refused", code="exceeds_refundable", why=why)
    told = msgspec.structs.replace(ANSWER, refunds=(paid, waits, no), ticket="tkt-7")
    found = json.loads(line(JOB.record(result(told))))
    assert found["ticket"] == "tkt-7"
    assert found["refunds"] == [
        {"order_id": "1001", "state": "paid", "code": "", "amount_minor": 30_000, "currency": "KRW", "why": None},
        {
            "order_id": "1002",
            "state": "pending_approval",
            "code": "pending_approval",
            "amount_minor": None,
            "currency": None,
            "why": None,
        },
        {
            "order_id": "1003",
            "state": "refused",
            "code": "exceeds_refundable",
            "amount_minor": None,
            "currency": None,
            "why": {"reason": "already_refunded", "currency": "KRW", "refunded_minor": 5},
        },
    ]
    assert msgspec.json.decode(msgspec.json.encode(told), type=Answer) == told  # it comes back from a journal


def test_what_a_person_should_look_at_has_one_field_more() -> None:
    flagged = msgspec.structs.replace(ANSWER, flagged="classification_default")
    assert line(JOB.record(result(flagged))) == OK[:-1] + ',"flagged":"classification_default"}'


def test_what_waits_says_what_for() -> None:
    waits = msgspec.structs.replace(result(), status="waiting", error=MapError("daily_limit", "later"))
    written = line(JOB.record(waits))
    assert written == OK[:-1] + ',"waiting":true,"waits_for":"daily_limit"}'
    read = JOB.read_back(written.encode())
    assert read == Written("r1", True, waits=True, reason="daily_limit", tells=ANSWER.answer)


@pytest.mark.parametrize(
    ("usd_pico", "written"),
    [(0, "0"), (1_000, "0.000000001"), (12_345_678_901, "0.012345679"), (3 * 10**12, "3"), (None, "null")],
)
def test_usd_is_a_number_without_exponent(usd_pico: int | None, written: str) -> None:
    assert f'"usd":{written},' in line(JOB.record(result(usd_pico=usd_pico)))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (OK, Written("r1", True)),
        (ERROR, Written("r1", False)),
        (BAD_LINE, Written(None, False)),
        (OK[:-1] + ',"flagged":"last_turn"}', Written("r1", True)),
        (OK[:-1] + ',"new_field":[1]}', Written("r1", True)),
        (OK[:-9], None),
        ('{"id":"r1"}', None),
        ('{"id":"r1","custom_id":"r1","response":{}}', None),
        ("", None),
        ("\udcff", None),
    ],
)
def test_a_record_is_read_back(text: str, read: Written | None) -> None:
    assert JOB.read_back(text.encode(errors="surrogateescape")) == read


def test_every_record_begins_as_a_torn_one_is_recognised_by() -> None:
    assert all(record.encode().startswith(JOB.starts) for record in (OK, ERROR, BAD_LINE))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([], "object"),
        ({"customer": "kim", "text": "?"}, "'id'"),
        ({"id": "", "customer": "kim", "text": "?"}, "'id'"),
        ({"id": True, "customer": "kim", "text": "?"}, "'id'"),
        ({"id": "r", "text": "?"}, "'customer'"),
        ({"id": "r", "customer": 5, "text": "?"}, "'customer'"),
        ({"id": "r", "customer": "kim", "text": " \n"}, "'text'"),
        ({"id": "r", "customer": "kim", "text": "x" * 20_001}, "20,000"),
        ({"id": "r", "customer": "kim", "text": "?", "lang": 1}, "'lang'"),
    ],
)
def test_a_request_that_cannot_be_used_names_the_field(value: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        parse_request(value)


def test_a_number_is_an_id_and_unknown_fields_are_ignored() -> None:
    found = parse_request({"id": 7, "customer": "kim", "text": "안녕하세요", "lang": None, "channel": "web"})
    assert (found.id, found.customer, found.text, found.lang) == ("7", "kim", "안녕하세요", None)
