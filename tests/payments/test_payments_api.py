"""The payment simulator over a real socket: what each mode promises, and what each fault does to money and answer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paysim import Payments, running_payments

from .asking import RESET, SILENCE, Json, ask, body, lookup, refund, until_sent

MODES = ("idempotent", "lookup", "neither")


async def test_a_refund_is_paid_answered_and_written_down(tmp_path: Path) -> None:
    with running_payments(tmp_path / "장부.jsonl") as payments:
        status, paid, headers = await refund(payments, body(metadata={"이유": "파손"}), key="k-1")
        (effect,), (request,) = payments.effects(), payments.requests()
    assert status == 200 and headers["x-simulated"] == "siafu-payments"
    assert isinstance(paid.pop("created"), int) and paid["id"].startswith("re_")
    assert paid == {**body(), "id": effect["id"], "status": "succeeded"}
    assert {name: effect[name] for name in body()} == body() and effect["key"] == "k-1" and effect["request"] == 1
    assert request["status"] == 200 and request["ids"] == [effect["id"]] and request["key"] == "k-1"
    assert (
        request["body"] == body(metadata={"이유": "파손"}) and request["at"] <= effect["at"] <= request["answered_at"]
    )


@pytest.mark.parametrize(("mode", "effects"), [("idempotent", 1), ("lookup", 3), ("neither", 3)])
async def test_a_key_pays_once_only_where_keys_are_honoured(tmp_path: Path, mode: str, effects: int) -> None:
    with running_payments(tmp_path / "l", mode=mode) as payments:
        answers = [await refund(payments, key="k-1") for _ in range(3)]
        stats = payments.stats()
        honours = (await ask(payments, "GET", "/v1/capabilities"))[1]
    assert [status for status, _, _ in answers] == [200] * 3
    assert len({paid["id"] for _, paid, _ in answers}) == stats["effects"] == effects
    assert stats["duplicates"] == effects - 1 and stats["references"] == 1 and stats["paid"] == {"KRW": 700 * effects}
    replayed = [headers.get("Idempotent-Replayed") for _, _, headers in answers]
    assert replayed == [None, *["true" if effects == 1 else None] * 2]
    assert honours.pop("name").startswith("simulated-")
    assert honours == {"idempotency": mode == "idempotent", "lookup": mode != "neither"}


async def test_it_pays_whatever_it_is_told(tmp_path: Path) -> None:
    """No captured sum is known here: only the caller's own care is measured."""
    with running_payments(tmp_path / "l") as payments:
        for number in range(4):
            assert (await refund(payments, body(f"r-{number}", amount=10**12)))[0] == 200
        stats = payments.stats()
    assert stats["paid"] == {"KRW": 4 * 10**12} and stats["checks_sums"] is False


async def test_a_key_with_another_body_is_refused_and_pays_nothing(tmp_path: Path) -> None:
    with running_payments(tmp_path / "l") as payments:
        await refund(payments, key="k-1")
        for other in (body(amount=701), body("r-2"), body(currency="USD"), body(metadata={"a": 1})):
            status, answer, _ = await refund(payments, other, key="k-1")
            assert status == 422 and answer["error"]["code"] == "idempotency_key_reused"
        assert (await refund(payments, body("r-2"), key="k-2"))[0] == 200
        assert payments.stats()["effects"] == 2


async def test_a_key_in_use_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    with running_payments(tmp_path / "l") as payments:
        payments.set_faults({"kind": "slow", "wait": 1.0})
        first = asyncio.create_task(refund(payments, key="k-1"))
        await until_sent(payments, 1)
        status, answer, _ = await refund(payments, key="k-1")
        other, _, _ = await refund(payments, body(amount=1), key="k-1")
        assert (status, answer["error"]["code"], other) == (409, "idempotency_key_in_use", 422)
        assert (await first)[0] == 200
        assert (await refund(payments, key="k-1"))[2]["Idempotent-Replayed"] == "true"
        assert payments.stats()["effects"] == 1


@pytest.mark.parametrize("mode", MODES)
async def test_many_at_once_under_one_key(tmp_path: Path, mode: str) -> None:
    with running_payments(tmp_path / "l", mode=mode, slow=20) as payments:
        answers = await asyncio.gather(*(refund(payments, key="k-1") for _ in range(32)))
        effects = payments.effects()
    seen = Counter(status for status, _, _ in answers)
    if mode == "idempotent":
        assert len(effects) == 1 and set(seen) <= {200, 409} and seen[200] >= 1
    else:
        assert len(effects) == seen[200] == 32


@pytest.mark.parametrize("mode", MODES)
async def test_lookup_by_reference(tmp_path: Path, mode: str) -> None:
    with running_payments(tmp_path / "l", mode=mode) as payments:
        first = (await refund(payments))[1]
        second = (await refund(payments, body(amount=1)))[1]
        found = await lookup(payments, body()["reference"])
        none = await lookup(payments, "r-2")
        missing = await lookup(payments, "")
        requests = payments.requests()
    if mode == "neither":
        assert [status for status, _ in (found, none, missing)] == [404] * 3
        assert found[1]["error"]["code"] == "not_supported" and requests[2]["ids"] == []
    else:
        assert found == (200, {"data": [first, second]}) and none == (200, {"data": []}) and missing[0] == 400
        assert requests[2]["ids"] == [first["id"], second["id"]] and requests[2]["what"] == "lookup"


