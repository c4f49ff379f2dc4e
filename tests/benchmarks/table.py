"""The figures as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any, Final

from .figures import DROPPED, ROWS, Found, Row, Runs

__all__ = ["MARKERS", "as_json", "markdown", "pasted", "results"]

MARKERS: Final = "<!-- benchmarks -->", "<!-- /benchmarks -->"
"""The lines between which a document has the table."""

NAMES: Final = {
    "fastmcp": "FastMCP's client",
    "mcp": "loop over `mcp`'s session",
    "httpx": "loop over httpx",
    "aiohttp": "loop over aiohttp",
    "thread": "a commit a row, in a thread",
    "dependencies": "`httpx, pydantic, tenacity, mcp_types`",
}
"""What the table calls those against whom something is measured."""


def results(runs: Mapping[str, Runs]) -> Iterator[tuple[Row, float | None, Runs]]:
    """Each row of what was measured, its result, and the runs that it is made of."""
    for row in ROWS:
        if row.measurement is not None and row.measurement not in runs:
            continue
        chosen = _default_policy(runs) if row.measurement is None else runs[row.measurement]
        yield row, row.result(chosen), chosen


def markdown(runs: Mapping[str, Runs]) -> str:
    """The table. A row without a limit is for information."""
    lines = ["| figure | measured | against | ratio | at most | |", "|---|---:|---|---:|---:|---|"]
    for row, result, chosen in results(runs):
        own = result if row.against is None else _median(row, chosen.get(row.who, []))
        other = None if row.against is None else _median(row, chosen.get(row.against, []))
        against = "" if row.against is None else f"{NAMES[row.against]}: {_number(other, row.unit)}"
        against += _failed(chosen.get(row.against or "", []))
        ratio = "" if row.against is None else _number(result)
        limit = "" if row.limit is None else _number(row.limit, row.unit if row.against is None else "")
        verdict = "**missed**" if row.missed(result) else "not measured" if result is None else ""
        measured = _number(own, row.unit) + _failed(chosen.get(row.who, []))
        cells = [row.title, measured, against, ratio, limit, verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def pasted(document: str, table: str) -> str:
    """A document with this table in place of what is between its markers.

    Raises:
        ValueError: It has not one pair of them, each on a line of its own.
    """
    lines = document.split("\n")
    if [line for line in lines if line in MARKERS] != list(MARKERS):
        raise ValueError(f"there is not one pair of {' and '.join(MARKERS)}")
    begin, end = map(lines.index, MARKERS)
    return "\n".join([*lines[: begin + 1], table, *lines[end:]])


def as_json(runs: Mapping[str, Runs]) -> dict[str, Any]:
    """The table and all that it is made of."""
    return {
        "rows": [
            {
                "title": row.title,
                "who": row.who,
                "against": row.against,
                "result": result,
                "limit": row.limit,
                "missed": row.missed(result),
            }
            for row, result, _ in results(runs)
        ],
        "runs": dict(runs),
    }


def _default_policy(runs: Mapping[str, Runs]) -> Runs:
    """All runs of ours under the default policy, whatever they measured."""
    return {
        "ours": [
            found
            for whose in runs.values()
            for who in ("ours", "ours-memory", *DROPPED)
            for found in whose.get(who, [])
        ]
    }


def _median(row: Row, found: list[Found]) -> float | None:
    values = [value for value in map(row.value, found) if value is not None]
    return median(values) if values else None


def _failed(found: Iterable[Found]) -> str:
    """What has to be said with a figure of calls some of which failed: it flatters."""
    failures = sum(one.get("failures", 0) for one in found)
    return f" ({failures} calls failed)" if failures else ""


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "-"
    digits = f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {unit}".strip()
