"""Who may come in."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.errors import InputError
from siafu.pace.clock import VirtualClock
from siafu.service.access import Holder, KeyRing, Minute, check_browser, priority_of
from siafu.service.refusals import Refused
from siafu.store.client_keys import MIGRATIONS, ClientKey, ClientKeys, KeyTerms, hash_of
from siafu.store.database import Database

NAMES = frozenset({"ai.example.com"})


@pytest.mark.parametrize(
    ("host", "origin", "loopback", "status"),
    [
        ("127.0.0.1:8080", "", True, 0),
        ("LOCALHOST", "", True, 0),
        ("[::1]:8080", "http://localhost:3000", True, 0),
        ("ai.example.com", "https://ai.example.com", False, 0),
        ("10.0.0.7:8080", "", False, 0),  # no page can be loaded from a foreign address
        ("10.0.0.7:8080", "http://10.0.0.7:8080", False, 0),
        ("10.0.0.7:8080", "", True, 421),
        ("evil.com", "", True, 421),
        ("evil.com", "", False, 421),
        ("127.0.0.1.evil.com", "", True, 421),
        ("", "", True, 421),
        ("[", "", True, 421),
        ("127.0.0.1:8080", "https://evil.com", True, 403),
        ("127.0.0.1:8080", "null", True, 403),
        ("ai.example.com", "http://localhost:3000", False, 403),
    ],
)
def test_sec6_only_our_names_and_pages(host: str, origin: str, loopback: bool, status: int) -> None:
    found = 0
    try:
        check_browser(host, origin, NAMES, loopback=loopback)
    except Refused as refused:
        found = refused.status
    assert found == status


# Gaps that floating-point numbers add up exactly: the last bit of a sum is not what this is about.
@given(st.integers(1, 5), st.lists(st.integers(0, 40 * 1024).map(lambda gap: gap / 1024), max_size=40))
def test_in_no_minute_are_there_more_than_allowed(count: int, gaps: list[float]) -> None:
    minute, now, taken = Minute(count), 0.0, list[float]()
    for gap in gaps:
        now += gap
        wait = minute.take(now)
        if wait == 0.0:
            taken.append(now)
        else:
            assert len([t for t in taken if t > now - 60]) == count  # it was right to refuse
            assert Minute(count).take(now) == 0.0
    for end in taken:
        assert sum(end - 60 < t <= end for t in taken) <= count


@pytest.fixture
async def keys(sql_url: str) -> AsyncIterator[ClientKeys]:
    database = await asyncio.to_thread(Database, sql_url, MIGRATIONS, what="the client keys", schema="client_keys")
    yield ClientKeys(database)
    await database.aclose()


def ring_over(keys: ClientKeys, clock: VirtualClock, *, open_until_first: bool = True) -> KeyRing:
    return KeyRing(keys, clock, open_until_first=open_until_first)


def bearer(text: str) -> list[bytes]:
    return [f"Bearer {text}".encode()]


def status(ring: KeyRing, authorization: list[bytes], address: str = "a") -> int:
    try:
        ring.admit(authorization, address)
    except Refused as refused:
        return refused.status
    return 200


async def test_a_key_is_kept_as_it_was_made(keys: ClientKeys) -> None:
    terms = KeyTerms(
        name="웹", models=("gpt-*", "m"), customer="kim", tenant="t", day_pico=5, total_pico=7, rpm=3, concurrency=2,
        priority=1,
    )  # fmt: skip
    key, secret = await keys.create(terms, seconds=60)
    assert [key] == await keys.all()
    assert key.terms == terms
    assert key.hash == hash_of(secret.reveal())
    assert key.expires_at == pytest.approx(key.created_at + 60)
    assert secret.reveal().startswith(key.hint)
    assert len(secret.reveal()) - len("sk-siafu-") == 43  # 256 bits
    assert [terms.allows(model) for model in ("gpt-4.1", "gpt", "m", "mm", "*")] == [True, False, True, False, False]
    with pytest.raises(InputError, match="siafu keys list"):
        await keys.revoke("key_none")


async def test_sec2_keys_are_hashed_at_rest_and_revoked_at_once(tmp_path: Path) -> None:
    database = await asyncio.to_thread(Database, tmp_path / "keys.db", MIGRATIONS, what="keys", schema="client_keys")
    keys, clock = ClientKeys(database), VirtualClock()
    ring = ring_over(keys, clock)
    await ring.refresh()
    assert status(ring, []) == 200  # nobody has made a key
    key, secret = await keys.create(KeyTerms(name="web"))
    await ring.refresh()
    assert [status(ring, auth) for auth in ([], bearer(secret.reveal()), bearer("sk-siafu-x"))] == [401, 200, 401]
    assert status(ring, [f"bearer  {secret.reveal()} ".encode()]) == 200
    assert status(ring, [f"Basic {secret.reveal()}".encode()]) == 401
    assert status(ring, bearer(secret.reveal()) * 2) == 401
    await keys.revoke(key.id)
    await ring.refresh()
    assert status(ring, bearer(secret.reveal())) == 401
    assert status(ring, []) == 401  # nor does it open again
    await database.aclose()
    everything = b"".join(map(Path.read_bytes, sorted(tmp_path.iterdir())))  # noqa: ASYNC240
    assert secret.reveal()[len(key.hint) :].encode() not in everything
    assert key.hash.encode() in everything  # it is there that one has to look
    with closing(sqlite3.connect(tmp_path / "keys.db")) as db:
        assert secret.reveal() not in str(list(db.execute("SELECT * FROM client_key")))


async def test_sec1_beyond_loopback_nobody_comes_in_without_a_key(keys: ClientKeys) -> None:
    ring = ring_over(keys, VirtualClock(), open_until_first=False)
    await ring.refresh()
    assert (status(ring, []), ring.active) == (401, 0)


async def test_a_key_expires(keys: ClientKeys) -> None:
    clock = VirtualClock()  # of 2026-01-01; the database has the real time
    key, secret = await keys.create(KeyTerms(name="short"), seconds=1)
    ring = ring_over(keys, clock)
    await ring.refresh()
    assert status(ring, bearer(secret.reveal())) == 200
    await clock.sleep(max(0.0, key.created_at + 2 - clock.wall()))
    assert status(ring, bearer(secret.reveal())) == 401


async def test_the_watch_sees_what_changes_whatever_went_wrong_before(
    keys: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    ring = ring_over(keys, clock)
    edition, broken = keys.edition, [ValueError("nobody thought of it")]

    async def breaking() -> tuple[int, int]:
        if broken:
            raise broken.pop()
        return await edition()

    monkeypatch.setattr(keys, "edition", breaking)
    watching = asyncio.create_task(ring.watch())
    try:
        _, secret = await keys.create(KeyTerms(name="new"))
        async with asyncio.timeout(20):
            while ring.active == 0:
                await asyncio.sleep(0.01)
        assert status(ring, bearer(secret.reveal())) == 200
    finally:
        watching.cancel()


async def test_sec34_wrong_keys_are_slowed_down_and_right_ones_are_not(keys: ClientKeys) -> None:
    clock = VirtualClock()
    ring = ring_over(keys, clock)
    _, secret = await keys.create(KeyTerms(name="web"))
    await ring.refresh()
    found = [status(ring, bearer(f"sk-siafu-{n}")) for n in range(1000)]
    assert (found.count(401), found.count(429)) == (20, 980)
    assert status(ring, bearer(secret.reveal())) == 200
    assert status(ring, bearer("sk-siafu-wrong"), "another") == 401
    await clock.sleep(1.0)
    assert [status(ring, bearer("sk-siafu-wrong")) for _ in range(6)] == [401] * 5 + [429]


def holder(**terms: Any) -> Holder:
    return Holder(ClientKey(id="k", hash="h", hint="", terms=KeyTerms(name="n", **terms), created_at=0.0))


def test_a_key_has_so_many_requests_at_once_and_in_a_minute() -> None:
    one = holder(concurrency=1, rpm=2)
    with one.request(0.0), pytest.raises(Refused, match="1 requests at once"), one.request(0.0):
        pass
    with one.request(1.0):
        pass
    with pytest.raises(Refused, match="2 requests a minute") as caught, one.request(2.0):
        pass
    assert (caught.value.status, caught.value.wait) == (429, 58.0)
    with one.request(60.0):
        pass


@pytest.mark.parametrize(
    ("told", "best", "priority"), [("", None, 2), ("1", None, 1), ("3", None, 3), ("", 3, 3), ("1", 2, 2), ("3", 1, 3)]
)
def test_a_client_gets_no_better_priority_than_its_key_has(told: str, best: int | None, priority: int) -> None:
    key = None if best is None else holder(priority=best).key
    assert priority_of(told, key) == priority


@pytest.mark.parametrize("told", ["0", "4", "first", "1, 1", "\u0661"])
def test_a_priority_that_is_none_is_refused(told: str) -> None:
    with pytest.raises(Refused, match="x-siafu-priority") as caught:
        priority_of(told, None)
    assert caught.value.status == 400
