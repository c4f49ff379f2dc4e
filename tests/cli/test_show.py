"""``show``: a call whole, and why nothing happens."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import datetime

import pytest

from mcp_tasks_client import LastFailure, Origin, Question, Scope
from mcp_tasks_client.cli.journal import Where
from mcp_tasks_client.cli.seen import SeenCall
from mcp_tasks_client.cli.show import tell
from mcp_tasks_client.machine.states import Gathering, Observing
from mcp_tasks_client.testing.samples import observing, record
from tests.kit.command import Command

WHERE = Where("journal.sqlite3")


def lines(state: Gathering | Observing, *questions: Question) -> list[str]:
    return list(tell(SeenCall(record(state=state), questions, is_driven=True), None, WHERE))


@pytest.mark.parametrize(
    ("state", "row", "reason"),
    [
        (observing("task-1"), "Not reached since", "The server has not been reached for 3h: HTTP 503."),
        (
            Gathering(round=0, request_state=None, questions=()),
            "No room since",
            "The server has had no room for the call for 3h: HTTP 503.",
        ),
    ],
    ids=["observing", "gathering"],
)
def test_a_failure_is_told_as_what_it_is(state: Gathering | Observing, row: str, reason: str) -> None:
    failure = LastFailure(message="HTTP 503.", count=4, since=time.time() - 3 * 3600)
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


def test_a_call_is_told_whole_in_rows_and_as_json(over_file: Command) -> None:
    at = time.time()
    over_file.write(
        record(
            record_id="made-by-an-agent",
            tool="build",
            label="Nightly",
            scope=Scope("https://one.example/mcp", "ada"),
            application="agent",
            origin=Origin("agent.py", "laptop", 4711),
            idempotency_key="k",
            state=observing("task-1", statusMessage="compiling"),
            created_at=at - 60,
        )
    )
    ran = over_file("show", "made-by")
    assert (ran.code, ran.err) == (0, "")
    rows, reasons = ran.out.split("\n\n", 1)
    told = dict(re.split(r"  +", line, maxsplit=1) for line in rows.splitlines())
    assert datetime.fromisoformat(told.pop("Made")).timestamp() == pytest.approx(at - 60, abs=1)
    assert told == {
        "Call": "made-by-an-agent",
        "Tool": "build: Nightly",
        "State": "working",
        "Server says": "compiling",
        "Server": "https://one.example/mcp",
        "On behalf of": "ada",
        "Application": "agent",
        "Made by": "agent.py on laptop, process 4711",
        "Key": "k",
        "Driven": "by nobody",
    }
    assert reasons == "No living process drives it, so nobody polls: mcp-tasks wait made-by-\n"
    document = over_file("show", "made-by", "--json").document
    assert (document["record"], document["state"], document["driven"]) == (
        "made-by-an-agent",
        "working",
        False,
    )
    assert document["origin"] == {"program": "agent.py", "host": "laptop", "pid": 4711}
    assert (document["estimate"], document["result"], document["error"]) == (None, None, None)
    assert "task-1" not in ran.out + str(document), "the ID of a task is a credential"
