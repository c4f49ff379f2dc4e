"""What we send, judged by MCP's own conformance harness, where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from .__main__ import Harness, HarnessMissingError, find_harness, run_scenario
from .client import SCENARIOS


@pytest.fixture(scope="module")
def harness() -> Harness:
    """The harness; needs Node and an npm package, which a run of the tests must not download."""
    try:
        return find_harness()
    except HarnessMissingError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_conformance_harness_finds_no_fault(harness: Harness, scenario: str, tmp_path: Path) -> None:
    outcome = run_scenario(harness, scenario, tmp_path)
    assert outcome.passed, f"{outcome}\n{outcome.output}"
