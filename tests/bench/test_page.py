"""Reports as HTML: whole, without anything from elsewhere, in any language."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from siafu.bench.page import Bar, Section, chart, page

BARS = [
    Bar(name="raw aiohttp", value=0.5, text="0.50"),
    Bar(name="siafu <우리>", value=1.0, text="1.00", low=0.9, high=2.0, own=True),
]


class Tags(HTMLParser):
    """Open tags, and what is never closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_is_whole_and_needs_nothing_from_elsewhere() -> None:
    section = Section(
        title="100 agents & 200 ms", charts=[("CPU", BARS), ("none", [])], table=[["이름", "ms"], ["<b>", "1"]]
    )
    text = page("비용 <bench>", [section], ["노트북에서 잼"])
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert '<meta charset="utf-8">' in text
    for part in ("비용 <bench>", "100 agents & 200 ms", "siafu <우리>", "<b>", "노트북에서 잼"):
        assert part in tags.text
    assert not re.search(r"<script|<link|<img|https?:|url\(|@import", text)


def test_bars_are_as_long_as_their_values_and_show_the_extremes() -> None:
    text = chart("CPU", BARS)
    wide = [float(each) for each in re.findall(r'<rect class="[a-z ]+" x="190" y="\d+" width="([\d.]+)"', text)]
    assert wide == [115.0, 230.0]  # of 460, the highest run is 2.0
    assert text.count('class="bar own"') == 1
    ((begin, end),) = re.findall(r'<line class="span" x1="([\d.]+)" y1="[\d.]+" x2="([\d.]+)"', text)
    assert (float(begin), float(end)) == (397.0, 650.0)


def test_bars_of_nothing_are_drawn_all_the_same() -> None:
    assert 'width="1.0"' in chart("errors", [Bar(name="a", value=0.0, text="0")])
