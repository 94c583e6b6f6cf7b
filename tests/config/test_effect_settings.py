"""The effect contract from siafu.toml and the environment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from siafu.agents.replay import Replay
from siafu.agents.task import Surroundings, TaskContext
from siafu.apps.support.signed import AUDIENCE
from siafu.border.identity import mint
from siafu.border.secrets import Secret, redact
from siafu.config.doctor import settings_rows
from siafu.config.effects import SHOP_RULES, effect_people, effect_rules, open_effects
from siafu.config.servers import support_desk
from siafu.config.settings import given, load
from siafu.errors import ConfigError, StoreError, ToolDenied
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.tools.effect_rules import Above, EffectRule, Lookup, Most
from siafu.tools.filtered import Filtered

CASHIER = Path(__file__).parents[1] / "tools" / "servers" / "cashier.py"
WRITTEN = """
[mcp_servers.cash]
command = "{python}"
args = ["{cashier}", "{folder}"]

[tools.effects."cash.pay"]
key = ["request", "order_id"]
ignore = ["reason"]
honours_key = true
lookup = {{ tool = "find", arguments = {{ key = "$key" }}, found = "refunds" }}
unknown = "review"
approval = {{ argument = "amount", above = 100000 }}
daily_calls = 20
daily_total = {{ argument = "amount", max = 1000000 }}
lease_seconds = 30
"""


def settings(folder: Path, text: str = WRITTEN, **environ: str) -> Any:
    path = folder / "siafu.toml"
    path.write_text(text.format(python=sys.executable, cashier=CASHIER, folder=folder), encoding="utf-8")
    return load(config=path, flags={"home": folder / "home"}, environ=environ)


def test_a_rule_is_read_as_it_is_written(tmp_path: Path) -> None:
    found = effect_rules(settings(tmp_path), ["cash", "other"])
    assert found == {
        "cash": {
            "cash.pay": EffectRule(
                key=("request", "order_id"),
                ignore=("reason",),
                honours_key=True,
                lookup=Lookup(tool="find", arguments={"key": "$key"}, found="refunds"),
                unknown="review",
                approval=Above("amount", 100_000),
                daily_calls=20,
                daily_total=Most("amount", 1_000_000),
                lease_seconds=30,
            )
        }
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[tools.effects."cash.pay"]\nkye = "step"', 'tools.effects."cash.pay": .*kye'),
        ('[tools.effects."cash.pay"]\nunknown = "repeat"', "honours_key"),
        ('[tools.effects."cash.pay"]\nkey = ["order_id"]', "key is"),
        ('[tools.effects."cash.pay"]\napproval = {{ above = 5 }}', "argument"),
        ('[tools.effects."cash.pay"]\ndaily_total = {{ argument = "a", max = 1.5 }}', "int"),
        ('[tools.effects."cash.pay"]\nlookup = {{ tool = "f", found = "x", arguments = {{ a = "$kez" }} }}', "kez"),
        ('[tools.effects."csah.pay"]\nkey = "step"', "one of the servers cash"),
        ('[tools.effects.cash.pay]\nkey = "step"', "in quotes"),
    ],
)
def test_a_rule_that_cannot_hold_is_told_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        effect_rules(settings(tmp_path, text), ["cash"])


def test_the_example_shop_has_rules_which_the_settings_replace(tmp_path: Path) -> None:
    assert effect_rules(load(environ={}), []) == {"shop": SHOP_RULES}
    assert effect_rules(load(environ={}), ["cash"]) == {}
    text = '[tools.effects."shop.open_ticket"]\nkey = "request"\n'
    own = effect_rules(settings(tmp_path, text), [])["shop"]
    assert own["shop.open_ticket"] == EffectRule(key="request")
    assert own["shop.process_refund"] == SHOP_RULES["shop.process_refund"]


async def test_configured_tools_act_under_their_rules(tmp_path: Path) -> None:
    conf = settings(tmp_path)
    async with support_desk(conf) as desk:
        tools = {tool.name: tool for tool in await desk.tools.list()}
        assert tools["pay"].guarded and not tools["find"].guarded
        ask = CallContext(run="r", task="t", step="#0", user="kim")
        for _ in range(2):
            assert not (await desk.tools.call("pay", {"order_id": "7", "amount": 5}, ask)).is_error
        assert (await desk.tools.call("pay", {"order_id": "8", "amount": 100_001}, ask)).code == "pending_approval"
    assert len((tmp_path / "paid").read_text().splitlines()) == 1
    async with effect_people(conf) as people:
        assert [effect.state for effect in await people.effects()] == ["succeeded", "pending_approval"]


async def test_a_rule_for_a_tool_that_the_server_lacks_stops_everything(tmp_path: Path) -> None:
    conf = settings(tmp_path, WRITTEN.replace("cash.pay", "cash.pya"))
    async with support_desk(conf) as desk:
        with pytest.raises(ConfigError, match=r"did you mean cash\.pay"):
            await desk.tools.list()


async def test_the_example_shops_writing_tools_are_guarded_and_act_once(tmp_path: Path) -> None:
    conf = load(flags={"home": tmp_path}, environ={})
    async with support_desk(conf) as desk:
        tools = {tool.name: tool for tool in await desk.tools.list()}
        assert {f"shop.{name}" for name, tool in tools.items() if tool.guarded} == set(SHOP_RULES)
        assert desk.identity_key is not None
        now = SystemClock().wall()
        token = mint(desk.identity_key, subject="kim", audience=AUDIENCE, scopes=["reserve_stock"], now=now)
        ask = CallContext(run="r", task="t", step="#0", user="kim", identity=token)
        wanted = {"sku": "SKU-2001", "quantity": 2}
        first, second = [await desk.tools.call("reserve_stock", wanted, ask) for _ in range(2)]
        assert not first.is_error and first == second


@pytest.mark.parametrize("asked", ["process_refund", "Process_Refund", "рrocess_refund", "shop.process_refund"])
async def test_sec10_a_refused_tool_is_in_the_audit(tmp_path: Path, asked: str) -> None:
    conf = settings(tmp_path)
    async with support_desk(conf) as desk:
        around = Surroundings(
            endpoint=Scripted([]), clock=SystemClock(), tools=Filtered(desk.tools, ["find"]), denied=desk.denied
        )
        call = CallContext(run="r", task="t", role="order_status", user="kim")
        with pytest.raises(ToolDenied):
            await TaskContext(around, call, Replay("t", None, ())).tool(asked, {})
    async with effect_people(conf) as people:
        (line,) = await people.history()
    assert (line.kind, line.tool, line.role, line.customer) == ("tool_denied", asked, "order_status", "kim")


def test_the_database_of_effects_can_be_in_postgresql(postgres_url: str, tmp_path: Path) -> None:
    conf = load(environ={"SIAFU_DATABASE_URL": postgres_url, "SIAFU_HOME": str(tmp_path)})
    assert isinstance(conf.database_url, Secret)
    open_effects(conf).close()
    assert not (tmp_path / "effects.db").exists()
    assert "p%40ss" in postgres_url  # a password, which nothing shows
    shown = " ".join(row.found for row in settings_rows(given(environ={"SIAFU_DATABASE_URL": postgres_url})))
    assert "p%40ss" not in shown + repr(conf)


def test_a_database_that_cannot_be_opened_is_told_without_its_password(tmp_path: Path) -> None:
    conf = load(environ={"SIAFU_DATABASE_URL": "postgresql://u:s3cr3t@127.0.0.1:1/x"})
    with pytest.raises(StoreError) as caught:
        open_effects(conf)
    assert "s3cr3t" not in caught.value.message
    with pytest.raises(ConfigError, match="never the secret itself"):
        settings(tmp_path, "database_url = 'postgresql://u:s3cr3t@h/x'")


def test_a_database_that_is_a_file_is_told_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "not-a-database.db"
    file.write_text("a letter\n" * 100)
    conf = load(environ={"SIAFU_DATABASE_URL": str(file)})
    with pytest.raises(StoreError) as caught:
        open_effects(conf)
    assert str(file) in redact(caught.value.message)


@pytest.fixture(autouse=True)
def _plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SIAFU_IDENTITY_KEY", "SIAFU_PAYMENTS_URL"):
        monkeypatch.delenv(name, raising=False)
