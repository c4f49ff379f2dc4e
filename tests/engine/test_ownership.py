"""Two clients over one journal: what one did, the other neither undoes nor repeats.

A client whose caller went away still holds what it knew of the task. Meanwhile another client may have
asked the person, sent the answer, brought the result home; whatever the first does then counts for
nothing where it is out of date.
"""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.engine.call_store import CallStore
from mcp_tasks_client.engine.environment import Environment
from mcp_tasks_client.engine.live_call import LiveCall, Ours
from mcp_tasks_client.errors import CredentialRefusedError, TaskNotFoundError
from mcp_tasks_client.handle import TaskHandle
from mcp_tasks_client.journal.guarded import GuardedJournal
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.machine.actions import SendCall
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.machine.states import Observing, OutcomeUnknown
from mcp_tasks_client.testing import ManualClock, input_required, working
from tests._results import text
from tests.engine.other_process import LEASE_S, invisible
from tests.engine.world import ASK, DONE, NO_JITTER, TASK, YES, Asked, World
from tests.kit.probed_journal import Held, ProbedJournal
from tests.scripted_session import STALL, ScriptedSession

pytestmark = pytest.mark.anyio

KEY = "order-42"
ASKING = input_required(TASK, {"k": ASK})
ACCEPTED = {"action": "accept", "content": {"n": 3}}


def answers(world: World) -> list[Any]:
    return [dict(sent.answers) for sent in world.server.log("tasks/update")]


def refused_once() -> World:
    refusal = CredentialRefusedError("HTTP 401", http_status=401)
    return World(gets={TASK: [refusal, DONE]})


async def taken_up_again(verb: str, client: TasksClient, handle: TaskHandle) -> TaskHandle:
    """Take up, in one of the ways there are, what this client has let go of."""
    match verb:
        case "the handle":
            return handle
        case "resume":
            (handle,) = await client.resume()
            return handle
        case "attach":
            return await client.attach(TASK)
        case _:
            return await client.start_tool("tool", idempotency_key=KEY)


# ── one after the other ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", ["the handle", "resume", "attach", "the key"])
async def test_what_a_later_client_asked_and_answered_is_not_asked_again_by_the_earlier_one(
    verb: str,
) -> None:
    world = World(gets={TASK: [ASKING]})
    asked = Asked(RuntimeError("nobody at the keyboard"), YES, ElicitResult(action="decline"))
    async with world.client(elicitation=asked) as earlier:
        handle = await earlier.start_tool("tool", idempotency_key=KEY)
        await world.clock.advance(2)
        assert [record.owner for record in await earlier.records()] == [None], "another process may have it"
        async with world.client(elicitation=asked) as later:
            assert [h.task_id for h in await later.resume()] == [TASK]
            await world.clock.advance(1)
        assert (asked.keys, answers(world)) == (["k", "k"], [{"k": ACCEPTED}])
        world.server.gets[TASK] = [ASKING, DONE]
        again = await taken_up_again(verb, earlier, handle)
        await world.during(again.result, 60)
        assert text(await again) == "done"
    assert asked.keys == ["k", "k"], "the one who had no answer, and the one who had"
    assert all(sent == {"k": ACCEPTED} for sent in answers(world)), "which goes again while it seems lost"


async def test_the_answer_of_a_prompt_that_could_not_be_withdrawn_is_the_answer_also_of_who_follows() -> None:
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
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(earlier.call_tool, "tool", idempotency_key=KEY))
            await world.clock.advance(2)
            tasks.cancel_scope.cancel()
        async with world.client(elicitation=ask) as later, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(later.call_tool, "tool", idempotency_key=KEY))
            await world.clock.advance(3)
            answers_late.set()  # whereupon the earlier client answers, and lets go
            await world.clock.advance(10)
            tasks.cancel_scope.cancel()
    assert prompts == 1, "who follows asks nobody"
    late = {"k": {"action": "accept", "content": {"n": 1}}}
    assert answers(world) == [late] * len(answers(world)) != [], "said again, and never otherwise"
    state = (await world.only_record()).state
    assert isinstance(state, Observing)
    assert [question.stage for question in state.questions] == ["acknowledged"]


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
        # What parked it here is an old story.
        assert text(await world.call(earlier, idempotency_key=KEY)) == "done"
        if handle is not None:
            assert text(await handle) == "done"
        assert [record.status for record in await earlier.records()] == ["completed"]
    async with world.client() as third:
        assert text(await third.call_tool("tool", idempotency_key=KEY)) == "done"


