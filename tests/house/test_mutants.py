"""Each mistake of `mutants` is found by a check of this suite, which holds on the code as it is and fails with it.

The storm (`money/test_crash.py`) and the two state machines have controls of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from money import test_approvals, test_books, test_once, test_providers, test_refunds
from money.kit import IDEMPOTENT, KEYS_ONLY, LOOKUP, open_db
from mutants import MUTANTS
from siafu.apps.support.shop.money.books import Again
from siafu.tools.effect_rules import EffectRule
from store import test_effects as test_store
from store.effect_asks import House
from support import test_grants
from tools import test_effects as test_tools
from tools.cash import Desk

Check = Callable[..., Any]
FOUND_BY: dict[str, tuple[Check, dict[str, Any]]] = {
    "money: no epoch check": (
        test_books.test_what_an_old_lease_learned_is_not_kept,
        {"late": test_books.PAID},
    ),
    "money: release of the reservation on timeout": (
        test_books.test_only_a_definite_end_moves_or_frees_the_money,
        {"end": Again("timeout", 1.0), "state": "unknown", "money": (0, 3_000)},
    ),
    "money: a key per attempt": (test_once.test_t6_half_of_the_answers_are_lost, {"can": KEYS_ONLY}),
    "money: floats": (test_refunds.test_f49_sums_are_exact_to_the_cent, {"total": 3_020, "parts": (1_185, 1_835)}),
    "money: floats in what customers write": (test_grants.test_amounts, {"minor": 1_999, "text": "$19.99"}),
    "money: acknowledged before it runs": (
        test_once.test_t7_a_provider_that_offers_neither_is_asked_at_most_once,
        {},
    ),
    "money: retry on any exception": (test_once.test_t6_half_of_the_answers_are_lost, {"can": LOOKUP}),
    "money: sent again to another provider": (
        test_providers.test_an_open_refund_is_never_looked_up_or_repeated_at_another_provider,
        {"can": IDEMPOTENT},
    ),
    "money: by an approval that has ended": (
        test_approvals.test_an_approval_that_nothing_ran_for_is_not_used_after_its_time,
        {"noticed_by": "next call"},
    ),
    "tool: no epoch check": (test_store.test_f32_a_holder_whose_lease_ended_is_fenced_off, {}),
    "tool: release on timeout": (
        test_tools.test_f29_without_anything_to_rest_on_it_is_left_to_a_person,
        {"wish": "lose"},
    ),
    "tool: a key per attempt": (test_tools.test_the_same_step_acts_once_and_another_step_again, {}),
    "tool: floats": (test_tools.test_an_amount_that_cannot_be_judged_is_for_a_person, {"arguments": {"amount": 900.0}}),
    "tool: acknowledged before it runs": (
        test_tools.test_a_server_that_cannot_be_reached_has_done_nothing,
        {},
    ),
    "tool: retry on any exception": (
        test_tools.test_f29_without_anything_to_rest_on_it_is_left_to_a_person,
        {"wish": "lose"},
    ),
}


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[dict[str, Any]]:
    """What the checks ask for by name, in an empty folder, on SQLite."""
    async with AsyncExitStack() as stack:
        database = open_db(f"sqlite:///{folder / 'shop.db'}")
        stack.callback(database.close)
        house = House(f"sqlite:///{folder / 'effects of the store.db'}")
        stack.callback(house.database.close)

        def desk(*wishes: str, owner: str = "me:1", **rule: Any) -> Desk:
            opened = Desk(folder, msgspec.convert(rule, EffectRule), *wishes, owner=owner)
            stack.push_async_callback(opened.aclose)
            return opened

        yield {"db": database, "house": house, "desk": desk, "tmp_path": folder}


async def run(check: Check, given: dict[str, Any], folder: Path) -> None:
    folder.mkdir()  # noqa: ASYNC240 - nothing else runs
    async with world(folder) as things:
        wanted = inspect.signature(check).parameters.keys() - given.keys()
        done = check(**given, **{name: things[name] for name in wanted})
        if inspect.isawaitable(done):
            await done


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_the_suite_finds(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check, given = FOUND_BY[mutant]
    await run(check, given, tmp_path / "as it is")
    MUTANTS[mutant](monkeypatch.setattr)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await run(check, given, tmp_path / "with the mistake")
