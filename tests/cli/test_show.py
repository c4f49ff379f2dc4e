"""``show``: why nothing happens, in the words that fit where the call stands."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from mcp_tasks_client import LastFailure, Question
from mcp_tasks_client.cli.journal import Where
from mcp_tasks_client.cli.seen import SeenCall
from mcp_tasks_client.cli.show import tell
from mcp_tasks_client.machine.states import Gathering, Observing
from mcp_tasks_client.testing.samples import observing, record

WHERE = Where("journal.sqlite3")


def lines(state: Gathering | Observing, *questions: Question) -> list[str]:
    return list(tell(SeenCall(record(state=state), questions, is_driven=True), None, WHERE))


@pytest.mark.parametrize(
    ("state", "row", "reason"),
    [
        (observing("task-1"), "Not reached since", "The server has not been reached for 3m: HTTP 503."),
        (
            Gathering(round=0, request_state=None, questions=()),
            "No room since",
            "The server has had no room for the call for 3m: HTTP 503.",
        ),
    ],
    ids=["observing", "gathering"],
)
def test_a_failure_is_told_as_what_it_is(state: Gathering | Observing, row: str, reason: str) -> None:
    failure = LastFailure(message="HTTP 503.", count=4, since=time.time() - 180)
    told = lines(replace(state, failure=failure))
    assert reason in told
    assert any(line.startswith(f"{row} ") and line.endswith(", 4 requests") for line in told)


def test_a_question_is_one_line_be_its_method_as_it_may() -> None:
    asked = Question(
        question_id="record-1-0123",
        record_id="record-1",
        endpoint="https://mcp.example/",
        principal="",
        tool="report",
        label=None,
        method="sampling/other\nResult\nforged",
        params=None,
        asked_at=1.0,
        expires_at=None,
        refused=None,
    )
    told = lines(observing("task-1"), asked)
    assert "Question record-1-0123: sampling/other Result forged" in told
    assert not any("\n" in line for line in told)
