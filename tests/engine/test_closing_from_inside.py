"""A client that is closed by code that it awaits: by a callback, ``on_update``, a function for headers.

The close returns at once, the call that waits ends, and the block around it waits until all is closed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial, wraps
from pathlib import Path
from typing import Any

import anyio
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from mcp_tasks_client import (
    BlockingTasksClient,
    MemoryJournal,
    SqliteJournal,
    TasksClient,
    TasksClientError,
    TasksTransport,
    tasks_http_client,
)
from tests.kit.current_server import (
    LIMIT_S,
    QUESTION,
    QUICK,
    WORKING,
    CurrentServer,
    asking,
    at_loopback,
    in_memory,
)

ACCEPTED = ElicitResult(action="accept", content={})
ASKS = asking(one=QUESTION)
"""As the reply to each poll too: a question that a poll no longer shows may never be put to the host."""


def in_thread(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test in an event loop of a thread of its own: a close that waits for itself heeds no cancellation."""

    @wraps(test)
    def run(anyio_backend: tuple[str, dict[str, Any]], **arguments: Any) -> None:
        ended: Future[None] = Future()

        def run_loop() -> None:
            try:
                backend, options = anyio_backend
                anyio.run(partial(test, **arguments), backend=backend, backend_options=options)
                ended.set_result(None)
            except BaseException as error:
                ended.set_exception(error)

        threading.Thread(target=run_loop, daemon=True).start()
        ended.result(2 * LIMIT_S)

    given = inspect.signature(test)
    backend = inspect.Parameter("anyio_backend", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = given.replace(parameters=[*given.parameters.values(), backend])  # type: ignore[attr-defined]  # for pytest
    return run


class Inside:
    """Code of the host's that closes a client, and what became of that.

    Attributes:
        close: Closes the client.
        returned: Set once the close has returned, or was cancelled.
    """

    close: Callable[[], Awaitable[Any]]

    def __init__(self) -> None:
        self.returned = anyio.Event()
        self.was_closed = False

    async def end(self) -> None:
        if not self.was_closed:
            self.was_closed = True
            await self.close()
            self.returned.set()

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        await self.end()
        return ACCEPTED

    async def note(self, task: Any) -> None:
        await self.end()

    async def headers(self) -> dict[str, str]:
        if self.is_to_close:
            await self.end()
        return {}

    is_to_close = False

    def begin(self, task: Any) -> None:
        """From now on, a function that gives headers closes the client."""
        self.is_to_close = True


@pytest.mark.parametrize("where", ["callback", "on_update", "headers"])
@pytest.mark.parametrize("kept", ["memory", "sqlite"])
@in_thread
async def test_a_client_may_be_closed_by_code_that_it_awaits(where: str, kept: str, tmp_path: Path) -> None:
    says = ASKS if where == "callback" else WORKING
    server, inside = CurrentServer(calls=[says], gets=[says]), Inside()
    options: dict[str, Any] = {"headers": inside.headers} if where == "headers" else {}
    if where == "callback":
        options["elicitation"] = inside.elicit
    told = {"on_update": inside.note, "headers": inside.begin}.get(where)
    journal = MemoryJournal() if kept == "memory" else SqliteJournal(tmp_path / "journal.sqlite3")
    with anyio.fail_after(LIMIT_S):
        async with (
            at_loopback(server) as url,
            TasksClient(url, journal=journal, poll=QUICK, **options) as client,
        ):
            inside.close = lambda: client.__aexit__(None, None, None)
            with pytest.raises(TasksClientError, match="closed"):
                await client.call_tool("tool", on_update=told)
            await inside.returned.wait()
        async with journal:
            (record,) = await journal.records(None, pending=True)
    assert record.task_id is not None


@in_thread
async def test_the_block_around_waits_for_a_close_that_has_begun_within() -> None:
    server, inside = CurrentServer(gets=[WORKING]), Inside()
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            client = TasksClient(url, journal=MemoryJournal(), poll=QUICK)
            inside.close = lambda: client.__aexit__(None, None, None)
            with pytest.raises(TasksClientError, match="closed"):
                async with client:
                    await client.call_tool("tool", on_update=inside.note)
            assert client._engine.closed
            assert not client._engine.tasks._running


@in_thread
async def test_a_client_that_a_callback_has_opened_is_closed_there_before_it_goes_on() -> None:
    """The close of another client than the one that awaits the callback waits, as any other."""
    server, closed = CurrentServer(), list[bool]()
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:

            async def call_another(task: Any) -> None:
                async with TasksClient(url, journal=MemoryJournal(), poll=QUICK) as other:
                    await other.start_tool("tool")
                closed.append(not other._engine.tasks._running)

            async with TasksClient(url, journal=MemoryJournal(), poll=QUICK) as client:
                await client.call_tool("tool", on_update=call_another)
    assert closed
    assert all(closed)


@pytest.mark.parametrize("where", ["callback of another", "task of its own"])
@in_thread
async def test_a_close_finds_the_code_that_is_awaited_through_others(where: str) -> None:
    """A callback that waits for a task of its own, or for another client, whose callback closes."""
    server, inside = CurrentServer(gets=[WORKING]), Inside()

    async def through_task(task: Any) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(inside.note, task)

    with anyio.fail_after(LIMIT_S):
        async with (
            at_loopback(server) as url,
            TasksClient(url, journal=MemoryJournal(), poll=QUICK) as client,
        ):

            async def through_another(task: Any) -> None:
                async with TasksClient(url, journal=MemoryJournal(), poll=QUICK) as other:
                    await other.call_tool("tool", on_update=inside.note)

            inside.close = lambda: client.__aexit__(None, None, None)
            listener = through_task if where == "task of its own" else through_another
            with pytest.raises(TasksClientError, match="closed"):
                await client.call_tool("tool", on_update=listener)


@in_thread
async def test_a_loop_that_adopts_may_close_the_client() -> None:
    server, journal = CurrentServer(gets=[WORKING]), MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, journal:
            async with TasksClient(url, journal=journal, poll=QUICK) as client:
                await client.start_tool("tool")
            async with TasksClient(url, journal=journal, poll=QUICK) as client:
                async for _ in client.adopt():
                    await client.__aexit__(None, None, None)


@in_thread
async def test_an_http_client_may_be_closed_by_a_callback_of_its_call() -> None:
    server, inside = CurrentServer(calls=[ASKS], gets=[ASKS]), Inside()
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            http = tasks_http_client(
                journal=MemoryJournal(), poll=QUICK, elicitation=inside.elicit, trust_env=False
            )
            inside.close = http.aclose
            transport = streamable_http_client(url, http_client=http)
            with pytest.raises((Exception, BaseExceptionGroup)):
                async with http, mcp.Client(transport) as client:
                    await client.call_tool("tool")
            await inside.returned.wait()


@in_thread
async def test_a_transport_may_be_left_by_a_callback_of_its_call() -> None:
    server, inside = CurrentServer(calls=[ASKS], gets=[ASKS]), Inside()
    with anyio.fail_after(LIMIT_S):
        transport = TasksTransport(
            in_memory(server),
            endpoint="server",
            journal=MemoryJournal(),
            poll=QUICK,
            elicitation=inside.elicit,
        )
        inside.close = lambda: transport.__aexit__(None, None, None)
        with pytest.raises((Exception, BaseExceptionGroup)):
            async with mcp.Client(transport) as client:
                await client.call_tool("tool")
        await inside.returned.wait()


@pytest.mark.parametrize("how", ["on_update", "callback in a thread", "callback"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@in_thread
async def test_a_blocking_client_may_be_closed_by_code_that_it_awaits(how: str) -> None:
    before = set(threading.enumerate())
    says = WORKING if how == "on_update" else ASKS
    server = CurrentServer(calls=[says], gets=[says])
    closed = threading.Event()

    def run(url: str) -> None:
        def close(*_: Any) -> Any:
            client.__exit__(None, None, None)
            closed.set()
            return ACCEPTED

        async def close_in_loop(*_: Any) -> Any:
            return close()

        options = {"callback": {"elicitation": close_in_loop}, "callback in a thread": {"elicitation": close}}
        client = BlockingTasksClient(url, journal=MemoryJournal(), poll=QUICK, **options.get(how, {}))
        with client, pytest.raises(TasksClientError, match="closed"):
            client.call_tool("tool", on_update=close if how == "on_update" else None)
        assert closed.is_set()

    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            await anyio.to_thread.run_sync(run, url, abandon_on_cancel=True)
    left = [one for one in set(threading.enumerate()) - before if one.name.startswith("mcp_tasks_client")]
    for one in left:
        one.join(LIMIT_S)
    assert not any(one.is_alive() for one in left)
