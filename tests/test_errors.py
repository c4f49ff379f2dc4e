"""The exceptions: one tree, the one that is drawn, and all of it travels between processes."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from mcp_types import CallToolResult

from mcp_tasks_client import LastFailure, Question, Scope, TaskRecord, errors
from mcp_tasks_client.errors import (
    AlreadyAnsweredError,
    CallForgottenError,
    ConnectionLostError,
    CredentialRefusedError,
    DrivenElsewhereError,
    FormError,
    IdempotencyConflictError,
    InputUnansweredError,
    InvalidAnswerError,
    JournalCodecError,
    JournalCorruptError,
    JournalError,
    JournalLockedError,
    JournalSchemaError,
    MissingCapabilityError,
    OutcomeUnknownError,
    QuestionWithdrawnError,
    RemoteProtocolError,
    SessionError,
    TaskCancelledError,
    TaskError,
    TaskExpiredError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClientError,
    ToolError,
    WaitTimeoutError,
)
from mcp_tasks_client.machine.states import Observing
from mcp_tasks_client.protocol.task import read_task

RECORD = TaskRecord(
    record_id="r",
    scope=Scope("http://127.0.0.1/mcp"),
    tool="deploy",
    idempotency_key="order-42",
    state=Observing(
        task=read_task({"taskId": "t", "status": "working", "vendor/x": [1]}), received_at=1.0, due_at=2.0
    ),
    created_at=1.0,
    updated_at=2.0,
)
REMOTE: dict[str, Any] = {
    "retryable": True,
    "not_executed": True,
    "code": -32603,
    "remote_message": "Boom",
    "data": {"a": [1, None]},
    "http_status": 503,
    "retry_after_s": 7.5,
}
ASKED = Question(
    question_id="r-0123456789abcdef",
    record_id="r",
    endpoint="e",
    principal="",
    tool="sign",
    label=None,
    method="roots/list",
    params=None,
    asked_at=1.5,
    expires_at=None,
)

RESULT = CallToolResult.model_validate(
    {"content": [{"type": "text", "text": "no"}], "isError": True, "vendor/x": [1]}, extra="allow"
)
ATTRIBUTES: dict[type[TasksClientError], dict[str, Any]] = {
    TasksClientError: {},
    ToolError: {"result": RESULT, "tool": "deploy"},
    TaskError: {},
    TaskFailedError: {"code": -32050, "message": "quota", "data": {"a": 1}, "status_message": "over quota"},
    TaskCancelledError: {},
    TaskExpiredError: {},
    TaskNotFoundError: {},
    WaitTimeoutError: {"last_failure": LastFailure(message="HTTP 503", count=2, since=1.0)},
    InputUnansweredError: {"questions": (ASKED,), "keys": ("name", "age"), "declined": True},
    AlreadyAnsweredError: {"same": True},
    QuestionWithdrawnError: {},
    InvalidAnswerError: {},
    FormError: {"field": "port"},
    OutcomeUnknownError: {"record": RECORD},
    DrivenElsewhereError: {},
    IdempotencyConflictError: {},
    SessionError: REMOTE,
    ConnectionLostError: REMOTE,
    CredentialRefusedError: REMOTE,
    RemoteProtocolError: REMOTE,
    MissingCapabilityError: REMOTE,
    JournalError: {},
    CallForgottenError: {},
    JournalLockedError: {},
    JournalCodecError: {},
    JournalCorruptError: {},
    JournalSchemaError: {},
}
"""Every exception, and what can be given to it beside its message and its handle."""

NOTHING: dict[str, Any] = {
    "code": None,
    "message": "",
    "data": None,
    "status_message": None,
    "keys": (),
    "questions": (),
    "same": False,
    "declined": False,
    "record": None,
    "last_failure": None,
    "result": CallToolResult(content=[], is_error=True),
    "tool": None,
    "field": None,
    "retryable": False,
    "not_executed": False,
    "remote_message": "",
    "http_status": None,
    "retry_after_s": None,
    "handle": None,
}

every_error = pytest.mark.parametrize("kind", ATTRIBUTES, ids=lambda kind: kind.__name__)


def pickled(protocol: int, error: TasksClientError) -> Any:
    return pickle.loads(pickle.dumps(error, protocol))


TRAVELS: dict[str, Callable[[Any], Any]] = {
    **{f"pickle {protocol}": partial(pickled, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def test_all_of_them_are_named_and_none_is_missing_here() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == errors.__name__
    }
    assert set(errors.__all__) == defined == {kind.__name__ for kind in ATTRIBUTES}


@every_error
@pytest.mark.parametrize("travel", TRAVELS.values(), ids=TRAVELS)
def test_an_error_arrives_elsewhere_with_all_it_said(
    kind: type[TasksClientError], travel: Callable[[Any], Any]
) -> None:
    error = kind("What happened. What to do next.", **ATTRIBUTES[kind])
    error.add_note("noted")
    arrived = travel(error)
    assert type(arrived) is kind
    assert arrived is not error
    assert (str(arrived), arrived.args) == ("What happened. What to do next.", error.args)
    assert vars(arrived) == vars(error)
    assert {name: getattr(arrived, name) for name in ATTRIBUTES[kind]} == ATTRIBUTES[kind]
    assert arrived.handle is None


@every_error
def test_all_but_the_message_may_be_left_out(kind: type[TasksClientError]) -> None:
    error = kind("text")
    assert str(error) == "text"
    assert vars(error) == {name: NOTHING[name] for name in (*ATTRIBUTES[kind], "handle")}


@every_error
def test_an_error_carries_the_handle_it_was_given(kind: type[TasksClientError]) -> None:
    handle: Any = object()
    assert kind("text", handle=handle).handle is handle


@every_error
def test_everything_but_the_message_goes_by_its_name(kind: type[TasksClientError]) -> None:
    with pytest.raises(TypeError):
        kind("text", None)  # type: ignore[call-arg]  # that is the point


@every_error
def test_the_message_stands_in_the_traceback(kind: type[TasksClientError]) -> None:
    last = traceback.format_exception_only(kind("What to do next."))[-1]
    assert last == f"mcp_tasks_client.errors.{kind.__name__}: What to do next.\n"


def test_a_failed_task_keeps_the_server_s_message_apart_from_ours() -> None:
    error = TaskFailedError("The task failed: quota (-32050).", message="quota")
    assert (str(error), error.message) == ("The task failed: quota (-32050).", "quota")


def test_a_tool_that_raised_has_a_result_and_is_no_task_without_one() -> None:
    assert not issubclass(ToolError, TaskError)


def test_the_keys_of_unanswered_questions_are_a_tuple_whatever_was_given() -> None:
    assert InputUnansweredError("text", keys=["name"]).keys == ("name",)


def test_a_wait_that_timed_out_is_caught_as_a_time_out_and_as_ours() -> None:
    with pytest.raises(TimeoutError):
        raise WaitTimeoutError("text")
    assert issubclass(WaitTimeoutError, TasksClientError)
    assert not issubclass(WaitTimeoutError, TaskError)
    assert WaitTimeoutError("text").errno is None


# ── the tree as it is drawn ───────────────────────────────────────────────────────────────────


def drawn() -> dict[str, tuple[str | None, list[str], str]]:
    """Each exception in the module's docstring: its parent, its attributes, what is said of it."""
    tree: dict[str, tuple[str | None, list[str], str]] = {}
    above: list[str] = []
    for line in inspect.cleandoc(errors.__doc__ or "").splitlines():
        if match := re.fullmatch(r" {4}(?P<bars>[│├└ ]*)(?P<name>[A-Z]\w+Error)\b(?P<rest>.*)", line):
            depth = len(match["bars"]) // 2
            above[depth:] = [match["name"]]
            parent = above[depth - 1] if depth else None
            tree[match["name"]] = (parent, re.findall(r"(?<!\S)\.(\w+)", match["rest"]), match["rest"])
    return tree


