"""Bar charts of the table in the documentation, as SVG for light and for dark pages.

::

    python -m tests.benchmarks.charts      # draws the charts of the page's table anew

The charts are made of the table's own text, so that both show the same run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

from .figures import DROPPED
from .run import ROOT
from .table import MARKERS, NAMES

__all__ = ["CHARTS", "PAGE", "Chart", "drawings", "write_charts"]

PAGE: Final = ROOT / "docs" / "benchmarks.md"
FOLDER: Final = ROOT / "docs" / "charts"

_CALL: Final = "CPU of a call with one poll"
_POLL: Final = "CPU of a sequential poll"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: what was measured of us, beside those whom it is compared with."""

    name: str
    title: str
    ours: Mapping[str, str]
    """Titles of rows in the table, and what the bars of ours are called. Others come from their column."""

    others: Mapping[str, str] = field(default_factory=dict)
    """Titles of rows that measure somebody else, and what their bars are called."""


def _burst(count: str, name: str, what: str, title: str) -> Chart:
    tasks = f"{count} tasks of 2 s at a 500 ms hint, all at once"

    def rows(whose: Iterable[str]) -> dict[str, str]:
        return {f"{tasks}, {one}: {what}": one.replace("`", "") for one in whose}

    return Chart(
        f"burst-{count.replace(',', '')}-{name}",
        title.format(count),
        {**rows(DROPPED.values()), f"{tasks}: {what}": "TasksClient(url)"},
        rows(NAMES[one] for one in ("mcp", "fastmcp")),
    )


CHARTS: Final = (
    Chart(
        "call",
        "CPU time of a call with one poll",
        {f"{_CALL}, {kind} journal": f"TasksClient(url), {kind} journal" for kind in ("memory", "durable")},
    ),
    Chart("poll", "CPU time of a poll", {_POLL: "TasksClient(url)"}),
    *(
        _burst(count, *kind)
        for count in ("1,000", "5,000")
        for kind in (
            ("wall", "wall", "Time until {} tasks of 2 s are done"),
            ("cpu", "CPU", "CPU time of a task, {} at once"),
            ("memory", "peak memory of a task", "Peak memory of a task, {} at once"),
        )
    ),
)

PALETTES: Final = {
    "light": {"text": "#1c2733", "ours": "#3b6fb6", "other": "#b8c2cc"},
    "dark": {"text": "#dbe4ee", "ours": "#6ea3e8", "other": "#4a5560"},
}

_WIDTH: Final = 790
_LABELS: Final = 330
_BAR: Final = 26
_TOP: Final = 40


def drawings(page: str) -> Iterator[tuple[Path, str]]:
    """Each SVG file, and what it should hold, for a page with the table."""
    table = page.partition(MARKERS[0])[2]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    for chart in CHARTS:
        bars = _bars(chart, rows)
        for theme, palette in PALETTES.items():
            yield FOLDER / f"{chart.name}-{theme}.svg", _draw(chart.title, bars, palette)


def write_charts(page: str) -> None:
    """Draw every chart of a page's table."""
    FOLDER.mkdir(exist_ok=True)
    for path, drawing in drawings(page):
        path.write_text(drawing, encoding="utf-8")


def _bars(chart: Chart, rows: list[list[str]]) -> list[tuple[str, str, bool]]:
    """Label, figure with its unit, and whether it is ours; the shortest first."""
    bars: dict[str, tuple[str, bool]] = {}
    for title, measured, against, *_ in rows:
        who, _, figure = against.partition(": ")
        if title in chart.ours:
            bars.setdefault(chart.ours[title], (measured, True))
            if figure:
                bars.setdefault(who.replace("`", ""), (figure, False))
        elif title in chart.others:
            bars.setdefault(chart.others[title], (measured, False))
    if not bars:
        raise ValueError(f"the table has no row for the chart {chart.name!r}")
    return sorted(((label, *bar) for label, bar in bars.items()), key=lambda bar: _value(bar[1]))


def _value(figure: str) -> float:
    number = re.match(r"[\d.,]+", figure)
    if number is None:
        raise ValueError(f"{figure!r} is no figure")
    return float(number[0].replace(",", ""))


def _draw(title: str, bars: list[tuple[str, str, bool]], palette: Mapping[str, str]) -> str:
    height = _TOP + _BAR * len(bars) + 8
    longest = max(_value(figure) for _, figure, _ in bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="14" fill="{palette["text"]}">',
        f'<text x="0" y="20" font-size="16" font-weight="600">{escape(title)}</text>',
    ]
    for number, (label, figure, is_ours) in enumerate(bars):
        top = _TOP + _BAR * number
        width = max(1.0, (_WIDTH - _LABELS - 80) * _value(figure) / longest)
        weight = ' font-weight="600"' if is_ours else ""
        lines += [
            f'<text x="{_LABELS - 10}" y="{top + 16}" text-anchor="end"{weight}>{escape(label)}</text>',
            f'<rect x="{_LABELS}" y="{top + 3}" width="{width:.1f}" height="{_BAR - 8}" rx="2" '
            f'fill="{palette["ours" if is_ours else "other"]}"/>',
            f'<text x="{_LABELS + width + 8:.1f}" y="{top + 16}"{weight}>{escape(figure)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    write_charts(PAGE.read_text(encoding="utf-8"))
