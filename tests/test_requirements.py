"""The table of requirements against the tests, both ways, read from the tests' own source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ._requirements import REQUIREMENTS, read_claims, requirement


def test_every_requirement_is_shown_by_a_test_or_says_why_not() -> None:
    missing = [name for name, r in REQUIREMENTS.items() if not r.untested and name not in read_claims()]
    assert missing == []
    superfluous = [name for name, r in REQUIREMENTS.items() if r.untested and name in read_claims()]
    assert superfluous == [], "these have a test now; drop the reason for not having one"


def test_every_claim_names_a_requirement_and_stands_on_a_test() -> None:
    assert set(read_claims()) <= set(REQUIREMENTS)
    for name, tests in read_claims().items():
        for test in tests:
            function = test.partition("::")[2]
            assert function.startswith(("test_", "Test")), f"{test} claims {name} and is no test"


def test_an_unknown_requirement_is_refused_where_it_is_named() -> None:
    with pytest.raises(KeyError):
        requirement("law:99")


def test_a_test_that_fails_says_which_requirements_it_shows(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text("""
from tests._requirements import requirement

@requirement("law:9")
class TestClass:
    @requirement("law:4")
    def test_it(self):
        assert 2 == 0

@requirement("law:7")
def test_that_passes():
    pass
""")
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests._requirements",
            tmp_path,
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    for name in ("law:4", "law:9"):
        assert f"{name} (ours): {REQUIREMENTS[name].behaviour}" in ran.stdout
    assert "law:7" not in ran.stdout
