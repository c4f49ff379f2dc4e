"""What the library does, in a dozen short tests that a newcomer reads first.

Each test plays a script on a server in memory, in real time: a task works for 50 ms and asks to be polled
every 20 ms. The journal is a real SQLite file. To kill a client, a test stops it in the middle with
``FaultPlan``, so that the file holds what a killed process would have left.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tasks_client import (
    IdempotencyConflictError,
    OutcomeUnknownError,
    TaskCancelledError,
    TaskFailedError,
    TasksClient,
    WaitTimeoutError,
)
from mcp_tasks_client.testing import (
    FaultPlan,
    LostReply,
    ScriptedServer,
    ask,
    complete,
    fail,
    form,
    kill,
    reply,
    scripted_client,
    text_result,
    work,
)
from tests._requirements import requirement
from tests.kit.person import Person

pytestmark = pytest.mark.anyio

WORK = work(0.05)
DONE = complete(text_result("done"))
WHO = ask("who", form("Who are you?", name="string"))


@pytest.fixture
def server() -> ScriptedServer:
    server = ScriptedServer()
    server.tool("deploy", [WORK, DONE], poll_interval_ms=20)
    server.tool("sign", [WHO, WORK, DONE], poll_interval_ms=20, settle_s=0.01)
    server.tool("add", [reply(text_result("3"))])
    server.tool("break", [WORK, fail(-32000, "out of disk")], poll_interval_ms=20)
    server.tool("sleep", [work(60), DONE], poll_interval_ms=20, settle_s=0.01)
    return server


def open_client(server: ScriptedServer, folder: Path, **options: object) -> TasksClient:
    return scripted_client(server.session(), journal=folder / "journal.sqlite3", **options)


async def kill_at(point: str, server: ScriptedServer, folder: Path, tool: str, **options: object) -> None:
    """Call a tool in a client that is killed at a point."""
    plan = FaultPlan()
    plan.at(point, "after", kill)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # a group around KilledError
        async with open_client(server, folder, observer=plan, **options) as client:
            await client.call_tool(tool, idempotency_key="key")
    assert plan.killed


async def test_call_tool_returns_the_result_of_a_task(server: ScriptedServer, tmp_path: Path) -> None:
    async with open_client(server, tmp_path) as client:
        result = await client.call_tool("deploy")
    assert [block.model_dump()["text"] for block in result.content] == ["done"]


async def test_a_call_without_a_task_leaves_nothing_in_the_journal(
    server: ScriptedServer, tmp_path: Path
) -> None:
    async with open_client(server, tmp_path) as client:
        await client.call_tool("add")
        assert await client.records() == []


async def test_a_handle_shows_the_task_while_it_works(server: ScriptedServer, tmp_path: Path) -> None:
    async with open_client(server, tmp_path) as client:
        handle = await client.start_tool("deploy")
        seen = [task.status async for task in handle.updates()]
        assert seen == ["working", "completed"]
        await handle.result()


@requirement("law:2")
async def test_a_task_id_is_never_lost(server: ScriptedServer, tmp_path: Path) -> None:
    await kill_at("commit: TaskCreated", server, tmp_path, "deploy")
    async with open_client(server, tmp_path) as client:
        (handle,) = await client.resume()
        assert not (await handle.result()).is_error
    server.witness.check()  # the tool ran once


@requirement("law:3")
async def test_nobody_is_asked_twice(server: ScriptedServer, tmp_path: Path) -> None:
    person = Person()
    await kill_at("commit: AnswerReady", server, tmp_path, "sign", elicitation=person.elicit)
    async with open_client(server, tmp_path, elicitation=person.elicit) as client:
        (handle,) = await client.resume()
        await handle.result()
    assert len(person.asked) == 1
    server.witness.check()  # the server got one answer


@requirement("law:4")
async def test_the_server_sets_the_pace(server: ScriptedServer, tmp_path: Path) -> None:
    async with open_client(server, tmp_path) as client:
        await client.call_tool("deploy")
    server.witness.check()  # no poll came early


async def test_a_repeated_call_joins_the_first_by_its_idempotency_key(
    server: ScriptedServer, tmp_path: Path
) -> None:
    async with open_client(server, tmp_path) as client:
        handle = await client.start_tool("deploy", idempotency_key="42")
        again = await client.start_tool("deploy", idempotency_key="42")
        assert again.task_id == handle.task_id
        await again.result()
        with pytest.raises(IdempotencyConflictError):
            await client.call_tool("sign", idempotency_key="42")


async def test_a_lost_reply_is_reported_and_the_tool_is_not_run_again(
    server: ScriptedServer, tmp_path: Path
) -> None:
    server.misbehave("tools/call", LostReply())
    async with open_client(server, tmp_path) as client:
        with pytest.raises(OutcomeUnknownError):
            await client.call_tool("deploy", idempotency_key="42")
        with pytest.raises(OutcomeUnknownError):
            await client.call_tool("deploy", idempotency_key="42")
        await client.call_tool("deploy", idempotency_key="42", on_unknown="resend")


@requirement("law:8")
async def test_stopping_to_wait_is_not_cancelling(server: ScriptedServer, tmp_path: Path) -> None:
    async with open_client(server, tmp_path) as client:
        with pytest.raises(WaitTimeoutError) as raised:
            await client.call_tool("deploy", timeout=0.03)
        assert raised.value.handle is not None
        assert not (await raised.value.handle.result()).is_error


async def test_a_task_is_cancelled_on_request(server: ScriptedServer, tmp_path: Path) -> None:
    async with open_client(server, tmp_path) as client:
        handle = await client.start_tool("sleep")
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()


async def test_a_failed_task_raises_the_servers_error(server: ScriptedServer, tmp_path: Path) -> None:
    async with open_client(server, tmp_path) as client:
        with pytest.raises(TaskFailedError) as raised:
            await client.call_tool("break")
    assert (raised.value.code, raised.value.message) == (-32000, "out of disk")