async def test_all_refunds_are_listed_in_pages(tmp_path: Path) -> None:
    with running_payments(tmp_path / "l", mode="lookup") as payments:
        assert (await ask(payments, "GET", "/v1/refunds"))[:2] == (200, {"data": [], "more": False})
        made = [(await refund(payments, body(f"r-{number}")))[1] for number in range(101)]
        first = (await ask(payments, "GET", "/v1/refunds"))[1]
        rest = (await ask(payments, "GET", f"/v1/refunds?after={made[99]['id']}"))[1]
        assert (await ask(payments, "GET", "/v1/refunds?after=re_nobody"))[0] == 400
    assert (first["data"], first["more"]) == (made[:100], True)
    assert (rest["data"], rest["more"]) == (made[100:], False)
    with running_payments(tmp_path / "other", mode="neither") as payments:
        assert (await ask(payments, "GET", "/v1/refunds"))[0] == 404


# kind -> what the caller sees, and what was paid
FAULTS: dict[str, tuple[int | str, int]] = {
    "slow": (200, 1),
    "lost": (RESET, 1),
    "lost_before": (RESET, 0),
    "hang": (SILENCE, 1),
    "hang_before": (SILENCE, 0),
    "error_after": (500, 1),
    "error_before": (503, 0),
    "decline": (402, 0),
    "unparsable": (200, 1),
}


def patience(sees: int | str) -> float:
    """Seconds to wait for an answer of which it is known what it should be."""
    return 1.0 if sees is SILENCE else 10.0


def effects_of(payments: Payments, reference: str) -> int:
    return sum(effect["reference"] == reference for effect in payments.effects())


@pytest.mark.parametrize("kind", FAULTS)
async def test_what_a_fault_does(shared: Payments, kind: str) -> None:
    (sees, paid), key = FAULTS[kind], f"first-{kind}"
    shared.set_faults({"kind": kind, "wait": 0.3})
    status, answer, _ = await refund(shared, body(key), key=key, seconds=patience(sees))
    assert (status, effects_of(shared, key)) == (sees, paid)
    assert isinstance(answer, bytes) == (kind == "unparsable")
    request = shared.requests()[-1]
    assert request["fault"] == kind and request["status"] == (sees if isinstance(sees, int) else 0)
    # The fault is over. The same key now tells what became of the money, or begins anew.
    again, answer, headers = await refund(shared, body(key), key=key)
    kept = bool(paid) or kind == "decline"
    assert again == (402 if kind == "decline" else 200) and ("Idempotent-Replayed" in headers) == kept
    assert effects_of(shared, key) == (0 if kind == "decline" else 1)


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_fault_of_a_repetition_changes_the_answer_and_no_money(shared: Payments, kind: str) -> None:
    sees, key = FAULTS[kind][0], f"again-{kind}"
    if kind == "decline":
        sees = 200  # what was paid is not declined afterwards
    paid = (await refund(shared, body(key), key=key))[1]
    shared.set_faults({"kind": kind, "wait": 0.3})
    status, _, headers = await refund(shared, body(key), key=key, seconds=patience(sees))
    assert status == sees and ("Idempotent-Replayed" in headers) == (sees == 200)
    assert (await refund(shared, body(key), key=key))[1] == paid and effects_of(shared, key) == 1


@pytest.mark.parametrize(
    ("kind", "sees"),
    [
        ("lookup_slow", 200),
        ("lookup_lost", RESET),
        ("lookup_hang", SILENCE),
        ("lookup_error", 503),
        ("lookup_unparsable", 200),
    ],
)
async def test_what_a_fault_does_to_a_lookup(shared: Payments, kind: str, sees: int | str) -> None:
    times = 2 if kind == "lookup_lost" else 1  # aiohttp repeats a GET that was reset, once
    shared.set_faults({"kind": kind, "wait": 0.2, "times": times})
    paid = (await refund(shared, body(kind)))[1]  # a fault of lookups leaves refunds alone
    status, answer = await lookup(shared, kind, seconds=patience(sees))
    assert status == sees and isinstance(answer, bytes) == (kind == "lookup_unparsable")
    assert await lookup(shared, kind) == (200, {"data": [paid]})


async def test_a_refund_that_was_begun_is_finished_after_its_caller_left(tmp_path: Path) -> None:
    """The hardest hour of a caller: it gave up, looks, finds nothing, and the money moves afterwards."""
    with running_payments(tmp_path / "l", mode="lookup") as payments:
        payments.set_faults({"kind": "slow", "wait": 1.0})
        assert (await refund(payments, seconds=0.3))[0] == SILENCE
        assert await lookup(payments, body()["reference"]) == (200, {"data": []})
        assert (await refund(payments))[0] == 200
        async with asyncio.timeout(10):
            while payments.stats()["effects"] < 2:
                await asyncio.sleep(0.02)
        assert payments.stats()["duplicates"] == 1
        assert payments.requests()[0]["error"] == "caller_left"


