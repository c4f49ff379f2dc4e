"""The limit of a wait: with the time in which somebody is asked, or without it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from mcp_types import CallToolResult, ElicitResult

from mcp_tasks_client import MemoryJournal, TasksClient
from mcp_tasks_client.errors import WaitTimeoutError
from mcp_tasks_client.testing import (
    ScriptedServer,
    ask,
    ask_first,
    complete,
    form,
    scripted_client,
    text_result,
    work,
)
from tests._results import text

pytestmark = pytest.mark.anyio

LIMIT_S = 0.7
PATIENT_S = 4.0
"""The limit of a wait that must not be over before its result is there, however busy the machine is."""

WHO = ask("who", form("Who?", name="string"))
WHAT = ask("what", form("What?", name="string"))
DONE = complete(text_result("done"))


class Slow:
    """A person who takes so long for each question: longer than the caller waits, unless told otherwise."""

    asked = 0

    def __init__(self, takes_s: float = 1.5 * LIMIT_S) -> None:
        self.takes_s = takes_s

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked += 1
        await anyio.sleep(self.takes_s)
        return ElicitResult(action="accept", content={"name": "Ada"})


async def call(client: TasksClient, limit_s: float = LIMIT_S, **options: Any) -> CallToolResult:
    return await client.call_tool("tool", timeout=limit_s, **options)


async def start_and_wait(client: TasksClient, limit_s: float = LIMIT_S, **options: Any) -> CallToolResult:
    return await (await client.start_tool("tool")).result(limit_s, **options)


# The scopes are anyio's own, and the tests wait in real time.
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
by_each_way = pytest.mark.parametrize("make", [call, start_and_wait], ids=["call_tool", "result"])
Make = Callable[..., Awaitable[CallToolResult]]


def client(person: Slow, *script: Any) -> Any:
    server = ScriptedServer()
    server.tool("tool", script, poll_interval_ms=20)
    return scripted_client(server.session(), journal=MemoryJournal(), elicitation=person)


@on_asyncio
@by_each_way
async def test_the_time_in_which_somebody_is_asked_does_not_count_where_that_is_wished(make: Make) -> None:
    person = Slow(0.6 * PATIENT_S)
    async with client(person, WHO, WHAT, DONE) as opened:
        assert text(await make(opened, PATIENT_S, timeout_excludes_questions=True)) == "done"
    assert person.asked == 2


async def test_neither_does_that_before_there_is_a_task() -> None:
    person = Slow(1.2 * PATIENT_S)
    async with client(person, ask_first("who", form("Who?", name="string")), DONE) as opened:
        assert text(await call(opened, PATIENT_S, timeout_excludes_questions=True)) == "done"
    assert person.asked == 1


@on_asyncio
@by_each_way
async def test_all_time_counts_otherwise(make: Make) -> None:
    async with client(Slow(), WHO, DONE) as opened:
        with pytest.raises(WaitTimeoutError):
            await make(opened)


@on_asyncio
@by_each_way
async def test_the_server_has_its_time_after_a_question_and_no_more(make: Make) -> None:
    person, begun = Slow(), anyio.current_time()
    async with client(person, WHO, work(60), DONE) as opened:
        with pytest.raises(WaitTimeoutError):
            await make(opened, timeout_excludes_questions=True)
    assert person.asked == 1
    assert anyio.current_time() - begun >= 2.5 * LIMIT_S


@on_asyncio
@by_each_way
async def test_no_question_gives_the_server_its_time_anew(make: Make) -> None:
    half_and_more = work(0.7 * LIMIT_S)
    async with client(Slow(), WHO, half_and_more, WHAT, half_and_more, DONE) as opened:
        with pytest.raises(WaitTimeoutError):
            await make(opened, timeout_excludes_questions=True)


async def test_a_question_that_was_asked_before_the_wait_began_does_not_count_either() -> None:
    person = Slow(1.2 * PATIENT_S)
    async with client(person, WHO, DONE) as opened:
        handle = await opened.start_tool("tool")
        while not person.asked:
            await anyio.sleep(0.01)
        assert text(await handle.result(PATIENT_S, timeout_excludes_questions=True)) == "done"


async def test_nothing_is_kept_of_a_limit_when_the_wait_is_over() -> None:
    async with client(Slow(), work(60), DONE) as opened:
        handle = await opened.start_tool("tool")
        for _ in range(3):
            with pytest.raises(WaitTimeoutError):
                await handle.result(0.05, timeout_excludes_questions=True)
        assert handle._call.audience.limits == ()
