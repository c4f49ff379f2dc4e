"""Words of servers and of other programs, wherever the command shows them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult, ElicitRequestFormParams, TextContent

from mcp_tasks_client import LastFailure, Origin, Question, Scope, TaskFailedError, TaskRecord
from mcp_tasks_client.cli.exits import CommandError, Exit
from mcp_tasks_client.cli.following import Receipts
from mcp_tasks_client.cli.journal import Where
from mcp_tasks_client.cli.ls import align_calls, draw_calls
from mcp_tasks_client.cli.output import Output, dump, read_result
from mcp_tasks_client.cli.seen import SeenCall
from mcp_tasks_client.cli.show import tell
from mcp_tasks_client.machine.states import Gathering, Observing
from mcp_tasks_client.progress import line_of
from mcp_tasks_client.testing.samples import observing, record
from tests._requirements import requirement
from tests.test_foreign_text import HOSTILE, texts

WHERE = Where("journal.sqlite3")


def hostile_call(text: str) -> SeenCall:
    """A call whose every word somebody else wrote."""
    state = observing("task-1", statusMessage=text, ttl_ms=None)
    failure = LastFailure(message=text, count=2, since=1_800_000_000.0)
    state = Observing(
        **{name: getattr(state, name) for name in ("task", "received_at", "due_at", "ttl_ms")},
        failure=failure,
    )
    made = record(
        scope=Scope(text, text),
        tool=text,
        label=text,
        idempotency_key=text,
        application=text,
        origin=Origin(text, text, 1),
        state=state,
    )
    return SeenCall(made, [hostile_question(made, text)], is_driven=False)


def hostile_question(made: TaskRecord, text: str) -> Question:
    return Question(
        question_id=f"{made.record_id}-0123456789abcdef",
        record_id=made.record_id,
        endpoint=text,
        principal=text,
        tool=text,
        label=text,
        method="elicitation/create",
        params=ElicitRequestFormParams(message=text, requested_schema={"type": "object", "properties": {}}),
        asked_at=1_800_000_000.0,
        expires_at=None,
        refused=text,
    )


def hostile_result(text: str) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content={text: text}, is_error=True
    )


SHOWN: dict[str, Callable[[Output, str], object]] = {
    "ls": lambda output, text: output.draw(*draw_calls([hostile_call(text)])),
    "ls | cat": lambda output, text: output.text("\n".join(align_calls([hostile_call(text)]))),
    "show": lambda output, text: output.text(
        "\n".join(tell(hostile_call(text), hostile_result(text), WHERE))
    ),
    "result": lambda output, text: output.text(read_result(hostile_result(text))),
    "error": lambda output, text: output.fail(CommandError(Exit.UNEXPECTED, text, record=text, next=text)),
    "end": lambda output, text: Receipts(WHERE, output).write("id", hostile_result(text)),
    "failed": lambda output, text: Receipts(WHERE, output).write("id", TaskFailedError(text, message=text)),
    "call as JSON": lambda output, text: output.document(hostile_call(text).document()),
}


@requirement("law:18")
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("shown", SHOWN)
@given(text=texts | st.sampled_from(HOSTILE))
def test_no_foreign_text_reaches_the_terminal_but_as_printable_lines(
    shown: str, as_json: bool, text: str
) -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        SHOWN[shown](Output(as_json=as_json), text)
    for line in (out.getvalue() + err.getvalue()).split("\n"):
        assert line.isprintable()
        if as_json and shown not in ("ls", "ls | cat", "show", "result"):
            assert line.isascii()
        assert len(line) < 100_000


def test_a_call_before_its_task_is_shown_as_well() -> None:
    made = record(state=Gathering(round=1, request_state=None, questions=()))
    seen: Any = SeenCall(made, (), is_driven=True)
    assert seen.state == "gathering"
    assert list(seen.reasons(WHERE)) == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_lacks_is_null(number: str) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    value = json.loads(f'{{"a": [{number}, 1.5, {{"b": {number}}}]}}')
    shown = dump({**value, "c": (float(number),)})
    assert json.loads(shown, parse_constant=refuse) == {"a": [None, 1.5, {"b": None}], "c": [None]}


@pytest.mark.parametrize("half", ["\ud83d", "\ude00\ud83d"])
def test_half_of_a_character_is_replaced_in_json(half: str) -> None:
    shown = dump({half: [f"a{half}\U0001f600é\\ud800\x7f", math.nan]})
    replaced = "\ufffd" * len(half)
    assert json.loads(shown) == {replaced: [f"a{replaced}\U0001f600é\\ud800\x7f", None]}
    assert shown.isascii()
    assert shown.isprintable()


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("shown", ["ls", "ls | cat", "show", "call as JSON", "progress", "watch"])
def test_no_words_of_a_server_show_the_whole_id_of_its_task(shown: str, as_json: bool) -> None:
    task_id = "4f9c2b7e-secret"
    words = f"Task {task_id} runs"
    out = io.StringIO()
    for failure in (None, LastFailure(message=words, count=2, since=1_800_000_000.0)):
        state = replace(observing(task_id, statusMessage=words, status=f"at {task_id}"), failure=failure)
        made = record(state=state)
        seen = SeenCall(made, (), is_driven=True)
        writes: dict[str, Callable[[Output], object]] = {
            "ls": lambda output, seen=seen: output.draw(*draw_calls([seen])),
            "ls | cat": lambda output, seen=seen: output.text("\n".join(align_calls([seen]))),
            "show": lambda output, seen=seen: output.text("\n".join(tell(seen, None, WHERE))),
            "call as JSON": lambda output, seen=seen: output.document(seen.document()),
            "progress": lambda output, made=made: output.text(str(line_of(made, 1_800_000_100.0))),
            "watch": lambda output, seen=seen: output.text(str(seen.line(1_800_000_100.0))),
        }
        with redirect_stdout(out):
            writes[shown](Output(as_json=as_json))
    assert task_id not in out.getvalue()
    assert task_id[:5] in out.getvalue()
