"""Budgets beyond that of one run: within it, shared by processes, and the models that save them."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from siafu.border.money import parse_usd
from siafu.border.text import preview
from siafu.config.settings import Settings
from siafu.config.upstream_keys import named_keys
from siafu.errors import ConfigError
from siafu.gateway.accounts import Accounts
from siafu.gateway.thrift import Thrift
from siafu.pace.clock import Clock


@contextlib.asynccontextmanager
async def open_accounts(
    settings: Settings, journal: Path | None, clock: Clock, *, clients: bool = False
) -> AsyncIterator[Accounts]:
    """The accounts of a run, within the budgets a day that there are; what this process holds of them is given back
    with the block. clients: the budgets of client keys are kept too, where several servers may share them.

    Raises: ConfigError, StoreError.
    """
    own = settings.budgets
    limits = key_budgets(settings)
    lends = clients and settings.database_url is not None
    if own.day is None and not own.roles and not limits and not lends:
        yield Accounts()
        return
    from siafu.gateway.shared import Daily, Slices  # noqa: PLC0415 (SQLAlchemy, 140 ms)
    from siafu.store.budgets import MIGRATIONS, SCHEMA, Budgets  # noqa: PLC0415
    from siafu.store.database import Database  # noqa: PLC0415

    owner = uuid.uuid4().hex[:16]
    url = settings.database("budgets.db")
    database = await asyncio.to_thread(Database, url, MIGRATIONS, what="the budgets' database", schema=SCHEMA)
    slices = Slices(Budgets(database, owner, journal), clock)
    day = None if own.day is None else Daily(parse_usd(own.day), slices)
    roles = {role: Daily(parse_usd(amount), slices, role=role) for role, amount in own.roles.items()}
    keys = {key: Daily(amount, slices, key=key) for key, amount in limits.items()}
    try:
        renewing = asyncio.create_task(slices.run(), name="siafu budgets")
        try:
            yield Accounts(day, owner, roles=roles, keys=keys, lend=slices.lend if lends else None)
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
            await slices.release()
    finally:
        await database.aclose()


def key_budgets(settings: Settings) -> dict[str, int]:
    """The budgets a day of keys of upstreams, in pico-dollars, by their ids. Raises: ConfigError for one of a key that
    is not there.
    """
    own = settings.budgets.keys
    known = [f"{name}#{key.number}" for name, keys in (named_keys(settings) if own else {}).items() for key in keys]
    for id in own:
        if id not in known:
            near = difflib.get_close_matches(id, known, n=1)
            raise ConfigError(
                f"budgets.keys names {preview(id, 60)!r}, which is no key of an upstream"
                + (f"; did you mean {near[0]!r}?" if near else ": siafu upstream-keys list")
            )
    return {id: parse_usd(amount) for id, amount in own.items()}


def keys_today(settings: Settings, wall: float) -> dict[str, tuple[int, int]]:
    """What is spent of the budgets of keys of upstreams on the day in which `wall` lies, and those budgets, by their
    ids. Blocks. Raises: ConfigError, StoreError.
    """
    limits = key_budgets(settings)
    if not limits:
        return {}
    from siafu.gateway.shared import day_budget  # noqa: PLC0415 (SQLAlchemy, 140 ms)

    names = {id: day_budget(wall, limit, key=id).name for id, limit in limits.items()}
    spent = spent_of_budgets(settings, list(names.values()))
    return {id: (spent.get(names[id], 0), limit) for id, limit in limits.items()}


def spent_of_budgets(settings: Settings, names: Sequence[str]) -> Mapping[str, int]:
    """What all processes told of what they spent of shared budgets, by the names of those that anybody has used; it may
    be some seconds old. Blocks; makes no database. Raises: ConfigError, StoreError.
    """
    from siafu.store.budgets import MIGRATIONS, SCHEMA, spent_of  # noqa: PLC0415 (SQLAlchemy, 140 ms)
    from siafu.store.database import Database  # noqa: PLC0415

    url = settings.database("budgets.db")
    if not names or (isinstance(url, Path) and not url.exists()):
        return {}
    with contextlib.closing(Database(url, MIGRATIONS, what="the budgets' database", schema=SCHEMA)) as database:
        return spent_of(database, names)


def thrift(settings: Settings) -> Thrift | None:
    """The soft limit; None = there is none. Raises: ConfigError."""
    own = settings.budgets
    if own.soft is None and not own.cheaper:
        return None
    if own.soft is None or not own.cheaper:
        raise ConfigError('budgets.soft and budgets.cheaper go together: soft = 0.8, cheaper = { "MODEL" = "MODEL" }')
    return Thrift(soft=own.soft, cheaper=own.cheaper)
