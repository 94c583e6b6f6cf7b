"""Who a call is made for: a short-lived token that a server can check without asking anybody.

A JSON Web Token (RFC 7519) signed with HMAC-SHA256 by a key that both sides hold. It names one customer, one server
(audience) and the tools it may be used for (scope), and lives for minutes. It is minted per request by trusted code
and never shown to a model.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import jwt
import msgspec
from jwt.types import Options

from siafu.border.secrets import Secret, checked_key
from siafu.errors import ConfigError, IdentityInvalid

IDENTITY_KEY = "SIAFU_IDENTITY_KEY"
ALGORITHM = "HS256"
MAX_BYTES = 4096
MAX_MINUTES = 60
MIN_KEY = 32  # characters; RFC 7518, section 3.2: a key of at least the size of the hash
CLOCK_SKEW = 30  # seconds another machine's clock may be ahead of ours

_Word = Annotated[str, msgspec.Meta(max_length=200)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
# ISO 4217 currency, minor units.
Amount = tuple[Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")], Annotated[int, msgspec.Meta(ge=1, le=10**12)]]


class Grants(msgspec.Struct, frozen=True):
    """What the customer's own words name, and so may be asked for: order ids, and the amounts of each. Empty = none
    was named.

    In a token: {"orders": {"1001": [["KRW", 5000]], "1002": []}}. The form before it had a list of orders and, beside
    it, amounts that did not say of which; such a token is refused as malformed.
    """

    orders: Mapping[_Name, tuple[Amount, ...]] = {}


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a checked token says. `subject`: the customer. `scopes`: tool names. `expires`: seconds since 1970.

    tenant, run, request: where the call belongs; role: of the agent that makes it; empty when the token does not say.
    grants: the call may only act on these; None = not limited so, as with a person's own client.
    """

    subject: str
    audience: str
    scopes: frozenset[str]
    tenant: str = ""
    run: str = ""
    request: str = ""
    role: str = ""
    grants: Grants | None = None
    expires: int


class _Claims(msgspec.Struct, kw_only=True):
    sub: _Name
    aud: _Name
    scope: Annotated[str, msgspec.Meta(max_length=2000)]
    iat: int
    exp: int
    tenant: _Word = ""
    run: _Word = ""
    request: _Word = ""
    role: _Word = ""
    grants: Grants | None = None


def checked_identity_key(value: str, where: str) -> Secret:
    """The shared key for signing identities.

    Raises: ConfigError when it is empty, a placeholder or shorter than 32 characters.
    """
    key = checked_key(value, where)
    if len(key.reveal()) < MIN_KEY:
        raise ConfigError(
            f"{where} has fewer than {MIN_KEY} characters and could be guessed; make one with: "
            'python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return key


def identity_key() -> Secret | None:
    """The key that signs who a customer is, of SIAFU_IDENTITY_KEY; None = not set. Raises: ConfigError."""
    given = os.environ.get(IDENTITY_KEY)
    return checked_identity_key(given, IDENTITY_KEY) if given else None


def needed_identity_key(why: str) -> Secret:
    """The same. Raises: ConfigError that ends with `why`, also when it is not set."""
    key = identity_key()
    if key is None:
        raise ConfigError(f"{IDENTITY_KEY} is not set; {why}")
    return key


def mint(  # noqa: PLR0913 - each is one claim of the token
    key: Secret,
    *,
    subject: str,
    audience: str,
    scopes: Iterable[str],
    now: float,
    tenant: str = "",
    run: str = "",
    request: str = "",
    role: str = "",
    grants: Grants | None = None,
    minutes: float = 15,
) -> str:
    """A token for `subject` to use at `audience` for the tools in `scopes`. `now`: seconds since 1970. `role`,
    `grants`: as in `Identity`.

    Raises: ConfigError when a value is empty or too long, or `minutes` is outside 0 to 60.
    """
    if not 0 < minutes <= MAX_MINUTES:
        raise ConfigError(f"an identity lives for more than 0 and at most {MAX_MINUTES} minutes, not {minutes}")
    claims: dict[str, Any] = {
        "sub": subject,
        "aud": audience,
        "scope": " ".join(sorted(scopes)),
        "iat": int(now),
        "exp": int(now + minutes * 60),
        "tenant": tenant,
        "run": run,
        "request": request,
        "role": role,
    }
    if grants is not None:
        claims["grants"] = msgspec.to_builtins(grants)
    try:
        msgspec.convert(claims, _Claims)
    except msgspec.ValidationError as error:
        raise ConfigError(f"no identity can be made from this: {error}") from None
    token = jwt.encode(claims, key.reveal(), algorithm=ALGORITHM)
    if len(token) > MAX_BYTES:
        raise ConfigError(f"the identity would have {len(token):,} bytes; the limit is {MAX_BYTES:,}")
    return token


def verify(token: str, key: Secret, audience: str, now: float) -> Identity:
    """The identity in `token`, when it was signed with `key` for `audience` and is valid at `now`.

    Only HS256 is accepted, whatever the token's header says. Messages never repeat the token.

    Raises: IdentityInvalid.
    """
    if len(token) > MAX_BYTES:
        raise IdentityInvalid("the identity token is too large", reason="too_large")
    try:
        raw = jwt.decode(token, key.reveal(), algorithms=[ALGORITHM], audience=audience, options=_OPTIONS)
        claims = msgspec.convert(raw, _Claims)
    except (jwt.PyJWTError, msgspec.ValidationError, ValueError, RecursionError) as error:
        reason = next((word for kind, word in _REASONS if isinstance(error, kind)), "malformed")
        raise IdentityInvalid(f"the identity token is refused: {reason}", reason=reason) from None
    if claims.exp <= now:
        raise IdentityInvalid("the identity token has expired; get a new one", reason="expired")
    if claims.iat > now + CLOCK_SKEW:
        raise IdentityInvalid("the identity token is from the future; check the clocks", reason="not_yet_valid")
    if claims.exp - claims.iat > MAX_MINUTES * 60:
        raise IdentityInvalid(f"the identity token lives longer than {MAX_MINUTES} minutes", reason="too_long_lived")
    return Identity(
        subject=claims.sub,
        audience=claims.aud,
        scopes=frozenset(claims.scope.split()),
        tenant=claims.tenant,
        run=claims.run,
        request=claims.request,
        role=claims.role,
        grants=claims.grants,
        expires=claims.exp,
    )


# Times are checked above, against the caller's clock; PyJWT would read the machine's.
_OPTIONS: Options = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (jwt.InvalidAlgorithmError, "wrong_algorithm"),
    (jwt.InvalidSignatureError, "bad_signature"),
    (jwt.InvalidAudienceError, "wrong_audience"),
)
