"""On which line a setting stands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from siafu.config.lines import located, setting_lines

FILE = '''# a comment with [a.table]
home = "x"
a.b = 1
[endpoint]
headers = { "x y" = "z" }
[upstreams."서울"]
models = [
  "a", # [limits]
  "b",
]
text = """
[fake]
k = 1
"""
[[routes]]
use = ["m"]
[[routes]]
use = []
[routes.more]
q = 1
[prices."gpt-4.1"]
input = 1
'''


def test_every_setting_is_found_on_its_line() -> None:
    found = setting_lines(FILE)
    wanted = {
        "home": 2,
        "a.b": 3,
        "endpoint": 4,
        "endpoint.headers.x y": 5,
        "upstreams.서울": 6,
        "upstreams.서울.models": 7,
        "upstreams.서울.text": 11,
        "routes[0]": 15,
        "routes[0].use": 16,
        "routes[1]": 17,
        "routes[1].use": 18,
        "routes[1].more.q": 20,
        "prices.gpt-4.1.input": 22,
    }
    assert {name: found.get(name) for name in wanted} == wanted
    assert not {name for name in found if "fake" in name or name == "limits"}


def test_a_text_is_placed_by_the_longest_name_in_it() -> None:
    texts = ["prices.gpt-4.1.input must be a number", "prices.gpt-4.1.date is missing", "homes are no setting", "x"]
    assert located(texts, FILE, "f") == [f"f:21: {texts[1]}", f"f:22: {texts[0]}", texts[2], texts[3]]


@given(st.text(max_size=60))
def test_it_never_raises(text: str) -> None:
    assert all(1 <= line <= len(text.split("\n")) for line in setting_lines(text).values())
