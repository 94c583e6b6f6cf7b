"""Any order of asking, crashing, lapsing, deciding and settling, against a model of the world the effects act on."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from siafu.store import effects as store_module
from siafu.store.effect_records import Busy, Decision, Dispatch, Effect, EffectAsk, Kept, Stopped
from siafu.store.effects import approval_of

from .effect_asks import House, ask
from .machines import any_order, in_order

# The kinds of effects, and what the rule of each says.
MODES: dict[str, dict[str, Any]] = {
    "review": {},
    "honours": {"repeats": True},
    "looks": {"looks": True},
    "both": {"repeats": True, "looks": True},
    "approval": {"approval": "always"},
}
NAMES = st.sampled_from(sorted(MODES))  # an effect of each kind
FATES = st.sampled_from(["ok", "refused", "crash_before", "crash_after", "lost_before", "lost_after", "held", "held"])
MOST = 4  # calls a day, over all


class World(RuleBasedStateMachine):
    """`acts`: how often the target has acted, by key. `held`: calls that are under way and not yet at the target."""

    house: House

    def __init__(self) -> None:
        super().__init__()
        self.run = uuid.uuid4().hex
        self.runner = asyncio.Runner()
        self.acts: Counter[str] = Counter()
        self.answers: dict[str, str] = {}
        self.held: list[tuple[str, Dispatch]] = []
        self.approved: Counter[str] = Counter()
        self.off = False

    def teardown(self) -> None:
        if self.off:
            self.switch()
        self.runner.close()

    def ask(self, name: str, amount: int) -> EffectAsk:
        return ask(f"{self.run}/{name}", {"amount": amount}, tool=f"t{self.run}", max_calls=MOST, **MODES[name])

    def effect(self, name: str) -> Effect | None:
        """The row as it is; None before it was first asked for."""
        key = f"{self.run}/{name}"
        return self.house.database.transact(lambda tx: store_module.load(tx, "key = :key", key=key))

    def act(self, name: str) -> None:
        if not (MODES[name].get("repeats") and self.acts[name]):  # an honoured key acts once
            self.acts[name] += 1

    def finish(self, name: str, dispatch: Dispatch, ending: Any, result: str | None) -> None:
        before = self.effect(name)
        assert before is not None
        verdict = self.runner.run(self.house.store.finish(dispatch.effect, dispatch.epoch, ending, result))
        after = self.effect(name)
        assert after is not None
        if (before.state, before.epoch) != ("dispatching", dispatch.epoch):
            assert after == before, "an old epoch wrote"
        elif ending == "succeeded":
            assert verdict == Kept(result or "")
            self.answers[name] = result or ""

    # ---- rules -------------------------------------------------------------------------------------------------

    @rule(name=NAMES, amount=st.sampled_from([1, 1, 1, 2]), fate=FATES)
    def asked(self, name: str, amount: int, fate: str) -> None:
        before, given = self.effect(name), self.ask(name, amount)
        verdict = self.runner.run(self.house.store.claim(given))
        if isinstance(verdict, Kept):
            assert verdict.result == self.answers[name]
        elif isinstance(verdict, Busy):
            assert before is not None and before.state == "dispatching"
        elif isinstance(verdict, Dispatch):
            self.sent(name, before, verdict, fate)
        else:
            assert isinstance(verdict, Stopped)

    def sent(self, name: str, before: Effect | None, dispatch: Dispatch, fate: str) -> None:
        assert not self.off, "sent although it is switched off"
        assert name not in self.answers, "sent although it has happened"
        if "approval" in MODES[name]:
            assert self.approved[name] > 0, "sent without an approval"
            self.approved[name] -= 1
        if before is not None and before.state not in ("open", "refused"):
            assert dispatch.arguments == before.arguments, "other arguments than the first, or than the approved ones"
        if dispatch.look:
            if self.acts[name]:
                return self.finish(name, dispatch, "succeeded", '"seen"')
            if not dispatch.repeats:
                return self.finish(name, dispatch, "manual_review", None)
        under_way = any(held == name for held, _ in self.held)
        if fate == "held":
            self.held.append((name, dispatch))
        elif fate == "refused" and not self.acts[name] and not under_way:
            self.finish(name, dispatch, "refused", None)
        elif fate in ("ok", "crash_after", "lost_after"):
            self.act(name)
        if fate == "ok":
            self.finish(name, dispatch, "succeeded", f'"{name}{dispatch.epoch}"')
        elif fate.startswith("lost"):
            self.finish(name, dispatch, "unknown", None)
        return None

    @precondition(lambda self: self.held)
    @rule(data=st.data(), ending=st.sampled_from(["succeeded", "unknown"]))
    def arrives(self, data: st.DataObject, ending: str) -> None:
        """A call that was under way reaches the target, however late."""
        name, dispatch = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.act(name)
        self.finish(name, dispatch, ending, f'"late {name}"' if ending == "succeeded" else None)

    @rule()
    def leases_end(self) -> None:
        self.house.lapse()

    @rule(name=NAMES, approve=st.booleans())
    def decided(self, name: str, approve: bool) -> None:
        row = self.effect(name)
        if row is None or row.state != "pending_approval" or row.approval_id is None:
            return
        approval = self.house.database.transact(lambda tx: approval_of(tx, row, 0.0))
        if approval is not None and approval.state == "pending":
            self.runner.run(self.house.people.decide(approval.id, approve=approve, by="lee"))
            self.approved[name] += approve

    @rule(name=NAMES)
    def settled(self, name: str) -> None:
        """A person looks at the target, when nothing is under way any more, and says what is there."""
        row = self.effect(name)
        if row is None or row.state not in ("manual_review", "unknown") or any(name == held for held, _ in self.held):
            return
        done = self.acts[name] > 0
        self.runner.run(self.house.people.resolve(row.id, done=done, by="lee", result='"settled"'))
        if done:
            self.answers[name] = '"settled"'

    @rule()
    def switch(self) -> None:
        self.runner.run(self.house.people.switch(f"t{self.run}", "", on=self.off, by="lee"))
        self.off = not self.off

    # ---- what always holds ---------------------------------------------------------------------------------------

    @invariant()
    def nothing_happens_twice(self) -> None:
        assert all(number <= 1 for number in self.acts.values()), self.acts

    @invariant()
    def what_is_recorded_is_true(self) -> None:
        sql, tool = "SELECT * FROM effect WHERE tool = :tool", f"t{self.run}"
        found = self.house.database.transact(lambda tx: tx.rows(sql, tool=tool))
        rows = [msgspec.convert(row, Effect) for row in found]
        for row in rows:
            name = row.key.rpartition("/")[2]
            assert row.state != "succeeded" or (self.acts[name] == 1 and row.result == self.answers[name])
            if self.acts[name]:
                assert row.state in ("succeeded", "dispatching", "unknown", "manual_review"), "an effect was forgotten"
        sql = "SELECT calls FROM effect_day WHERE tool = :tool"
        day = self.house.database.transact(lambda tx: tx.row(sql, tool=tool))
        counted = sum(row.day is not None for row in rows)
        assert counted == (day["calls"] if day else 0) <= MOST


def test_any_order_of_events_acts_once(sql_url: str) -> None:
    any_order(World, House(sql_url), examples=40)


def blind(effect: Effect, *_: Any) -> Decision:
    return "keep" if effect.state == "succeeded" else "send"


def without_leases(decide: Callable[..., Decision]) -> Callable[..., Decision]:
    def mutant(*values: Any) -> Decision:
        found = decide(*values)
        return "send" if found in ("busy", "give_up") else found

    return mutant


def without_epochs(finish: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(tx: Any, effect: str, epoch: int, *rest: Any) -> Any:
        row = store_module.load(tx, "id = :id", id=effect)
        return finish(tx, effect, row.epoch if row else epoch, *rest)

    return mutant


def released(finish: Callable[..., Any]) -> Callable[..., Any]:
    """The mutant that takes a lost answer for a refusal."""

    def mutant(tx: Any, effect: str, epoch: int, ending: str, result: Any) -> Any:
        return finish(tx, effect, epoch, "refused" if ending == "unknown" else ending, result)

    return mutant


Step = tuple[Callable[..., Any], dict[str, Any]]


def asked(name: str, fate: str) -> Step:
    return World.asked, {"name": name, "amount": 1, "fate": fate}


class First:
    """Chooses the first of everything."""

    def draw(self, _: Any) -> int:
        return 0


LAPSE: Step = (World.leases_end, {})
ARRIVES: Step = (World.arrives, {"data": First(), "ending": "unknown"})


def play(url: str, steps: Sequence[Step]) -> None:
    in_order(World, House(url), steps, (World.nothing_happens_twice, World.what_is_recorded_is_true))


@pytest.mark.parametrize(
    ("what", "mutant", "steps"),
    [
        ("decide", lambda _: blind, [asked("review", "lost_after"), asked("review", "ok")]),
        ("decide", without_leases, [asked("review", "held"), asked("review", "ok"), ARRIVES]),
        ("_finish", without_epochs, [asked("honours", "held"), LAPSE, asked("honours", "held"), ARRIVES]),
        ("_finish", released, [asked("review", "lost_after")]),
        ("_forbidden", lambda _: lambda *_: None, [(World.switch, {}), asked("review", "ok")]),
        ("_over_cap", lambda _: lambda *_: None, [asked("review", "ok")]),
        ("release", lambda _: lambda *_: None, [asked("review", "refused")]),
    ],
    ids=["blind", "no leases", "no epochs", "released", "no switch", "no cap", "no release"],
)
def test_the_check_can_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, mutant: Any, steps: list[Step]
) -> None:
    """Each mistake is seen within a few steps, which are harmless without it."""
    play(f"sqlite:///{tmp_path / 'as it is.db'}", steps)
    monkeypatch.setattr(store_module, what, mutant(getattr(store_module, what)))
    with pytest.raises(AssertionError):
        play(f"sqlite:///{tmp_path / 'with the mistake.db'}", steps)
