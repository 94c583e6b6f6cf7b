"""The folder of a demo, and what is written into it before anything runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from siafu.apps.support.examples import KnownOrder, example_cases
from siafu.apps.support.requests import CustomerRequest
from siafu.apps.support.shop.database import ShopDatabase
from siafu.border.canonical import dumps
from siafu.errors import InputError

MARK = ".siafu-demo"


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A demo's own folder: absolute, and empty when the demo begins."""

    path: Path

    @property
    def requests(self) -> Path:
        return self.path / "requests.jsonl"

    @property
    def results(self) -> Path:
        return self.path / "results.jsonl"

    @property
    def database(self) -> Path:
        return self.path / "shop.db"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One request, and the category it was written for."""

    category: str
    request: CustomerRequest


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[Folder]:
    """The folder at `path`, emptied, and this process's alone while the block runs; its parents are made.

    Raises: InputError when something else is there, another demo works in it, or it cannot be written.
    """
    path = path.absolute()
    mark = path / MARK
    try:
        if path.exists() and not mark.is_file() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"{path} is no folder of a demo, so it was left as it is; choose another --out")
        path.mkdir(parents=True, exist_ok=True)
        with mark.open("a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"another demo works in {path}; wait for it, or choose another --out") from None
            for entry in path.iterdir():
                if entry != mark:
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            yield Folder(path=path)
    except OSError as error:
        raise InputError(f"{path} cannot be used: {error.strerror}; choose another --out") from None


def write_cases(folder: Folder, count: int, seed: int) -> list[Case]:
    """Make the shop's database and `count` requests about what is in it; no two texts are the same.

    Raises: InputError when the shop has too few orders and products for that, StoreError.
    """
    with contextlib.closing(ShopDatabase(folder.database)) as shop:
        orders = [
            KnownOrder(order_id=order.order_id, customer=customer)
            for customer in shop.customers("")
            for order in shop.orders("", customer)
        ]
        products = [(product.name_ko, product.name_en) for product in shop.products()]
    cases = [
        Case(category=category, request=request)
        for category, request in example_cases(orders, products, count=count, seed=seed)
    ]
    if len({case.request.text for case in cases}) < count:
        raise InputError(f"the example shop is too small for {count:,} different requests; ask for fewer")
    lines = [
        dumps({name: value for name, value in msgspec.structs.asdict(case.request).items() if value is not None})
        for case in cases
    ]
    folder.requests.write_bytes(b"".join(line + b"\n" for line in lines))
    return cases


def write_settings(folder: Folder, sections: Mapping[str, Mapping[str, str | int]]) -> None:
    """The folder's siafu.toml, by section and name. Strings and integers of TOML are written like those of JSON."""
    parts = []
    for section, values in sections.items():
        lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in values.items()]
        parts.append("\n".join([f"[{section}]", *lines, ""]))
    (folder.path / "siafu.toml").write_text("\n".join(parts), encoding="utf-8")


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment for a child, without settings of siafu or OpenAI, and past any proxy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SIAFU_", "OPENAI_"))}
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1"]))
    return {**kept, "NO_PROXY": direct, "no_proxy": direct, **more}


def new_key() -> str:
    """A key for identities, good for one demo."""
    return secrets.token_hex(32)