# ── at the same time ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("was_gone", [False, True], ids=["unknown before", "not found before"])
async def test_of_two_clients_that_attach_a_task_at_the_same_moment_one_drives_it_and_both_return(
    was_gone: bool,
) -> None:
    world = World(gets={})
    asked = Asked(STALL)
    async with world.client(elicitation=asked) as first, world.client(elicitation=asked) as second:
        if was_gone:
            with pytest.raises(TaskNotFoundError):
                await (await first.attach(TASK)).result()
        known = len(await first.records())
        world.server.gets[TASK] = [{**ASKING, "pollIntervalMs": 1000}]
        polls = len(world.polled_at())
        attached: list[str | None] = []

        async def attach(client: TasksClient) -> None:
            attached.append((await client.attach(TASK)).task_id)

        async with anyio.create_task_group() as tasks:
            for client in (first, second):
                tasks.start_soon(attach, client)
            await world.clock.advance(10)
            tasks.cancel_scope.cancel()
        assert attached == [TASK, TASK]
        assert asked.keys == ["k"]
        assert len(world.polled_at()) - polls <= 11, "one series of polls"
        assert len(await first.records()) == known + 1


def _got_it(taken: Any, record_id: str, owner: str, gone: Any = ()) -> bool:
    return taken is not None and taken.record.owner == owner


@pytest.mark.parametrize("closes", [True, False], ids=["and closes", "and stays"])
async def test_a_follower_is_told_what_the_driver_delivered_between_two_looks(closes: bool) -> None:
    world = World(calls=[working(TASK, poll_interval_ms=7000)])
    world.journal = journal = ProbedJournal()
    told: list[str] = []

    async def call(client: TasksClient) -> None:
        told.append(text(await client.call_tool("tool", idempotency_key=KEY)))

    async def start(client: TasksClient) -> None:
        told.append(text(await (await client.start_tool("tool", idempotency_key=KEY))))

    async with world.client() as follower, anyio.create_task_group() as tasks:
        async with world.client() as driver:
            tasks.start_soon(call, driver)
            await world.clock.advance(1)
            tasks.start_soon(call, follower)
            tasks.start_soon(start, follower)
            await world.clock.advance(7 if closes else 17)
        await world.clock.advance(10)
        assert told == ["done", "done", "done"]
        looks = journal.counts["take"]
        await world.clock.advance(60)
        assert journal.counts["take"] == looks
    assert len(world.server.log("tools/call")) == 1


async def test_a_follower_looks_ever_more_seldom_but_at_least_every_five_seconds() -> None:
    world = World(gets={TASK: [working(TASK, poll_interval_ms=1_000_000)]})
    world.journal = journal = ProbedJournal()
    looked: list[int] = []

    async def call(client: TasksClient) -> None:
        await client.call_tool("tool", idempotency_key=KEY)

    async with world.client() as driver, world.client() as follower, anyio.create_task_group() as tasks:
        tasks.start_soon(call, driver)
        await world.clock.advance(1)
        tasks.start_soon(call, follower)
        for seconds in (2, 2, 16, 20):
            before = journal.counts["take"]
            await world.clock.advance(seconds)
            looked.append(journal.counts["take"] - before)
        tasks.cancel_scope.cancel()
    assert looked == [6, 1, 4, 4]


