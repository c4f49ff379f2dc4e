"""Dropped into the official SDK's clients, and around them: what holds when things go wrong.

Servers are the tests' own, in this process or at a loopback port; the last part stops a call at
every moment there is, on both event loops, as ``test_cancellation`` does for our own client.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import json
import math
import os
import sqlite3
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import anyio
import anyio.lowlevel
import fastmcp
import mcp
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.extension import ClaimContext, ResultClaim, UnexpectedClaimedResult
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from pydantic import ValidationError

from mcp_tasks_client import (
    ConnectionLostError,
    JournalError,
    JournalLockedError,
    MemoryJournal,
    OutcomeUnknownError,
    PollPolicy,
    RemoteProtocolError,
    SqliteJournal,
    TaskCancelledError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClient,
    TasksClientError,
    TasksExtension,
    WaitTimeoutError,
    listener,
    schema,
)
from mcp_tasks_client.old.engine import Engine
from mcp_tasks_client.old.journal.base import Journal, Scope, TaskRecord
from mcp_tasks_client.old.sessions import sdk
from mcp_tasks_client.old.sessions.base import TaskRef
from mcp_tasks_client.old.sessions.sdk import SdkSession
from mcp_tasks_client.old.testing import completed, input_required, working
from mcp_tasks_client.old.wire import JSONObject, Task

from ._one_task import Doings, SlowJournal, World
from ._requirements import requirement
from ._sdk_server import (
    DISCOVERED,
    DROP,
    RESULT,
    TASK_ID,
    TOOL,
    Fault,
    Http,
    SdkServer,
    at_loopback,
    in_memory,
)
from ._stops import TIMEOUT_S, How, Stop, watched
from ._versions import SDK, SDK_STARTS_COMMANDS
from .test_cancellation import alone, order_of_chance, possible, result_or_cancelled

pytestmark = [
    pytest.mark.anyio,
    # The SDK's transport leaves a body that it gave up to the garbage collector, which trio tells.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]

LIMIT_S: Final = 20.0
ENDPOINT: Final = "a-server"
KEY: Final = "order-42"
QUICK: Final = PollPolicy(
    floor_s=0.001,
    ceiling_s=0.001,
    jitter=0.0,
    backoff_floor_s=0.001,
    backoff_ceiling_s=0.01,
    call_grace_s=0.1,
)
WORKING: Final = working(TASK_ID, poll_interval_ms=1)
DONE: Final = completed(TASK_ID, RESULT)
QUESTION: Final[JSONObject] = {
    "method": "elicitation/create",
    "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
}
NEVER: Final[JSONObject] = {}
"""A step that the server never replies to."""


def extension(journal: Journal, **options: Any) -> TasksExtension:
    given: dict[str, Any] = {"endpoint": ENDPOINT, "poll": QUICK} | options
    return TasksExtension(journal=journal, **given)


def client_in_memory(server: SdkServer, journal: Journal, **options: Any) -> mcp.Client:
    return mcp.Client(in_memory(server), extensions=[extension(journal)], **options)


async def recorded(journal: Journal, endpoint: str = ENDPOINT) -> list[TaskRecord]:
    async with journal:
        return await journal.records(Scope(endpoint))


async def unfinished(journal: Journal, endpoint: str = ENDPOINT) -> list[str | None]:
    return [record.task_id for record in await recorded(journal, endpoint) if not record.finished]


@pytest.fixture(autouse=True)
def bounded(anyio_backend: object) -> None:
    """Parametrises what is not asynchronous as well; every wait is inside a ``fail_after``."""


# ── what a server can make of the reply ───────────────────────────────────────────────────────

ODD: Final[dict[str, JSONObject]] = {
    "nothing but an ID": {"status": ...},
    "a status that is a number": {"status": 5},
    "a status that is null": {"status": None},
    "a new status": {"status": "dreaming"},
    "numbers as text": {"ttlMs": "soon", "pollIntervalMs": [1]},
    "a negative ttlMs": {"ttlMs": -5},
    "requestState": {"requestState": "opaque"},
    "a seed of inputRequests": {"inputRequests": {}},
    "metadata": {"_meta": {"progressToken": [1], "x": None}},
    "null metadata": {"_meta": None},
    "content": {"content": []},
    "content that is none": {"content": 5, "isError": "maybe", "structuredContent": "x"},
    "fields of its own": {"result": [], "error": 1, "taskid": 2, "raw": 3, "_raw": 4},
}
REFUSED_BY_THE_SDK: Final[dict[str, JSONObject]] = {
    "requestState that is a number": {"requestState": 5},
    "inputRequests that are a list": {"inputRequests": [1]},
    "an unknown input request": {"inputRequests": {"k": {"method": "nope"}}},
    "metadata that is text": {"_meta": "x"},
    "metadata that is text, with content": {"_meta": "x", "content": []},
}


def created(changes: JSONObject) -> JSONObject:
    merged = {**WORKING, **changes}
    return {name: value for name, value in merged.items() if value is not ...}


@requirement("law:2")
@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
async def test_whatever_a_created_task_looks_like_it_is_seen_through(changes: JSONObject) -> None:
    journal, server = MemoryJournal(), SdkServer(calls=[created(changes)])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            result = await client.call_tool("tool")
    assert result.structured_content == {"n": 1}
    (record,) = await recorded(journal)
    assert (record.task_id, record.status, record.tool) == (TASK_ID, "completed", "tool")


@requirement("law:2")
@pytest.mark.parametrize(
    "changes", [*ODD.values(), *REFUSED_BY_THE_SDK.values()], ids=[*ODD, *REFUSED_BY_THE_SDK]
)
async def test_around_a_client_not_even_what_the_sdk_refuses_costs_the_task(changes: JSONObject) -> None:
    journal, server = MemoryJournal(), SdkServer(calls=[created(changes)])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client, TasksClient(client) as tasks:
            result = await tasks.call_tool("tool")
    assert result.structured_content == {"n": 1}
    assert [record.task_id for record in await recorded(journal)] == [TASK_ID]


@pytest.mark.parametrize("changes", REFUSED_BY_THE_SDK.values(), ids=REFUSED_BY_THE_SDK)
async def test_dropped_in_what_the_sdk_refuses_never_reaches_us(changes: JSONObject) -> None:
    """A known gap: the SDK checks against the core protocol before it looks for claims."""
    journal, server = MemoryJournal(), SdkServer(calls=[created(changes)])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            with pytest.raises(ValidationError):
                await client.call_tool("tool")
            assert server.counts["tasks/get"] == 0
    assert await recorded(journal) == []


@pytest.mark.parametrize("task_id", [..., None, 7, ""], ids=["none", "null", "a number", "empty"])
async def test_a_task_without_an_id_is_a_breach_of_the_protocol(task_id: object) -> None:
    journal, server = MemoryJournal(), SdkServer(calls=[created({"taskId": task_id})])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            with pytest.raises(RemoteProtocolError, match="taskId"):
                await client.call_tool("tool")
            async with TasksClient(client) as tasks:
                with pytest.raises(RemoteProtocolError, match="taskId"):
                    await tasks.call_tool("tool")
    assert await recorded(journal) == []


@requirement("law:2")
async def test_a_claimed_result_that_a_host_did_not_expect_names_its_task() -> None:
    journal, server = MemoryJournal(), SdkServer(calls=[created({"status": ...})])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            with pytest.raises(UnexpectedClaimedResult) as caught:
                await client.session.call_tool("tool")
            async with TasksClient(client) as tasks:
                handle = await tasks.attach(caught.value.result.task_id)  # type: ignore[attr-defined]  # a ClaimedTask
                assert (await handle.result()).structured_content == {"n": 1}


# ── the output schema ─────────────────────────────────────────────────────────────────────────


class Checks:
    """How often a result was held against its tool's output schema, and by whom."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ours = self.theirs = 0
        mismatch, validate = schema.mismatch, ClientSession.validate_tool_result

        def ours(*args: Any) -> Any:
            self.ours += 1
            return mismatch(*args)

        async def theirs(*args: Any) -> Any:
            self.theirs += 1
            return await validate(*args)

        monkeypatch.setattr("mcp_tasks_client.old.results.mismatch", ours)
        monkeypatch.setattr(ClientSession, "validate_tool_result", theirs)

    @property
    def made(self) -> tuple[int, int]:
        return self.ours, self.theirs


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    return Checks(monkeypatch)


