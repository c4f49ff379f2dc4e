"""One contract in each cell of a product of axes: a few cells in the short run, all with ``--long``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from .axes import IMPOSSIBLE, Cell, all_cells, cells, meetings, short_run
from .contract import Crossing
from .host import hosting
from .site import Sites, serving

KNOWN: Final[dict[str, Callable[[Cell], bool]]] = {}
"""Defects, and the cells that show them. The mend of one takes its line away."""


def _is_given_up_as_it_asks(cell: Cell) -> bool:
    """True if a call is given up as its task begins, which asks, while another client waits for it."""
    return (
        cell.fate == "cancelled unanswered"
        and cell.questions == "a question"
        and cell.crowded
        and cell.key != "no key"
    )


SOMETIMES: Final[dict[str, Callable[[Cell], bool]]] = {
    "a bridge that keeps a call whose host gave it up puts its question to nobody while others wait for it": (
        lambda cell: cell.way == "bridge" and _is_given_up_as_it_asks(cell)
    ),
    "a question of 2025-11-25 that comes in the instant in which its caller stops waiting is lost": (
        lambda cell: cell.version.startswith("2025-11-25") and _is_given_up_as_it_asks(cell)
    ),
}
"""Defects that show by chance, or in some of these cells. They wait for a limit, so the long run has them."""


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    with serving() as sites:
        yield sites


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("--long")
        chosen = list(cells()) if is_long else short_run()
        cases = [pytest.param(one, id=str(one), marks=marks_of(one, is_long=is_long)) for one in chosen]
        metafunc.parametrize("cell", cases)


def marks_of(cell: Cell, *, is_long: bool) -> list[pytest.MarkDecorator]:
    return [
        pytest.mark.xfail(strict=strict, run=strict or is_long, reason=reason)
        for table, strict in ((KNOWN, True), (SOMETIMES, False))
        for reason, shows in table.items()
        if shows(cell)
    ]


def test_what_happens_to_one_call_costs_nobody_a_result(cell: Cell, sites: Sites, tmp_path: Path) -> None:
    version, _, stateless = cell.version.partition(" ")
    site = sites.add(version, has_sessions=not stateless, asks=cell.questions == "a question")
    with hosting(cell, site.url, tmp_path) as start:
        Crossing(cell, site, start, tmp_path).play()


def test_the_short_run_has_every_meeting_in_few_cells() -> None:
    everything, few = list(cells()), short_run()
    assert set().union(*map(meetings, few)) == set().union(*map(meetings, everything))
    assert len(few) < len(everything) / 40


@pytest.mark.parametrize("reason", IMPOSSIBLE)
def test_each_reason_excludes_cells_that_no_other_does(reason: str) -> None:
    others = [is_so for other, is_so in IMPOSSIBLE.items() if other != reason]
    assert any(IMPOSSIBLE[reason](cell) and not any(one(cell) for one in others) for cell in all_cells())
