"""Two clients over one journal: what one did, the other neither undoes nor repeats.

A client whose caller went away still holds what it knew of the task. Meanwhile another client may have
asked the person, sent the answer, brought the result home; whatever the first does then counts for
nothing where it is out of date.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import (
    CredentialRefusedError,
    InputUnansweredError,
    TaskHandle,
    TaskNotFoundError,
    TasksClient,
    TasksClientError,
)
from mcp_tasks_client.old.journal.base import TaskRecord
from mcp_tasks_client.old.states import Observing, Question
from mcp_tasks_client.old.testing import STALL, input_required

from ._requirements import requirement
from .test_client import ASK, DONE, TASK, YES, Asked, World, text
from .test_client_faults import KEY, refused_once

pytestmark = pytest.mark.anyio

ASKING: Final = input_required(TASK, {"k": ASK})
ACCEPTED: Final = {"action": "accept", "content": {"n": 3}}


def questions(record: TaskRecord) -> tuple[Question, ...]:
    assert isinstance(record.state, Observing)
    return record.state.questions


def answers(world: World) -> list[Any]:
    return [dict(sent.answers) for sent in world.server.log("tasks/update")]


async def until_it_is_left(world: World, client: TasksClient) -> None:
    """A keyed call whose caller goes away while the question is before the person."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: client.call_tool("tool", idempotency_key=KEY))
        await world.clock.advance(2)
        tasks.cancel_scope.cancel()
    await world.clock.advance(0)


async def taken_up_again(verb: str, client: TasksClient, handle: TaskHandle) -> TaskHandle:
    """Take up, in one of the ways there are, what this client has let go of."""
    match verb:
        case "the handle":
            with pytest.raises(InputUnansweredError):
                await handle.result()
            return handle
        case "resume":
            (handle,) = await client.resume()
            return handle
        case "attach":
            return await client.attach(TASK)
        case _:
            return await client.start_tool("tool", idempotency_key=KEY)


# ── one after the other ───────────────────────────────────────────────────────────────────────


@requirement("law:3", "law:5")
@pytest.mark.parametrize("verb", ["the handle", "resume", "attach", "the key"])
async def test_what_a_later_client_asked_and_answered_is_not_asked_again_by_the_earlier_one(
    verb: str,
) -> None:
    world = World(gets={TASK: [ASKING]})
    asked = Asked(RuntimeError("nobody at the keyboard"), YES, ElicitResult(action="decline"))
    async with world.client(elicitation=asked) as earlier:
        handle = await earlier.start_tool("tool", idempotency_key=KEY)
        await world.clock.advance(2)
        async with world.client(elicitation=asked) as later:
            assert [h.task_id for h in await later.resume()] == [TASK]
            await world.clock.advance(3)
        assert (asked.keys, answers(world)) == (["k", "k"], [{"k": ACCEPTED}])
        with suppress(InputUnansweredError):  # what parked it is told first
            await world.during(lambda: taken_up_again(verb, earlier, handle), 1)
        world.server.gets[TASK] = [ASKING, ASKING, DONE]
        again = await taken_up_again("attach", earlier, handle)
        with suppress(InputUnansweredError):
            await world.during(again.result, 60)
        await world.during(again.result, 60)
        assert text(await again) == "done"
    assert asked.keys == ["k", "k"], "the one who had no answer, and the one who had"
    assert answers(world) == [{"k": ACCEPTED}]


@requirement("law:3", "law:5")
async def test_the_late_answer_of_a_prompt_that_could_not_be_withdrawn_changes_no_later_answer() -> None:
    world = World(gets={TASK: [ASKING]})
    answers_late, prompts = anyio.Event(), 0

    async def ask(context: Any, params: Any) -> ElicitResult:
        nonlocal prompts
        prompts += 1
        if prompts == 1:
            with anyio.CancelScope(shield=True):  # as input() in a thread
                await answers_late.wait()
            return ElicitResult(action="accept", content={"n": 1})
        return YES

    async with world.client(elicitation=ask) as earlier:
        await until_it_is_left(world, earlier)
        async with world.client(elicitation=ask) as later:
            await later.resume()
            await world.clock.advance(3)
        assert answers(world) == [{"k": ACCEPTED}]
        before = await world.only_record()
        answers_late.set()
        await world.clock.advance(3)
        assert await world.only_record() == before
        assert [q.stage for q in questions(before)] == ["acknowledged"]
    async with world.client(elicitation=ask) as third:
        await third.resume()
        await world.clock.advance(3)
    assert prompts == 2
    assert answers(world) == [{"k": ACCEPTED}]


@requirement("law:2", "law:5")
@pytest.mark.parametrize("kept", [True, False], ids=["with a handle", "without a handle"])
async def test_a_result_that_a_later_client_brought_home_is_the_earlier_ones_result_too(kept: bool) -> None:
    world = refused_once()
    async with world.client() as earlier:
        handle: TaskHandle | None = await earlier.start_tool("tool", idempotency_key=KEY)
        await world.clock.advance(2)
        if not kept:
            handle = None
        async with world.client() as later:
            assert text(await world.call(later, idempotency_key=KEY)) == "done"
        del world.server.gets[TASK]  # its time-to-live is over
        for _ in range(2):
            with suppress(CredentialRefusedError):  # what parked it is told first
                assert text(await world.call(earlier, idempotency_key=KEY)) == "done"
        if handle is not None:
            assert text(await handle) == "done"
        assert [record.status for record in await earlier.records()] == ["completed"]
    async with world.client() as third:
        assert text(await third.call_tool("tool", idempotency_key=KEY)) == "done"


@requirement("law:5")
async def test_cancelling_what_a_later_client_brought_home_does_not_undo_its_result() -> None:
    world = refused_once()
    async with world.client() as earlier:
        handle = await earlier.start_tool("tool", idempotency_key=KEY)
        await world.clock.advance(2)
        async with world.client() as later:
            assert text(await world.call(later, idempotency_key=KEY)) == "done"
        with suppress(TasksClientError):
            await handle.cancel()
        assert [record.status for record in await earlier.records()] == ["completed"]
    async with world.client() as third:
        assert text(await third.call_tool("tool", idempotency_key=KEY)) == "done"


# ── at the same time ──────────────────────────────────────────────────────────────────────────


@requirement("law:3", "law:5")
@pytest.mark.parametrize("was_gone", [False, True], ids=["unknown before", "not found before"])
async def test_of_two_clients_that_attach_a_task_at_the_same_moment_one_drives_it(was_gone: bool) -> None:
    world = World(gets={})
    asked = Asked(STALL)
    async with world.client(elicitation=asked) as first, world.client(elicitation=asked) as second:
        if was_gone:
            with pytest.raises(TaskNotFoundError):
                await (await first.attach(TASK)).result()
        known = len(await first.records())
        world.server.gets[TASK] = [{**ASKING, "pollIntervalMs": 1000}]
        polls = len(world.polled_at())
        async with anyio.create_task_group() as tasks:
            for client in (first, second):
                tasks.start_soon(client.attach, TASK)
            await world.clock.advance(10)
            tasks.cancel_scope.cancel()
        assert asked.keys == ["k"]
        assert len(world.polled_at()) - polls <= 11, "one series of polls"
        assert len(await first.records()) == known + 1
