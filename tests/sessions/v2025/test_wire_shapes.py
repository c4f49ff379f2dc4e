"""The shapes of 2025-11-25, what the journal keeps of a task, and whether a task is asked for."""

from __future__ import annotations

import math
from typing import Any

import pytest
from mcp_types import Tool

from mcp_tasks_client.errors import MissingCapabilityError
from mcp_tasks_client.policy import TaskPreference
from mcp_tasks_client.protocol import JSONObject, MalformedError
from mcp_tasks_client.protocol.replies import RpcError
from mcp_tasks_client.sessions.v2025.session_data import OpenQuestion, SessionData
from mcp_tasks_client.sessions.v2025.shapes import (
    inline_result,
    mark_answer,
    read_created_task,
    read_progress_token,
    read_related_task,
    read_request_id,
    rename_task_fields,
)
from mcp_tasks_client.sessions.v2025.task_policy import TaskPolicy
from tests._requirements import requirement

RELATED = "io.modelcontextprotocol/related-task"


def test_a_task_has_the_field_names_of_2026() -> None:
    assert rename_task_fields({"ttl": 1, "pollInterval": 2, "x": 3}) == {
        "ttlMs": 1,
        "pollIntervalMs": 2,
        "x": 3,
    }
    with pytest.raises(MalformedError, match="not list"):
        rename_task_fields([])


@pytest.mark.parametrize(
    ("result", "task"),
    [
        ({"task": {"taskId": "t", "status": "working"}}, {"taskId": "t", "status": "working"}),
        ({"task": {"taskId": "t", "ttl": 5}}, {"taskId": "t", "ttlMs": 5, "status": "unknown"}),
        ({"task": {"taskId": "t", "status": "\ud800"}}, {"taskId": "t", "status": "unknown"}),
        ({"content": []}, None),
        ({"task": {"status": "working"}, "content": []}, None),
        ({"task": "soon", "content": []}, None),
    ],
)
def test_a_call_is_answered_with_a_task_if_that_has_an_id(
    result: JSONObject, task: JSONObject | None
) -> None:
    assert read_created_task(result) == task


def test_a_task_that_fastmcp_2_hides_in_the_metadata_is_found() -> None:
    meta = {"modelcontextprotocol.io/task": {"taskId": "t", "status": "working", "pollInterval": 9}}
    found = read_created_task({"content": [], "_meta": meta})
    assert found == {"taskId": "t", "status": "working", "pollIntervalMs": 9, "_meta": meta}
    assert read_created_task({"content": [{"type": "text", "text": "done"}], "_meta": meta}) is None


@requirement("2025:failed")
@pytest.mark.parametrize(
    ("task", "reply", "ended"),
    [
        ({"status": "completed"}, {"content": [], "x": 1}, ("completed", {"content": [], "x": 1}, None)),
        (
            {"status": "failed"},
            {"content": [], "isError": True},
            ("completed", {"content": [], "isError": True}, None),
        ),
        (
            {"status": "failed"},
            RpcError(-1, "no", 7),
            ("failed", None, {"code": -1, "message": "no", "data": 7}),
        ),
        ({"status": "failed"}, RpcError(-1, "no", None), ("failed", None, {"code": -1, "message": "no"})),
        (
            {"status": "failed", "statusMessage": "quota"},
            {"_meta": {}},
            ("failed", None, {"code": -32603, "message": "quota"}),
        ),
    ],
)
def test_the_end_of_a_task_holds_what_its_result_says(
    task: JSONObject, reply: Any, ended: tuple[str, JSONObject | None, JSONObject | None]
) -> None:
    whole = inline_result(task, reply)
    assert (whole["status"], whole.get("result"), whole.get("error")) == ended


def test_a_failed_task_that_does_not_say_why_is_said_not_to() -> None:
    assert "does not say why" in inline_result({"status": "failed"}, {})["error"]["message"]


