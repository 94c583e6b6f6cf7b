"""The example shop at the front door: where its database and its payment provider are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from siafu.errors import InputError

if TYPE_CHECKING:
    from siafu.apps.support.shop.database import ShopDatabase
    from siafu.apps.support.shop.money.payments import HttpPayments

Where = typer.Option(
    None,
    "--database",
    envvar="SIAFU_SHOP_DATABASE_URL",
    help="A file, sqlite:///PATH or postgresql://..., made when missing. Default: shop.db in SIAFU_HOME or ./.siafu",
    show_default=False,
    show_envvar=True,
)
Payments = typer.Option(
    None,
    envvar="SIAFU_PAYMENTS_URL",
    metavar="URL",
    help="The payment provider, see: siafu payments serve. Without it the shop refunds nothing.",
    show_envvar=True,
)
PaymentsName = typer.Option(
    "",
    envvar="SIAFU_PAYMENTS_NAME",
    metavar="NAME",
    help="Which provider that is; open refunds stay with theirs. Default: what it calls itself, else its URL.",
    show_default=False,
    show_envvar=True,
)
UNPAID = "without SIAFU_PAYMENTS_URL the shop refunds nothing"


def open_provider(url: str | None, name: str) -> HttpPayments:
    """The payment provider. Raises: InputError when there is no `url`; ConfigError when it cannot be used."""
    from siafu.apps.support.shop.money.payments import HttpPayments

    if not url:
        raise InputError("say where the payment provider is: --payments URL")
    return HttpPayments(url, name=name)


def open_shop(database: str | None) -> ShopDatabase:
    """The shop's database at `database`; None or "" = the default place.

    Raises: ConfigError, StoreError.
    """
    from siafu.apps.support.shop.database import ShopDatabase

    home = os.path.expanduser(os.environ.get("SIAFU_HOME") or ".siafu")  # noqa: PTH111 (as for other addresses)
    return ShopDatabase(database or Path(home) / "shop.db")
