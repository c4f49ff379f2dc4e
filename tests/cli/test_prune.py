"""Calls that are long over are forgotten, and no others."""

from __future__ import annotations

from time import time

import pytest

from mcp_tasks_client.cli.exits import Exit
from mcp_tasks_client.testing.samples import finished, observing, record
from tests.kit.command import Command


def received(days: float, **changes: object) -> dict[str, object]:
    """The fields of a call that was received so long ago."""
    at = time() - days * 86_400
    return {"state": finished(), "created_at": at - 10, "updated_at": at, "delivered_at": at, **changes}


def test_what_was_received_long_ago_is_forgotten_whoever_made_it(command: Command) -> None:
    command.write(
        record(record_id="old", idempotency_key="a", application="agent", **received(9)),
        record(record_id="older", idempotency_key="b", **received(40)),
        record(record_id="new", idempotency_key="c", **received(2)),
        record(record_id="open", state=observing()),
        record(record_id="not received", state=finished(), created_at=1.0, updated_at=2.0),
    )

    def kept() -> set[str]:
        return {one["record"] for one in command("ls", "--all", "--json").document}

    ran = command("prune")
    assert (ran.code, ran.out, ran.err) == (0, "2 calls are forgotten.\n", "")
    assert kept() == {"new", "open", "not received"}
    assert command("prune", "--older-than", "36h").out == "1 call is forgotten.\n"
    assert kept() == {"open", "not received"}
    assert command("prune", "--json").document == {"forgotten": 0}


@pytest.mark.parametrize("given", ["7", "d", "-1d", "1w", "", "1d-2h", "7 d"])
def test_a_length_of_time_that_is_none_is_refused(over_file: Command, given: str) -> None:
    over_file.write(record(record_id="old", idempotency_key="a", **received(9)))
    ran = over_file("prune", f"--older-than={given}")
    assert ran.code == Exit.USAGE
    assert "Write 7d, 36h, 30m, 90s or 1d12h." in ran.err
    assert over_file("prune", "--older-than", "1d12h").out == "1 call is forgotten.\n"
