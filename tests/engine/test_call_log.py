"""The life of a call in the log: what is told, at which level, and what is not."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mcp_tasks_client.errors import (
    CredentialRefusedError,
    InputUnansweredError,
    OutcomeUnknownError,
    SessionError,
)
from mcp_tasks_client.machine.events import AnswerReady, CancelAcknowledged
from mcp_tasks_client.testing import completed, input_required, text_result, working
from tests.engine.world import ASK, DONE, LOST, TASK, YES, Asked, World

pytestmark = pytest.mark.anyio

KEY = "order-42"
MISSING = SessionError("Not known.", code=-32602, retryable=False)
FOREVER = working(TASK, poll_interval_ms=1000)


def turns(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was told of calls since this was last asked: the turn, and the level."""
    told = [(r.__dict__["mcp_event"], r.levelname) for r in caplog.records if "mcp_event" in r.__dict__]
    caplog.clear()
    return told


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mcp_tasks_client")


async def test_the_life_of_a_call_is_told_turn_by_turn(caplog: pytest.LogCaptureFixture) -> None:
    world = World(gets={TASK: [LOST, LOST, input_required(TASK, {"n": ASK}), FOREVER, DONE]})
    async with world.client(elicitation=Asked(YES)) as client:
        await world.call(client)
    assert turns(caplog) == [
        ("created", "INFO"),
        ("unreachable", "WARNING"),
        ("reachable", "INFO"),
        ("asked", "INFO"),
        ("answered", "INFO"),
        ("ended", "INFO"),
        ("delivered", "INFO"),
    ]


async def test_what_parks_a_call_and_who_goes_on_with_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    world = World(gets={TASK: [input_required(TASK, {"n": ASK}), CredentialRefusedError("HTTP 401."), DONE]})
    async with world.client() as client:
        with pytest.raises(InputUnansweredError):
            await world.call(client)
        assert turns(caplog) == [("created", "INFO"), ("asked", "INFO"), ("parked", "INFO")]
        (handle,) = await client.resume()
        with pytest.raises(CredentialRefusedError):
            await world.during(handle.result, 60)
        assert turns(caplog) == [("resumed", "INFO"), ("parked", "WARNING")]
    async with world.client() as client:
        (handle,) = await client.resume()
        await world.during(handle.result, 60)
    assert turns(caplog) == [("resumed", "INFO"), ("ended", "INFO"), ("delivered", "INFO")]


async def test_a_task_that_is_gone_and_one_that_was_attached_and_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(gets={TASK: [FOREVER, MISSING]})
    async with world.client() as client:
        handle = await client.attach(TASK)
        await world.during(handle.cancel, 3)
        await world.clock.advance(60)
    assert turns(caplog) == [
        ("attached", "INFO"),
        ("cancelling", "INFO"),
        ("unreachable", "WARNING"),
        ("ended", "WARNING"),
    ]


async def test_a_call_with_a_key_whose_reply_is_lost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    world = World(calls=[LOST])
    async with world.client() as client:
        with pytest.raises(OutcomeUnknownError):
            await world.call(client, idempotency_key=KEY)
    assert turns(caplog) == [("lost", "WARNING")]


async def test_what_comes_after_the_end_of_a_task_is_no_turn_of_it(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(5)
        turns(caplog)
        assert handle._call is not None
        steps = client._engine.store.steps
        await steps._commit(handle._call, AnswerReady(key="n", answer={"action": "accept"}, now=5.0), None)
        await steps._commit(handle._call, CancelAcknowledged(now=5.0), None)
    assert turns(caplog) == []


async def test_a_call_that_is_answered_at_once_leaves_no_line(caplog: pytest.LogCaptureFixture) -> None:
    world = World(calls=[text_result("at once")])
    async with world.client() as client:
        await world.call(client)
    assert caplog.records == []


async def test_fields_name_the_call_and_neither_they_nor_the_line_hold_the_task_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = SessionError(f"No {TASK} here.", retryable=True)
    asked = input_required(TASK, {f"{TASK}-n": ASK})
    world = World(gets={TASK: [failed, asked, completed(TASK, text_result("done"))]})
    async with world.client(elicitation=Asked(YES)) as client:
        await world.call(client)
        (created, *_) = caplog.records
        fields: dict[str, Any] = {k: v for k, v in created.__dict__.items() if k.startswith("mcp_")}
        assert fields.pop("mcp_record")
        assert fields == {
            "mcp_event": "created",
            "mcp_tool": "tool",
            "mcp_task": "task-01…",
            "mcp_status": "working",
            "mcp_endpoint": "scripted",
            "mcp_principal": "",
        }
        assert created.getMessage() == "Task task-01… of 'tool' was created"
    for record in caplog.records:
        assert TASK not in f"{record.getMessage()} {record.__dict__}"


async def test_a_task_id_that_holds_escape_sequences_and_line_breaks_reaches_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wild = "\x1b[2J\n\u202eAll is well. " + "x" * 30
    refused = CredentialRefusedError("HTTP 401.")
    world = World(calls=[working(wild)], gets={wild: [LOST, input_required(wild, {"n": ASK}), refused]})
    async with world.client(elicitation=Asked(YES)) as client:
        handle = await client.start_tool("tool")
        with pytest.raises(CredentialRefusedError) as raised:
            await world.during(handle.result, 3600)
        shown = [repr(handle), str(raised.value), repr(handle.task)]
    shown += [str(value) for one in caplog.records for value in (one.getMessage(), one.__dict__["mcp_task"])]
    assert len(shown) > 8
    assert [one for one in shown if not one.isprintable()] == []


async def test_thousands_of_polls_leave_no_line(caplog: pytest.LogCaptureFixture) -> None:
    world = World(gets={TASK: [FOREVER]})
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(1000)
        assert len(world.polled_at()) > 900
        assert turns(caplog) == [("created", "INFO")]


async def test_where_nobody_listens_nothing_is_put_together(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR, logger="mcp_tasks_client")
    monkeypatch.setattr("mcp_tasks_client.engine.call_log.quote", None)
    world = World()
    async with world.client() as client:
        await world.call(client)


async def test_a_created_at_that_moves_by_milliseconds_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """Some servers find it anew for each reply."""
    moving = [
        {**one, "createdAt": f"2026-11-20T23:11:37.00{n}Z"} for n, one in enumerate([FOREVER, FOREVER, DONE])
    ]
    world = World(calls=[moving[0]], gets={TASK: moving[1:]})
    async with world.client() as client:
        await world.call(client)
    assert "broke the protocol" not in caplog.text
    assert turns(caplog) == [("created", "INFO"), ("ended", "INFO"), ("delivered", "INFO")]