async def test_rates_are_drawn_from_seed_reference_and_attempt(tmp_path: Path) -> None:
    rates = "lost:20%,error_after:20%,error_before:20%,decline:20%"
    runs: list[list[Any]] = []
    for number, seed in enumerate((1, 1, 2)):
        with running_payments(tmp_path / str(number), mode="lookup", seed=seed, faults=rates) as payments:
            names = [f"r-{n}" for n in range(12)]
            for name in names if number else reversed(names):  # in whatever order they come
                for _ in range(2):
                    await refund(payments, body(name))
            runs.append(sorted((r["reference"], r["attempt"], r["fault"]) for r in _named(payments)))
    assert runs[0] == runs[1] != runs[2]
    assert len({fault for _, _, fault in runs[0]}) == 5


def _named(payments: Payments) -> list[Json]:
    return [{**request, "fault": request["fault"] or "none"} for request in payments.requests()]


async def test_a_script_chooses_by_reference_and_attempt(tmp_path: Path) -> None:
    with running_payments(tmp_path / "l", mode="lookup") as payments:
        payments.set_faults(
            {"kind": "error_before", "match": "r-1", "attempt": 2, "times": None},
            {"kind": "error_after", "match": "pay_1", "skip": 1},
        )
        seen = [(await refund(payments, body(name)))[0] for name in ("r-2", "r-1", "r-1", "r-1", "r-2")]
        left = payments.control("faults")
    assert seen == [200, 500, 503, 200, 200]
    assert [rule["matched"] for rule in left["rules"]] == [1, 2] and "lost" in left["kinds"]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (b"", "truncated"),
        (b"[]", "object"),
        (b'{"payment":"p"}', "missing required field"),
        (json.dumps(body(amount=0)).encode(), "amount"),
        (json.dumps(body(amount=-1)).encode(), "amount"),
        (json.dumps(body(amount=700.0)).encode(), "amount"),
        (json.dumps(body(amount="700")).encode(), "amount"),
        (json.dumps(body(amount=True)).encode(), "amount"),
        (json.dumps(body(amount=10**12 + 1)).encode(), "amount"),
        (json.dumps(body(currency="krw")).encode(), "currency"),
        (json.dumps(body(currency="KRW\n")).encode(), "currency"),
        (json.dumps(body("")).encode(), "reference"),
        (json.dumps(body("r" * 256)).encode(), "reference"),
        (json.dumps(body(note="x")).encode(), "note"),
        (json.dumps(body(metadata="x")).encode(), "metadata"),
        (json.dumps(body("\ud800")).encode(), "refund looks like"),
        (b"[" * 60_000, "refund looks like"),
        (b" " * 70_000, "65536"),
    ],
)
async def test_bodies_that_are_no_refund_pay_nothing(shared: Payments, wrong: bytes, word: str) -> None:
    before = shared.stats()["effects"]
    status, answer, _ = await ask(shared, "POST", "/v1/refunds", wrong)
    assert status == 400 and answer["error"]["code"] == "invalid_request" and word in answer["error"]["message"]
    last = shared.requests()[-1]
    assert last["status"] == 400 and last["error"] == "invalid_request" and shared.stats()["effects"] == before


async def test_that_the_good_neighbours_of_those_pass(shared: Payments) -> None:
    for good in (body(amount=1), body(amount=10**12), body("r" * 255), body("😀\u2028"), body(metadata={"a": [None]})):
        assert (await refund(shared, good))[0] == 200


@pytest.mark.parametrize("key", ["", "k" * 256, "k\u0085"])
async def test_keys_that_are_none(shared: Payments, key: str) -> None:
    status, answer, _ = await refund(shared, key=key)
    assert status == 400 and "Idempotency-Key" in answer["error"]["message"]


async def test_unknown_urls_and_wrong_control(shared: Payments) -> None:
    for method, path in (("GET", "/"), ("POST", "/refunds"), ("DELETE", "/v1/refunds"), ("POST", "/_payments/ledger")):
        status, answer, _ = await ask(shared, method, path)
        assert status == 404 and "/v1/refunds" in answer["error"]["message"]
    for wrong, word in ((b"{", "rules"), (b'{"rules":[{"kind":"oops"}]}', "oops"), (b'{"rates":"lost"}', "lost:5%")):
        status, answer, _ = await ask(shared, "POST", "/_payments/faults", wrong)
        assert status == 400 and word in answer["error"]["message"]
    assert (await ask(shared, "GET", "/_payments/ledger?since=x"))[0] == 400


async def test_pages(tmp_path: Path) -> None:
    with running_payments(tmp_path / "l") as payments:
        for number in range(5):
            await refund(payments, body(f"r-{number}"))
        page = payments.control("ledger?since=1&limit=3")
        assert [effect["n"] for effect in page["effects"]] == [2, 3, 4] and page["next"] == 4
        assert payments.control("requests?since=5") == {"requests": [], "next": 5}
        assert len(payments.effects()) == 5
