"""A task as careless servers describe it: what is read of it, and when two snapshots say the same."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tasks_client import Task
from mcp_tasks_client.protocol import MalformedError
from mcp_tasks_client.protocol.replies import Created
from mcp_tasks_client.protocol.task import TERMINAL_STATUSES, read_task

TASK_ID = "hfWcnM9nILV_1MI9AytuHXEJLNNwF6lE8HXmpazeV2c"
LARGEST_MS = 2**53 - 1

SEED = {
    "resultType": "task",
    "taskId": TASK_ID,
    "status": "working",
    "createdAt": "2026-11-20T23:11:37.543206+00:00",
    "lastUpdatedAt": "2026-11-20T23:11:37.543206+00:00",
    "ttlMs": 900000,
    "pollIntervalMs": 5000,
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "lab", "version": "1.0"}},
}
NAME_REQUEST = {
    "method": "elicitation/create",
    "params": {"message": "Name?", "requestedSchema": {"type": "object", "properties": {}}},
}
SNAPSHOTS: dict[str, dict[str, Any]] = {
    "seed": SEED,
    "seed-with-content": {**SEED, "content": []},
    "whole-seconds": {**SEED, "createdAt": "2026-11-20T23:11:37Z", "lastUpdatedAt": "2026-11-20T23:11:37Z"},
    "unlimited": {**SEED, "ttlMs": None},
    "no-hint": {k: v for k, v in SEED.items() if k != "pollIntervalMs"},
    "input-required": {
        **SEED,
        "resultType": "complete",
        "status": "input_required",
        "inputRequests": {f"{TASK_ID}:0602359d90eb0aaa": NAME_REQUEST},
    },
    "completed": {
        **SEED,
        "resultType": "complete",
        "status": "completed",
        "result": {
            "_meta": {"fastmcp": {"wrap_result": True}},
            "content": [{"type": "text", "text": "6"}],
            "structuredContent": {"result": 6},
            "isError": False,
            "resultType": "complete",
        },
    },
    "completed-without-result-type": {
        "taskId": TASK_ID,
        "status": "completed",
        "result": {"content": [], "isError": True},
    },
    "failed": {
        **SEED,
        "resultType": "complete",
        "status": "failed",
        "statusMessage": "quota exceeded",
        "error": {"code": -32050, "message": "quota exceeded", "data": {"retryAfter": 7}},
    },
    "cancelled": {**SEED, "status": "cancelled"},
    "terminal-seed": {**SEED, "status": "completed"},
    "notification": {"taskId": TASK_ID, "status": "working", "ttlMs": None, "_meta": {"x/subscription": 3}},
    "only-what-is-needed": {"taskId": TASK_ID, "status": "working"},
    "request-state": {**SEED, "requestState": "opaque=="},
    "unknown-status": {**SEED, "status": "paused"},
    "unknown-fields": {**SEED, "progress": 0.5, "vendor/x": {"a": [1, None]}, "": None, "model_config": 1},
}


def task(**fields: Any) -> Task:
    return read_task({"taskId": TASK_ID, "status": "working", **fields})


# ── reading a task ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("raw", SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_whatever_a_server_sent_is_given_back_field_by_field(raw: dict[str, Any]) -> None:
    """But what says what kind of reply it came in."""
    assert read_task(raw).to_wire() == {name: raw[name] for name in raw if name != "resultType"}


def test_snapshots_with_the_same_fields_share_the_set_of_their_names() -> None:
    first, second = task(ttlMs=1), task(ttlMs=None)
    assert first.model_fields_set is second.model_fields_set
    assert first.model_fields_set == {"task_id", "status", "ttl_ms"}
    changed = first.model_copy(update={"status_message": "half done"})
    assert (changed.to_wire(), second.to_wire()) == (
        {"taskId": TASK_ID, "status": "working", "ttlMs": 1, "statusMessage": "half done"},
        {"taskId": TASK_ID, "status": "working", "ttlMs": None},
    )


def test_names_that_a_server_made_up_are_not_kept() -> None:
    assert task(made_up=1).model_fields_set is not task(made_up=1).model_fields_set


@pytest.mark.parametrize("result_type", ["task", "complete", "something", None, 7, ["task"]])
def test_a_task_is_read_by_its_status_whatever_result_type_it_carries(result_type: object) -> None:
    assert task(resultType=result_type).status == "working"


@pytest.mark.parametrize("stamp", ["2026-11-20T23:11:37Z", "2026-11-20T23:11:37.543206+00:00", "yesterday"])
def test_timestamps_are_kept_verbatim(stamp: str) -> None:
    read = task(createdAt=stamp, lastUpdatedAt=stamp)
    assert (read.created_at, read.last_updated_at) == (stamp, stamp)


@pytest.mark.parametrize("status", ["working", "input_required", "completed", "cancelled", "failed"])
def test_the_five_statuses_of_the_specification_are_known(status: str) -> None:
    assert task(status=status).known_status


@pytest.mark.parametrize("status", ["paused", "Completed", "completed "])
def test_a_status_nobody_knows_is_kept_and_is_not_terminal(status: str) -> None:
    read = task(status=status)
    assert (read.status, read.known_status, read.terminal) == (status, False, False)


def test_one_character_is_enough_for_an_id_and_for_a_status() -> None:
    read = read_task({"taskId": "1", "status": "x"})
    assert (read.task_id, read.status) == ("1", "x")


def test_three_statuses_are_terminal() -> None:
    assert {"completed", "cancelled", "failed"} == TERMINAL_STATUSES
    assert [
        s for s in ("working", "input_required", *sorted(TERMINAL_STATUSES)) if task(status=s).terminal
    ] == [
        "cancelled",
        "completed",
        "failed",
    ]


def test_a_task_can_be_terminal_at_birth_and_then_holds_no_result() -> None:
    read = read_task(SNAPSHOTS["terminal-seed"])
    assert read.terminal
    assert read.result is None


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        (200, 200),
        (0, 0),
        (0.5, 0.5),
        (10**9, 10**9),
        (10**400, LARGEST_MS),
        (1e308, LARGEST_MS),
        (math.inf, LARGEST_MS),
        ("5000", 5000),
        ("0.5", 0.5),
        ("1e400", LARGEST_MS),
        (None, None),
        (-1, None),
        (-math.inf, None),
        ("-1", None),
        (math.nan, None),
        ("nan", None),
        (True, None),
        (False, None),
        ("soon", None),
        ("", None),
        ([5000], None),
        ({"ms": 5000}, None),
    ],
)
def test_a_duration_is_read_in_every_form_that_makes_sense_and_else_counts_as_absent(
    raw: object, hint: float | None
) -> None:
    read = task(pollIntervalMs=raw, ttlMs=raw)
    assert (read.poll_interval_ms, read.ttl_ms) == (hint, hint)


def test_an_absent_duration_is_none() -> None:
    assert (task().poll_interval_ms, task().ttl_ms) == (None, None)


def test_a_null_ttl_can_be_told_from_an_absent_one() -> None:
    assert "ttl_ms" in task(ttlMs=None).model_fields_set
    assert "ttl_ms" not in task().model_fields_set


JUNK: list[object] = [None, True, 7, "text", [], [{}], {"a": 1}]


@pytest.mark.parametrize("junk", JUNK, ids=repr)
@pytest.mark.parametrize("status", ["working", "completed", "paused"])
def test_junk_in_optional_fields_never_costs_the_task_id(junk: object, status: str) -> None:
    optional = [
        "statusMessage",
        "createdAt",
        "lastUpdatedAt",
        "ttlMs",
        "pollIntervalMs",
        "inputRequests",
        "result",
        "error",
        "requestState",
        "_meta",
        "resultType",
        "content",
        "somethingNew",
    ]
    read = task(status=status, **dict.fromkeys(optional, junk))
    assert (read.task_id, read.status) == (TASK_ID, status)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted({*Task.model_fields, *SNAPSHOTS["failed"]})) | st.text(), JSON))
def test_any_json_beside_id_and_status_is_readable(fields: dict[str, Any]) -> None:
    read = read_task({**fields, "taskId": TASK_ID, "status": "working"})
    assert read.task_id == TASK_ID
    assert repr(read).startswith("Task(task_id='hfWcnM9n…', status='working'")
    assert read_task(read.to_wire()) == read


@given(JSON)
def test_a_result_comes_back_unchanged(result: object) -> None:
    wrapped = {"content": [], "structuredContent": result}
    assert task(status="completed", result=wrapped).result == wrapped


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_half_a_surrogate_pair_in_a_text_is_carried_along(text: str) -> None:
    read = task(statusMessage=text, result={text: text}, inputRequests={text: {}})
    assert read.status_message == text
    assert read.result == {text: text}
    assert read.input_requests == {text: {}}


def test_half_a_surrogate_pair_in_the_name_of_an_unknown_field_never_costs_the_task_id() -> None:
    assert task(**{"\ud800": 1}).task_id == TASK_ID


def test_a_field_that_happens_to_be_named_like_an_attribute_of_ours_is_unknown_and_kept() -> None:
    read = task(poll_interval_ms=7)
    assert read.poll_interval_ms is None
    assert read.to_wire()["poll_interval_ms"] == 7


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (None, "must be an object, not NoneType"),
        ([SEED], "must be an object, not list"),
        ("task", "must be an object, not str"),
        ({}, "without a usable taskId, status"),
        ({"taskId": TASK_ID}, "without a usable status"),
        ({"status": "working"}, "without a usable taskId"),
        ({"taskId": "", "status": "working"}, "without a usable taskId"),
        ({"taskId": 7, "status": "working"}, "without a usable taskId"),
        ({"taskId": TASK_ID, "status": ""}, "without a usable status"),
        ({"taskId": TASK_ID, "status": None}, "without a usable status"),
        ({"task": SEED}, "without a usable taskId, status"),
    ],
)
def test_without_an_id_or_a_status_it_is_no_task_and_the_message_says_so(raw: object, complaint: str) -> None:
    with pytest.raises(MalformedError, match=re.escape(complaint)) as raised:
        read_task(raw)
    assert TASK_ID not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_snapshot_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        task().status = "completed"  # the point: a frozen model


# ── comparing two snapshots ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "field",
    [
        {"lastUpdatedAt": "2027-01-01T00:00:00Z"},
        {"createdAt": "2027-01-01T00:00:00Z"},
        {"_meta": {"polled": 17}},
        {"resultType": "complete"},
        {"content": []},
    ],
    ids=lambda field: next(iter(field)),
)
def test_the_times_and_the_metadata_of_a_reply_are_no_news(field: dict[str, Any]) -> None:
    assert read_task({**SEED, **field}).same_as(read_task(SEED))


@pytest.mark.parametrize(
    "field",
    [
        {"taskId": "another"},
        {"status": "input_required"},
        {"statusMessage": "step 1/4"},
        {"ttlMs": None},
        {"pollIntervalMs": 200},
        {"inputRequests": {}},
        {"result": {}},
        {"error": {}},
        {"requestState": "opaque"},
        {"progress": 0.5},
    ],
    ids=lambda field: next(iter(field)),
)
def test_everything_else_is_news(field: dict[str, Any]) -> None:
    assert not read_task({**SEED, **field}).same_as(read_task(SEED))
    assert not read_task(SEED).same_as(read_task({**SEED, **field}))


# ── showing a task ────────────────────────────────────────────────────────────────────────────


def test_no_way_of_showing_a_task_gives_its_id_away() -> None:
    read = read_task({**SEED, "echo": TASK_ID, "requestState": TASK_ID, "result": {"id": TASK_ID}})
    shown = [repr(read), str(read), f"{read}", repr(Created(read)), repr([read])]
    rich: Any = read  # what the rich package prints; pydantic types this method for itself only
    shown += [str(part) for part in rich.__rich_repr__()]
    assert not [text for text in shown if TASK_ID in text]
    assert repr(read) == "Task(task_id='hfWcnM9n…', status='working')"


def test_the_status_message_is_shown() -> None:
    assert "status_message='step 1/4'" in repr(task(statusMessage="step 1/4"))


@pytest.mark.parametrize("times", [{"lastUpdatedAt": None}, {"createdAt": None, "lastUpdatedAt": None}])
def test_times_that_are_null_are_read_as_none(times: dict[str, None]) -> None:
    read = task(**times)
    assert (read.created_at, read.last_updated_at) == (task().created_at if len(times) == 1 else None, None)


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        (
            {"io.modelcontextprotocol/model-immediate-response": "It may take a while."},
            "It may take a while.",
        ),
        ({"io.modelcontextprotocol/model-immediate-response": 7}, None),
        ({"other": 1}, None),
        ("none", None),
    ],
)
def test_a_task_may_say_what_the_model_is_told_meanwhile(meta: object, told: str | None) -> None:
    assert read_task({"taskId": "t", "status": "working", "_meta": meta}).immediate_response == told
    assert read_task({"taskId": "t", "status": "working"}).immediate_response is None


@pytest.mark.parametrize("told", [None, 7, [1]])
def test_a_task_tells_how_far_it_is_only_if_the_server_did(told: object) -> None:
    assert Task(task_id="t", status="working").progress is None
    assert Task.model_validate({"taskId": "t", "status": "working", "progress": told}).progress is None
    far = {"progress": 1, "total": 2}
    assert Task.model_validate({"taskId": "t", "status": "working", "progress": far}).progress == far
