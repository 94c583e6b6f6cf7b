"""A doctor's look at the databases that runs and the example shop use. Nothing is made or changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from siafu.apps.support.shop.money import schema as money
from siafu.apps.support.shop.schema import MIGRATIONS as SHOP
from siafu.config.advice import Row
from siafu.config.settings import Settings
from siafu.errors import ConfigError, StoreError
from siafu.store.database import look
from siafu.store.effect_schema import MIGRATIONS as EFFECTS


async def database_rows(settings: Settings, shop: str | None) -> list[Row]:
    """One row for the database of effects and one for the example shop's. shop: its address; None = its default place,
    if there is one.
    """
    try:
        effects = settings.database("effects.db")
    except ConfigError as error:
        return [Row(check="effects", state="fail", found=error.message)]
    found = [_row("effects", effects, {"effects": len(EFFECTS)})]
    if shop or (settings.home / "shop.db").exists():
        schemas = {"shop": len(SHOP), money.SCHEMA: len(money.MIGRATIONS)}
        found.append(_row("shop", shop or settings.home / "shop.db", schemas))
    return list(await asyncio.gather(*found))


async def _row(name: str, place: str | Path, schemas: dict[str, int]) -> Row:
    """schemas: how many versions of each this program knows."""
    check, what = f"database {name}", {"effects": "the database of effects", "shop": "the shop's database"}[name]
    try:
        for schema, versions in schemas.items():
            where, done = await asyncio.to_thread(look, place, what=what, schema=schema, versions=versions)
            where = where.removeprefix(f"{what} ")
            if done is None:
                return Row(check=check, state="ok", found=f"{where}: new; its tables are made at first use")
            if done < versions:
                return Row(
                    check=check, state="ok", found=f"{where}: of an older version, brought up to date at first use"
                )
    except (ConfigError, StoreError) as error:
        return Row(check=check, state="fail", found=error.message)
    return Row(check=check, state="ok", found=f"{where}: can be read")
