from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from processes import children
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.signed import AUDIENCE
from siafu.border.identity import IDENTITY_KEY, mint
from siafu.border.secrets import Secret
from siafu.config.mcp_servers import servers
from siafu.config.servers import example_shop, support_desk
from siafu.config.settings import Settings, load
from siafu.errors import ConfigError
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock


@pytest.fixture(autouse=True)
def _plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(IDENTITY_KEY, raising=False)
    monkeypatch.chdir(tmp_path)


def configured(**server: Any) -> Settings:
    return Settings.model_validate({"mcp_servers": {"one": server}})


async def test_without_servers_the_example_shop_stands_in_and_believes_only_us(tmp_path: Path) -> None:
    before = children()
    async with support_desk(load(environ={}, flags={"home": tmp_path / "home"})) as desk:
        assert children() == before  # nothing runs before the first call
        assert {tool.name for tool in await desk.tools.list()} >= {"get_order_status", "check_inventory"}
        assert len(children() - before) == 1 and desk.identity_key is not None
        now = SystemClock().wall()
        for customer, refused in (("kim", False), ("lee", True)):
            token = mint(desk.identity_key, subject=customer, audience=AUDIENCE, scopes=["get_order_status"], now=now)
            context = CallContext(user=customer, identity=token)
            result = await desk.tools.call("get_order_status", {"order_id": "1001"}, context)
            assert result.is_error is refused  # 1001 is kim's
        nobody = await desk.tools.call("get_order_status", {"order_id": "1001"}, CallContext())
        assert nobody.is_error
    assert children() == before and (tmp_path / "home" / "shop.db").exists()


async def test_its_database_can_be_another(tmp_path: Path) -> None:
    async with support_desk(load(environ={}), database=tmp_path / "other.db") as desk:
        assert await desk.tools.list()
    assert (tmp_path / "other.db").exists() and not (tmp_path / ".siafu" / "shop.db").exists()


async def test_its_database_can_be_an_address(postgres_url: str) -> None:
    """And the password in it is not on the shop's command line."""
    async with support_desk(load(environ={}), database=postgres_url) as desk:
        assert await desk.tools.list()
        lines = [await asyncio.to_thread(Path(f"/proc/{child}/cmdline").read_bytes) for child in children()]
        assert any(b"shop\0serve" in line for line in lines)
        assert not any(b"postgresql://" in line for line in lines)
    with closing(ShopDatabase(postgres_url)) as shop:
        assert shop.order("", "kim", "1001") is not None


def test_the_key_of_the_example_shop_never_shows() -> None:
    shop = example_shop(load(environ={}), Secret("k3y" * 20), None)
    assert "k3yk3y" not in repr(shop) and shop.identity == "siafu"


def test_a_password_of_its_database_is_no_argument_of_the_process() -> None:
    shop = example_shop(load(environ={}), Secret("k3y" * 20), "postgresql://shop:geheim77@127.0.0.1/shop")
    assert "geheim77" not in " ".join(shop.args) + repr(shop)
    given = shop.env["SIAFU_SHOP_DATABASE_URL"]
    assert isinstance(given, Secret) and "geheim77" in given.reveal()


async def test_a_server_that_wants_identities_needs_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    wants = configured(command=sys.executable, identity="siafu")
    with pytest.raises(ConfigError, match=IDENTITY_KEY):
        async with support_desk(wants):
            pass
    monkeypatch.setenv(IDENTITY_KEY, "short")
    with pytest.raises(ConfigError, match="fewer than 32"):
        async with support_desk(wants):
            pass
    monkeypatch.setenv(IDENTITY_KEY, "k3y" * 20)
    async with support_desk(wants) as desk:
        assert desk.identity_key == Secret("k3y" * 20)
    async with support_desk(configured(command=sys.executable)) as desk:
        assert desk.identity_key is None


def test_what_is_configured_is_what_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "Bearer 0123456789abcdef")
    (http,) = servers(configured(url="https://a.example/mcp", headers={"Authorization": "env:TOKEN", "x-a": "b"}))
    assert http.headers == {"Authorization": Secret("Bearer 0123456789abcdef"), "x-a": "b"}
    (stdio,) = servers(configured(command="a", args=["b"], cwd="/", timeout_seconds=3, env={"A": "b"}))
    assert (stdio.command, stdio.args, stdio.cwd, stdio.timeout, stdio.env) == ("a", ("b",), "/", 3, {"A": "b"})
    for wrong, words in (
        ({"headers": {"a": "env:NOT_SET"}, "url": "https://a.example"}, r"one.headers.a names .* NOT_SET"),
        ({}, "either a command or a url"),
    ):
        with pytest.raises(ConfigError, match=words):
            servers(configured(**wrong))
