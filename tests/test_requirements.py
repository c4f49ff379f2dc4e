"""The table of requirements against the tests, both ways, read from the tests' own source."""

from __future__ import annotations

import pytest

from ._requirements import REQUIREMENTS, read_claims, requirement


def test_every_requirement_is_shown_by_a_test_or_says_why_not() -> None:
    missing = [name for name, r in REQUIREMENTS.items() if not r.untested and name not in read_claims()]
    assert missing == []
    superfluous = [name for name, r in REQUIREMENTS.items() if r.untested and name in read_claims()]
    assert superfluous == [], "these have a test now; drop the reason for not having one"


def test_each_law_is_shown_by_one_test() -> None:
    laws = {name: tests for name, tests in read_claims().items() if name.startswith("law:")}
    assert {name: tests for name, tests in laws.items() if len(tests) > 1} == {}


def test_every_claim_names_a_requirement_and_stands_on_a_test() -> None:
    assert set(read_claims()) <= set(REQUIREMENTS)
    for name, tests in read_claims().items():
        for test in tests:
            function = test.partition("::")[2]
            assert function.startswith("test_"), f"{test} claims {name} and is no test"


def test_an_unknown_requirement_is_refused_where_it_is_named() -> None:
    with pytest.raises(KeyError):
        requirement("law:99")
