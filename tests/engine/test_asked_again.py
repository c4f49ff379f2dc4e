"""Servers that go on asking what was answered: an answer that they lost, and a key that they use again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks_client.errors import InputUnansweredError, SessionError, TaskNotFoundError
from mcp_tasks_client.journal.base import Journal
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.testing import (
    ManualClock,
    ScriptedServer,
    Unheeded,
    ask,
    complete,
    form,
    input_required,
    text_result,
)
from tests._results import text
from tests.engine.other_process import OnDisk
from tests.engine.world import ASK, DONE, TASK, YES, Asked, World

pytestmark = pytest.mark.anyio

LOST = "an answer was acknowledged, and its question is still asked"


class Forgetful(World):
    """A server that acknowledges the first answer to its only question, and loses it."""

    def __init__(self) -> None:
        super().__init__()
        self.scripted: Any = ScriptedServer(clock=self.clock)
        self.scripted.tool("tool", [ask("n", form("How many?", n="integer")), complete(text_result("done"))])
        self.scripted.misbehave("tasks/update", Unheeded())
        self.begin_anew()

    def begin_anew(self) -> None:
        """Have a session for another client."""
        self.server = self.scripted.session()

    def sent(self) -> list[Any]:
        """The answers that were sent."""
        updates = self.scripted.witness.log("tasks/update")
        return [update.params["inputResponses"] for update in updates]


@pytest.fixture(params=["memory", "sqlite"])
def make_journal(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[ManualClock], Journal]:
    """Each a journal of one client; all keep the same records."""
    if request.param == "memory":
        shared = MemoryJournal()
        return lambda clock: shared
    return lambda clock: OnDisk(tmp_path / "journal.sqlite3", clock)


async def test_an_answer_that_the_server_lost_goes_again_and_nobody_is_asked_again(
    make_journal: Callable[[ManualClock], Journal], caplog: pytest.LogCaptureFixture
) -> None:
    world, asked = Forgetful(), Asked(YES)
    async with world.client(journal=make_journal(world.clock), elicitation=asked) as client:
        assert text(await world.call(client, within=120)) == "done"
    assert world.sent() == [{"n": {"action": "accept", "content": {"n": 3}}}] * 2
    assert asked.keys == ["n"]
    assert caplog.text.count(LOST) == 1
    world.scripted.witness.check(at_most_once=True)


async def test_an_answer_that_the_server_lost_goes_again_from_another_process(
    make_journal: Callable[[ManualClock], Journal],
) -> None:
    world, asked = Forgetful(), Asked(YES)
    async with world.client(journal=make_journal(world.clock), elicitation=asked) as client:
        await client.start_tool("tool")
        await world.clock.advance(3)
        assert len(world.sent()) == 1
    world.begin_anew()
    async with world.client(journal=make_journal(world.clock)) as client:  # which could not be asked
        (handle,) = await client.resume()
        await world.during(handle.result, 120)
        assert text(await handle.result()) == "done"
    assert world.sent() == [{"n": {"action": "accept", "content": {"n": 3}}}] * 2
    assert asked.keys == ["n"]
    world.scripted.witness.check(at_most_once=True)


async def test_a_key_that_stands_for_another_question_parks_the_call() -> None:
    """The answer to the first question is none to the second, and would be refused at every poll."""
    other = {**ASK, "params": {**ASK["params"], "message": "How many more?"}}
    snapshots = [input_required(TASK, {"n": ASK}), input_required(TASK, {"n": other})]
    world, asked = World(gets={TASK: [*snapshots, DONE]}), Asked(YES)
    async with world.client(elicitation=asked) as client:
        with pytest.raises(InputUnansweredError, match="asks something else now") as caught:
            await world.call(client)
        assert caught.value.keys == ("n",)
        assert len(world.polled_at()) == 2, "no poll goes on in vain"
        (handle,) = await client.resume()
        await world.during(handle.result, 60)
        assert text(await handle.result()) == "done"
    assert asked.keys == ["n"]
    assert len(world.server.log("tasks/update")) == 1


async def test_a_task_that_waits_for_an_answer_to_a_question_that_nobody_heard_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Servers of 2025-11-25 may have put it on a stream that broke, or to another session."""
    world = World(gets={TASK: [*[input_required(TASK, {})] * 20, DONE]})
    async with world.client(elicitation=Asked(YES)) as client:
        assert text(await world.call(client)) == "done"
    assert caplog.text.count("the task waits for an answer, and no question of it was heard") == 1


async def test_after_a_restart_a_poll_goes_before_anybody_is_asked() -> None:
    """Nobody answers for a task that the server has forgotten."""
    gone = SessionError("Not known.", code=-32602, retryable=False)
    world, asked = World(gets={TASK: [input_required(TASK, {"n": ASK}), gone]}), Asked(YES)
    async with world.client() as client:
        with pytest.raises(InputUnansweredError):
            await world.call(client)
    async with world.client(elicitation=asked) as client:
        (handle,) = await client.resume()
        with pytest.raises(TaskNotFoundError):
            await world.during(handle.result, 3600)
    assert asked.keys == []
    assert world.server.log("tasks/update") == []
