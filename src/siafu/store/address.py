"""The address of a database: what it means, and how the database is called in messages."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from siafu.border.urls import WRITTEN
from siafu.errors import ConfigError

_LIKE_USER = re.compile(r"(?![/.~]).*:.*@")  # an address whose beginning was left away: no file may be called so


def database_place(url: str | Path, what: str) -> Path | URL:
    """The file, or the address of the server, that `url` means. what: names the database in messages.

    Raises: ConfigError.
    """
    if isinstance(url, Path):
        return url.absolute()
    scheme, mark, rest = url.partition("://")
    if not mark and url and not url.startswith(("sqlite:", "postgresql:", "postgres:")) and not _LIKE_USER.match(url):
        return Path(os.path.expanduser(url)).absolute()  # noqa: PTH111 (another's that there is not stays as it is)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return Path(os.path.expanduser(rest[1:])).absolute()  # noqa: PTH111
    if scheme in ("postgresql", "postgres"):
        with contextlib.suppress(ArgumentError, ValueError):
            found = make_url(url).set(drivername="postgresql+psycopg")
            if "@" not in f"{found.host}{found.database}":  # the rest of a password that was not written in %
                return found
    raise ConfigError(
        f"the address of {what} cannot be used: write a path, sqlite:///PATH or postgresql://host/name ({WRITTEN})"
    )


def database_name(place: Path | URL, what: str) -> str:
    """The database in messages, without the user and password."""
    if isinstance(place, Path):
        return f"{what} {place}"
    port = f":{place.port}" if place.port else ""
    return f"{what} ({place.host or 'local'}{port}/{place.database or ''})"


def server_address(url: str, what: str) -> tuple[str, str | None] | None:
    """The address of a PostgreSQL server as its own programs take it, and the password, which is not in it; None for a
    file. Raises: ConfigError.
    """
    place = database_place(url, what)
    if isinstance(place, Path):
        return None
    bare = URL.create("postgresql", place.username, None, place.host, place.port, place.database, place.query)
    return bare.render_as_string(hide_password=False), None if place.password is None else str(place.password)
