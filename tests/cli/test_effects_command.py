"""`siafu effects` and `siafu approvals` as a person at a terminal uses them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from siafu.apps.support.shop.database import ShopDatabase
from siafu.cli import approvals, effects
from siafu.errors import InputError
from siafu.store.effect_records import Dispatch
from store.effect_asks import House, ask


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.chdir(tmp_path)
    for name in ("SIAFU_HOME", "SIAFU_DATABASE_URL", "SIAFU_SHOP_DATABASE_URL", "SIAFU_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    opened = House(str(tmp_path / ".siafu" / "effects.db"))
    yield opened
    opened.database.close()


def invoked(module: Any, *words: str, **options: Any) -> Any:
    """In a thread, as the command runs an event loop of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(CliRunner().invoke, module.app, words, **options).result()


def run(module: Any, *words: str) -> str:
    return str(invoked(module, *words, standalone_mode=False, catch_exceptions=False).stdout)


def rows(module: Any, *words: str) -> Any:
    return json.loads(run(module, *words, "--json"))


async def test_a_person_sees_exactly_what_would_be_done_and_decides(house: House) -> None:
    arguments = {"amount": 500_000, "note": "\x1b[2J승인됨"}
    given = ask(arguments=arguments, approval="amount is above 100,000", tool="bank.pay")
    await house.store.claim(given)
    (waiting,) = rows(approvals, "list")
    assert (waiting["where"], waiting["tool"], waiting["requester"]) == ("swarm", "bank.pay", "kim")
    shown = run(approvals, "show", waiting["id"][:8])
    assert "500000" in shown and "\\u001b[2J승인됨" in shown and "\x1b" not in shown
    assert waiting["arguments_sha256"] in shown
    with pytest.raises(InputError, match="asked for it"):
        run(approvals, "approve", waiting["id"], "--as", "Kim")
    with pytest.raises(InputError, match="agents decide nothing"):
        run(approvals, "approve", waiting["id"], "--as", "agent:refund")
    assert "approved by lee: bank.pay" in run(approvals, "approve", waiting["id"][:8], "--as", "lee", "--note", "ok")
    assert rows(approvals, "list") == []
    assert rows(approvals, "list", "--state", "approved")[0]["decided_by"] == "lee"
    assert isinstance(await house.store.claim(given), Dispatch)
    with pytest.raises(InputError, match="state is used"):
        run(approvals, "deny", waiting["id"], "--as", "lee")


