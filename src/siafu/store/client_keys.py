"""Client keys: who may use what siafu serves, and how much of it.

A key is 256 random bits and is shown once. What is kept is its SHA-256: there is nothing to guess in such a key, so a
slow or salted hash, which protects words that people choose, would only slow every request down. A key is created and
revoked, never changed; so the numbers of keys and of revoked ones tell whether anything is new.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from siafu.border.secrets import Secret
from siafu.errors import InputError
from siafu.store.database import Database, Transaction

PREFIX = "sk-siafu-"
RANDOM_BYTES = 32
HINT = len(PREFIX) + 4  # characters of a key that stay visible: enough to recognise it, not to guess it

MIGRATIONS: Sequence[Sequence[str]] = (
    (
        """CREATE TABLE client_key (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            hash TEXT NOT NULL UNIQUE,
            hint TEXT NOT NULL,
            models TEXT NOT NULL,
            customer TEXT NOT NULL,
            tenant TEXT NOT NULL,
            day_pico {integer} CHECK (day_pico >= 0),
            total_pico {integer} CHECK (total_pico >= 0),
            allow_unpriced {integer} NOT NULL CHECK (allow_unpriced IN (0, 1)),
            rpm {integer} CHECK (rpm > 0),
            concurrency {integer} CHECK (concurrency > 0),
            created_at {real} NOT NULL,
            expires_at {real},
            revoked_at {real}
        ) {strict}""",
    ),
    ("ALTER TABLE client_key ADD COLUMN priority {integer} NOT NULL DEFAULT 2 CHECK (priority BETWEEN 1 AND 3)",),
    ("""ALTER TABLE client_key ADD COLUMN scopes TEXT NOT NULL DEFAULT '["read","submit","cancel"]'""",),
)
SCOPES = ("read", "submit", "cancel")
_LISTS = ("models", "scopes")  # kept as JSON


class KeyTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a key allows. models: names; one that ends in `*` stands for all that begin so. customer: whom requests to
    a swarm are for, "" = nobody. tenant: a label for routes and records. day_pico, total_pico: budgets in pico-dollars,
    by UTC day and for ever; allow_unpriced: models without a price may run under them. rpm: requests in any 60 seconds.
    concurrency: requests at once. None = no limit. priority: the best that its requests may have, 1 (first) to 3.
    scopes: of SCOPES, what it may do: look, have something done, stop and delete.
    """

    name: str
    models: tuple[str, ...] = ("*",)
    customer: str = ""
    tenant: str = ""
    day_pico: int | None = None
    total_pico: int | None = None
    allow_unpriced: bool = False
    rpm: int | None = None
    concurrency: int | None = None
    priority: int = 2
    scopes: tuple[str, ...] = SCOPES

    @property
    def has_budget(self) -> bool:
        return self.day_pico is not None or self.total_pico is not None

    def allows(self, model: str) -> bool:
        """Whether the key may use a model."""
        return any(model == name or (name.endswith("*") and model.startswith(name[:-1])) for name in self.models)


class ClientKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is kept. hash: SHA-256 (hex). hint: how it begins. Times are seconds since 1970."""

    id: str
    hash: str
    hint: str
    terms: KeyTerms
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def state(self, now: float) -> str:
        """active, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


def hash_of(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


class ClientKeys:
    """The keys in a database opened with MIGRATIONS, which stays the caller's to close. Raises: StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, terms: KeyTerms, *, seconds: float | None = None) -> tuple[ClientKey, Secret]:
        """A new key, and its text, which nobody can read again. seconds: how long it lives, None = until revoked."""
        text = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        values = {
            **msgspec.structs.asdict(terms),
            **{name: msgspec.json.encode(getattr(terms, name)).decode() for name in _LISTS},
            "allow_unpriced": int(terms.allow_unpriced),
            "id": f"key_{secrets.token_hex(6)}",
            "hash": hash_of(text),
            "hint": text[:HINT],
        }
        names = ", ".join(values)
        sql = f"""INSERT INTO client_key ({names}, created_at, expires_at)
            VALUES ({", ".join(f":{name}" for name in values)}, {{now}}, {{now}} + :seconds) RETURNING *"""  # noqa: S608
        (row,) = await self._database.run(lambda tx: tx.rows(sql, **values, seconds=seconds))
        return _key(row), Secret(text)

    async def all(self) -> list[ClientKey]:
        """Every key that was ever created, oldest first."""
        sql = "SELECT * FROM client_key ORDER BY created_at, id"
        return [_key(row) for row in await self._database.run(lambda tx: tx.rows(sql))]

    async def edition(self) -> tuple[int, int]:
        """Two numbers that change with every change of the keys."""
        sql = "SELECT COUNT(*) AS known, COUNT(revoked_at) AS revoked FROM client_key"
        (row,) = await self._database.run(lambda tx: tx.rows(sql))
        return row["known"], row["revoked"]

    async def revoke(self, id: str) -> ClientKey:
        """Take a key back, for ever; one that is revoked stays as it is.

        Raises: InputError when there is none with this id.
        """

        def revoke(tx: Transaction) -> Mapping[str, Any] | None:
            tx.change("UPDATE client_key SET revoked_at = {now} WHERE id = :id AND revoked_at IS NULL", id=id)
            return tx.row("SELECT * FROM client_key WHERE id = :id", id=id)

        row = await self._database.run(revoke)
        if row is None:
            raise InputError(f"there is no client key {id[:60]!r}; see: siafu keys list")
        return _key(row)


def _key(row: Mapping[str, Any]) -> ClientKey:
    values = dict(row)
    values |= {name: msgspec.json.decode(values[name]) for name in _LISTS}
    values["allow_unpriced"] = bool(values["allow_unpriced"])
    terms = msgspec.convert({name: values[name] for name in KeyTerms.__struct_fields__}, KeyTerms)
    return ClientKey(terms=terms, **{name: row[name] for name in ClientKey.__struct_fields__ if name != "terms"})