@requirement("law:6")
async def test_dropped_in_the_sdk_checks_a_result_once_and_we_do_not(checks: Checks) -> None:
    server = SdkServer()
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, MemoryJournal()) as client:
            await client.call_tool("tool")
            assert checks.made == (0, 1)
            await client.call_tool("tool")
    assert checks.made == (0, 2)
    assert server.counts["tools/list"] == 1


@requirement("law:6")
@pytest.mark.parametrize("way", ["call", "call of a plain tool", "handle", "resume", "attach"])
async def test_around_a_client_we_check_a_result_once_and_the_sdk_does_not(way: str, checks: Checks) -> None:
    server, journal = (
        SdkServer(calls=[{**RESULT, "resultType": "complete"}] if "plain" in way else None),
        MemoryJournal(),
    )
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            if way == "resume":
                async with TasksClient(client) as tasks:
                    await tasks.start_tool("tool")
            async with TasksClient(client) as tasks:
                match way:
                    case "handle":
                        await (await tasks.start_tool("tool")).result()
                    case "attach":
                        journaled = await tasks.start_tool("tool")
                        await (await tasks.attach(journaled.reference)).result()
                    case "resume":
                        for handle in await tasks.resume():
                            await handle.result()
                    case _:
                        await tasks.call_tool("tool")
    assert checks.made == (1, 0)
    assert server.counts["tools/list"] == (2 if way == "resume" else 1)  # once for each client


@requirement("law:6")
@pytest.mark.parametrize("around", [False, True], ids=["dropped in", "around"])
async def test_a_result_that_does_not_match_is_refused_in_the_way_of_whom_was_called(around: bool) -> None:
    wrong = {**RESULT, "structuredContent": {"m": 1}}
    server, journal = SdkServer(gets=[completed(TASK_ID, wrong)]), MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            if around:
                async with TasksClient(client) as tasks:
                    with pytest.raises(RemoteProtocolError, match="output schema"):
                        await tasks.call_tool("tool")
            else:
                with pytest.raises(RuntimeError, match="Invalid structured content"):
                    await client.call_tool("tool")
    (record,) = await recorded(journal)
    assert record.status == "completed"  # it is kept as it came


# ── faults on the wire ────────────────────────────────────────────────────────────────────────