def test_the_tree_is_the_one_that_the_docstring_draws() -> None:
    bases = {
        kind.__name__: next((b.__name__ for b in kind.__bases__ if b.__module__ == errors.__name__), None)
        for kind in ATTRIBUTES
    }
    assert {name: parent for name, (parent, _, _) in drawn().items()} == bases


def test_the_attributes_that_the_docstring_draws_are_there() -> None:
    missing = [
        f"{name}.{attribute}"
        for name, (_, attributes, _) in drawn().items()
        for attribute in attributes
        if not hasattr(getattr(errors, name)("text"), attribute)
    ]
    assert not missing
    assert sum(len(attributes) for _, attributes, _ in drawn().values()) > 5


def test_what_else_an_error_is_stands_in_the_drawing_too() -> None:
    foreign = {
        kind: [base.__name__ for base in kind.__bases__ if base.__module__ != errors.__name__]
        for kind in ATTRIBUTES
        if kind is not TasksClientError
    }
    assert {kind: bases for kind, bases in foreign.items() if bases} == {
        WaitTimeoutError: ["TimeoutError"],
        InvalidAnswerError: ["ValueError"],
        FormError: ["ValueError"],
    }
    assert "(also TimeoutError)" in drawn()["WaitTimeoutError"][2]
    assert "(also ValueError)" in drawn()["InvalidAnswerError"][2]
    assert "(also ValueError)" in drawn()["FormError"][2]
