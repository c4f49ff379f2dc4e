"""A host's request that is cancelled at each moment: no task ID is lost, and nothing is left running."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
import httpx
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import (
    Environment,
    Instruction,
    MemoryJournal,
    PollPolicy,
    SqliteJournal,
    TaskRecord,
    TasksHttpTransport,
)
from mcp_tasks_client.testing import ManualClock, ScriptedServer, ask, complete, form, text_result, work
from tests.campaigns.cancellation.stops import How, QuickClock, Stop, watched
from tests.kit.json_rpc_host import ENDPOINT, LIMIT_S, JsonRpcHost, count, recorded, resume
from tests.kit.ways import streamed

pytestmark = pytest.mark.anyio

KEY: Final = {"mcp-tasks-client/idempotency-key": "k"}
ROUND: Final[dict[str, Any]] = {}
"""The host is asked itself, and its answer is cancelled."""

Way: TypeAlias = Callable[..., AbstractAsyncContextManager[JsonRpcHost]]

HOWS: Final = [How.BLOCK, How.CALL, How.NATIVE_BLOCK, How.NATIVE_CALL]


async def answer(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


class Slow(MemoryJournal):
    """Takes a moment for each commit, before and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.has_outcome = False

    async def open(self) -> None:
        await anyio.lowlevel.checkpoint()
        await super().open()

    async def claim(self, record: TaskRecord) -> TaskRecord:
        await anyio.lowlevel.checkpoint()
        standing = await super().claim(record)
        await anyio.lowlevel.checkpoint()
        return standing

    async def save(
        self, record: TaskRecord, *, known: bool = False, heeded: Instruction | None = None
    ) -> None:
        await anyio.lowlevel.checkpoint()
        await super().save(record, known=known, heeded=heeded)
        self.has_outcome |= record.finished
        await anyio.lowlevel.checkpoint()

    def outcomes(self) -> frozenset[str]:
        """What outcomes it holds."""
        return frozenset({"the outcome"} if self.has_outcome else ())


class Distant(httpx.ASGITransport):
    """A server that a request takes a while to reach, and a reply to come back from."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        response = await super().handle_async_request(request)
        await anyio.lowlevel.checkpoint()
        return response


def new_server(limit_s: float = 300.0) -> ScriptedServer:
    server = ScriptedServer(clock=QuickClock(limit_s), endpoint=ENDPOINT)
    question = ask("name", form("Who?", name="string"))
    server.tool("tool", [work(1, "begun"), question, complete(text_result("done"))], settle_s=0.0)
    return server


@asynccontextmanager
async def beneath(server: ScriptedServer, **options: Any) -> AsyncIterator[JsonRpcHost]:
    """A host whose HTTP client has a transport of ours."""
    async with httpx.AsyncClient(transport=TasksHttpTransport(Distant(server.app), **options)) as client:
        yield JsonRpcHost(client)


@asynccontextmanager
async def around(server: ScriptedServer, **options: Any) -> AsyncIterator[JsonRpcHost]:
    """A host whose MCP transport is one of ours."""
    async with streamed(server, **options) as host:
        yield host


async def call(host: JsonRpcHost, meta: dict[str, Any]) -> str:
    """The text of the result."""
    further = {}
    if meta is ROUND:
        asked = (await host.call("tool", meta=meta))["result"]
        answers = {"name": {"action": "accept", "content": {"name": "Ada"}}}
        further = {"inputResponses": answers, "requestState": asked["requestState"]}
    return await host.text("tool", meta=meta, **further)


async def call_until(
    stop: Stop, server: ScriptedServer, journal: MemoryJournal, way: Way, meta: dict[str, Any], closes: bool
) -> bool:
    """A host's call, stopped at a moment. Returns whether the host has its result.

    Args:
        closes: Whether it is not the call that is stopped, but the host closes under it.
    """
    opened = way(
        server,
        journal=journal,
        poll=PollPolicy(jitter=0.0, call_grace_s=1.0),
        environment=Environment(clock=server.clock, jitter=lambda: 0.0),
        elicitation=answer if meta is not ROUND else None,
    )
    said, ended = list[str](), anyio.Event()

    async def run(host: JsonRpcHost) -> None:
        with suppress(ConnectionError):
            said.append(await call(host, meta))
        ended.set()

    async with stop.block(), anyio.create_task_group() as calls, opened as host:
        if closes:
            calls.start_soon(run, host)
        async with stop.call():
            await (ended.wait() if closes else run(host))
        while stop.fired and not said and not closes:  # and the client is still open
            if all(is_free(record, meta) for record in await recorded(journal)):
                break
            assert way is around, stop.where  # which hears of it by a message
            await anyio.lowlevel.checkpoint()
    return said == ["done"]


def is_free(record: TaskRecord, meta: dict[str, Any]) -> bool:
    """Whether any client of this process may take a record."""
    return record.owner is None or (meta is ROUND and "~" in record.owner)


async def stop_at_each_moment(
    how: How, way: Way, meta: dict[str, Any], *, stride: int, closes: bool = False
) -> None:
    at, fired = 1 + HOWS.index(how) * stride // len(HOWS), True
    with anyio.fail_after(10 * LIMIT_S):
        while fired:
            server, journal = new_server(), Slow()
            stop = Stop(how, at, journal.outcomes)
            results: list[bool] = []

            async def run() -> None:
                results.append(await call_until(stop, server, journal, way, meta, closes))  # noqa: B023

            with watched(stop.moment) as watch:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run)
                await watch.until(lambda alive=watch.alive: not alive)
            fired = stop.fired
            created = count(server, "tools/call")
            records = await recorded(journal, pending=True)
            where = f"moment {at}: {stop.where}"
            # A result on its way to a session may cross the notification that nobody waits for it any more.
            crossed = way is around and stop.meanwhile and not records
            if not created:
                assert not await recorded(journal), f"{where}; the key is free again, since nothing was sent"
            elif results != [True] and not crossed:
                assert [is_free(record, meta) for record in records] == [True], where
                assert await resume(server, journal, elicitation=answer) == ["done"], where
            assert count(server, "tools/call") <= 1, where
            server.witness.check()
            at += stride
    assert at > 20, "there were so many moments"


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether each moment is tried. The short form tries some, others for each way of being stopped."""
    return bool(request.config.getoption("--long"))


