"""Labels, and the names of applications, by every way in."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import httpx
import httpx2
import pytest

from mcp_tasks_client import (
    Journal,
    MemoryJournal,
    SqliteJournal,
    TaskRecord,
    TasksClient,
    TasksExtension,
    call_label,
    idempotency_key,
    tasks_http_client_factory,
)
from mcp_tasks_client.engine.process import Process
from mcp_tasks_client.hosts.call_options import META_LABEL, read_options
from mcp_tasks_client.testing import ScriptedServer
from tests.kit.json_rpc_host import QUICK, URL, JsonRpcHost, asking_server, count, hosted, recorded
from tests.kit.ways import extended, streamed

pytestmark = [
    pytest.mark.anyio,
    # The SDK's transport leaves a body that it has read to the garbage collector, which trio tells.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]

LABEL: Final = "Deploy for Ada 😀"

Call: TypeAlias = Callable[..., Any]
"""``call(tool, label=None)`` makes a call."""

Way: TypeAlias = Callable[..., AbstractAsyncContextManager[Call]]


@asynccontextmanager
async def by_url(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(server.app)) as http,
        TasksClient(URL, http_client=http, **options) as client,
    ):
        yield client.call_tool


@asynccontextmanager
async def by_url_in_meta(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    async with by_url(server, **options) as call_tool:

        async def call(tool: str, label: str | None = None) -> None:
            await call_tool(tool, meta={META_LABEL: label})

        yield call


def in_block(call_tool: Call) -> Call:
    async def call(tool: str, label: str | None = None) -> None:
        if label is None:
            await call_tool(tool)
        else:
            with call_label(label):
                await call_tool(tool)

    return call


@asynccontextmanager
async def by_extension(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    async with extended(server, **options) as client:
        yield in_block(client.call_tool)


@asynccontextmanager
async def by_wrapped_client(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    """The application is that of the client's extension."""
    async with extended(server, **options) as sdk, TasksClient(sdk) as client:
        yield client.call_tool


@asynccontextmanager
async def beneath(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    async with hosted(server, options.pop("journal"), **options) as host:
        yield in_block(host.call)


@asynccontextmanager
async def beneath_in_meta(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    factory = tasks_http_client_factory(transport=httpx2.ASGITransport(server.app), **options)
    async with factory() as client:
        host = JsonRpcHost(client)

        async def call(tool: str, label: str | None = None) -> Any:
            return await host.call(tool, meta={} if label is None else {META_LABEL: label})

        yield call


@asynccontextmanager
async def around(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    async with streamed(server, **options) as host:

        async def call(tool: str, label: str | None = None) -> Any:
            return await host.call(tool, meta={} if label is None else {META_LABEL: label})

        yield call


WAYS: Final = [by_url, by_url_in_meta, by_extension, by_wrapped_client, beneath, beneath_in_meta, around]
each_way = pytest.mark.parametrize("way", WAYS)


class Noting(MemoryJournal):
    """Remembers the first form of each record."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: dict[str, TaskRecord] = {}

    async def save(self, record: TaskRecord, **options: Any) -> None:
        self.noted.setdefault(record.record_id, record)
        await super().save(record, **options)


@pytest.fixture(autouse=True)
def bounded(anyio_backend: object) -> None:
    """Parametrises what is not asynchronous as well."""


@each_way
async def test_a_record_says_what_its_call_is_called_and_who_made_it_and_the_server_learns_nothing(
    way: Way,
) -> None:
    server, journal = asking_server(), Noting()
    with anyio.fail_after(20):
        async with way(server, journal=journal, poll=QUICK, application="payroll") as call:
            await call("slow", label=LABEL)
            await call("slow")
    labelled, plain = journal.noted.values()
    assert (labelled.label, plain.label) == (LABEL, None)
    for one in (labelled, plain):
        assert one.application == "payroll"
        assert one.origin == Process.current().origin
        assert one.origin.pid == os.getpid()
    said = json.dumps([one.params for one in server.witness.log("tools/call")], ensure_ascii=False)
    assert not [word for word in (LABEL, META_LABEL, "payroll") if word in said]


@each_way
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "sqlite"])
async def test_an_application_resumes_its_own_calls_and_those_without_a_name(
    way: Way, on_disk: bool, tmp_path: Path
) -> None:
    server, file = asking_server(), tmp_path / "journal.sqlite3"
    journal: Journal = SqliteJournal(file) if on_disk else MemoryJournal()
    with anyio.fail_after(30):
        async with journal:
            for name in ("payroll", None):
                async with way(server, journal=journal, poll=QUICK, application=name) as call:
                    await begin(server, call)
            found = []
            for name in ("billing", None, "payroll"):
                async with (
                    httpx.AsyncClient(transport=httpx.ASGITransport(server.app)) as http,
                    TasksClient(URL, http_client=http, journal=journal, application=name) as client,
                ):
                    handles = {handle.reference["record_id"] for handle in await client.resume()}
                    everything = await client.records()
                found.append([one.application for one in everything if one.record_id in handles])
                assert [one.application for one in everything] == ["payroll", None]
    assert found == [[None], [None], ["payroll", None]]


async def begin(server: ScriptedServer, call: Call) -> None:
    """Give a call up once its task is observed."""
    polls = count(server, "tasks/get")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, "for_ever")
        while count(server, "tasks/get") == polls:
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("way", [beneath_in_meta, around])
@pytest.mark.parametrize("label", ["x" * 201, 7, ["x"]])
async def test_what_is_no_label_is_refused_and_nothing_is_called(way: Way, label: Any) -> None:
    server, journal = asking_server(), MemoryJournal()
    with anyio.fail_after(20):
        async with way(server, journal=journal, poll=QUICK) as call:
            answer = await call("slow", label=label)
    assert answer["error"]["code"] == -32602
    assert "a label is a text of at most 200 characters" in answer["error"]["message"]
    assert (count(server, "tools/call"), await recorded(journal)) == (0, [])


def test_a_key_and_a_label_may_be_given_around_the_same_call() -> None:
    with call_label("a"), idempotency_key("k"):
        with call_label("b"):
            assert read_options() == ("k", "raise", "b", {})
            assert read_options(label="c", meta={META_LABEL: "d"}).label == "c"
            assert read_options(meta={META_LABEL: "d", "x": 1}) == ("k", "raise", "d", {"x": 1})
        assert read_options("l", "resend") == ("l", "resend", "a", {})
    assert read_options() == (None, "raise", None, {})


@pytest.mark.parametrize("label", ["x" * 201, 7])
def test_a_block_takes_no_label_that_is_none(label: Any) -> None:
    with pytest.raises(ValueError, match="label"), call_label(label):
        pass


def test_a_name_of_an_application_is_a_text_that_is_not_empty() -> None:
    for name in ("", 7):
        wrong: Any = name
        with pytest.raises(ValueError, match="an application is named by a text"):
            TasksExtension(journal=MemoryJournal(), application=wrong)
        with pytest.raises(ValueError, match="an application is named by a text"):
            TasksClient(URL, journal=MemoryJournal(), application=wrong)