async def test_a_call_that_was_followed_is_not_repeated_when_its_outcome_is_forgotten() -> None:
    world = World(gets={TASK: [working(TASK), DONE]})
    results: list[str] = []

    async def call(client: TasksClient) -> None:
        results.append(text(await client.call_tool("tool", idempotency_key=KEY)))

    async with world.client() as driver, world.client() as follower, anyio.create_task_group() as tasks:
        tasks.start_soon(call, driver)
        await world.clock.advance(0.1)
        tasks.start_soon(call, follower)
        for _ in range(100):
            await world.clock.advance(0.1)
            await driver.prune(0)
    assert results == ["done", "done"]
    assert len(world.server.log("tools/call")) == 1


async def test_who_takes_over_for_a_caller_that_has_just_gone_lets_go_again() -> None:
    world = World(gets={TASK: [working(TASK, poll_interval_ms=5000)] * 9 + [DONE]})
    world.journal = journal = ProbedJournal()
    gives_up = [anyio.CancelScope(), anyio.CancelScope()]
    results: list[str] = []

    async def call(client: TasksClient, scope: anyio.CancelScope) -> None:
        with scope:
            results.append(text(await client.call_tool("tool", idempotency_key=KEY)))

    async with (
        world.client() as first,
        world.client() as second,
        world.client() as third,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(call, first, gives_up[0])
        await world.clock.advance(2)
        tasks.start_soon(call, second, gives_up[1])
        await world.clock.advance(20)
        taking = Held()
        journal.after(
            "take", taking, when=lambda taken, _, owner, *gone: taken and taken.record.owner == owner
        )
        gives_up[0].cancel()
        await world.clock.advance(6)
        gives_up[1].cancel()  # which is about to take it
        await world.clock.advance(1)
        taking.go_on.set()
        await world.clock.advance(1)
        gc.collect()  # of the second one nobody holds anything
        assert [record.owner for record in await third.records()] == [None]
        tasks.start_soon(call, third, anyio.CancelScope())
        await world.clock.advance(200)
    assert results == ["done"]


async def test_whoever_followed_does_not_note_the_delivery_for_the_owner() -> None:
    world = World()
    async with world.client() as owner, world.client() as follower:
        handle = await owner.start_tool("tool", idempotency_key=KEY)
        assert text(await world.call(follower, idempotency_key=KEY)) == "done"
        (record,) = await follower.records()
        assert record.delivered_at is None
        await handle.result()
        (record,) = await owner.records()
        assert record.delivered_at is not None


async def test_letting_go_of_what_another_host_has_taken_already_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock, other = tmp_path / "journal.sqlite3", ManualClock(), ManualClock()
    late = ScriptedSession(clock=clock, calls=[working(TASK)], gets={TASK: [working(TASK)]})
    with anyio.fail_after(20):
        async with invisible(ScriptedSession(gets={TASK: [working(TASK)]}), other, path, "second") as second:
            async with invisible(late, clock, path, "first") as first:
                await first.start_tool("tool")
                await other.advance(LEASE_S + 1)  # the first one's clock stands still
                assert len(await second.resume()) == 1
            (record,) = await second.records()
            assert record.owner is not None, "it is still the second one's"
    assert "could not be released" not in caplog.text


async def test_what_was_to_be_sent_before_another_client_had_the_call_is_not_sent() -> None:
    journal = MemoryJournal()
    async with journal:
        ours, theirs = (CallStore(GuardedJournal(journal), NO_JITTER, Environment()) for _ in range(2))
        record = TaskRecord(
            record_id="r",
            scope=Scope("scripted"),
            tool="tool",
            idempotency_key="k",
            state=OutcomeUnknown(),
            created_at=1.0,
            updated_at=1.0,
        )
        call = LiveCall(record, Ours(0, 0))
        await ours.owning.claim(call)
        ours.steps.put_back(call, SendCall())
        await ours.owning.release(call)
        taken = theirs.registry.live_of(call.record)
        assert await theirs.owning.take(taken)
        await theirs.owning.release(taken)
        assert await ours.owning.take(call)
        assert call.next_send is None
        await ours.close()
        await theirs.close()
