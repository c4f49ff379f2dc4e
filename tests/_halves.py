"""The tests in two halves: ``pytest`` runs the first one, ``pytest --rest`` all that it leaves out.

The rule: The first half has each test on asyncio, and where event loops are the point on trio as well. Of the
cases of a test it has as many as show each value of each parameter once, and at most eight of these, except
over ways in.

What somebody names (a folder, a file, a test, a keyword, the failures of the last run) runs whole.
``pytest tests`` runs both halves, and so does ``pytest --long``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import pytest

__all__ = ["choose_first_half", "leave_one_half", "runs_whole"]

ON_BOTH_LOOPS: Final = (
    "tests/aio/",
    "tests/campaigns/cancellation/",
    "tests/engine/test_cancellation.py",
    "tests/engine/test_closing_from_inside.py",
    "tests/engine/test_one_of_each.py",
    "tests/engine/test_waiting.py",
    "tests/fundamentals/",
    "tests/journal/test_contract.py",
)
"""Folders and files in which event loops are the point: cancellation, closing, one of each in a process."""

MOST: Final = 8
"""More cases of one test are a table or a product, of which the first half shows a sample."""

WAYS_IN: Final = frozenset({"way", "door", "cell"})
"""The parameters that are ways to a server: however many there are, none is left out."""


def runs_whole(config: pytest.Config) -> bool:
    """Whether somebody has named what is to run, so that nothing is left out."""
    return config.args_source is not pytest.Config.ArgsSource.TESTPATHS or any(
        config.getoption(name, None) for name in ("long", "keyword", "markexpr", "lf")
    )


def leave_one_half(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take from the items what the other half has."""
    rest = config.getoption("--rest")
    if not rest and runs_whole(config):
        return
    first = choose_first_half(items)
    left_out = [item for item in items if (item in first) is rest]
    items[:] = [item for item in items if (item in first) is not rest]
    config.hook.pytest_deselected(items=left_out)


def choose_first_half(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """What the rule chooses. It depends on the items alone, so that each worker of xdist chooses the same."""
    first: set[pytest.Item] = set()
    for _, cases in groupby(sorted(items, key=_test_of), key=_test_of):
        on_asyncio: list[pytest.Item] = []
        on_trio: list[pytest.Item] = []
        for item in cases:
            (on_trio if _is_on_trio(item) else on_asyncio).append(item)
        first.update(_sample(on_asyncio or on_trio))
        if on_trio and _is_about_loops(on_trio[0]):
            first.update(_sample(on_trio))
    return first


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _params_of(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec is not None else {}


def _is_on_trio(item: pytest.Item) -> bool:
    return "trio" in str(_params_of(item).get("anyio_backend"))  # with an HTTP library it is "trio-httpx"


def _is_about_loops(item: pytest.Item) -> bool:
    return item.nodeid.startswith(ON_BOTH_LOOPS)


def _sample(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The first case, and each that shows a value anew: all of them over ways in, else at most ``MOST``."""
    seen: set[tuple[str, int]] = set()
    chosen: list[pytest.Item] = []
    for case in cases:
        values = set(_values_of(case))
        if not chosen or values - seen:
            chosen.append(case)
            seen |= values
    if len(chosen) <= MOST or not WAYS_IN.isdisjoint(_params_of(cases[0])):
        return chosen
    # From the whole table, since neighbours in a table are alike.
    return [chosen[number * (len(chosen) - 1) // (MOST - 1)] for number in range(MOST)]


def _values_of(case: pytest.Item) -> Iterator[tuple[str, int]]:
    """The values of the parameters, told by their identity: not all can be compared or hashed."""
    for name, value in _params_of(case).items():
        words = value._asdict() if hasattr(value, "_asdict") else {"": value}  # a cell is a word of each axis
        yield from ((f"{name}.{axis}", id(word)) for axis, word in words.items())
