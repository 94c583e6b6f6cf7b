"""Reservations and tickets on both databases: one effect a key, nothing below zero, nothing lost."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.apps.support.shop import brakes, stock, tickets
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.refusal import Refusal
from siafu.errors import Conflict

SKU = "SKU-2001"


@pytest.fixture
def shop(sql_url: str) -> Iterator[ShopDatabase]:
    with closing(ShopDatabase(sql_url)) as database:
        yield database


def set_stock(shop: ShopDatabase, pieces: int, sku: str = SKU) -> None:
    shop.transact(lambda tx: tx.change("UPDATE product SET stock = :n WHERE sku = :sku", n=pieces, sku=sku))


def left(shop: ShopDatabase, sku: str = SKU) -> int:
    return next(product.stock for product in shop.products() if product.sku == sku)


def held(shop: ShopDatabase) -> int:
    return sum(r.quantity for r in shop.transact(lambda tx: stock.reservations(tx, "held")))


def reserve(
    shop: ShopDatabase, quantity: int = 2, key: str = "", *, who: str = "kim", sku: str = SKU
) -> stock.Reservation | Refusal:
    return shop.transact(lambda tx: stock.reserve(tx, "", who, sku, quantity, key))


def release(shop: ShopDatabase, made: object, who: str = "kim") -> stock.Reservation | Refusal:
    assert isinstance(made, stock.Reservation)
    return shop.transact(lambda tx: stock.release(tx, "", who, made.reservation_id))


def code(answer: object) -> str:
    return answer.code if isinstance(answer, Refusal) else "ok"


def test_a_key_reserves_once_and_stands_for_what_it_reserved(shop: ShopDatabase) -> None:
    set_stock(shop, 10)
    first = reserve(shop, 2, "k")
    assert reserve(shop, 2, "k") == first and left(shop) == 8
    assert code(reserve(shop, 3, "k")) == "idempotency_key_reused" == code(reserve(shop, 2, "k", sku="SKU-2002"))
    assert code(reserve(shop, 2, "k", who="lee")) == "ok" and left(shop) == 6  # another customer's key is another key
    assert code(reserve(shop, 2, "k2")) == "ok" and left(shop) == 4
    release(shop, first)
    assert left(shop) == 6
    again = reserve(shop, 2, "k")  # a call that arrives twice does not reserve anew
    assert isinstance(again, stock.Reservation) and again.state == "released" and left(shop) == 6


def test_a_client_without_keys_repeats_itself_safely(shop: ShopDatabase) -> None:
    set_stock(shop, 10)
    first = reserve(shop)
    assert reserve(shop) == first and left(shop) == 8
    assert reserve(shop, 3) != first and left(shop) == 5
    release(shop, first)
    assert reserve(shop) != first and left(shop) == 5  # the first one is over, so this is a new wish


def test_what_is_not_there_is_not_reserved(shop: ShopDatabase) -> None:
    set_stock(shop, 3)
    assert code(reserve(shop, 4)) == "insufficient_stock" and code(reserve(shop, sku="SKU-9999")) == "sku_not_found"
    assert left(shop) == 3 and held(shop) == 0
    with pytest.raises(Conflict):  # the database itself holds the line
        set_stock(shop, -1)


def test_a_reservation_is_given_back_once_and_by_its_customer(shop: ShopDatabase) -> None:
    set_stock(shop, 5)
    made = reserve(shop)
    nobody = stock.Reservation(reservation_id="rsv-" + "0" * 16, sku=SKU, quantity=1, state="held")
    assert release(shop, made, "lee") == release(shop, nobody, "lee") and code(release(shop, nobody)) != "ok"
    assert left(shop) == 3
    for _ in range(2):
        done = release(shop, made)
        assert isinstance(done, stock.Reservation) and done.state == "released" and left(shop) == 5
    assert not shop.transact(lambda tx: stock.give_back(tx, nobody.reservation_id))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a new shop. To copy it takes less than to fill it."""
    path = tmp_path_factory.mktemp("filled") / "s.db"
    ShopDatabase(path).close()
    return path


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["kim", "lee"]), st.sampled_from(["", "a", "b"]), st.integers(1, 4), st.booleans()),
        max_size=15,
    )
)
def test_pieces_are_left_or_held_whatever_happens(filled: Path, steps: list[tuple[str, str, int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(ShopDatabase(shutil.copy(filled, folder))) as shop:
        set_stock(shop, 10)
        made: list[stock.Reservation] = []
        for who, key, quantity, back in steps:
            if back and made:
                release(shop, made[quantity % len(made)], who)
            elif isinstance(answer := reserve(shop, quantity, key, who=who), stock.Reservation):
                made.append(answer)
            assert left(shop) >= 0 and left(shop) + held(shop) == 10


def test_many_at_once_never_take_more_than_there_is(shop: ShopDatabase) -> None:
    set_stock(shop, 30)
    with ThreadPoolExecutor(16) as threads:
        turns = [threads.submit(reserve, shop, 2, f"k{n // 2}", who="kim") for n in range(60)]  # every key twice
        answers = [turn.result() for turn in turns]
    made = {answer.reservation_id for answer in answers if isinstance(answer, stock.Reservation)}
    assert len(made) == 15 and left(shop) == 0 and held(shop) == 30
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda id: shop.transact(lambda tx: stock.give_back(tx, id)), [*made] * 3))
    assert left(shop) == 30 and held(shop) == 0


def open_ticket(shop: ShopDatabase, key: str = "", *, who: str = "kim", text: str = "포장이 찢어졌어요.") -> str:
    made = shop.transact(lambda tx: tickets.open_ticket(tx, "", who, "불만", text, key))
    return made.ticket_id if isinstance(made, tickets.Ticket) else made.code


def test_one_ticket_a_key_and_one_open_ticket_a_text(shop: ShopDatabase) -> None:
    first = open_ticket(shop, "k")
    assert open_ticket(shop, "k", text="worded anew by a model") == first
    assert open_ticket(shop, "k", who="lee") != first
    bare = open_ticket(shop)
    assert bare != first and open_ticket(shop) == bare != open_ticket(shop, text="something else")
    for ticket_id in (first, bare):
        assert shop.transact(lambda tx, id=ticket_id: tickets.close_ticket(tx, id))  # type: ignore[misc]
        assert not shop.transact(lambda tx, id=ticket_id: tickets.close_ticket(tx, id))  # type: ignore[misc]
    assert open_ticket(shop, "k") == first  # a call that arrives late opens nothing new
    assert open_ticket(shop) != bare  # the same complaint, later
    assert len(shop.transact(lambda tx: tickets.tickets(tx, "open"))) == 3
    assert len(shop.transact(tickets.tickets)) == 5
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: open_ticket(shop, "once"), range(16)))) == 1


