"""The folder of a demo, and what is written into it before anything runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from siafu.apps.support import examples
from siafu.apps.support.examples import KnownOrder
from siafu.apps.support.requests import CustomerRequest
from siafu.apps.support.shop.catalogue import products
from siafu.apps.support.shop.orders import first_orders
from siafu.bench.demo.refund_requests import Due, refund_requests
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

    def database(self, program: str) -> Path:
        """Of the shop that serves `program`."""
        return self.path / f"{program}-shop.db"

    def ledger(self, program: str) -> Path:
        """Of the payment provider that serves this shop."""
        return self.path / f"{program}-payments.jsonl"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One request, and the category it was written for. due: the refund that it entitles to, None = to none."""

    category: str
    request: CustomerRequest
    due: Due | None = None


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


def example_cases(count: int, seed: int) -> list[Case]:
    """`count` requests of all kinds about the example shop's orders and products, as `siafu init` makes them."""
    orders = [KnownOrder(order_id=order.order_id, customer=customer) for customer, order in first_orders(products())]
    goods = [(product.name_ko, product.name_en) for product in products()]
    return [
        Case(category=category, request=request)
        for category, request in examples.example_cases(orders, goods, count=count, seed=seed)
    ]


def refund_cases(count: int, seed: int) -> list[Case]:
    """`count` requests, a quarter of them the demo's own about refunds; the same for the same arguments.

    Raises: InputError when the shop has too few orders for that.
    """
    refunds = refund_requests(list(first_orders(products())), count, seed)
    others = [case for case in example_cases(2 * count, seed) if case.category != "refund"]
    cases = [Case(category="refund", request=refund.request, due=refund.due) for refund in refunds]
    cases = [*cases, *others][:count]
    Random(seed).shuffle(cases)
    numbered = [msgspec.structs.replace(case.request, id=f"r{number:03d}") for number, case in enumerate(cases, 1)]
    return [msgspec.structs.replace(case, request=request) for case, request in zip(cases, numbered, strict=True)]


def dues(cases: Iterable[Case]) -> list[Due]:
    """The refunds that the requests entitle to, each once, in the order of the first that asks for it."""
    return list(dict.fromkeys(case.due for case in cases if case.due is not None))


def write_cases(folder: Folder, cases: Sequence[Case]) -> None:
    """Write the requests, one a line.

    Raises: InputError when two have the same text: then the endpoint's records do not tell which one is meant.
    """
    if len({case.request.text for case in cases}) < len(cases):
        raise InputError(f"the example shop is too small for {len(cases):,} different requests; ask for fewer")
    lines = [
        dumps({name: value for name, value in msgspec.structs.asdict(case.request).items() if value is not None})
        for case in cases
    ]
    folder.requests.write_bytes(b"".join(line + b"\n" for line in lines))


def write_settings(folder: Folder, sections: Mapping[str, Mapping[str, Any]]) -> None:
    """The folder's siafu.toml, by section and name. TOML writes strings, numbers, truths and lists as JSON does."""
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
