"""Budgets beyond that of one run: within it, shared by processes, and the models that save them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from siafu.border.money import parse_usd
from siafu.config.settings import Settings
from siafu.errors import ConfigError
from siafu.gateway.accounts import Accounts
from siafu.gateway.thrift import Thrift
from siafu.pace.clock import Clock


@contextlib.asynccontextmanager
async def open_accounts(settings: Settings, journal: Path | None, clock: Clock) -> AsyncIterator[Accounts]:
    """The accounts of a run, within the budgets a day that there are; what this process holds of them is given back
    with the block.

    Raises: ConfigError, StoreError.
    """
    own = settings.budgets
    if own.day is None and not own.roles:
        yield Accounts()
        return
    from siafu.gateway.shared import Daily  # noqa: PLC0415 (SQLAlchemy, 140 ms)
    from siafu.store.budgets import MIGRATIONS, SCHEMA, Budgets  # noqa: PLC0415
    from siafu.store.database import Database  # noqa: PLC0415

    owner = uuid.uuid4().hex[:16]
    url = settings.database("budgets.db")
    database = await asyncio.to_thread(Database, url, MIGRATIONS, what="the budgets' database", schema=SCHEMA)
    lender = Budgets(database, owner, journal)
    daily = None if own.day is None else Daily(parse_usd(own.day), lender, clock)
    roles = {role: Daily(parse_usd(amount), lender, clock, role) for role, amount in own.roles.items()}
    every = [*([] if daily is None else [daily]), *roles.values()]
    try:
        renewing = [asyncio.create_task(each.run(), name="siafu budgets") for each in every]
        try:
            yield Accounts(
                None if daily is None else daily.today,
                owner,
                None if daily is None else daily.change,
                {role: each.today for role, each in roles.items()},
            )
        finally:
            for task in renewing:
                task.cancel()
            await asyncio.wait(renewing)
            for each in every:
                await each.release()
    finally:
        await database.aclose()


def thrift(settings: Settings) -> Thrift | None:
    """The soft limit; None = there is none. Raises: ConfigError."""
    own = settings.budgets
    if own.soft is None and not own.cheaper:
        return None
    if own.soft is None or not own.cheaper:
        raise ConfigError('budgets.soft and budgets.cheaper go together: soft = 0.8, cheaper = { "MODEL" = "MODEL" }')
    return Thrift(soft=own.soft, cheaper=own.cheaper)
