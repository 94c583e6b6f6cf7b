"""The databases that siafu keeps: which there are, where, and how they stand. Looking makes and changes nothing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from siafu.apps.support.shop.money import schema as money
from siafu.apps.support.shop.schema import MIGRATIONS as SHOP
from siafu.apps.support.threads import MIGRATIONS as THREADS
from siafu.config.advice import Row
from siafu.config.settings import Settings
from siafu.errors import ConfigError, StoreBusy, StoreError
from siafu.store import batches, budgets, canaries
from siafu.store.address import database_place
from siafu.store.client_keys import MIGRATIONS as CLIENT_KEYS
from siafu.store.database import Database, look
from siafu.store.effect_schema import MIGRATIONS as EFFECTS
from siafu.store.task_schema import MIGRATIONS as TASKS
from siafu.store.upkeep import (
    JOURNAL_STEPS,
    copy_bytes,
    copy_file,
    dump,
    journal_version,
    kept_files,
    to_disk,
    unless_gone,
    upgrade_journal,
)

FILES = "files.db"
STORED = ("files/*", "batches/*/*.jsonl")  # what that tells of
DUMP, SHOP_DUMP = "siafu.dump", "shop.dump"  # copies of databases on servers
Standing = Literal["new", "current", "older", "newer", "in use"]
Steps = Sequence[Sequence[str]]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A schema of ours. place: of its database. what: that is called so in messages. schemas may share a database."""

    name: str
    place: str | Path
    what: str
    schema: str
    steps: Steps


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """How one stands. where: its database, without user and password. version: steps it has taken, None = it is not
    there yet; known: that there are.
    """

    name: str
    where: str
    state: Standing
    version: int | None
    known: int


def kept(settings: Settings, shop: str | None) -> list[Kept]:
    """Every schema of ours in SQL. shop: the address of the example shop's database; None = its default place.

    Raises: ConfigError.
    """
    own: list[tuple[str, str, str, str, Steps]] = [
        ("tasks", "tasks.db", "the database of tasks", "tasks", TASKS),
        ("effects", "effects.db", "the database of effects", "effects", EFFECTS),
        ("conversations", "support.db", "the database of conversations", "support", THREADS),
        ("client keys", "keys.db", "the database of client keys", "client_keys", CLIENT_KEYS),
        ("budgets", "budgets.db", "the budgets' database", budgets.SCHEMA, budgets.MIGRATIONS),
        ("canaries", "canary.db", "the database of canaries", canaries.SCHEMA, canaries.MIGRATIONS),
    ]
    found = [
        Kept(name=name, place=settings.database(file), what=what, schema=schema, steps=steps)
        for name, file, what, schema, steps in own
    ]
    files = settings.home / FILES  # there in any case: its bytes are there too
    found.append(
        Kept(
            name="batches",
            place=files,
            what="the database of files and batches",
            schema=batches.SCHEMA,
            steps=batches.MIGRATIONS,
        )
    )
    example, what = shop or settings.home / "shop.db", "the shop's database"
    for name, schema, steps in (("shop", "shop", SHOP), ("shop's money", money.SCHEMA, money.MIGRATIONS)):
        found.append(Kept(name=name, place=example, what=what, schema=schema, steps=steps))
    return found


def _file(one: Kept) -> Path | None:
    """None for a database on a server."""
    place = database_place(one.place, one.what)
    return place if isinstance(place, Path) else None


def stand(one: Kept) -> Stand:
    """Blocks. Raises: ConfigError, StoreError, also for one that a newer siafu has written."""
    known = len(one.steps)
    where, done = look(one.place, what=one.what, schema=one.schema, versions=known)
    state: Standing = "new" if done is None else "older" if done < known else "current"
    return Stand(name=one.name, where=where, state=state, version=done, known=known)


def stands(settings: Settings, shop: str | None) -> tuple[list[Stand], list[str]]:
    """How all of them stand, and what is wrong with those that cannot be used. Blocks. Raises: ConfigError."""
    found, faults, away = list[Stand](), list[str](), set[str | Path]()
    for one in kept(settings, shop):
        if one.place in away:  # each would wait for it, to say the same
            continue
        try:
            found.append(stand(one))
        except StoreError as error:
            away.add(one.place)
            faults.append(error.message)
    try:
        found += journals(settings.home)
    except StoreError as error:
        faults.append(error.message)
    faults += [f"{each.where} was written by a newer siafu: update siafu" for each in found if each.state == "newer"]
    return found, faults


def journals(home: Path) -> list[Stand]:
    """How the journals and ledgers of a home folder stand. Blocks. Raises: StoreError."""
    found = list[Stand]()
    for path, kind in kept_files(home).items():
        with unless_gone(path):
            if kind == "journal":
                found.append(_journal(path))
    return found


def _journal(path: Path) -> Stand:
    done = journal_version(path)
    state: Standing = "current" if done == JOURNAL_STEPS else "older" if done < JOURNAL_STEPS else "newer"
    return Stand(name=path.stem, where=str(path), state=state, version=done, known=JOURNAL_STEPS)


