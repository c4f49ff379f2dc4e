"""Real servers of 2025-11-25, on both official SDKs, that have the client run tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx
import mcp
import pytest
from mcp_types import CreateMessageResult, ElicitResult, ErrorData, TextContent

from mcp_tasks_client import MemoryJournal, ReceivePolicy, TasksClient
from mcp_tasks_client.old.receiver import Receiver

from ._requirements import requirement
from .legacy_servers import Arrived, LegacyProgram, LegacyServer
from .test_kill import live_and_die

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 30.0
RELATED: Final = "io.modelcontextprotocol/related-task"
HOST: Final = Path(__file__).parent / "servers" / "receiving_host.py"
FAST: Final = ReceivePolicy(poll_interval_ms=50)
SAID: Final = {
    "asks": {"action": "accept", "content": {"name": "Ada"}},
    "samples": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "four"}},
}


class Host:
    """Answers what it is asked, and remembers how often."""

    def __init__(self, wait_s: float = 0.2) -> None:
        self.asked = 0
        self.wait_s = wait_s

    async def elicit(self, context: Any, params: Any) -> Any:
        self.asked += 1
        await anyio.sleep(self.wait_s)
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, context: Any, params: Any) -> Any:
        self.asked += 1
        await anyio.sleep(self.wait_s)
        return CreateMessageResult(role="assistant", model="m", content=TextContent(type="text", text="four"))

    @asynccontextmanager
    async def client(
        self, url: str, journal: Any = None, receive: ReceivePolicy = FAST
    ) -> AsyncIterator[TasksClient]:
        with anyio.fail_after(LIMIT_S):
            async with TasksClient(
                url,
                journal=journal or MemoryJournal(),
                elicitation=self.elicit,
                sampling=self.sample,
                receive=receive,
            ) as client:
                yield client


def unmarked(result: Any) -> Any:
    return {name: value for name, value in result.items() if name != "_meta"}


async def told(client: TasksClient, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.structured_content


@requirement("2025:receive-capability", "2025:receive-at-once", "2025:receive-list", "2025:receive-marks")
@pytest.mark.parametrize("what", ["asks", "samples"])
async def test_a_server_has_a_question_run_as_a_task_and_comes_back_for_the_answer(
    legacy_server: LegacyServer, what: str
) -> None:
    host = Host()
    async with host.client(legacy_server.url) as client:
        said = await told(client, f"{what}_as_task", list=True)
    assert said["created"]["status"] == "working"
    assert [task["taskId"] for task in said["listed"]] == [said["created"]["taskId"]]
    assert set(said["polled"]) <= {"working", "completed"}
    assert said["polled"][-1] == "completed"
    assert unmarked(said["result"]) == SAID[what]
    assert said["result"]["_meta"][RELATED] == {"taskId": said["created"]["taskId"]}
    assert host.asked == 1


@requirement("2025:receive-marks")
@pytest.mark.parametrize("what", ["asks", "samples"])
async def test_a_task_of_the_servers_has_one_run_by_the_client(
    legacy_server: LegacyServer, what: str
) -> None:
    host = Host()
    async with host.client(legacy_server.url) as client:
        said = await told(client, f"{what}_as_task_inside")
    assert unmarked(said["result"]) == SAID[what]
    assert host.asked == 1


@requirement("2025:receive-cancel")
async def test_a_server_takes_its_question_back(legacy_server: LegacyServer) -> None:
    host = Host(wait_s=LIMIT_S)
    async with host.client(legacy_server.url) as client:
        said = await told(client, "asks_as_task", cancel=True)
    assert said["cancelled"]["status"] == "cancelled"
    assert set(said["polled"]) <= {"cancelled"}
    assert "result" not in said


def cancel_elsewhere(server: LegacyServer, task_id: str | None) -> None:
    """As another process in the same session would."""
    message = {"jsonrpc": "2.0", "id": "c", "method": "tasks/cancel", "params": {"taskId": task_id}}
    headers = {
        "Accept": "application/json, text/event-stream",
        "Mcp-Session-Id": server.witness("tools/call")[-1].session_id or "",
        "MCP-Protocol-Version": "2025-11-25",
    }
    httpx.post(server.url, json=message, headers=headers, trust_env=False).raise_for_status()


@requirement("law:10")
@pytest.mark.parametrize("by", ["us", "another process"])
async def test_nothing_is_said_for_a_task_that_was_cancelled(
    legacy_python_program: LegacyProgram, tmp_path: Path, by: str
) -> None:
    # As it is shipped this server loses the session by whatever is said for a task that is over.
    ready, stopped = anyio.Event(), anyio.Event()

    async def elicit(context: Any, params: Any) -> ElicitResult:
        ready.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            stopped.set()
            raise

    with legacy_python_program.listening(tmp_path / "stderr.log", "--as-shipped") as server:
        with anyio.fail_after(LIMIT_S):
            async with TasksClient(
                server.url, journal=MemoryJournal(), elicitation=elicit, receive=FAST
            ) as client:
                cancelled = await client.start_tool("asks_as_task_inside", {"hint_ms": 100})
                other = await client.start_tool("slow", {"duration_ms": 2000, "hint_ms": 100})
                await ready.wait()
                if by == "us":
                    await cancelled.cancel()
                else:
                    cancel_elsewhere(server, cancelled.task_id)
                await stopped.wait()
                await anyio.sleep(1.0)  # the server has looked again by then, if it is ever told anything
                before = len(server.witness())
                assert (await other.result()).content[0].text == "rested"  # type: ignore[union-attr]
                assert (await client.call_tool("plain")).content[0].text == "plain"  # type: ignore[union-attr]
        # It waits for the reply to its last look, and has none.
        assert not [
            one for one in server.witness()[before:] if one.result is not None or one.error is not None
        ]


@requirement("2025:receive-result")
async def test_a_host_that_refuses_is_an_error_with_its_code(legacy_python_server: LegacyServer) -> None:
    def refuse(context: Any, params: Any) -> ErrorData:
        return ErrorData(code=-1, message="User rejected sampling request")

    with anyio.fail_after(LIMIT_S):
        async with TasksClient(
            legacy_python_server.url, journal=MemoryJournal(), sampling=refuse, receive=FAST
        ) as client:
            said = await told(client, "samples_as_task")
    assert said["polled"][-1] == "failed"
    assert said["result_error"]["code"] == -1
    assert "User rejected" in said["result_error"]["message"]


def test_a_client_of_the_hosts_own_runs_none() -> None:
    with pytest.raises(ValueError, match="runs no tasks"):
        TasksClient(mcp.Client("http://127.0.0.1:1/mcp"), endpoint="e", receive=ReceivePolicy())


# ── after a crash ─────────────────────────────────────────────────────────────────────────────


def answers(server: LegacyServer, session_id: str | None) -> list[Arrived]:
    """What the server was sent as the result of a task."""
    arrived = server.witness(session_id=session_id)
    return [one for one in arrived if one.result is not None and "action" in one.result]


async def soon(found: Callable[[], list[Arrived]]) -> list[Arrived]:
    with anyio.fail_after(LIMIT_S):
        while not (there := await anyio.to_thread.run_sync(found)):
            await anyio.sleep(0.05)
    return there


@requirement("law:1", "law:3")
@pytest.mark.parametrize(("stop", "asks_again"), [("answered", 0), ("asked", 1), ("made", 1)])
async def test_another_process_serves_what_the_one_that_was_killed_was_asked(
    legacy_python_server: LegacyServer, tmp_path: Path, stop: str, asks_again: int
) -> None:
    # Not on Node, which asks for it all on the stream of the call, and that is gone.
    server, journal, host = legacy_python_server, tmp_path / "journal.sqlite3", Host()
    await anyio.to_thread.run_sync(
        partial(live_and_die, server.url, journal, stop, "asks_as_task", script=HOST)
    )
    session_id = server.witness("tools/call")[-1].session_id
    assert not answers(server, session_id)
    async with host.client(server.url, journal):
        (answer,) = await soon(partial(answers, server, session_id))
    assert answer.result is not None
    assert unmarked(answer.result) == SAID["asks"]
    assert host.asked == asks_again


@requirement("law:1", "law:3")
@pytest.mark.parametrize(("stop", "asks_again"), [("answered", 0), ("asked", 1), ("made", 1)])
async def test_a_task_whose_question_was_a_task_as_well_ends_in_another_process(
    legacy_python_server: LegacyServer, tmp_path: Path, stop: str, asks_again: int
) -> None:
    # Not on Node: the tasks/result of the process that was killed still waits there, and takes what is said.
    server, journal, host = legacy_python_server, tmp_path / "journal.sqlite3", Host()
    await anyio.to_thread.run_sync(
        partial(live_and_die, server.url, journal, stop, "asks_as_task_inside", script=HOST)
    )
    async with host.client(server.url, journal) as client:
        (handle,) = await client.resume()
        result = await handle.result()
    assert result.structured_content is not None
    assert unmarked(result.structured_content["result"]) == SAID["asks"]
    assert host.asked == asks_again


@requirement("law:3")
async def test_another_process_listens_before_it_lets_the_server_ask(
    legacy_python_server: LegacyServer,
) -> None:
    # It looks at once whether its question has been answered, and what it says to nobody is lost.
    server, journal, host = legacy_python_server, MemoryJournal(), Host()
    async with host.client(server.url, journal) as client:
        await client.start_tool("asks_as_task_inside", {"hint_ms": 1000})
    async with host.client(server.url, journal) as client:
        (handle,) = await client.resume()
        result = await handle.result()
    assert result.structured_content is not None
    assert unmarked(result.structured_content["result"]) == SAID["asks"]
    assert host.asked == 1


@requirement("law:1", "law:8", "2025:receive-at-once")
async def test_what_a_server_asks_as_the_client_is_closed_is_journaled_and_answered(
    legacy_server: LegacyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks once, and waits for ever for what nobody has replied to."""
    journal, host, asked, make = MemoryJournal(), Host(), anyio.Event(), Receiver._make

    async def slowly(*arguments: Any) -> None:
        asked.set()
        await anyio.sleep(0.2)  # as where a disk has much to do
        await make(*arguments)

    monkeypatch.setattr(Receiver, "_make", slowly)
    # Which looks at its task more rarely than we are away.
    unhurried = ReceivePolicy(poll_interval_ms=1000)
    async with host.client(legacy_server.url, journal, receive=unhurried) as client:
        await client.start_tool("asks_as_task_inside")
        await asked.wait()
    async with host.client(legacy_server.url, journal) as client:
        (handle,) = await client.resume()
        result = await handle.result()
    assert result.structured_content is not None
    assert unmarked(result.structured_content["result"]) == SAID["asks"]