EVENTS: Final = ["Content-Type: text/event-stream"]
JSON: Final = ["Content-Type: application/json"]
PASSING: Final[dict[str, JSONObject | Exception]] = {
    "503 without a body": Http("503 Service Unavailable", headers=["Retry-After: 1"]),
    "429 as text": Http("429 Too Many Requests", b"slow down", ["Content-Type: text/plain"]),
    "404 without a body": Http("404 Not Found"),
    "a page of HTML": Http("200 OK", b"<html>", ["Content-Type: text/html"]),
    "JSON that ends early": Http("200 OK", b'{"jsonrpc": "2.0", "id"', JSON),
    "JSON that is no reply": Http("200 OK", b"[]", JSON),
    "an event stream that ends early": Http("200 OK", b": hello\n\n", EVENTS),
    "an event that is no reply": Http("200 OK", b"data: {\n\n", EVENTS),
    "202 Accepted": Http("202 Accepted"),
    "no reply in time": NEVER,
    "an internal error": Fault(-32603, "Boom"),
    "an error of the server's own": Fault(-32000, "Busy"),
    "a core result that is none": {"resultType": "complete", "_meta": 5},
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no reply within a quarter of a second has none."""
    monkeypatch.setattr("mcp_tasks_client.old.extension.SdkSession", partial(SdkSession, task_timeout_s=0.25))


Made = Callable[..., Any]


@pytest.fixture(params=["mcp", "fastmcp"])
def made(request: pytest.FixtureRequest, anyio_backend_name: str) -> Made:
    """Makes a client of either package for a URL."""
    if request.param == "mcp":
        return mcp.Client
    if anyio_backend_name == "trio":
        pytest.skip("FastMCP's client is for asyncio alone")
    return fastmcp.Client


@requirement("law:7")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
async def test_a_poll_that_fails_does_not_end_the_drive(made: Made, fault: Any) -> None:
    journal, server = MemoryJournal(), SdkServer(gets=[WORKING, fault, fault, WORKING, DONE])
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, made(url, extensions=[extension(journal)]) as client:
            result = await client.call_tool("tool", {})
    assert result.structured_content == {"n": 1}
    assert server.counts["tasks/get"] == 5
    assert server.counts["tools/call"] == 1


REFUSALS: Final = [
    Fault(-32602, "No such tool", {"name": "tool"}),
    Fault(-32603, "Boom", {"trace": [1]}),
    Fault(-32603, "Boom"),
    Fault(-32000, "Busy"),
    Fault(-32001, "Not allowed"),
    Fault(-32601, "No tools here"),
    Fault(7, "A code of its own"),
]
ELSEWHERE: Final = Http("303 See Other", headers=["Location: http://127.0.0.1:9/"])
LOSSES: Final = {name: fault for name, fault in PASSING.items() if not isinstance(fault, Fault)} | {
    "a redirect that is not followed": ELSEWHERE,
    "401 without a body": Http("401 Unauthorized"),
}


@requirement("law:2")
@pytest.mark.parametrize("fault", LOSSES.values(), ids=LOSSES)
async def test_a_reply_to_a_call_that_says_nothing_of_the_call_leaves_its_outcome_unknown(
    made: Made, fault: Any
) -> None:
    journal, server = MemoryJournal(), SdkServer(calls=[fault, WORKING])
    if fault is ELSEWHERE and SDK < (2, 2):
        pytest.skip("before 2.2 the SDK follows every redirect")
    if made is fastmcp.Client and fault is NEVER:
        pytest.skip("FastMCP gives its HTTP client the same time-out, and that one ends the whole client")
    patience = {"read_timeout_seconds": 0.25} if made is mcp.Client else {"timeout": 0.25}
    with anyio.fail_after(LIMIT_S):
        async with (
            at_loopback(server) as url,
            made(url, extensions=[extension(journal)], **(patience if fault is NEVER else {})) as client,
            TasksClient(client) as tasks,
        ):
            for _ in range(2):
                with pytest.raises(OutcomeUnknownError):
                    await tasks.call_tool("tool", idempotency_key=KEY)
            assert server.counts["tools/call"] == 1
            again = await tasks.call_tool("tool", idempotency_key=KEY, on_unknown="resend")
    assert again.structured_content == {"n": 1}
    assert server.counts["tools/call"] == 2


@pytest.mark.parametrize("at_port", [True, False], ids=["http", "in memory"])
@pytest.mark.parametrize("fault", REFUSALS, ids=str)
async def test_an_error_that_the_server_answers_a_call_with_is_kept_as_it_is(
    fault: Fault, at_port: bool
) -> None:
    server, journal = SdkServer(calls=[fault]), MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            transport = url if at_port else in_memory(server)
            async with (
                mcp.Client(transport, extensions=[extension(journal)]) as client,
                TasksClient(client) as tasks,
            ):
                for key in (None, KEY):
                    with pytest.raises(TaskFailedError) as caught:
                        await tasks.call_tool("tool", idempotency_key=key)
                    told = (caught.value.code, caught.value.message, caught.value.data)
                    assert told == (fault.code, fault.message, fault.data)


@requirement("law:7")
async def test_a_poll_that_the_server_answers_with_an_unknown_task_ends_it() -> None:
    server, journal = SdkServer(gets=[WORKING, Fault(-32602, "Unknown task")]), MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            with pytest.raises(TaskNotFoundError) as caught:
                await client.call_tool("tool")
    assert caught.value.handle is not None
    assert caught.value.handle.task_id == TASK_ID
    assert [record.task_id for record in await recorded(journal)] == [TASK_ID]


@requirement("law:8")
@pytest.mark.parametrize("natively", [False, True], ids=["by a scope", "natively"])
async def test_a_call_that_is_cancelled_is_not_polled_any_more(
    made: Made, natively: bool, anyio_backend_name: str
) -> None:
    """``test_…_stopped_at_any_moment_…`` is thorough; this one has sockets, and FastMCP's client."""
    if natively and anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but that of scopes")
    journal, server = MemoryJournal(), SdkServer(gets=[WORKING, NEVER, WORKING, DONE])
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, made(url, extensions=[extension(journal)]) as client:
            if natively:
                call = asyncio.create_task(client.call_tool("tool", {}))
                await server.waiting.wait()
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            else:
                async with anyio.create_task_group() as callers:
                    callers.start_soon(client.call_tool, "tool", {})
                    await server.waiting.wait()
                    callers.cancel_scope.cancel()
            assert await unfinished(journal) == [TASK_ID]
            assert server.counts["tasks/get"] == 2
            assert server.counts["tasks/cancel"] == 0
            async with TasksClient(client) as tasks:
                (handle,) = await tasks.resume()
                assert (await handle.result()).structured_content == {"n": 1}


# ── the connection ends in the middle of it ───────────────────────────────────────────────────


async def test_a_client_that_is_left_while_a_call_waits_leaves_the_task_for_a_later_one() -> None:
    journal, server = MemoryJournal(), SdkServer(gets=[WORKING, NEVER])
    ended: list[BaseException | None] = []

    async def wait(client: mcp.Client) -> None:
        try:
            await client.call_tool("tool")
        except TasksClientError as error:
            ended.append(error)

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as callers, client_in_memory(server, journal) as client:
            callers.start_soon(wait, client)
            await server.waiting.wait()
        (error,) = ended
        assert isinstance(error, ConnectionLostError)
        assert error.handle is not None
        assert error.handle.task_id == TASK_ID
        assert await unfinished(journal) == [TASK_ID]
        await finished_later(journal)


@requirement("law:8", "law:10")
@pytest.mark.parametrize("waits_for", ["poll", "person"])
async def test_a_call_ends_with_its_client_however_far_off_the_next_request_is(waits_for: str) -> None:
    journal = MemoryJournal()
    first = working(TASK_ID, poll_interval_ms=3_600_000)
    asks = input_required(TASK_ID, {"k": QUESTION}, poll_interval_ms=3_600_000)
    server = SdkServer(calls=[first if waits_for == "poll" else {**asks, "resultType": "task"}])
    ended: list[BaseException | None] = []
    prompts: list[str] = []

    async def never(context: Any, params: Any) -> NoReturn:
        prompts.append("up")
        try:
            await anyio.sleep_forever()
        finally:
            prompts.append("withdrawn")
        raise AssertionError

    async def wait(client: mcp.Client) -> None:
        try:
            await client.call_tool("tool")
        except TasksClientError as error:
            ended.append(error)

    with anyio.fail_after(LIMIT_S):
        client = client_in_memory(server, journal, elicitation_callback=never)
        async with anyio.create_task_group() as callers, client:
            callers.start_soon(wait, client)
            while not await unfinished(journal) or (waits_for == "person" and not prompts):
                await anyio.lowlevel.checkpoint()
        (error,) = ended
        assert isinstance(error, ConnectionLostError)
        assert prompts in ([], ["up", "withdrawn"])
        assert await unfinished(journal) == [TASK_ID]


async def test_a_host_that_connects_again_at_once_is_not_taken_for_one_that_has_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sdk, "_WATCH_S", 0.001)
    looks, ended = 0, anyio.Event()
    clients: list[mcp.Client] = []

    def current() -> mcp.ClientSession:
        nonlocal looks
        looks += 1
        return clients[-1].session

    async def watch() -> None:
        await SdkSession(current, endpoint="memory").watch(list[Task]().append)
        ended.set()

    async def several_looks() -> None:
        until = looks + 3
        while looks < until:
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            async with client_in_memory(SdkServer(), MemoryJournal()) as second:
                async with client_in_memory(SdkServer(), MemoryJournal()) as first:
                    clients.append(first)
                    tasks.start_soon(watch)
                    await several_looks()
                    clients.append(second)
                await several_looks()
                assert not ended.is_set()
            await ended.wait()


