"""A report as one HTML file: text, bar charts in SVG and tables. No script, nothing from elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import msgspec

_WIDTH, _LEFT, _RIGHT, _ROW = 760, 190, 110, 26  # of a chart, its names, its figures, a bar with its gap
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --bar: #8a94a6; --own: #d9480f; --faint: #8a94a655; }}
body {{ font: 15px/1.5 system-ui, "Noto Sans KR", "Apple SD Gothic Neo", "Malgun Gothic", sans-serif;
  max-width: 860px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2.2rem; }}
svg {{ display: block; max-width: 100%; height: auto; margin: .4rem 0 1.4rem; }}
svg text {{ font-size: 13px; fill: currentColor; }} svg .title {{ font-weight: 600; }}
.bar {{ fill: var(--bar); }} .own {{ fill: var(--own); }} .span {{ stroke: currentColor; stroke-width: 1.5; }}
table {{ border-collapse: collapse; font-size: 13px; }}
th, td {{ text-align: right; padding: .2rem .6rem; border-bottom: 1px solid var(--faint); white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
.wide {{ overflow-x: auto; }} .note {{ opacity: .8; }}
</style>
</head>
<body>
"""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """text: the figure as it is written. low, high: of several runs. own: it is ours."""

    name: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    own: bool = False


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """charts: title and bars of each. table: its first row are the headings."""

    title: str
    charts: Sequence[tuple[str, Sequence[Bar]]] = ()
    table: Sequence[Sequence[str]] = ()


def page(title: str, sections: Sequence[Section], notes: Sequence[str]) -> str:
    """The whole file."""
    parts = [_HEAD.format(title=escape(title)), f"<h1>{escape(title)}</h1>\n"]
    for section in sections:
        parts.append(f"<h2>{escape(section.title)}</h2>\n")
        parts += [chart(name, drawn) for name, drawn in section.charts if drawn]
        if section.table:
            parts.append(_table(section.table))
    parts += [f'<p class="note">{escape(note)}</p>\n' for note in notes]
    return "".join([*parts, "</body>\n</html>\n"])


def chart(title: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars from zero on, with a line from the lowest to the highest run."""
    most = max([bar.value for bar in bars] + [bar.high or 0.0 for bar in bars]) or 1.0
    room = _WIDTH - _LEFT - _RIGHT

    def at(value: float) -> float:
        return round(_LEFT + room * value / most, 1)

    height = _ROW * (len(bars) + 1) + 8
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<text class="title" x="0" y="16">{escape(title)}</text>',
    ]
    for number, bar in enumerate(bars, 1):
        top = number * _ROW
        kind = "bar own" if bar.own else "bar"
        wide = max(1.0, round(at(bar.value) - _LEFT, 1))
        parts.append(f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(bar.name)}</text>')
        parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{top + 3}" width="{wide}" height="{_ROW - 9}" rx="2"/>')
        if bar.low is not None and bar.high is not None and bar.high > bar.low:
            y = top + (_ROW - 3) / 2
            parts.append(f'<line class="span" x1="{at(bar.low)}" y1="{y}" x2="{at(bar.high)}" y2="{y}"/>')
        end = at(max(bar.value, bar.high or 0.0))
        parts.append(f'<text x="{end + 8}" y="{top + 15}">{escape(bar.text)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def bars(rows: Sequence[Mapping[str, Any]], of: str, name: str, form: str) -> list[Bar]:
    """A bar for each row that has the figure `name`, from its `min` to its `max`. of: what a row is about; ours begins
    with siafu.
    """
    return [
        Bar(
            name=row[of],
            value=row[name],
            text=format(row[name], form),
            low=row["min"][name],
            high=row["max"][name],
            own=row[of].startswith("siafu"),
        )
        for row in rows
        if row[name] is not None
    ]


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[list[str]]:
    """A section's table. columns: what each is called."""
    return [list(columns.values()), *([cell(row[name]) for name in columns] for row in rows)]


def cell(value: Any) -> str:
    """A figure with two places while it is small; None as a dash."""
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return "-" if value is None else str(value)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>\n"
