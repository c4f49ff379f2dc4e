"""The two halves of the tests: what the first one shows, and that each item is in exactly one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from ._halves import ON_BOTH_LOOPS
from ._requirements import read_claims
from .crossings.axes import AXES, DOORS, UNDER_HOST, WAYS

ROOT: Final = Path(__file__).parents[1]
LOOPS: Final = {"asyncio", "trio"}

JOURNALS: Final = "journal/test_contract.py"
SESSIONS: Final = "sessions/test_session_contract.py"
WAYS_IN: Final = "crossings/test_doors.py"
CROSSINGS: Final = "crossings/test_crossings.py::test_what_happens_to_one_call_costs_nobody_a_result"


@dataclass(frozen=True, slots=True)
class Case:
    """One item, told by its ID below the folder of the tests: ``test_x.py::TestY::test_z[asyncio-words]``."""

    id: str

    @property
    def test(self) -> str:
        return self.id.partition("[")[0]

    @property
    def params(self) -> str:
        return self.id.partition("[")[2].removesuffix("]")

    @property
    def loop(self) -> str:
        return "trio" if "trio" in self.params else "asyncio"

    @property
    def words(self) -> str:
        """The parameters but the event loop."""
        return "-".join(word for word in self.params.split("-") if word not in LOOPS)

    @property
    def claim(self) -> str:
        """The test function as :func:`read_claims` names it."""
        return f"{self.test.partition('::')[0]}::{self.test.rpartition('::')[2]}"


def collect(*arguments: str) -> list[Case]:
    """What a run with these arguments would run."""
    # An environment may have arguments of its own, or tell that this run is one of xdist.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr
    return [Case(line.removeprefix("tests/")) for line in ran.stdout.splitlines() if "::" in line]


@dataclass(frozen=True, slots=True)
class Halves:
    """What there is, and who runs it."""

    all: list[Case]
    first: list[Case]
    rest: list[Case]


@pytest.fixture(scope="module")
def halves() -> Halves:
    with ThreadPoolExecutor() as pool:
        # What a keyword names runs whole, and all IDs have this one.
        return Halves(*pool.map(lambda one: collect(*one), [("-k", "test"), (), ("--rest",)]))


def pick(cases: Iterable[Case], claim: str) -> list[Case]:
    """The cases of a file, or of a test in it."""
    return [case for case in cases if case.test == claim or case.test.startswith(f"{claim}::")]


def test_the_halves_share_nothing_and_are_everything(halves: Halves) -> None:
    assert sorted(case.id for case in halves.first + halves.rest) == sorted(case.id for case in halves.all)
    assert not {*halves.first} & {*halves.rest}
    assert 0.4 < len(halves.first) / len(halves.all) < 0.6


def test_each_test_is_in_the_first_half(halves: Halves) -> None:
    assert {case.test for case in halves.all} == {case.test for case in halves.first}


def test_each_requirement_is_shown_in_the_first_half(halves: Halves) -> None:
    shown = {case.claim for case in halves.first}
    assert [name for name, tests in read_claims().items() if shown.isdisjoint(tests)] == []


@pytest.mark.parametrize("place", ON_BOTH_LOOPS)
def test_what_is_about_event_loops_is_shown_on_each(place: str, halves: Halves) -> None:
    def list_shown(cases: list[Case]) -> set[tuple[str, str]]:
        return {(case.test, case.loop) for case in cases if f"tests/{case.id}".startswith(place)}

    assert list_shown(halves.first) == list_shown(halves.all)
    assert {loop for _, loop in list_shown(halves.first)} == LOOPS


def test_each_journal_keeps_the_whole_contract_on_each_loop_in_the_first_half(halves: Halves) -> None:
    def list_shown(cases: list[Case]) -> set[tuple[str, str]]:
        return {(case.test, case.loop) for case in pick(cases, JOURNALS)}

    assert list_shown(halves.first) == list_shown(halves.all)


def test_each_session_keeps_the_whole_contract_in_the_first_half(halves: Halves) -> None:
    def list_shown(cases: list[Case]) -> set[tuple[str, str]]:
        return {
            (case.test, way)
            for case in pick(cases, SESSIONS)
            for way in ways
            if f"-{way}-" in f"-{case.words}-"
        }

    ways = {case.words for case in pick(halves.all, f"{SESSIONS}::test_a_call_may_return_at_once")}
    assert len(ways) > 9
    assert list_shown(halves.first) == list_shown(halves.all)


def test_each_way_in_is_in_the_first_half_with_each_server(halves: Halves) -> None:
    """And each test of a way is there for all ways that it is for."""

    def list_shown(cases: list[Case]) -> set[tuple[str, str]]:
        return {(case.test, case.words) for case in pick(cases, WAYS_IN) if case.words in doors}

    doors = {f"{server}-{way}" for server, way in DOORS}
    assert {way for _, way in DOORS} == {*WAYS, *UNDER_HOST}
    assert list_shown(halves.first) == list_shown(halves.all)
    assert {door for _, door in list_shown(halves.first)} == doors


def test_each_word_of_each_axis_crosses_others_in_the_first_half(halves: Halves) -> None:
    cells = [case.params.replace(" beside ", ", ").split(", ") for case in pick(halves.first, CROSSINGS)]
    assert {word for axis in AXES for word in axis} <= {word for cell in cells for word in cell}
    assert len(cells) < len(pick(halves.all, CROSSINGS))


def test_what_is_named_runs_whole(halves: Halves) -> None:
    named = f"{SESSIONS}::test_an_unknown_task_is_invalid_params"
    whole = pick(halves.all, named) + pick(halves.all, JOURNALS)
    assert collect(f"tests/{named}", f"tests/{JOURNALS}") == whole
    assert len(pick(halves.first, named)) < len(pick(halves.all, named))


def test_the_rest_of_what_is_named_is_what_the_first_half_leaves_out_of_it(halves: Halves) -> None:
    assert collect("--rest", f"tests/{SESSIONS}") == pick(halves.rest, SESSIONS)
