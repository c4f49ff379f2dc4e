"""One driving ends while the next caller is there: who drives the call then, and over which session."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from mcp_tasks_client import Environment, MemoryJournal, Observer, PollPolicy, TaskRecord
from mcp_tasks_client.engine.endpoint import Endpoint, HostLine
from mcp_tasks_client.engine.engine import Engine
from mcp_tasks_client.engine.live_call import LiveCall, Ours, overtaken
from mcp_tasks_client.errors import CredentialRefusedError, InputUnansweredError
from mcp_tasks_client.machine.record import Scope
from mcp_tasks_client.machine.states import Calling
from mcp_tasks_client.protocol.task import read_task
from mcp_tasks_client.questions.callbacks import Callbacks
from mcp_tasks_client.sessions.base import Snapshot, TaskRef, ToolCall
from mcp_tasks_client.testing import completed, input_required, text_result, working
from tests.engine.world import ASK, TASK, World
from tests.scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio

LIMIT_S = 30.0
RELEASE = "commit: release"


class Stop(Observer):
    """Holds the next step at one point up, once it is switched on."""

    def __init__(self, point: str, *, is_on: bool = True) -> None:
        self.point = point
        self.is_on = is_on
        self.reached = anyio.Event()
        self.go_on = anyio.Event()

    async def before(self, point: str, record: TaskRecord | None) -> None:
        if self.is_on and point == self.point:
            self.is_on = False
            self.reached.set()
            with anyio.CancelScope(shield=True):
                await self.go_on.wait()


def engine(stop: Stop) -> Engine:
    environment = Environment(observer=stop)
    return Engine(
        journal=MemoryJournal(),
        policy=PollPolicy(jitter=0.0),
        on_abandon="detach",
        environment=environment,
    )


async def call(endpoint: Endpoint, line: HostLine) -> None:
    begin = partial(endpoint.begin, ToolCall(name="tool"), "key", "raise")
    async with endpoint.engine.using_journal():
        await endpoint.enter(line, begin)


async def test_a_caller_that_gives_up_while_an_earlier_drive_leaves_is_let_go_and_nothing_drives_on() -> None:
    poll = working(TASK, poll_interval_ms=20)
    session = ScriptedSession(
        calls=[poll], gets={TASK: [poll, CredentialRefusedError("Renew the credential."), poll]}
    )
    stop, scope, second = Stop(RELEASE), anyio.CancelScope(), HostLine()
    endpoint = Endpoint(engine(stop), session, Callbacks(), Scope("scripted"))
    let_go = anyio.Event()

    async def is_told() -> None:
        with pytest.raises(CredentialRefusedError):
            await call(endpoint, HostLine())

    async def give_up() -> None:
        with scope:
            await call(endpoint, second)
        let_go.set()

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(is_told)
            await stop.reached.wait()
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(give_up)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
            stop.go_on.set()
            await let_go.wait()
    assert not second.begun.is_driven
    polls = len(session.log("tasks/get"))
    await anyio.sleep(0.2)
    assert len(session.log("tasks/get")) == polls


class Held(ScriptedSession):
    """Holds its second poll up, which brings the end."""

    def __init__(self) -> None:
        asking = input_required(TASK, {"n": ASK}, poll_interval_ms=20)
        super().__init__(calls=[working(TASK, poll_interval_ms=20)], gets={TASK: [asking]})
        self.polling = anyio.Event()
        self.go_on = anyio.Event()
        self.end = Snapshot(read_task(completed(TASK, text_result("done"))), None)

    async def get(self, ref: TaskRef) -> Snapshot:
        if not self.log("tasks/get"):
            return await super().get(ref)
        self.polling.set()
        await self.go_on.wait()
        return self.end


# The refusal is taken before the reply: trio draws the order of two tasks that become ready at one moment.
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_caller_that_joins_while_the_end_of_a_parked_call_is_committed_has_the_end() -> None:
    stop, session, refuses = Stop("commit: Observed", is_on=False), Held(), anyio.Event()

    async def refuse(context: object, params: object) -> None:
        await refuses.wait()
        raise RuntimeError("the person has gone")

    endpoint = Endpoint(engine(stop), session, Callbacks(elicitation=refuse), Scope("scripted"))
    second = HostLine()

    async def is_told() -> None:
        with pytest.raises(InputUnansweredError):
            await call(endpoint, HostLine())

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(is_told)
            await session.polling.wait()
            stop.is_on = True
            refuses.set()
            session.go_on.set()
            await stop.reached.wait()
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(call, endpoint, second)
            await anyio.wait_all_tasks_blocked()
            stop.go_on.set()
    assert second.begun.record.finished
    assert not second.begun.is_driven


async def test_a_caller_that_joins_while_an_earlier_drive_leaves_goes_on_over_its_own_session() -> None:
    poll = working(TASK, poll_interval_ms=20)
    theirs = ScriptedSession(calls=[poll], gets={TASK: [poll]})
    ours = ScriptedSession(gets={TASK: [completed(TASK, text_result("done"))]})
    stop, scope, second = Stop(RELEASE), anyio.CancelScope(), HostLine()
    shared = engine(stop)
    first, other = (Endpoint(shared, one, Callbacks(), Scope("scripted")) for one in (theirs, ours))

    async def give_up() -> None:
        with scope:
            await call(first, HostLine())

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up)
            while not theirs.log("tasks/get"):
                await anyio.sleep(0.01)
            scope.cancel()
            await stop.reached.wait()
            sent = len(theirs.sent)
            tasks.start_soon(call, other, second)
            await anyio.wait_all_tasks_blocked()
            stop.go_on.set()
    assert second.begun.record.finished
    assert len(theirs.sent) == sent


async def test_an_error_that_parks_a_call_once_more_is_told_once_more() -> None:
    """Also if a session raises the very same object."""
    refused = CredentialRefusedError("Renew the credential.")
    world = World(gets={TASK: [refused] * 5})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(5)

        async def is_told() -> None:
            with pytest.raises(CredentialRefusedError):
                await handle.result()

        async def attach() -> None:
            await client.attach(handle.reference)

        await world.during(is_told, 5)
        await world.during(attach, 5)
        polls = len(world.polled_at())
        await world.during(is_told, 5)
        assert len(world.polled_at()) == polls


async def test_a_line_whose_call_was_not_made_names_no_call_until_the_next_has_begun() -> None:
    endpoint = Endpoint(engine(Stop(RELEASE, is_on=False)), ScriptedSession(), Callbacks(), Scope("scripted"))
    record = TaskRecord(
        record_id="r", scope=endpoint.scope, tool="tool", state=Calling(), created_at=0.0, updated_at=0.0
    )
    not_made, begun_again, line = LiveCall(record, Ours(1, 0)), anyio.Event(), HostLine()
    calls = [not_made]
    not_made.park(overtaken(not_made))

    async def begin() -> LiveCall:
        if not calls:
            begun_again.set()
            await anyio.sleep_forever()
        return calls.pop()

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks, endpoint.engine.using_journal():
            tasks.start_soon(endpoint.enter, line, begin)
            await begun_again.wait()
            await anyio.wait_all_tasks_blocked()
            assert line.record is None, "a time-out or a cancellation names no call that was not made"
            tasks.cancel_scope.cancel()
