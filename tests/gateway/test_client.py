"""The whole gateway on real sockets: field cases by number."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from email.utils import formatdate
from random import Random
from typing import Any

import pytest

from siafu.border.secrets import Secret
from siafu.errors import (
    AccessRefused,
    BudgetReached,
    DeadlineReached,
    ModelError,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    UnpricedModel,
    Unreachable,
    UpstreamFault,
)
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatRequest, Usage
from siafu.gateway.client import Gateway, Way, assemble
from siafu.gateway.limits import Limits
from siafu.gateway.meter import MemoryLedger
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.upstream import Timeouts, Upstream
from siafu.observe.calls import CallContext
from siafu.observe.events import AttemptEnded, Waited, nobody
from siafu.pace.clock import SystemClock

from .conftest import ASK, KEY
from .fake_upstream import OK, Answer, Arrival, error, http, piece, sse, trickle, upstream

STREAM = ChatRequest(model="m", messages=ASK.messages, stream=True)
PRICES = Prices([Price(model="m", input=Decimal("0.6"), output=Decimal("2.5"))], table=False)
HOLLOW = {"id": None, "choices": None, "created": None, "model": None, "object": None}


def gaps(gw: Any) -> list[float]:
    times = [a.at for a in gw.arrivals]
    return [b - a for a, b in itertools.pairwise(times)]


@pytest.mark.parametrize("headers", [{"retry_after": "0.3"}, {"retry_after_ms": "300"}, {"x_ms_retry_after_ms": "300"}])
async def test_f01_no_request_within_the_window(bench: Any, headers: dict[str, str]) -> None:
    async with upstream([error(429, **headers), http(OK)]) as gw, bench(gw.base_url) as b:
        assert (await b.ask()).content == "ok"
        assert gaps(gw)[0] >= 0.3
        assert [a.headers["x-siafu-attempt"] for a in gw.arrivals] == ["1", "2"]
        assert [line.outcome for line in b.ledger.ended] == ["refused", "ok"]
        assert [e.code for e in b.events if isinstance(e, AttemptEnded)] == ["rate_limited", ""]
        (waited,) = [e for e in b.events if isinstance(e, Waited)]
        assert waited.seconds > 0.0 and waited.reason == "rate_limited"  # what was left of the window when it was told


async def test_f01_above_the_ceiling_the_wait_is_told_at_once(bench: Any) -> None:
    async with upstream([error(429, retry_after="75")]) as gw, bench(gw.base_url) as b:
        with pytest.raises(RateLimited) as caught:
            await b.ask()
        assert caught.value.wait == 75 and len(gw.arrivals) == 1


@pytest.mark.parametrize("value", ["past", "soon", "0", "-3"])
async def test_f02_dates_and_garbage_do_not_crash(bench: Any, value: str) -> None:
    hint = formatdate(time.time() - 60, usegmt=True) if value == "past" else value
    async with upstream([error(429, retry_after=hint), http(OK)]) as gw, bench(gw.base_url) as b:
        assert (await b.ask()).content == "ok"
        assert len(gw.arrivals) == 2


async def test_f02_a_date_ahead_is_waited_for(bench: Any) -> None:
    at = time.time() + 2
    script = [error(429, retry_after=formatdate(at, usegmt=True)), http(OK)]
    async with upstream(script) as gw, bench(gw.base_url) as b:
        await b.ask()
        assert time.time() >= int(at)
        assert len(gw.arrivals) == 2


async def test_f03_each_hint_counts(bench: Any) -> None:
    script = [*(error(429, retry_after=str(wait)) for wait in (0.1, 0.3, 0.5)), http(OK)]
    async with upstream(script) as gw, bench(gw.base_url) as b:
        await b.ask()
        assert all(gap >= wait for gap, wait in zip(gaps(gw), (0.1, 0.3, 0.5), strict=True))


QUOTA = error(429, "You exceeded your current quota", code="insufficient_quota", type="insufficient_quota")
HARD: list[tuple[bytes, type[ModelError]]] = [
    (QUOTA, QuotaExhausted),
    (error(402, "Insufficient Balance"), QuotaExhausted),
    *((error(status), RequestRefused) for status in (400, 404, 422)),
    *((error(status), AccessRefused) for status in (401, 403)),
    (http({**HOLLOW, "error": {"code": 401, "message": "no"}}), AccessRefused),
]


@pytest.mark.parametrize(("answer", "kind"), HARD)
async def test_f04_f05_hard_refusals_are_sent_once(bench: Any, answer: bytes, kind: type[ModelError]) -> None:
    async with upstream([answer]) as gw, bench(gw.base_url) as b:
        with pytest.raises(kind):
            await b.ask()
        assert len(gw.arrivals) == 1
        assert [line.usd_pico for line in b.ledger.ended] == [0]


async def test_f06_a_crowd_waits_for_the_hint_and_comes_back_spread(bench: Any) -> None:
    def script(arrival: Arrival) -> bytes:
        return error(429, retry_after="0.5") if len(gw.arrivals) <= 100 else http(OK)

    async with upstream(script) as gw, bench(gw.base_url) as b:
        answers = await asyncio.gather(*(b.ask() for _ in range(100)))
        assert len(answers) == 100
        times = sorted(a.at for a in gw.arrivals)
        assert len(times) <= 250
        refused = times[:100]
        assert times[100] - refused[0] >= 0.5
        later = times[100:]
        assert max(sum(t <= o < t + 0.05 for o in later) for t in later) <= 30


SOFT: list[Answer] = [
    http({**HOLLOW, "error": {"code": 500, "message": "engine died"}}),
    http({**OK, "choices": None}),
    http({**OK, "choices": []}),
    http({name: value for name, value in OK.items() if name != "choices"}),
    http("<html>" + "x" * 20_000, 502, content_type="text/html"),
    http("<html>" + "x" * 20_000, content_type="text/html"),
    error(500),
    error(504),
    sse(piece("Par"), {"error": {"message": "engine died", "code": 500}}, "[DONE]"),
]


@pytest.mark.parametrize("fault", SOFT)
async def test_f07_f08_f09_faults_are_repeated_a_few_times_and_booked(bench: Any, fault: Answer) -> None:
    request = STREAM if b"event-stream" in bytes(fault) else ASK  # type: ignore[arg-type]
    good = sse(piece("ok", finish="stop"), "[DONE]") if request is STREAM else http(OK)
    async with upstream([fault, fault, good]) as gw, bench(gw.base_url) as b:
        assert (await b.ask(request)).text == "ok"
        assert [line.outcome for line in b.ledger.ended] == ["failed", "failed", "ok"]
    async with upstream([fault]) as gw, bench(gw.base_url) as b:
        with pytest.raises(UpstreamFault) as caught:
            await b.ask(request)
        assert len(gw.arrivals) == 3 and caught.value.attempts == 3
        assert len(caught.value.message) < 700


async def test_f07_a_rate_limit_within_a_200_is_waited_out(bench: Any) -> None:
    refusal = http({**HOLLOW, "error": {"code": 429, "message": "rate limited upstream"}})
    async with upstream([refusal, refusal, http(OK)]) as gw, bench(gw.base_url) as b:
        assert (await b.ask()).content == "ok"
        assert [line.code for line in b.ledger.ended] == ["rate_limited", "rate_limited", ""]


@pytest.mark.parametrize("usage", ["missing", None])
async def test_f16_an_answer_without_usage_is_delivered_and_marked(bench: Any, usage: Any) -> None:
    body = {name: value for name, value in OK.items() if name != "usage"}
    if usage is None:
        body["usage"] = None
    async with upstream([http(body)]) as gw, bench(gw.base_url, prices=PRICES) as b:
        answer = await b.ask()
        assert (answer.content, answer.usage, answer.usd_pico) == ("ok", None, None)
        assert [line.usage_known for line in b.ledger.ended] == [False]
        assert b.accounts.of("run").unknown == 1


async def test_f17_usage_at_the_end_of_a_stream_is_booked(bench: Any) -> None:
    last = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}}
    script = [sse({"choices": []}, piece("안"), piece("녕", finish="stop"), last, "[DONE]")]
    async with upstream(script) as gw, bench(gw.base_url, prices=PRICES) as b:
        reply = await b.gateway.open(STREAM, CallContext())
        assert [d.content async for d in reply.deltas()] == ["안", "녕"]
        answer = await reply.message()
        assert answer.usage == Usage(input=5, output=7)
        assert answer.usd_pico == 5 * 600_000 + 7 * 2_500_000
        (line,) = b.ledger.ended
        assert (line.input_tokens, line.output_tokens, line.usd_pico) == (5, 7, answer.usd_pico)
        assert line.first_token is not None


async def test_f18_a_stream_that_breaks_after_its_first_delta_is_a_failure(bench: Any) -> None:
    head, _, body = sse(piece("Par"), {"error": {"message": "engine died", "code": 500}}).partition(b"\r\n\r\n")
    size, _, chunk = body.partition(b"\r\n")
    first, rest = chunk.split(b"\n\n", 1)
    whole = [head + b"\r\n\r\n" + size + b"\r\n" + first + b"\n\n", rest]
    async with upstream([trickle(*whole, gap=0.05)]) as gw, bench(gw.base_url, prices=PRICES) as b:
        reply = await b.gateway.open(STREAM, CallContext())
        with pytest.raises(UpstreamFault, match="engine died"):
            await reply.message()
        assert [(line.outcome, line.usage_known) for line in b.ledger.ended] == [("failed", False)]
        assert len(gw.arrivals) == 1
        assert b.gateway.accounts.of("run").reserved == 0


async def test_f19_json_in_a_fence_with_fences_inside(bench: Any) -> None:
    inner = '{"category":"refund","reply":"run:\\n```bash\\nls\\n```\\nok"}'
    bodies = []
    for content in (f"```json\n{inner}\n```", inner, f"\n```\n{inner}\n```  "):
        choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        bodies.append(http({**OK, "choices": [choice]}))
    async with upstream(bodies) as gw, bench(gw.base_url) as b:
        for _ in bodies:
            value = (await b.ask()).json()
            assert value == {"category": "refund", "reply": "run:\n```bash\nls\n```\nok"}


async def test_f40_the_budget_is_kept_over_the_whole_way(bench: Any) -> None:
    async with upstream() as gw, bench(gw.base_url, prices=PRICES) as b:
        b.accounts.set("run", limit=2 * 10**10)
        with pytest.raises(UnpricedModel):
            await b.ask(ChatRequest(model="kimi-k2.5-preview-x", messages=[]))
        with pytest.raises(BudgetReached):
            await b.ask(ChatRequest(model="m", messages=[], max_tokens=10_000_000))
        assert not gw.arrivals
        await b.ask()
        assert gw.arrivals[0].json["max_tokens"] == 4096
        assert b.accounts.of("run").spent == 10 * 600_000 + 2 * 2_500_000


async def test_f43_a_slot_is_waited_for_outside_the_timeout(bench: Any) -> None:
    def slow(arrival: Arrival) -> Answer:
        return trickle(b"", http(OK), gap=0.15)

    limits = Limits(concurrency=50)
    async with upstream(slow) as gw, bench(gw.base_url, limits=limits, timeouts=Timeouts(total=2)) as b:
        answers = await asyncio.gather(*(b.ask() for _ in range(150)))
        assert len(answers) == 150 and gw.peak == 50
    async with upstream(slow) as gw, bench(gw.base_url, limits=Limits(concurrency=150)) as b:
        await asyncio.gather(*(b.ask() for _ in range(150)))
        assert gw.peak == 150


def quick_gateway(base_url: str) -> Gateway:
    return assemble(
        [
            Way(
                upstream=Upstream(name="fake", base_url=base_url, key=Secret(KEY)),
                limits=Limits(rpm=60_000),
                prices=PRICES,
            )
        ],
        ledger=MemoryLedger(),
        accounts=Accounts(),
        clock=SystemClock(),
        rng=Random(1),
        observer=nobody,
    )


@contextmanager
def upstream_in_a_thread() -> Iterator[str]:
    """The base URL of a fake upstream whose event loop is not ours."""
    ready, done = threading.Event(), threading.Event()
    urls: list[str] = []

    async def main() -> None:
        async with upstream() as gw:
            urls.append(gw.base_url)
            ready.set()
            await asyncio.to_thread(done.wait)

    server = threading.Thread(target=lambda: asyncio.run(main()))
    server.start()
    try:
        assert ready.wait(10)
        yield urls[0]
    finally:
        done.set()
        server.join(10)


def ask_in_loops_and_threads(gateway: Gateway) -> list[str]:
    texts: list[str] = []

    async def ask() -> None:
        replies = await asyncio.gather(*(gateway.open(ASK, CallContext()) for _ in range(5)))
        texts.extend([(await reply.message()).text for reply in replies])

    for _ in range(3):
        asyncio.run(ask())
    thread = threading.Thread(target=lambda: asyncio.run(ask()))
    thread.start()
    thread.join(10)
    return texts


def test_f44_one_gateway_in_several_loops_and_threads() -> None:
    with upstream_in_a_thread() as url, warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        assert ask_in_loops_and_threads(quick_gateway(url)) == ["ok"] * 20
        gc.collect()


async def test_f56_the_minute_limit_holds_on_the_wire(bench: Any) -> None:
    async with upstream() as gw, bench(gw.base_url, limits=Limits(rpm=600, burst=3)) as b:
        began = time.monotonic()
        await asyncio.gather(*(b.ask() for _ in range(10)))
        times = [a.at for a in gw.arrivals]
        assert times[-1] - began >= 0.7  # seven more than the burst, ten a second
        assert all(sum(t <= o <= t + 0.25 for o in times) <= 3 + 3 + 1 for t in times)


async def test_f58_the_key_is_nowhere(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    said = {"error": {"message": f"Incorrect key {KEY}", "code": f"bad_{KEY}"}}
    told: list[str] = []
    async with upstream([http(said, 401), http(said, 500), http(f"<p>{KEY}</p>", content_type="text/html")]) as gw:
        async with bench(gw.base_url) as b:
            for _ in range(2):
                with pytest.raises(ModelError) as caught:
                    await b.ask()
                told += [str(caught.value), repr(caught.value), str(caught.value.provider_code)]
            told += map(repr, (*b.events, *b.ledger.ended, *b.ledger.opened))
        assert gw.arrivals[0].headers["authorization"] == f"Bearer {KEY}"  # positive control
    async with bench(gw.base_url) as b:
        with pytest.raises(Unreachable) as down:
            await b.ask()
        told.append(str(down.value))
    assert "check the key" in told[0]
    assert KEY not in "".join(told) + caplog.text


async def test_g20_a_hung_upstream_ends_every_call_and_frees_every_socket(bench: Any) -> None:
    async def hang(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
        await asyncio.sleep(60)

    async with upstream([hang]) as gw, bench(gw.base_url, limits=Limits(concurrency=20)) as b:
        before = len(asyncio.all_tasks())
        deadline = SystemClock().now() + 0.4
        results = await asyncio.gather(
            *(b.ask(request, deadline=deadline) for request in [ASK, STREAM] * 25), return_exceptions=True
        )
        assert SystemClock().now() - deadline < 3
        assert all(isinstance(r, DeadlineReached) for r in results)
        assert await gw.all_closed()
        assert len(b.ledger.ended) == len(b.ledger.opened) == 20
        assert {line.outcome for line in b.ledger.ended} == {"abandoned"}
        for _ in range(3):  # the upstream's own tasks end
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= before


async def test_who_waits_for_a_limit_can_be_counted(bench: Any) -> None:
    go = asyncio.Event()

    async def held(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
        await go.wait()
        writer.write(http(OK))

    async with upstream(lambda arrival: held) as gw, bench(gw.base_url, limits=Limits(concurrency=2)) as b:
        calls = [asyncio.create_task(b.ask()) for _ in range(5)]
        assert await gw.until(lambda: len(gw.arrivals) == 2)
        assert b.gateway.waiting == 3
        go.set()
        await asyncio.gather(*calls)
        assert b.gateway.waiting == 0
