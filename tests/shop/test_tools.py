"""Arguments, refusals and who may ask, without a transport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from siafu.apps.support.shop import calling
from siafu.apps.support.shop.calling import Caller, ToolSpec, answer_schema, schema
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.money.records import RefundAsk
from siafu.apps.support.shop.refusal import Refusal
from siafu.apps.support.shop.server import AUDIENCE, caller
from siafu.apps.support.shop.tools import TOOLS
from siafu.border.canonical import dumps
from siafu.border.identity import Grants, Identity, mint, verify
from siafu.border.secrets import Secret
from siafu.errors import IdentityInvalid

KIM, NOBODY = Caller(customer="kim"), Caller()
GOOD: dict[str, dict[str, Any]] = {
    "get_order_status": {"order_id": "1001"},
    "check_inventory": {"sku": "SKU-2001"},
    "search_products": {"query": "이어폰"},
    "process_refund": {"order_id": "1001"},
    "reserve_stock": {"sku": "SKU-2001", "quantity": 1},
    "release_stock": {"reservation_id": "rsv-0123456789abcdef"},
    "open_ticket": {"subject": "불만", "summary": "포장이 찢어져 왔어요."},
}


def use(tool: ToolSpec, shop: ShopDatabase, who: Caller, arguments: dict[str, Any]) -> msgspec.Struct:
    return shop.transact(lambda tx: calling.use(tool, tx, who, arguments))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopDatabase]:
    url = str(tmp_path_factory.mktemp("shop") / "shop.db")
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres")
        with server.connect() as connection:
            connection.execute("CREATE DATABASE tools")
        url = server.url("tools")
    database = ShopDatabase(url)
    database.transact(
        lambda tx: tx.change(
            """INSERT INTO stock_reservation (reservation_id, tenant_id, customer, effect_key, sku, quantity, state,
               reserved_at) VALUES (:id, '', 'kim', '', 'SKU-2002', 1, 'held', {now})""",
            id=GOOD["release_stock"]["reservation_id"],
        )
    )
    yield database
    database.close()
    if request.param == "postgresql":
        with server.connect() as connection:
            connection.execute("DROP DATABASE tools WITH (FORCE)")


def code(answer: msgspec.Struct) -> str:
    return answer.code if isinstance(answer, Refusal) else "ok"


@pytest.mark.parametrize("name", TOOLS)
def test_answers_fit_the_published_schema(shop: ShopDatabase, name: str) -> None:
    tool = TOOLS[name]
    answer = use(tool, shop, KIM, GOOD[name])
    assert code(answer) == "ok"
    checker = Draft202012Validator(answer_schema(tool.gives))
    checker.check_schema(checker.schema)
    if not isinstance(answer, RefundAsk):  # that is for the money layer to answer
        checker.validate(msgspec.to_builtins(answer))
    refusal = msgspec.to_builtins(Refusal(code="no", message="No.", details={"left": 1}))
    checker.validate(refusal)
    assert not checker.is_valid({"code": "no"}) and not checker.is_valid({**refusal, "message": None})
    assert not {field.name for field in msgspec.structs.fields(tool.gives)} & refusal.keys(), "one name, two meanings"
    assert schema(tool.takes)["additionalProperties"] is False and schema(tool.takes)["type"] == "object"


def untyped(part: Any) -> bool:
    """Whether a value is described without its type, alone or among alternatives."""
    ways = part.get("anyOf", [part])
    return not all("type" in way for way in ways)


@pytest.mark.parametrize("name", TOOLS)
def test_every_argument_says_its_type(name: str) -> None:
    found = schema(TOOLS[name].takes)["properties"]
    assert not [name for name, part in found.items() if untyped(part)]
    assert untyped({"enum": ["a"]}) and untyped({"anyOf": [{"enum": ["a"]}, {"type": "null"}]})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
likely = st.sampled_from(
    [
        *("1001", "1002", "999999", "-5", "10", "１００１", "1001 ", "#1001", "SKU-2001", "SKU-9999", "sku-2001"),
        *("", " ", "%", "_", "'; --", "이어폰", "👍", "\x00", "x" * 201, "customer", "order_id"),
    ]
)
names = st.sampled_from([name for given in GOOD.values() for name in given] + ["amount", "reason", "customer"])
arguments = st.dictionaries(names | st.text(max_size=5), likely | anything, max_size=3)
CODES = {"ok", "invalid_arguments", "order_not_found", "sku_not_found", "empty_query"}
CODES |= {"insufficient_stock", "reservation_not_found"}


@pytest.mark.parametrize("name", TOOLS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_arguments_are_taken_exactly_as_published(shop: ShopDatabase, name: str, data: st.DataObject) -> None:
    bent = data.draw(st.sampled_from([*GOOD[name], "amount", "reason", "tenant"]))
    given_arguments = data.draw(arguments | st.just({**GOOD[name], bent: data.draw(likely | anything)}))
    answer = use(TOOLS[name], shop, KIM, given_arguments)
    assert code(answer) in CODES
    fits = Draft202012Validator(schema(TOOLS[name].takes)).is_valid(given_arguments)
    # JSON Schema takes 5.0 for an integer; the shop takes no float for pieces or money, whatever its value
    floats = any(isinstance(value, float) for value in given_arguments.values())
    assert (code(answer) != "invalid_arguments") == (fits and not floats)


_NUMBERS: tuple[Any, ...] = (float("nan"), float("inf"), -5, 0, 1e99, 10.0, "10", "", True, [10], {})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("get_order_status", {}),
        ("get_order_status", {"order_id": 1001}),
        ("get_order_status", {"order_id": float("nan")}),
        ("get_order_status", {"order_id": ["1001"]}),
        ("get_order_status", {"order_id": "1001", "customer": "lee"}),
        ("get_order_status", {"order_id": "1001' OR '1'='1"}),
        ("check_inventory", {"sku": "SKU-2001%"}),
        ("check_inventory", {"sku": None}),
        ("search_products", {"query": ""}),
        ("search_products", {"query": "x" * 201}),
        ("search_products", {"query": True}),
        *(("process_refund", {"order_id": "1001", "amount": wrong}) for wrong in (*_NUMBERS, 10**12 + 1)),
        ("process_refund", {"order_id": "1001", "currency": "KRW"}),
        ("process_refund", {"order_id": "1001", "refund_request_id": "r1"}),
        ("process_refund", {"order_id": "1001", "reason": "because the policy says so"}),
        ("process_refund", {"amount": 10}),
        *(("reserve_stock", {"sku": "SKU-2001", "quantity": wrong}) for wrong in _NUMBERS),
        ("reserve_stock", {"sku": "SKU-2001"}),
        ("reserve_stock", {"sku": "SKU-2001", "quantity": None}),
        ("reserve_stock", {"sku": "SKU-2001", "quantity": 101}),
        ("reserve_stock", {"sku": "SKU-2001", "quantity": 1, "price": 1}),
        ("release_stock", {"reservation_id": "rsv-0123456789abcdeF"}),
        ("release_stock", {"reservation_id": "%"}),
        ("open_ticket", {"subject": "", "summary": "x"}),
        ("open_ticket", {"subject": "x", "summary": "x" * 4001}),
        ("open_ticket", {"subject": "x", "summary": "x", "priority": 1}),
    ],
)
def test_wrong_arguments_are_refused(shop: ShopDatabase, name: str, wrong: dict[str, Any]) -> None:
    assert code(use(TOOLS[name], shop, KIM, wrong)) == "invalid_arguments"
    assert code(use(TOOLS[name], shop, KIM, GOOD[name])) == "ok"


def test_unknown_things_have_codes(shop: ShopDatabase) -> None:
    assert code(use(TOOLS["get_order_status"], shop, KIM, {"order_id": "999999"})) == "order_not_found"
    assert code(use(TOOLS["check_inventory"], shop, KIM, {"sku": "SKU-9999"})) == "sku_not_found"
    assert code(use(TOOLS["search_products"], shop, KIM, {"query": "  %_ "})) == "empty_query"
    assert msgspec.to_builtins(use(TOOLS["search_products"], shop, KIM, {"query": "쿼크글루온"})) == {"products": []}


def test_a_strangers_order_looks_exactly_like_none(shop: ShopDatabase) -> None:
    answers = {
        dumps(use(TOOLS["get_order_status"], shop, KIM, {"order_id": order_id}))
        for order_id in ("1002", "1003", "999999", "0000")
    }
    assert len(answers) == 1
    assert code(use(TOOLS["get_order_status"], shop, Caller(customer="lee"), {"order_id": "1002"})) == "ok"


def test_scope_and_identity_come_before_arguments(shop: ShopDatabase) -> None:
    narrow = Caller(customer="kim", scopes=frozenset({"check_inventory"}))
    for name, tool in TOOLS.items():
        needs = tool.for_customer
        assert needs or tool.effect is None
        assert code(use(tool, shop, NOBODY, GOOD[name])) == ("identity_required" if needs else "ok")
        assert code(use(tool, shop, narrow, GOOD[name])) == ("ok" if name == "check_inventory" else "not_in_scope")
    assert code(use(TOOLS["get_order_status"], shop, NOBODY, {"order_id": 5})) == "identity_required"


KEY, NOW = Secret("k" * 40), 1_800_000_000.0


def token(subject: str, audience: str = AUDIENCE, **more: Any) -> str:
    return mint(KEY, subject=subject, audience=audience, scopes=TOOLS, now=NOW, **more)


def bearer(subject: str, **more: Any) -> Identity:
    return verify(token(subject, **more), KEY, AUDIENCE, NOW)


@pytest.mark.parametrize(
    ("meta", "header", "key", "default", "expected"),
    [
        (None, None, None, None, None),
        (None, None, KEY, None, None),
        (None, None, None, "kim", "kim"),
        (None, None, KEY, "kim", "kim"),
        (token("lee"), None, KEY, None, "lee"),
        (token("lee"), None, KEY, "kim", "lee"),
        (None, bearer("park"), KEY, None, "park"),
        (None, bearer("park"), KEY, "kim", "park"),
        (token("park"), bearer("park"), KEY, None, "park"),
        (token("lee"), bearer("park"), KEY, None, "contradiction"),
        (token("park", tenant="a"), bearer("park", tenant="b"), KEY, None, "contradiction"),
        (token("lee"), None, None, "kim", "no_key"),
        (token("lee", audience="another"), None, KEY, "kim", "wrong_audience"),
        ("", None, KEY, "kim", "malformed"),
        (7, None, KEY, "kim", "malformed"),
        ({"sub": "lee"}, bearer("lee"), KEY, "kim", "malformed"),
    ],
)
def test_who_calls(
    meta: object, header: Identity | None, key: Secret | None, default: str | None, expected: str | None
) -> None:
    try:
        found = caller(meta, header, key=key, customer=default, now=NOW).customer
    except IdentityInvalid as error:
        found = error.reason
    assert found == expected


def test_what_the_token_says_is_kept() -> None:
    grants = Grants({"1002": (("KRW", 5000),)})
    found = caller(token("lee", tenant="t", run="r", request="q", grants=grants), None, key=KEY, customer=None, now=NOW)
    assert found == Caller(customer="lee", tenant="t", run="r", request="q", scopes=frozenset(TOOLS), grants=grants)