def upgrade(settings: Settings, shop: str | None) -> Iterator[tuple[Stand, Stand]]:
    """Bring up to date what is there, one after the other: how it stood, and how it stands. On a server, where a worker
    perhaps may not make tables, also what is not there yet. A journal that a process writes is left to it ("in use").
    Blocks. Raises: ConfigError, StoreError.
    """
    for one in kept(settings, shop):
        before = stand(one)
        if before.state == "older" or (before.state == "new" and _file(one) is None):
            Database(one.place, one.steps, what=one.what, schema=one.schema).close()
        yield before, stand(one)
    for before in journals(settings.home):
        if before.state == "older":
            try:
                upgrade_journal(Path(before.where))
            except StoreBusy:
                yield before, msgspec.structs.replace(before, state="in use")
                continue
        yield before, _journal(Path(before.where))


def back_up(settings: Settings, shop: str | None, target: Path) -> list[Path]:
    """Copy all that siafu keeps in SQL, and the bytes of stored files and batches, into the new folder `target`, while
    it is in use; returns what was written. Of what cannot be copied whole nothing is left behind. Blocks.

    Raises: ConfigError; StoreError, also when there is something at `target`.
    """
    if target.is_relative_to(settings.home.absolute()):
        raise ConfigError(f"{target} is within SIAFU_HOME, which is what is copied: choose another place")
    draft = target.with_name(target.name + ".part")
    if target.exists() or target.is_symlink() or draft.exists():
        there = target if target.exists() or target.is_symlink() else draft
        raise StoreError(f"{there} is there already, and nothing is overwritten: choose another place, or move it away")
    try:
        draft.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise StoreError(f"{target} cannot be made ({error.strerror}): choose another place") from error
    try:
        written = list(_copies(settings, shop, draft))
        if not written:
            raise StoreError(f"there is nothing to back up: {settings.home} holds no database")
        draft.rename(target)
        to_disk(target.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return [target / path.relative_to(draft) for path in written]


def _copies(settings: Settings, shop: str | None, draft: Path) -> Iterator[Path]:
    home = settings.home.absolute()
    files = {path: path.relative_to(home) for path in kept_files(home)} if home.is_dir() else {}
    servers: dict[str, tuple[Path, str]] = {}
    for one in kept(settings, shop):
        file = _file(one)
        if file is None:
            name = SHOP_DUMP if one.name.startswith("shop") else DUMP
            servers.setdefault(str(one.place), (draft / name, one.what))
        elif file.exists() and file not in files:  # it is not in the home folder
            files[file] = inside = Path(file.name)
            while list(files.values()).count(inside) > 1:
                files[file] = inside = "elsewhere" / inside
    yield from _stored(home, draft)  # before their database, so that a batch which ends meanwhile can go on
    for source, inside in files.items():
        (draft / inside).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with unless_gone(source):
            copy_file(source, draft / inside)
            yield draft / inside
    yield from _stored(home, draft)  # and after it, so that all that it knows is there
    for url, (target, what) in servers.items():
        dump(url, target, what)
        yield target


def _stored(home: Path, draft: Path) -> Iterator[Path]:
    """Copy the bytes of files and batches that are not in `draft` yet. Raises: StoreError."""
    for source in sorted(path for pattern in STORED for path in home.glob(pattern)):
        target = draft / source.relative_to(home)
        if source.is_symlink() or source.suffix == ".part" or target.exists():
            continue
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with unless_gone(source):
            try:
                copy_bytes(source, target)
            except OSError as error:
                raise StoreError(f"{source} cannot be copied to {target}: {error.strerror}") from error
            yield target


async def database_rows(settings: Settings, shop: str | None) -> list[Row]:
    """A doctor's rows on what is kept: tasks, effects, and the example shop's database, if there is one."""
    try:
        all_of_them = kept(settings, shop)
    except ConfigError as error:
        return [Row(check="databases", state="fail", found=error.message)]
    rows = {name: [one for one in all_of_them if one.name.startswith(name)] for name in ("tasks", "effects", "shop")}
    if not shop and not (settings.home / "shop.db").exists():
        del rows["shop"]
    return list(await asyncio.gather(*(_row(name, ones) for name, ones in rows.items())))


async def _row(name: str, ones: Sequence[Kept]) -> Row:
    """ones: schemas in one database."""
    check = f"database {name}"
    try:
        found = [await asyncio.to_thread(stand, one) for one in ones]
    except (ConfigError, StoreError) as error:
        return Row(check=check, state="fail", found=error.message)
    where, states = found[0].where.removeprefix(f"{ones[0].what} "), {each.state for each in found}
    if "new" in states:
        return Row(check=check, state="ok", found=f"{where}: new; its tables are made at first use")
    if "older" in states:
        told = f"{where}: of an older version, brought up to date at first use"
        return Row(check=check, state="ok", found=told, advice="or now: siafu db upgrade")
    return Row(check=check, state="ok", found=f"{where}: can be read")