def test_a_daily_cap_counts_effects_and_not_repetitions(shop: ShopDatabase) -> None:
    set_stock(shop, 50)
    shop.transact(lambda tx: brakes.cap(tx, "reserve_stock", "*", "calls", 3))
    shop.transact(lambda tx: brakes.cap(tx, "open_ticket", "", "calls", 1))
    with ThreadPoolExecutor(8) as threads:
        codes = list(threads.map(lambda n: code(reserve(shop, 1, f"k{n % 5}")), range(20)))
    assert held(shop) == 3 and codes.count("ok") == 12 and codes.count("daily_limit") == 8
    assert code(reserve(shop, 99)) == "insufficient_stock"
    assert open_ticket(shop, "a").startswith("tkt-") and open_ticket(shop, "a").startswith("tkt-")
    assert open_ticket(shop, "b") == "daily_limit" and len(shop.transact(tickets.tickets)) == 1
    used = {(cap.tool, cap.tenant_id): (cap.used, cap.most) for cap in shop.transact(brakes.caps)}
    assert used == {("reserve_stock", "*"): (3, 3), ("open_ticket", ""): (1, 1)}
    shop.transact(lambda tx: brakes.cap(tx, "reserve_stock", "*", "calls", None))
    assert code(reserve(shop, 1, "after")) == "ok"


def test_every_cap_must_have_room_or_none_is_used(shop: ShopDatabase) -> None:
    for tenant, unit, most in (("*", "KRW", 100), ("t", "KRW", 60), ("t", "calls", 9)):
        shop.transact(lambda tx, cap=(tenant, unit, most): brakes.cap(tx, "process_refund", *cap))  # type: ignore[misc]

    def take(tenant: str, krw: int) -> str:
        return code(shop.transact(lambda tx: brakes.take(tx, "process_refund", tenant, {"calls": 1, "KRW": krw})))

    assert (take("t", 50), take("t", 11), take("u", 51), take("t", 10), take("u", 40)) == (
        *("ok", "daily_limit", "daily_limit"),
        *("ok", "ok"),
    )
    assert (take("u", 1), take("u", 0)) == ("daily_limit", "ok")
    assert {(cap.tenant_id, cap.unit): cap.used for cap in shop.transact(brakes.caps)} == {
        ("*", "KRW"): 100,
        ("t", "KRW"): 60,
        ("t", "calls"): 2,
    }
    shop.transact(lambda tx: tx.change("UPDATE daily_use SET day = day - 1"))  # a day later
    assert take("u", 100) == "ok" and {cap.used for cap in shop.transact(brakes.caps)} == {100, 0}


def test_switches_reach_a_tool_a_tenant_or_everything(shop: ShopDatabase) -> None:
    def switch(state: str, tool: str, tenant: str) -> None:
        shop.transact(lambda tx: brakes.switch(tx, state, tool, tenant, by="min", reason="점검"))  # type: ignore[arg-type]

    def off(tool: str, tenant: str) -> bool:
        return shop.transact(lambda tx: brakes.stopped(tx, tool, tenant)) is not None

    assert not off("a", "t")
    switch("off", "a", "t")
    assert off("a", "t") and not off("a", "u") and not off("b", "t")
    switch("off", "a", "*")
    switch("on", "a", "t")
    assert off("a", "t") and off("a", "u")  # each pair is its own switch: every tenant's is still off
    switch("on", "a", "*")
    assert not off("a", "t")
    switch("off", "*", "*")
    assert off("b", "")
    switch("on", "*", "*")
    assert not off("b", "")
    now = {(s.tool, s.tenant_id): s.state for s in shop.transact(brakes.switches)}
    assert now == {("a", "t"): "on", ("a", "*"): "on", ("*", "*"): "on"}


@pytest.mark.parametrize("table", ["switch_event", "effect_call"])
@pytest.mark.parametrize("verb", ["UPDATE {} SET tool = 'x'", "DELETE FROM {}"])
def test_sec36_what_happened_cannot_be_rewritten(shop: ShopDatabase, table: str, verb: str) -> None:
    shop.transact(lambda tx: brakes.switch(tx, "off", "a", "t", by="min", reason=""))
    shop.transact(
        lambda tx: tx.change(
            """INSERT INTO effect_call (at, tenant_id, run, request, tool, effect_key, arguments_sha256, outcome)
               VALUES (1, '', '', '', 'a', '', '', 'ok')"""
        )
    )
    with pytest.raises(Conflict):
        shop.transact(lambda tx: tx.change(verb.format(table)))
    assert shop.transact(lambda tx: tx.rows(f"SELECT tool FROM {table}")) == [{"tool": "a"}]
