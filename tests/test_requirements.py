"""The table of requirements against the tests, both ways, read from the tests' own source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from ._requirements import REQUIREMENTS, requirement

TESTS: Final = Path(__file__).parent


@cache
def _claims() -> dict[str, list[str]]:
    """Test functions by the requirement they claim to show."""
    claims: dict[str, list[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "requirement":
                    for name in ast.literal_eval(ast.List(elts=decorator.args, ctx=ast.Load())):
                        claims.setdefault(name, []).append(
                            f"{path.relative_to(TESTS).as_posix()}::{node.name}"
                        )
    return claims


def test_every_requirement_is_shown_by_a_test_or_says_why_not() -> None:
    claims = _claims()
    missing = [name for name, r in REQUIREMENTS.items() if not r.untested and name not in claims]
    assert missing == []
    superfluous = [name for name, r in REQUIREMENTS.items() if r.untested and name in claims]
    assert superfluous == [], "these have a test now; drop the reason for not having one"


def test_every_claim_names_a_requirement_and_stands_on_a_test() -> None:
    claims = _claims()
    assert set(claims) <= set(REQUIREMENTS)
    for name, tests in claims.items():
        for test in tests:
            function = test.partition("::")[2]
            assert function.startswith(("test_", "Test")), f"{test} claims {name} and is no test"


def test_an_unknown_requirement_is_refused_where_it_is_named() -> None:
    with pytest.raises(KeyError):
        requirement("law:99")
