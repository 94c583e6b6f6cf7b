from __future__ import annotations

import json
from pathlib import Path

import pytest

from siafu.cli.showing import arguments_text, print_table

from .front import siafu


def test_a_row_is_a_line_whatever_stands_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id", "누구", "arguments"), [("1", "김철수", "x" * 150), ("22", "lee", "두\n줄 \x1b[2J")])
    out = capsys.readouterr().out
    assert out == "id  누구    arguments\n1   김철수  " + "x" * 150 + "\n22  lee     두 줄  [2J\n"


def test_an_empty_table_is_a_word_to_people_and_nothing_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id", "state"), [], nothing="nothing waits")
    assert capsys.readouterr() == ("", "siafu: nothing waits\n")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"amount_minor": 466_000, "order_id": "1089", "tenant": "", "to": None}, "amount_minor=466000 order_id=1089"),
        ({"note": "x amount=1", "amount": 9}, 'note="x amount=1" amount=9'),
        ({"lines": [1, {"a": True}]}, 'lines=[1,{"a":true}]'),
        ({"사유": "파손"}, "사유=파손"),
    ],
)
def test_arguments_are_read_at_a_glance_and_none_passes_for_another(arguments: object, shown: str) -> None:
    assert arguments_text(json.dumps(arguments)) == shown


def test_the_shop_of_the_swarm_may_be_at_an_address(tmp_path: Path) -> None:
    database = tmp_path / "가게.db"
    asked = ("support", "ask", "주문 1001 어디쯤 왔나요?", "--customer", "kim", "--json")
    done = siafu(tmp_path, *asked, SIAFU_SHOP_DATABASE_URL=f"sqlite:///{database}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tool_calls"] and database.exists()
    assert "without SIAFU_PAYMENTS_URL the shop refunds nothing" in done.stderr