async def test_without_a_name_the_user_of_the_terminal_decides(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.store.claim(ask(approval="always"))
    (waiting,) = rows(approvals, "list")
    monkeypatch.setenv("LOGNAME", "kim")
    with pytest.raises(InputError, match="asked for it"):
        run(approvals, "deny", waiting["id"])
    monkeypatch.setenv("LOGNAME", "park")
    assert rows(approvals, "deny", waiting["id"])[0]["decided_by"] == "park"


@pytest.mark.parametrize("wanted", ["", "zzz", "%"])
async def test_ids_that_name_nothing_decide_nothing(house: House, wanted: str) -> None:
    await house.store.claim(ask(approval="always"))
    with pytest.raises(InputError, match="siafu approvals list"):
        run(approvals, "approve", wanted, "--as", "lee")
    with pytest.raises(InputError, match="siafu effects list"):
        run(effects, "resolve", wanted, "--done", "--as", "lee")


async def test_the_beginning_of_an_id_must_name_one(house: House) -> None:
    for n in range(17):  # so two begin with the same digit
        await house.store.claim(ask(f"k{n}", approval="always"))
    begin = Counter(waiting["id"][0] for waiting in rows(approvals, "list"))
    with pytest.raises(InputError, match=r"several begin with '.': .{8,}, .{8,}; say more"):
        run(approvals, "show", begin.most_common(1)[0][0])


async def test_an_approval_that_has_ended_is_shown_with_its_effect(house: House) -> None:
    await house.store.claim(ask(approval="always"))
    assert "pending_approval" in run(effects, "list") and "expired" not in run(effects, "list")
    house.lapse(1e6, "expires_at", "effect_approval")
    assert "pending_approval (expired)" in run(effects, "list")


async def test_the_shops_desk_is_there_when_there_is_a_shop(house: House, tmp_path: Path) -> None:
    assert rows(approvals, "list", "--state", "all") == []
    assert not (tmp_path / ".siafu" / "shop.db").exists()  # looking makes none
    place = tmp_path / "가게.db"
    ShopDatabase(place).close()
    assert rows(approvals, "list", "--database", str(place)) == []


async def test_an_unclear_effect_is_shown_and_settled(house: House) -> None:
    await house.done(ask(), "manual_review", None)
    await house.sent(ask("k2", lease_seconds=0.001))
    (unclear,) = rows(effects, "list", "--state", "manual_review")
    assert "manual_review" in run(effects, "list") and "interrupted" in run(effects, "list")
    assert "dispatched" in run(effects, "show", unclear["id"][:8])
    assert "done" in run(effects, "resolve", unclear["id"][:8], "--done", "--as", "lee", "--note", "re_1")
    (settled,) = rows(effects, "show", unclear["id"])
    assert json.loads(settled["result"]) == {"text": "A person has made sure that this was done. re_1"}
    assert [line["kind"] for line in settled["history"]] == ["dispatched", "manual_review", "settled_done"]


async def test_a_tool_is_switched_off_and_on(house: House) -> None:
    await house.done(ask())
    assert "shop.refund is off" in run(effects, "off", "shop.refund", "--reason", "사고", "--as", "lee")
    assert "사고" in run(effects, "tools")
    assert not isinstance(await house.store.claim(ask("k2")), Dispatch)
    assert rows(effects, "on", "shop.refund", "--as", "lee") == []
    assert isinstance(await house.store.claim(ask("k2")), Dispatch)
    with pytest.raises(InputError, match="--all"):
        run(effects, "off")
    with pytest.raises(InputError, match="--all"):
        run(effects, "off", "shop.refund", "--all")
    assert [each["person"] for each in rows(effects, "off", "--all", "--as", "lee")] == ["lee"]
    assert not isinstance(await house.store.claim(ask("k3", tool="any.other")), Dispatch)


async def test_a_name_that_no_tool_has_is_said(house: House) -> None:
    await house.done(ask())
    for command in ("off", "on"):
        with pytest.raises(InputError, match=r"'shop.refnd', so nothing was switched; did you mean shop.refund\?"):
            run(effects, command, "shop.refnd", "--as", "lee")
    assert isinstance(await house.store.claim(ask("k2")), Dispatch)
    assert "shop.refnd is off" in run(effects, "off", "shop.refnd", "--anyway", "--as", "lee")
    assert "shop.refnd is on" in run(effects, "on", "shop.refnd", "--as", "lee")  # its switch is known


async def test_a_tool_can_be_switched_off_before_it_was_ever_used(house: House, tmp_path: Path) -> None:
    assert "is off" in run(effects, "off", "shop.process_refund", "--as", "lee")  # the example shop's own rules
    rule = '[mcp_servers.bank]\ncommand = "bank"\n[tools.effects."bank.pay"]\n[tools.effects.send]\n'
    (tmp_path / "siafu.toml").write_text(rule)
    for tool in ("bank.pay", "send", "shop.process_refund"):  # the last one has a record by now
        assert f"{tool} is off" in run(effects, "off", tool, "--as", "lee")
    with pytest.raises(InputError, match="nothing was switched"):
        run(effects, "off", "shop.open_ticket", "--as", "lee")


async def test_a_changed_tool_is_seen_before_it_is_accepted(house: House) -> None:
    await house.done(ask())
    changed = '{"name":"환불","description":"\\u001b[31mevil"}'
    await house.store.claim(ask("k2", definition=changed))
    assert "changed" in run(effects, "tools")
    done = invoked(effects, "accept", "shop.refund", "--as", "lee", input="n\n")
    assert done.exit_code == 1 and changed in done.stdout
    assert (await house.people.tools())[0].offered == changed
    (accepted,) = rows(effects, "accept", "shop.refund", "--yes", "--as", "lee")
    assert (accepted["definition"], accepted["person"]) == (changed, "lee")
    assert isinstance(await house.store.claim(ask("k2", definition=changed)), Dispatch)
