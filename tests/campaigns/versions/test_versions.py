"""The version matrix, with ``--long``: each release in an environment of its own."""

from __future__ import annotations

import pytest

from tests._legacy_installs import NotInstalled

from .matrix import MATRIX, Case, run_case, serve


@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_a_host_on_every_supported_release_gets_its_results(
    case: Case, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--long"):
        pytest.skip(f"installs {len(MATRIX)} environments; --long runs it")
    try:
        with serve(case.way) as url:
            assert run_case(case, url) == ""
    except NotInstalled as reason:
        pytest.skip(str(reason))