async def test_a_peer_that_speaks_of_a_closed_connection_ends_nothing() -> None:
    """A proxy's words, about a connection of its own."""
    server = SdkServer(gets=[Fault(-32000, "Connection closed"), DONE])
    async with client_in_memory(server, MemoryJournal()) as client:
        assert (await client.call_tool("tool")).structured_content == {"n": 1}


async def test_what_becomes_of_an_abandoned_task_is_as_the_extension_says() -> None:
    server = SdkServer(gets=[WORKING])
    giving_up = extension(MemoryJournal(), on_abandon="cancel")
    client = mcp.Client(in_memory(server), extensions=[giving_up])
    async with client, TasksClient(client) as tasks:
        with pytest.raises(WaitTimeoutError):
            await tasks.call_tool("tool", timeout=0.1)
    assert server.counts["tasks/cancel"] == 1


def test_claims_that_a_host_asks_for_itself_are_nobody_elses() -> None:
    class Host(mcp.Client):
        def claims_for_another(self) -> None:
            TasksExtension(journal=MemoryJournal()).claims()

    with pytest.raises(ValueError, match="needs a name"):
        Host("http://127.0.0.1:1/mcp").claims_for_another()


@pytest.mark.parametrize("wrapped", [True, False])
async def test_instrumentation_of_the_sdk_costs_no_task(
    wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = mcp.ClientSession.send_request

    class Traced:
        def __get__(self, session: Any, owner: Any) -> Any:
            return partial(send, session)

    @functools.wraps(send)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        return await send(*args, **kwargs)

    monkeypatch.setattr(mcp.ClientSession, "send_request", traced if wrapped else Traced())
    told: list[str | None] = []

    async def progress(done: float, of: float | None, message: str | None) -> None:
        told.append(message)

    server = SdkServer(gets=[working(TASK_ID, status_message="busy"), DONE])
    async with client_in_memory(server, MemoryJournal()) as client:
        result = await client.call_tool("tool", progress_callback=progress)
    assert result.structured_content == {"n": 1}
    assert told == ["busy"]


async def finished_later(journal: Journal) -> None:
    """Another client takes up what is left, and brings it to its end."""
    server = SdkServer()
    async with client_in_memory(server, journal) as client, TasksClient(client) as tasks:
        (handle,) = await tasks.resume()
        assert (await handle.result()).structured_content == {"n": 1}
    assert server.counts["tools/call"] == 0


@requirement("law:7")
@pytest.mark.parametrize("around", [False, True], ids=["dropped in", "around"])
@pytest.mark.parametrize(
    "fault", [DROP, Http("200 OK", b"{", JSON, length=500)], ids=["no reply", "half a reply"]
)
async def test_a_connection_that_breaks_ends_the_client_and_not_the_task(
    made: Made, fault: Http, around: bool
) -> None:
    """A decision of the SDK's: its HTTP transport ends the client with what broke the connection."""
    journal, server = MemoryJournal(), SdkServer(gets=[WORKING, fault, DONE])
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            errors = await broken(made(url, extensions=[extension(journal)]), around)
            if made is fastmcp.Client and around:
                assert isinstance(errors[0], ConnectionLostError)
                assert errors[0].handle is not None
                assert errors[0].handle.task_id == TASK_ID
            assert await unfinished(journal) == [TASK_ID]
            async with made(url, extensions=[extension(journal)]) as client, TasksClient(client) as tasks:
                (handle,) = await tasks.resume()
                assert (await handle.result()).structured_content == {"n": 1}
    assert server.counts["tools/call"] == 1


async def broken(client: Any, around: bool) -> list[BaseException]:
    """What a call raises whose connection breaks, and what is left of that outside of its client."""
    seen: list[BaseException] = []
    try:
        async with client:
            try:
                if around:
                    async with TasksClient(client) as tasks:
                        await tasks.call_tool("tool")
                else:
                    await client.call_tool("tool", {})
            except BaseException as error:
                seen.append(error)
                raise
    except Exception as error:
        return [*seen, error]
    raise AssertionError("nothing broke")


@pytest.mark.parametrize("around", [False, True], ids=["dropped in", "around"])
async def test_a_server_that_goes_away_ends_the_client_and_not_the_task(made: Made, around: bool) -> None:
    journal, server = MemoryJournal(), SdkServer(gets=[WORKING, NEVER])
    urls: list[str] = []
    up = anyio.Event()

    async def serve() -> None:
        async with at_loopback(server) as url:
            urls.append(url)
            up.set()
            await server.waiting.wait()

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await up.wait()
            await broken(made(urls[0], extensions=[extension(journal)]), around)
        assert await unfinished(journal) == [TASK_ID]
        await broken(made(urls[0], extensions=[extension(journal)]), around)  # nobody is there
        await finished_later(journal)


@pytest.mark.parametrize("around", [False, True], ids=["dropped in", "around"])
@pytest.mark.parametrize(
    "fault", [DROP, Http("200 OK", b"{", JSON, length=500)], ids=["no reply", "half a reply"]
)
async def test_a_server_that_breaks_off_at_an_attempt_to_listen_costs_the_host_nothing(
    made: Made, fault: Http, around: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the SDK would end the client with it. Polls are needed anyway, an attempt to listen is not."""
    monkeypatch.setattr(listener, "_FIRST_S", 0.0)
    unhurried = working(TASK_ID, poll_interval_ms=100)
    server = SdkServer(calls=[unhurried], gets=[unhurried, unhurried, DONE])

    async def answer(method: str, params: JSONObject) -> JSONObject:
        if method == "subscriptions/listen":
            raise fault
        return await server(method, params)

    with anyio.fail_after(LIMIT_S):
        async with at_loopback(answer) as url, made(url, extensions=[extension(MemoryJournal())]) as client:
            if around:
                async with TasksClient(client) as tasks:
                    result: Any = await tasks.call_tool("tool")
            else:
                result = await client.call_tool("tool", {})
            assert result.structured_content == {"n": 1}
            await client.list_tools()
    assert server.counts["tasks/get"] == 3


STDIO_SERVER: Final = """
import json, os, sys
dies, known = "dies" in sys.argv, False
for line in sys.stdin:
    message = json.loads(line)
    method, reply = message.get("method"), {"jsonrpc": "2.0", "id": message.get("id")}
    if "id" not in message:
        continue
    if method == "server/discover":
        reply["result"] = DISCOVERED
    elif method == "tools/list":
        reply["result"] = {"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "public"}
    elif method == "tools/call":
        known, reply["result"] = True, WORKING
    elif dies and known:
        os._exit(1)
    else:
        reply["error"] = {"code": -32602, "message": "Unknown task"}
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def stdio_server(tmp_path: Path) -> StdioServerParameters:
    """Makes a task and dies at the first poll of it; the next one does not know the task."""
    script = tmp_path / "server.py"
    script.write_text(f"DISCOVERED = {DISCOVERED!r}\nWORKING = {WORKING!r}\n{STDIO_SERVER}")
    return StdioServerParameters(command=sys.executable, args=["-S", str(script), "dies"])


@requirement("law:7")
@pytest.mark.skipif(not SDK_STARTS_COMMANDS, reason="before 2.1 the SDK's client takes no command")
async def test_a_stdio_server_that_dies_takes_its_task_with_it_and_that_is_told(
    stdio_server: StdioServerParameters,
) -> None:
    journal = MemoryJournal()
    tasks_extension = TasksExtension(journal=journal, poll=QUICK)
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(stdio_server, extensions=[tasks_extension]) as client:
            with pytest.raises(ConnectionLostError) as caught:
                await client.call_tool("tool")
        handle = caught.value.handle
        assert handle is not None
        endpoint = handle.reference["endpoint"]
        assert endpoint.startswith("stdio")
        assert await unfinished(journal, endpoint) == [TASK_ID]
        later = mcp.Client(stdio_server, extensions=[tasks_extension])
        async with later as client, TasksClient(client) as tasks:
            (handle,) = await tasks.resume()
            with pytest.raises(TaskNotFoundError, match="died with the server's process"):
                await handle.result()


# ── the journal ───────────────────────────────────────────────────────────────────────────────


@requirement("law:1", "law:2")
async def test_a_journal_that_has_no_place_costs_a_task_neither_its_id_nor_its_result(tmp_path: Path) -> None:
    obstacle = tmp_path / "journals"
    obstacle.write_text("a file where the folder should be")
    journal, server = SqliteJournal(obstacle / "journal.sqlite3"), SdkServer()
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            with pytest.raises(JournalError) as caught:
                await client.call_tool("tool")
            assert server.counts["tasks/get"] == 0
            obstacle.unlink()
            await attached(client, caught.value)


@requirement("law:1", "law:2")
async def test_a_journal_that_is_locked_costs_a_task_neither_its_id_nor_its_result(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    journal, server = SqliteJournal(path, busy_timeout_s=0.05), SdkServer()
    assert await recorded(journal) == []  # makes the file
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                with pytest.raises(JournalLockedError) as caught:
                    await client.call_tool("tool")
            assert server.counts["tasks/get"] == 0
            await attached(client, caught.value)


async def attached(client: mcp.Client, error: JournalError) -> None:
    """Go on with what an error tells, once the journal is mended."""
    assert error.handle is not None
    reference = json.loads(json.dumps(error.handle.reference))
    assert reference["task_id"] == TASK_ID
    async with TasksClient(client) as tasks:
        handle = await tasks.attach(reference)
        assert (await handle.result()).structured_content == {"n": 1}
        assert [(record.tool, record.status) for record in await tasks.records()] == [("tool", "completed")]


class FullDisk(MemoryJournal):
    """Opens, and then has no room for the first record."""

    full = True

    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        if self.full:
            raise JournalError("The disk is full. Make room and try again.")
        await super().save(record, known=known)


@requirement("law:1", "law:2")
async def test_a_journal_that_has_no_room_costs_a_task_neither_its_id_nor_its_result() -> None:
    journal, server = FullDisk(), SdkServer()
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            with pytest.raises(JournalError) as caught:
                await client.call_tool("tool")
            assert server.counts["tasks/get"] == 0
            journal.full = False
            await attached(client, caught.value)


# ── the session beneath ───────────────────────────────────────────────────────────────────────


async def test_polls_that_hang_starve_neither_cancellations_nor_answers() -> None:
    server, ref = SdkServer(gets=[NEVER]), TaskRef(TASK_ID)
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, MemoryJournal()) as client, anyio.create_task_group() as polls:
            session = SdkSession(lambda: client.session, endpoint=ENDPOINT, tasks_in_flight=1)
            for _ in range(3):
                polls.start_soon(session.get, ref)
            await server.waiting.wait()
            await session.cancel(ref)
            await session.update(ref, {"k": {"action": "decline"}})
            assert server.counts["tasks/get"] == 1
            polls.cancel_scope.cancel()


async def test_what_the_server_has_listed_can_be_forgotten() -> None:
    tool = dict(TOOL)
    server = SdkServer(tool=tool)

    async def required(session: SdkSession) -> object:
        listed = await session.tool("tool")
        assert listed is not None
        return (listed.output_schema or {}).get("required")

    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, MemoryJournal()) as client:
            session = SdkSession(lambda: client.session, endpoint=ENDPOINT)
            assert await required(session) == ["n"]
            tool["outputSchema"] = {"type": "object", "required": ["amount"]}
            assert await required(session) == ["n"], "one list for all who ask"
            session.forget_tools()
            assert await required(session) == ["amount"]


# ── names of servers ──────────────────────────────────────────────────────────────────────────


async def test_one_extension_keeps_the_tasks_of_two_servers_apart(made: Made) -> None:
    journal = MemoryJournal()
    shared = TasksExtension(journal=journal, poll=QUICK)
    servers = [
        SdkServer(calls=[working(f"task-{n}", poll_interval_ms=1)], gets=[completed(f"task-{n}", RESULT)])
        for n in range(2)
    ]
    with anyio.fail_after(LIMIT_S):
        async with (
            at_loopback(servers[0]) as first,
            at_loopback(servers[1]) as second,
            made(first, extensions=[shared]) as one,
            made(second, extensions=[shared]) as other,
        ):
            for client in (one, other):
                await client.call_tool("tool", {})
            for n, (url, client) in enumerate(((first, one), (second, other))):
                async with TasksClient(client) as tasks:
                    records = await tasks.records()
                    assert [(record.task_id, record.scope.endpoint) for record in records] == [
                        (f"task-{n}", url)
                    ]


@pytest.mark.parametrize("kind", [mcp.Client, fastmcp.Client], ids=["mcp", "fastmcp"])
def test_a_server_in_this_process_needs_a_name_when_its_client_is_made(kind: Any) -> None:
    server = fastmcp.FastMCP("here")
    with pytest.raises(ValueError, match="TasksExtension\\(endpoint="):
        kind(server if kind is fastmcp.Client else in_memory(SdkServer()), extensions=[TasksExtension()])
    kind(
        server if kind is fastmcp.Client else in_memory(SdkServer()),
        extensions=[TasksExtension(endpoint="a")],
    )


def test_without_the_sdk_the_extension_is_one_line_that_names_the_extra() -> None:
    script = """
        import sys

        class Hidden:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("mcp", "fastmcp"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Hidden())
        import mcp_tasks_client
        assert "mcp" not in sys.modules
        mcp_tasks_client.TasksClient("http://127.0.0.1:9/mcp", journal=mcp_tasks_client.MemoryJournal())
        assert not hasattr(mcp_tasks_client, "Nothing")
        from mcp_tasks_client import TasksExtension
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    *_, told = ended.stderr.strip().splitlines()
    assert (
        told == "ImportError: TasksExtension needs the official SDK 2.x: pip install 'mcp-tasks-client[mcp]'"
    )
    assert ended.stderr.count("Traceback") == 1


# ── many at once, and afterwards ──────────────────────────────────────────────────────────────


class ManyTasks(SdkServer):
    """A task for each call, whose result is its number; counts the polls that are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.most = self.made = 0
        self.polls: dict[str, int] = {}

    async def __call__(self, method: str, params: JSONObject) -> JSONObject:
        if method == "tools/call":
            self.received.append((method, params))
            self.made += 1
            return working(f"task-{params['arguments']['n']}", poll_interval_ms=1)
        if method == "tasks/get":
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                await anyio.sleep(0.005)  # for them to overlap
                return self._get(params["taskId"])
            finally:
                self.under_way -= 1
        return await super().__call__(method, params)

    def _get(self, task_id: str) -> JSONObject:
        polls = self.polls[task_id] = self.polls.get(task_id, 0) + 1
        if polls < 3:
            return working(task_id, poll_interval_ms=1)
        number = int(task_id.removeprefix("task-"))
        return completed(task_id, {"content": [], "structuredContent": {"n": number}})


@pytest.mark.parametrize("at_port", [True, False], ids=["http", "in memory"])
async def test_many_calls_at_once_share_a_cap_and_get_each_their_own_result(at_port: bool) -> None:
    journal, server = MemoryJournal(), ManyTasks()
    policy = PollPolicy(floor_s=0.001, ceiling_s=0.001, jitter=0.0, polls_in_flight=4)
    got: dict[int, Any] = {}

    async def call(client: mcp.Client, n: int) -> None:
        got[n] = (await client.call_tool("tool", {"n": n})).structured_content

    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            transport = url if at_port else in_memory(server)
            made = mcp.Client(transport, extensions=[extension(journal, poll=policy)])
            async with made as client, anyio.create_task_group() as callers:
                for n in range(50):
                    callers.start_soon(call, client, n)
    assert got == {n: {"n": n} for n in range(50)}
    assert 1 < server.most <= 4
    assert server.made == 50
    assert len(await recorded(journal)) == 50


async def test_a_session_that_is_closed_is_not_kept_alive_by_the_extension(made: Made) -> None:
    shared, server = extension(MemoryJournal()), SdkServer()
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            client = made(url, extensions=[shared])
            async with client:
                await client.call_tool("tool", {})
                session = weakref.ref(client.session)
                async with TasksClient(client) as tasks:
                    await tasks.call_tool("tool")
            await anyio.lowlevel.checkpoint()
            gc.collect()
            assert session() is None


# ── stopped at any moment ─────────────────────────────────────────────────────────────────────


class Handing(TasksExtension):
    """Notes when the SDK hands over a task: from then on it must not be lost."""

    handed_over = False

    def claims(self) -> Sequence[ResultClaim[Any]]:
        (claim,) = super().claims()
        resolve = claim.resolve

        async def noted(claimed: Any, context: ClaimContext) -> CallToolResult:
            self.handed_over = True
            return await resolve(claimed, context)

        return (replace(claim, resolve=noted),)


class SlowlyOpened(SlowJournal):
    """Takes a while before it is open, and before it is closed; cancelled then, it is what it was."""

    async def open(self) -> None:
        with self._doings.one("opening"):
            await anyio.lowlevel.checkpoint()
            await super().open()

    async def aclose(self) -> None:
        with self._doings.one("closing"):
            await anyio.lowlevel.checkpoint()
            await super().aclose()


class SdkWorld(World):
    """The world of one task, at the other end of an ``mcp.Client``.

    Attributes:
        sent: What the server has yet to answer. It never hears that nobody waits for it any more.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(endpoint=ENDPOINT)
        self.journal = SlowlyOpened(self.doings)
        self.sent = Doings()
        self.extension = Handing(
            journal=self.journal, endpoint=ENDPOINT, poll=PollPolicy(jitter=0.0), **options
        )

    def sdk_client(self) -> mcp.Client:
        return mcp.Client(
            in_memory(self._answer), extensions=[self.extension], elicitation_callback=self._elicit
        )

    async def call(self, client: mcp.Client) -> None:
        """As a host does that knows of no tasks."""
        self.done(await client.call_tool("tool", {"a": 1}, read_timeout_seconds=self.timeout))

    async def take_up(self, client: mcp.Client) -> None:
        """As a host does that was stopped."""
        async with TasksClient(client) as tasks:
            handles = await tasks.resume()
            if not handles and (records := await tasks.records()):
                # It was delivered to the SDK, which was stopped before it had checked it.
                handles = [await tasks.attach(str(record.task_id)) for record in records]
            for handle in handles:
                await result_or_cancelled(self, handle)

    async def after_a_client(self) -> None:
        """As elsewhere, but for a task that the SDK never handed over."""
        created, self.server.created = self.server.created, self.extension.handed_over
        await super().after_a_client()
        self.server.created = created

    async def at_the_end(self) -> None:
        """Likewise."""
        if self.extension.handed_over:
            await super().at_the_end()

    async def nothing_goes_on(self) -> None:
        """Not for any number of turns of the event loop, in which the clock passes quickly."""
        self.doings.frozen = False
        self.at_rest()
        before = self.server.polls, len(self.host.asked), len(self.server.answers)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert (self.server.polls, len(self.host.asked), len(self.server.answers)) == before

    def is_given_up(self) -> None:
        """If that is wished for, the server has been told, unless it was over."""
        if self.extension.on_abandon == "cancel" and self.extension.handed_over:
            assert self.server.cancels or self.server.completed, "the task was abandoned and not cancelled"

    async def _answer(self, method: str, params: JSONObject) -> JSONObject:
        with self.sent.one(method):
            await anyio.lowlevel.checkpoint()
            reply = DISCOVERED if method == "server/discover" else self.server.handle(method, params)
            await anyio.lowlevel.checkpoint()
        if self.doings.frozen and method in ("tasks/get", "tasks/update"):
            raise DROP
        cached = {"ttlMs": 0, "cacheScope": "public"} if method == "tools/list" else {}
        return {"resultType": "complete", **cached, **reply}

    async def _elicit(self, context: Any, params: Any) -> Any:
        return await self.host.elicit(SimpleNamespace(key=context.request_id), params)


class SdkRun:
    """A call through ``mcp.Client`` that is stopped once, and taken up again."""

    def __init__(self, world: SdkWorld, how: How, at: int) -> None:
        self.world = world
        self.stop = Stop(how, at, self._stopped)

    async def __call__(self) -> Stop:
        try:
            with watched(self.stop.moment) as self.watch:
                await alone(self.watch, self._life)
                self.world.doings.frozen = False
                await self.world.after_a_client()
                if not self.world.outcomes:
                    await alone(self.watch, self._second_life)
                    await self.world.after_a_client()
            await self.world.at_the_end()
        except Exception as error:
            error.add_note(f"stop {self.stop.at}, {self.stop.where}; under way {sorted(self.stop.meanwhile)}")
            raise
        return self.stop

    def _stopped(self) -> frozenset[str]:
        self.world.doings.frozen = True
        return self.world.doings.now() | self.world.sent.now()

    async def _life(self) -> None:
        async with self.stop.block(), self.world.sdk_client() as client:
            idle = set(self.watch.alive)
            if self.stop.how is How.TIMEOUT:
                await self._timed_out(client)
            else:
                async with self.stop.call():
                    await self._called(client)
            if not self.stop.how.whole and not self.world.outcomes:
                await self.watch.until(lambda: set(self.watch.alive) <= idle)
                await self.world.nothing_goes_on()
                self.world.is_given_up()
                await self.world.take_up(client)

    async def _called(self, client: mcp.Client) -> None:
        try:
            await self.world.call(client)
        except (MCPError, ConnectionLostError):
            # Of a client that is stopped as a whole, the connection may be the first to go.
            assert self.stop.fired
            assert self.stop.how.whole

    async def _timed_out(self, client: mcp.Client) -> None:
        self.world.timeout, reference = TIMEOUT_S, None
        try:
            async with self.stop.call():
                await self.world.call(client)
        except WaitTimeoutError as error:
            reference = error.handle.reference if error.handle is not None else None
        except TaskCancelledError:
            assert self.world.server.cancels  # the task that was given up ended first
            self.world.outcomes += 1
        finally:
            self.world.timeout = None
        assert self.world.outcomes or (reference is not None and reference["task_id"] == TASK_ID)

    async def _second_life(self) -> None:
        async with self.world.sdk_client() as client:
            await self.world.take_up(client)


IN_A_DRIVE: Final = frozenset({"tasks/get", "tasks/update", "asking", "journal", "closing"})
IN_A_CALL: Final = IN_A_DRIVE | {"tools/call", "opening", "tools/list"}
EVERY: Final = 2 if os.environ.get("MCP_TASKS_EVERY_MOMENT") else 5
"""2 is once for each suspension; 5 a sample, now of a moment that begins and now of one that ends."""


@requirement("law:2", "law:3", "law:8")
@pytest.mark.parametrize("on_abandon", ["detach", "cancel"])
@pytest.mark.parametrize(
    "how", [How.BLOCK, How.CALL, How.NATIVE_BLOCK, How.NATIVE_CALL, How.TIMEOUT], ids=lambda how: how.value
)
@pytest.mark.usefixtures("schemas_checked_once")
async def test_a_call_of_the_sdk_that_is_stopped_at_any_moment_leaves_nothing_but_its_record(
    how: How, on_abandon: str, anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    possible(how, anyio_backend_name)
    stops, seen = 0, frozenset[str]()
    for at in itertools.count(1, EVERY):
        order_of_chance(monkeypatch)
        world = SdkWorld(on_abandon=on_abandon)
        monkeypatch.setattr(
            "mcp_tasks_client.old.extension.Engine", partial(Engine, clock=world.clock, lease_s=math.inf)
        )
        stop = await SdkRun(world, how, at)()
        if not stop.fired:
            break
        stops, seen = stops + 1, seen | stop.meanwhile
    assert stops >= 50 // EVERY
    rare = {"opening", "closing"} if EVERY > 2 else {"closing"} if how is How.TIMEOUT else set[str]()
    assert (IN_A_DRIVE if how is How.TIMEOUT else IN_A_CALL) - rare <= seen, "some of it was never stopped"
