"""How a verb runs, and the times that it tells, where no server takes part."""

from __future__ import annotations

import math

import pytest
import typer

from mcp_tasks_client.cli.exits import Exit
from mcp_tasks_client.cli.journal import Where
from mcp_tasks_client.cli.output import Output
from mcp_tasks_client.cli.running import run
from mcp_tasks_client.cli.times import ago, ahead, exact, iso


@pytest.mark.parametrize("at", [1e15, 1e300, math.inf, math.nan, -1e15, -math.inf])
def test_a_time_that_no_calendar_has_is_told_as_none(at: float) -> None:
    assert iso(at) is None
    assert all(tell(at).isprintable() and len(tell(at)) < 60 for tell in (exact, ago, ahead))


def test_a_fault_of_ours_is_no_error_of_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        int("none")

    with pytest.raises(typer.Exit) as ended:
        run(fail, Output(), Where())
    assert ended.value.exit_code == Exit.UNEXPECTED
    assert "Traceback" in capsys.readouterr().err