@pytest.mark.parametrize(
    ("raw", "request_id"),
    [(0, 0), ("", ""), ("a", "a"), (1.5, 1.5), (True, None), (None, None), ([], None), (2.0**64, None)],
)
def test_a_request_id_may_be_zero_or_empty(raw: Any, request_id: Any) -> None:
    assert read_request_id({"id": raw}) == request_id


@pytest.mark.parametrize(
    "meta", [None, {}, {RELATED: None}, {RELATED: {"taskId": 7}}, {RELATED: {"taskId": ""}}]
)
def test_a_message_without_a_usable_mark_belongs_to_no_task(meta: Any) -> None:
    assert read_related_task({"_meta": meta}) is None
    assert read_related_task({"_meta": {RELATED: {"taskId": "t"}}}) == "t"


@requirement("2025:marked-answers")
def test_an_answer_is_marked_and_keeps_its_own_metadata() -> None:
    assert mark_answer({"a": 1, "_meta": {"own": 2}}, "t") == {
        "a": 1,
        "_meta": {"own": 2, RELATED: {"taskId": "t"}},
    }


def test_a_progress_token_is_text_or_a_number() -> None:
    raw: list[Any] = ["a", 0, True, [], None]
    tokens = [read_progress_token({"_meta": {"progressToken": token}}) for token in raw]
    assert tokens == ["a", 0, None, None, None]
    assert read_progress_token({}) is None


def test_what_the_journal_keeps_is_read_as_it_was_written() -> None:
    data = SessionData(
        owner="me",
        session_id="s1",
        cancellable=False,
        result_id=0,
        progress_token="p",
        open=(OpenQuestion("k.0", 3, {"method": "m", "params": {}}), OpenQuestion("k.1", None, {})),
        answered={"k": 2},
    )
    assert SessionData.read(data.write()) == data
    assert SessionData.read(SessionData().write()) == SessionData()
    assert "s1" not in repr(data)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "no JSON",
        "[]",
        "[" * 100_000,
        '{"session_id": 7, "open": 1, "answered": []}',
        '{"open": [1, ["k"], [1, 2, {}]]}',
    ],
)
def test_what_cannot_be_read_costs_no_more_than_that(text: str | None) -> None:
    assert SessionData.read(text) == SessionData()


def tool(support: str | None) -> Tool:
    execution = {} if support is None else {"execution": {"taskSupport": support}}
    return Tool.model_validate({"name": "t", "inputSchema": {"type": "object"}, **execution})


@requirement("2025:tool-support", "2025:capability")
@pytest.mark.parametrize(
    ("prefer", "support", "server_makes_tasks", "wanted"),
    [
        ("auto", "optional", True, True),
        ("auto", "required", True, True),
        ("auto", "forbidden", True, False),
        ("auto", None, True, False),
        ("auto", "required", False, False),
        ("never", "optional", True, False),
        ("always", "optional", True, True),
        ("always", "forbidden", True, None),
        ("always", "optional", False, None),
    ],
)
def test_a_task_is_asked_for_where_server_tool_and_host_agree(
    prefer: TaskPreference, support: str, server_makes_tasks: bool, wanted: bool | None
) -> None:
    preference = TaskPolicy(prefer=prefer)
    if wanted is None:
        with pytest.raises(MissingCapabilityError, match='task_preference is "auto"') as caught:
            preference.wants_task("t", tool(support), server_makes_tasks=server_makes_tasks)
        assert caught.value.not_executed
    else:
        assert preference.wants_task("t", tool(support), server_makes_tasks=server_makes_tasks) is wanted
        assert not TaskPolicy().wants_task("t", None, server_makes_tasks=True)


@pytest.mark.parametrize(
    "options", [{"prefer": "often"}, {"ttl_s": 0.0}, {"ttl_s": math.nan}, {"ttl_s": math.inf}]
)
def test_a_preference_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="task_"):
        TaskPolicy(**options)
