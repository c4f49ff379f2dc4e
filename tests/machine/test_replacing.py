"""Copies of dataclasses are those of the standard library, and are refused where they would not be."""

from __future__ import annotations

import dataclasses
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from mcp_tasks_client.machine import actions, events, states
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.machine.replacing import replace
from mcp_tasks_client.protocol.task import Task
from mcp_tasks_client.sessions.base import TaskRef, ToolCall

TASK = Task(task_id="t", status="working", created_at="2026-01-01T00:00:00Z", ttl_ms=None)
OBSERVING = states.Observing(task=TASK, received_at=1.0, due_at=2.0, ttl_ms=5.0)
RECORD = TaskRecord(
    record_id="r",
    scope=Scope("https://x.example/"),
    tool="t",
    state=OBSERVING,
    created_at=1.0,
    updated_at=1.0,
)


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        (OBSERVING, {}),
        (OBSERVING, {"due_at": 9.0, "wait_s": 7.0}),
        (OBSERVING, {"task": TASK, "ttl_ms": None, "reported": ("unheard",)}),
        (RECORD, {"state": states.OutcomeUnknown(), "owner": "a/1"}),
        (RECORD.scope, {"principal": "alice"}),
        (states.AskedQuestion(key="k", digest="d"), {"stage": "asking"}),
        (states.Completed(result={"content": []}), {"took_s": 2.5}),
        (events.CallRefused(for_good=True, limited=False, why="w", now=1.0, jitter=0.5), {"for_good": False}),
        (actions.Wake(1.0), {"after_s": 2.0}),  # of one field
        (TaskRef("t"), {"before_send": print}),
        (ToolCall(name="t", arguments={}), {"context": None}),
    ],
    ids=lambda value: type(value).__name__ if dataclasses.is_dataclass(value) else ",".join(value),
)
def test_a_copy_is_that_of_the_standard_library(given: Any, changes: dict[str, Any]) -> None:
    before = dataclasses.replace(given)

    copy = replace(given, **changes)

    expected = dataclasses.replace(given, **changes)
    assert type(copy) is type(given)
    assert copy is not given
    for one in dataclasses.fields(given):
        assert getattr(copy, one.name) is getattr(expected, one.name)
    assert given == before


def test_a_copy_is_frozen_as_well() -> None:
    copy: Any = replace(OBSERVING, due_at=9.0)

    with pytest.raises(FrozenInstanceError):
        copy.due_at = 1.0


def test_a_copy_is_checked_as_a_new_instance_is() -> None:
    assert replace(Bounded(low=1, high=2), high=3) == Bounded(low=1, high=3)
    with pytest.raises(ValueError, match="2 is more than 1"):
        replace(Bounded(low=1, high=2), low=2, high=1)


def test_a_field_that_there_is_not_is_refused() -> None:
    wrong: dict[str, Any] = {"wait": 1.0}
    with pytest.raises(TypeError, match="unexpected keyword argument 'wait'"):
        replace(OBSERVING, **wrong)


def test_a_class_that_would_be_copied_in_part_is_refused() -> None:
    for given in (Unslotted(1), Counted(1), Empty()):
        with pytest.raises(TypeError, match=f"{type(given).__name__} has no fields, no slots, or a field"):
            replace(given)
    nothing: Any = object()
    with pytest.raises(TypeError, match="dataclass"):
        replace(nothing)


@dataclass(frozen=True, slots=True)
class Bounded:
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"{self.low} is more than {self.high}")


@dataclass(frozen=True)
class Unslotted:
    number: int


@dataclass(frozen=True, slots=True)
class Counted:
    number: int
    twice: int = field(init=False, default=2)


@dataclass(frozen=True, slots=True)
class Empty:
    pass