METAS: Final = pytest.mark.parametrize(
    "meta", [{}, KEY, {"progressToken": 1}, ROUND], ids=["json", "key", "events", "round"]
)


@METAS
@pytest.mark.parametrize("way", [beneath, around])
@pytest.mark.parametrize("how", HOWS, ids=lambda how: how.value)
async def test_no_task_is_lost_wherever_the_host_s_request_is_cancelled(
    how: How, way: Way, meta: dict[str, Any], is_long: bool, anyio_backend_name: str
) -> None:
    if how.native and anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but that of scopes")
    stride = 1 if is_long else 10 if way is beneath else 34  # over streams there are more moments
    await stop_at_each_moment(how, way, meta, stride=stride)


@METAS
async def test_no_task_is_lost_wherever_the_transport_is_closed_under_a_call(
    meta: dict[str, Any], is_long: bool
) -> None:
    await stop_at_each_moment(How.CALL, around, meta, stride=1 if is_long else 17, closes=True)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_reply_that_comes_after_the_host_has_gone_is_journaled() -> None:
    server, journal = new_server(), MemoryJournal()
    slow = httpx.ASGITransport(server.app)
    send, arrived = slow.handle_async_request, anyio.Event()

    async def dawdle(request: httpx.Request) -> httpx.Response:
        is_call = json.loads(request.content)["method"] == "tools/call"
        response = await send(request)
        if is_call:
            arrived.set()
            await anyio.sleep(0.2)
        return response

    slow.handle_async_request = dawdle  # type: ignore[method-assign]
    transport = TasksHttpTransport(slow, journal=journal, environment=Environment(clock=server.clock))
    async with httpx.AsyncClient(transport=transport) as client, anyio.create_task_group() as calls:
        host = JsonRpcHost(client)
        calls.start_soon(host.call, "tool")
        await arrived.wait()
        calls.cancel_scope.cancel()
    assert [record.owner for record in await recorded(journal)] == [None]
    assert await resume(server, journal, elicitation=answer) == ["done"]


@pytest.mark.parametrize("meta", [{}, KEY, {"progressToken": 1}], ids=["no key", "key", "events"])
def test_an_event_loop_that_ends_at_any_step_of_a_call_leaves_no_record_that_it_owns(
    meta: dict[str, Any],
) -> None:
    server = ScriptedServer(endpoint=ENDPOINT)
    server.tool("tool", [work(60.0), complete(text_result("done"))])

    async def leave_after(steps: int, journal: MemoryJournal) -> None:
        transport = TasksHttpTransport(
            Distant(server.app), journal=journal, environment=Environment(clock=server.clock)
        )
        call = asyncio.create_task(
            JsonRpcHost(httpx.AsyncClient(transport=transport)).call("tool", meta=meta)
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        assert not call.done()

    for steps in range(40):
        journal = Slow()
        # In a thread, so that a loop that does not end is a failed test.
        thread = threading.Thread(target=asyncio.run, args=(leave_after(steps, journal),), daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        assert not thread.is_alive(), steps
        assert {record.owner for record in asyncio.run(recorded(journal))} <= {None}, steps


@pytest.mark.parametrize("meta", [{}, {"progressToken": 1}], ids=["json", "events"])
def test_an_event_loop_that_ends_in_the_middle_of_a_call_leaves_the_task_to_the_next(
    tmp_path: Path, meta: dict[str, Any]
) -> None:
    # On a disk, time passes for as long as a commit takes.
    server, journal = new_server(limit_s=math.inf), SqliteJournal(tmp_path / "journal.sqlite3")

    async def call_and_forget() -> None:
        # A clock that stands still keeps the call from being asked: a question would be left to this process.
        transport = TasksHttpTransport(
            httpx.ASGITransport(server.app), journal=journal, environment=Environment(clock=ManualClock())
        )
        call = asyncio.create_task(
            JsonRpcHost(httpx.AsyncClient(transport=transport)).call("tool", meta=meta)
        )
        while not any(record.owner for record in await recorded(journal)):
            await asyncio.sleep(0)
        assert not call.done()

    asyncio.run(call_and_forget())
    assert [record.owner for record in asyncio.run(recorded(journal))] == [None]

    async def go_on() -> list[str]:
        with anyio.fail_after(20):
            return await resume(server, journal, elicitation=answer)

    assert anyio.run(go_on) == ["done"]
    assert count(server, "tools/call") == 1


def test_a_client_that_is_kept_when_its_event_loop_is_closed_goes_on_under_the_key(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.hosts.http.kept_client", str(tmp_path / "journal.sqlite3")]
    host = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=2 * LIMIT_S)
    assert host.stdout == "done 1\n"
