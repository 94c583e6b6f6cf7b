"""An effect whose server dies while it is done and comes back after a while, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from siafu.errors import OutcomeUnknown, ToolFault, ToolUnavailable
from siafu.observe.calls import CallContext
from siafu.pace.clock import VirtualClock
from siafu.store.database import Database
from siafu.store.effect_schema import MIGRATIONS
from siafu.store.effects import EffectStore
from siafu.tools.effect_rules import EffectRule
from siafu.tools.effects import Effects
from siafu.tools.patience import ToolPatience
from siafu.tools.toolset import Tool, ToolResult

from .cash import LOOKUP

CALL = CallContext(run="r", task="t", step="#0")


class Bank:
    """Pays once a key. The first call is paid and answered by nobody (`dies`), or finds nobody; then the bank is away
    for 30 s.
    """

    name = "bank"

    def __init__(self, clock: VirtualClock, *, dies: bool) -> None:
        self.clock = clock
        self.returns = clock.now() + 30.0
        self.dies = dies
        self.paid: list[str] = []
        self.asked: list[str] = []

    async def knock(self) -> bool:
        return self.clock.now() >= self.returns

    async def list(self) -> Sequence[Tool]:
        return self._tools

    _tools = (Tool(name="pay", server="bank"), Tool(name="find", server="bank", read_only=True))

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        self.asked.append(name)
        fault: ToolFault = ToolUnavailable("cannot be reached")
        if self.dies:
            self.dies, fault = False, OutcomeUnknown("it was sent")
            self.paid.append(context.effect_key)
        elif await self.knock():
            if name == "find":
                found = [key for key in self.paid if key == arguments["key"]]
                return ToolResult(text="", structured={"refunds": found})
            if context.effect_key not in self.paid:
                self.paid.append(context.effect_key)
            return ToolResult(text="환불됨", structured={})
        else:
            fault.away = self
        raise fault


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EffectStore]:
    database = Database(tmp_path / "effects.db", MIGRATIONS, what="the test's effects", schema="effects")
    yield EffectStore(database)
    await database.aclose()


async def paid(store: EffectStore, bank: Bank, rule: dict[str, Any], seconds: float = 600.0) -> ToolResult:
    rules = {"bank.pay": msgspec.convert(rule, EffectRule)}
    effects = Effects(bank, rules, store, clock=bank.clock, owner="me:1")
    return await ToolPatience(seconds, clock=bank.clock, rng=Random(3)).call(effects, "pay", {}, CALL)


@pytest.mark.parametrize("rule", [{"honours_key": True}, {"lookup": LOOKUP}], ids=["key", "lookup"])
@pytest.mark.parametrize("dies", [True, False])
async def test_it_is_settled_when_the_server_is_back(store: EffectStore, rule: dict[str, Any], dies: bool) -> None:
    bank = Bank(VirtualClock(), dies=dies)
    assert not (await paid(store, bank, rule)).is_error
    assert len(bank.paid) == 1 and bank.paid[0].startswith("ef:")
    assert bank.clock.now() >= bank.returns


async def test_without_a_key_or_a_look_up_it_is_never_made_again(store: EffectStore) -> None:
    bank = Bank(VirtualClock(), dies=True)
    with pytest.raises(OutcomeUnknown):
        await paid(store, bank, {})
    assert (bank.asked, len(bank.paid)) == (["pay"], 1)
    assert bank.clock.now() < bank.returns


async def test_without_a_key_or_a_look_up_it_waits_when_it_was_not_sent(store: EffectStore) -> None:
    bank = Bank(VirtualClock(), dies=False)
    assert not (await paid(store, bank, {})).is_error
    assert len(bank.paid) == 1


async def test_control_without_patience_nobody_waits(store: EffectStore) -> None:
    bank = Bank(VirtualClock(), dies=True)
    with pytest.raises(OutcomeUnknown):
        await paid(store, bank, {"honours_key": True}, 0.0)
    assert bank.clock.now() < bank.returns
