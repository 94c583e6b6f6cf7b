from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.border.identity import Grants, Identity, checked_identity_key, mint, verify
from siafu.border.secrets import Secret
from siafu.errors import ConfigError, IdentityInvalid

KEY, OTHER = Secret("k" * 64), Secret("o" * 64)
NOW = 1_800_000_000.0
CLAIMS: dict[str, Any] = {"sub": "kim", "aud": "siafu-shop", "scope": "a b", "iat": int(NOW), "exp": int(NOW) + 900}


def signed(key: Secret = KEY, algorithm: str = "HS256", **changed: Any) -> str:
    """A token with some claims changed; None leaves a claim away."""
    claims = {name: value for name, value in {**CLAIMS, **changed}.items() if value is not None}
    return jwt.encode(claims, key.reveal(), algorithm=algorithm)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def reason(token: str, now: float = NOW, audience: str = "siafu-shop") -> str:
    with pytest.raises(IdentityInvalid) as caught:
        verify(token, KEY, audience, now)
    assert len(token) < 10 or token not in caught.value.message
    return caught.value.reason


def test_what_is_minted_is_read_back() -> None:
    token = mint(
        KEY, subject="김", audience="shop", scopes=["b", "a"], tenant="t", run="r", request="q", minutes=15, now=NOW
    )
    assert verify(token, KEY, "shop", NOW) == Identity(
        subject="김",
        audience="shop",
        scopes=frozenset({"a", "b"}),
        tenant="t",
        run="r",
        request="q",
        expires=int(NOW) + 900,
    )
    assert verify(signed(), KEY, "siafu-shop", NOW).subject == "kim"  # the positive control of the tables below


@pytest.mark.parametrize("grants", [None, Grants(), Grants({"1001": (("KRW", 1), ("USD", 50_000)), "주문-2": ()})])
def test_grants_are_read_back(grants: Grants | None) -> None:
    token = mint(KEY, subject="kim", audience="shop", scopes=["a"], grants=grants, now=NOW)
    assert verify(token, KEY, "shop", NOW).grants == grants


@pytest.mark.parametrize(
    "grants",
    [
        *(Grants({"": ()}), Grants({"x" * 201: ()}), Grants({f"{n:050}": () for n in range(99)})),
        *(Grants({"1": (sum,)}) for sum in (("KRW", 0), ("KRW", 10**12 + 1), ("won", 1))),
    ],
)
def test_grants_that_cannot_be_are_not_minted(grants: Grants) -> None:
    with pytest.raises(ConfigError):
        mint(KEY, subject="kim", audience="shop", scopes=["a"], grants=grants, now=NOW)


@pytest.mark.parametrize(
    "grants",
    [
        [],
        {"orders": "1001"},
        {"orders": {"1001": [5]}},
        {"orders": {"1001": [["KRW", 1.5]]}},
        {"orders": {"1001": [["KRW", True]]}},
        {"orders": {"1001": None}},
        # As tokens had it before each amount was of an order.
        {"orders": ["1001"], "amounts": []},
        {"orders": ["1001", "1002"], "amounts": [["KRW", 5]]},
        {"orders": [], "amounts": [["KRW", 5]]},
    ],
)
def test_malformed_grants_do_not_pass_for_no_limit(grants: Any) -> None:
    assert reason(signed(grants=grants)) == "malformed"


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (signed(OTHER), "bad_signature"),
        (signed(aud="another-server"), "wrong_audience"),
        (signed(aud=None), "malformed"),
        (signed(aud=["siafu-shop"]), "malformed"),
        (signed(algorithm="HS512"), "wrong_algorithm"),
        (signed(algorithm="HS384"), "wrong_algorithm"),
        (f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(CLAIMS)}.", "wrong_algorithm"),
        (f"{part({'typ': 'JWT'})}.{part(CLAIMS)}.", "wrong_algorithm"),
        (f"{part({'alg': ['HS256']})}.{part(CLAIMS)}.AAAA", "wrong_algorithm"),
        (f"{part({'alg': 'HS256'})}.{part(CLAIMS)}.", "bad_signature"),
        (signed(exp=int(NOW)), "expired"),
        (signed(exp=None), "malformed"),
        (signed(exp="soon"), "malformed"),
        (signed(iat=int(NOW) + 31, exp=int(NOW) + 600), "not_yet_valid"),
        (signed(iat=None), "malformed"),
        (signed(exp=int(NOW) + 3601), "too_long_lived"),
        (signed(sub=None), "malformed"),
        (signed(sub=""), "malformed"),
        (signed(sub="k" * 201), "malformed"),
        (signed(scope=None), "malformed"),
        (signed(scope=["a"]), "malformed"),
        (signed(scope="x" * 5000), "too_large"),
        ("x" * 100_000, "too_large"),
        ("", "malformed"),
        ("a.b.c", "malformed"),
        ("\ud800", "malformed"),
        ("[" * 2000 + "." + "[" * 1000 + ".", "malformed"),
    ],
)
def test_refused(token: str, why: str) -> None:
    assert reason(token) == why


def test_expiry_is_exact() -> None:
    assert verify(signed(), KEY, "siafu-shop", NOW + 899.9).subject == "kim"
    assert reason(signed(), NOW + 900) == "expired"


@given(st.data())
def test_no_changed_character_passes(data: st.DataObject) -> None:
    token = signed()
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters().filter(lambda c: c != token[at]))
    with pytest.raises(IdentityInvalid):
        verify(token[:at] + other + token[at + 1 :], KEY, "siafu-shop", NOW)


@given(st.text())
def test_no_text_passes_or_breaks_the_check(text: str) -> None:
    with pytest.raises(IdentityInvalid):
        verify(text, KEY, "siafu-shop", NOW)


@pytest.mark.parametrize(
    "wrong",
    [
        {"subject": ""},
        {"subject": "k" * 201},
        {"audience": ""},
        {"scopes": ["x" * 2001]},
        {"run": "r" * 201},
        {"minutes": 0},
        {"minutes": 61},
        {"minutes": float("nan")},
    ],
)
def test_nothing_is_minted_that_would_be_refused(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"subject": "kim", "audience": "shop", "scopes": ["a"], "now": NOW}
    with pytest.raises(ConfigError):
        mint(KEY, **{**good, **wrong})
    assert mint(KEY, **good)


@pytest.mark.parametrize("key", ["", "short", "x" * 31, "your-identity-key-goes-here-please-now", "한글" * 20])
def test_weak_keys_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="SIAFU_IDENTITY_KEY"):
        checked_identity_key(key, "SIAFU_IDENTITY_KEY")
    assert checked_identity_key("a1" * 16, "SIAFU_IDENTITY_KEY").reveal() == "a1" * 16
