"""A scripted server and a client, as a host's test has them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import MemoryJournal, Session
from mcp_tasks_client.errors import TaskNotFoundError
from mcp_tasks_client.testing import (
    Garbled,
    HttpError,
    LostReply,
    ManualClock,
    ScriptedServer,
    ServerSession,
    Stale,
    ask,
    ask_first,
    complete,
    scripted_client,
    text_result,
    vanish,
    work,
)
from tests.testing.asking import NAME, over_asgi

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("face", ["memory", "http"])
async def test_a_host_sees_a_task_through_whatever_goes_wrong_and_the_witness_has_no_complaint(
    server: ScriptedServer, clock: ManualClock, face: str
) -> None:
    greeting = complete(lambda answers: text_result(f"Hello, {answers['name']['content']['name']}"))
    server.tool(
        "deploy",
        [ask_first("sure", NAME), work(3600, "building"), ask("name", NAME), work(60), greeting],
        poll_interval_ms=60_000,
        request_state=True,
    )
    server.misbehave("tasks/get", HttpError(503, retry_after_s=300), None, LostReply(), Garbled(), Stale())
    server.misbehave("tasks/update", LostReply(), HttpError(429, retry_after_s=90))
    asked: list[str] = []

    async def elicit(context: Any, params: object) -> ElicitResult:
        asked.append(context.key)
        return ElicitResult(action="accept", content={"name": f"Ada {len(asked)}"})

    async with over_asgi(server) as http:
        session: Session = server.session() if face == "memory" else http
        client = scripted_client(session, clock=clock, journal=MemoryJournal(), elicitation=elicit)
        with anyio.fail_after(30):
            async with client:
                handle = await client.start_tool("deploy", {"service": "web"}, idempotency_key="deploy-42")
                await clock.advance(6000)
                result = await handle.result()
    assert result.content[0].text == "Hello, Ada 2"  # type: ignore[union-attr]  # it is a text
    assert asked == ["sure", "name"]
    server.witness.check(at_most_once=True)
    assert {arrival.fault for arrival in server.witness.arrivals} > {LostReply(), Garbled(), Stale()}


async def test_a_host_is_told_of_a_task_that_vanished(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [work(10), vanish()])
    async with scripted_client(server.session(), journal=MemoryJournal()) as client:
        handle = await client.start_tool("tool")
        await clock.advance(30)
        with pytest.raises(TaskNotFoundError):
            await handle.result()


async def test_a_session_is_on_the_clock_of_its_server(server: ScriptedServer, clock: ManualClock) -> None:
    session = server.session()
    assert isinstance(session, ServerSession)
    assert session.clock is clock
