"""Real servers of 2025-11-25, on both official SDKs, that have the client run tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp_types import ErrorData

from mcp_tasks_client import MemoryJournal, ReceivePolicy, TasksClient
from tests._requirements import requirement
from tests.kit.person import Person
from tests.legacy_servers import LegacyProgram, LegacyServer

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 30.0
RELATED: Final = "io.modelcontextprotocol/related-task"
FAST: Final = ReceivePolicy(poll_interval_ms=50)
SAID: Final = {
    "asks": {"action": "accept", "content": {"name": "Ada"}},
    "samples": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "4"}},
}


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
    person = Person(takes_s=0.2)
    async with person.client(legacy_server.url, receive=FAST) as client:
        said = await told(client, f"{what}_as_task", list=True)
    assert said["created"]["status"] == "working"
    assert [task["taskId"] for task in said["listed"]] == [said["created"]["taskId"]]
    assert set(said["polled"]) <= {"working", "completed"}
    assert said["polled"][-1] == "completed"
    assert unmarked(said["result"]) == SAID[what]
    assert said["result"]["_meta"][RELATED] == {"taskId": said["created"]["taskId"]}
    assert len(person.asked) == 1


@requirement("2025:receive-marks")
@pytest.mark.parametrize("what", ["asks", "samples"])
async def test_a_task_of_the_servers_has_one_run_by_the_client(
    legacy_server: LegacyServer, what: str
) -> None:
    person = Person(takes_s=0.2)
    async with person.client(legacy_server.url, receive=FAST) as client:
        said = await told(client, f"{what}_as_task_inside")
    assert unmarked(said["result"]) == SAID[what]
    assert len(person.asked) == 1


@requirement("2025:receive-cancel")
async def test_a_server_takes_its_question_back(legacy_server: LegacyServer) -> None:
    person = Person(takes_s=LIMIT_S)
    async with person.client(legacy_server.url, receive=FAST) as client:
        said = await told(client, "asks_as_task", cancel=True)
    assert said["cancelled"]["status"] == "cancelled"
    assert set(said["polled"]) <= {"cancelled"}
    assert "result" not in said


async def test_nothing_is_answered_for_a_task_that_was_cancelled(
    legacy_python_program: LegacyProgram, tmp_path: Path
) -> None:
    # As it is shipped, this server loses the session by whatever is answered for a task that is over.
    ready, stopped = anyio.Event(), anyio.Event()

    async def elicit(context: Any, params: Any) -> Any:
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
                await ready.wait()
                await cancelled.cancel()
                await stopped.wait()
                looked = len(server.witness())
                other = await client.call_tool("slow", {"duration_ms": 1000, "hint_ms": 100})
                assert other.content[0].text == "rested"  # type: ignore[union-attr]
        assert not [
            one for one in server.witness()[looked:] if one.result is not None or one.error is not None
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
