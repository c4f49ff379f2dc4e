"""What a model repeats is not a second call, and what two callers want at the same time is two calls."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks_client import Inbox, MemoryJournal, SqliteJournal, TaskRecord
from mcp_tasks_client.bridge import calls as bridge_calls
from mcp_tasks_client.bridge import serving
from tests._requirements import requirement
from tests.kit.probed_journal import Held, ProbedJournal

from .behind import RICH, URL, Wire, behind
from .memory_host import LIMIT_S, VERSIONS, MemoryHost, Refused, reference_in, text_of
from .world import bridged

pytestmark = pytest.mark.anyio

KEY = "mcp-tasks-client/idempotency-key"


@pytest.fixture
async def wire(anyio_backend: Any) -> AsyncIterator[Wire]:
    async with behind("2026-07-28") as made:
        yield made


@pytest.fixture
def host() -> MemoryHost:
    return MemoryHost()


async def give_up(host: MemoryHost, wire: Wire, tool: str, arguments: Any = None, **options: Any) -> None:
    """Call a tool whose task goes on, and give the call up."""
    wire.hold("tasks/get")
    polled = len(wire.of("tasks/get"))
    sent = await host.begin(tool, arguments, **options)
    await host.until(lambda: len(wire.of("tasks/get")) > polled)
    await host.give_up(sent)


async def records(journal: MemoryJournal) -> list[TaskRecord]:
    async with Inbox(journal, endpoint=URL, principal="ada") as inbox:
        return await inbox.records()


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": {"b": [1]}}, {"a": {"b": [1.0]}}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1}, {"a": 2}, False),
        ({}, {"a": None}, False),
    ],
)
async def test_equal_is_what_json_has_as_equal(
    host: MemoryHost, wire: Wire, first: Any, second: Any, is_equal: bool
) -> None:
    async with bridged(wire, host):
        await give_up(host, wire, "work", first)
        sent = await host.begin("work", second)
        wire.let_go("tasks/get")
        await sent.reply()
    assert len(wire.calls("work")) == (1 if is_equal else 2)


@requirement("law:17")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_call_that_a_model_repeats_after_its_host_gave_up_is_no_second_task(
    wire: Wire, version: str
) -> None:
    host = MemoryHost(version)
    wire.hold("tasks/get")
    async with bridged(wire, host):
        first = await host.begin("work")
        await host.until(lambda: wire.of("tasks/get"))
        await host.notify("notifications/cancelled", {"requestId": first.request_id})
        second = await host.begin("work")
        await host.give_up(second)  # by then the bridge has looked for an equal call
        wire.let_go("tasks/get")
        await host.call("work")
    assert len(wire.calls("work")) == 1


async def test_a_call_is_not_joined_while_its_caller_waits(host: MemoryHost, wire: Wire) -> None:
    wire.hold("tasks/get")
    async with bridged(wire, host):
        first, second = await host.begin("work"), await host.begin("work")
        await host.until(lambda: len(wire.calls("work")) == 2)
        wire.let_go("tasks/get")
        assert (await first.reply())["content"] == (await second.reply())["content"] == RICH["content"]


async def test_a_call_is_not_joined_while_its_reply_is_written(host: MemoryHost, wire: Wire) -> None:
    """The host may have read the reply before the bridge knows that it was written."""
    repeated = []

    async def repeat(method: str) -> None:
        if method == "tools/call" and not repeated:
            repeated.append(await host.begin("plain"))
            await host.until(lambda: len(wire.calls("plain")) == 2)

    async with bridged(wire, host, before_reply=repeat):
        first = await host.call("plain")
        second = await repeated[0].reply()
    assert first["content"] == second["content"] == RICH["content"], "neither has a note"


async def test_a_call_whose_result_the_host_has_is_over(host: MemoryHost, wire: Wire) -> None:
    async with bridged(wire, host):
        for tool in ("plain", "work") * 2:
            assert (await host.call(tool))["content"] == RICH["content"]
    assert (len(wire.calls("plain")), len(wire.calls("work"))) == (2, 2)


async def test_a_call_whose_result_the_host_has_is_over_before_the_journal_says_so(
    host: MemoryHost, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_calls, "_has_ended", lambda origin: True)  # of a bridge that was killed
    journal, held = ProbedJournal(), Held()
    journal.before("save", held, when=lambda record, **options: record.delivered_at is not None)
    async with bridged(wire, host, journal):
        assert (await host.call("work"))["content"] == RICH["content"]
        await held.reached.wait()
        sent = await host.begin("work")
        await host.until(lambda: sent.is_answered)
        held.go_on.set()
        assert (await sent.reply())["content"] == RICH["content"]
    assert len(wire.calls("work")) == 2


@pytest.mark.parametrize("tool", ["work", "fails"])
async def test_an_outcome_that_nobody_heard_is_that_of_the_repetition(
    host: MemoryHost, wire: Wire, tool: str
) -> None:
    journal = MemoryJournal()
    async with bridged(wire, host, journal):
        await give_up(host, wire, tool)
        wire.let_go("tasks/get")
        async with Inbox(journal, endpoint=URL, principal="ada") as inbox:
            while not (await inbox.records())[0].finished:
                await host.until(lambda: True)
        if tool == "fails":
            with pytest.raises(Refused, match="quota"):
                await host.call(tool)
        else:
            assert "earlier, equal call" in (await host.call(tool))["content"][-1]["text"]
    assert len(wire.calls(tool)) == 1


async def test_a_call_that_was_answered_in_between_is_joined(host: MemoryHost, wire: Wire) -> None:
    wire.hold("tasks/get")
    async with bridged(wire, host, answer_within_s=1.5):
        first, second = [reference_in(text_of(await host.call("work", {"x": 1}))) for _ in range(2)]
        assert first == second
    assert len(wire.calls("work")) == 1


@pytest.mark.parametrize(("patterns", "calls"), [(["work"], 2), (["wo*"], 2), (["no*", "plain"], 1)])
async def test_a_tool_that_is_meant_to_run_twice_does(
    host: MemoryHost, wire: Wire, patterns: list[str], calls: int
) -> None:
    async with bridged(wire, host, new_for=patterns):
        await give_up(host, wire, "work")
        sent = await host.begin("work")
        wire.let_go("tasks/get")
        await sent.reply()
    assert len(wire.calls("work")) == calls


async def test_an_idempotency_key_is_one_as_by_every_way_in(host: MemoryHost, wire: Wire) -> None:
    wire.hold("tasks/get")
    async with bridged(wire, host):
        first = await host.begin("work", {"x": 1}, meta={KEY: "k"})
        second = await host.begin("work", {"x": 1}, meta={KEY: "k"})
        await host.until(lambda: wire.of("tasks/get"))
        with pytest.raises(Refused, match="key"):
            await host.call("work", {"x": 2}, meta={KEY: "k"})
        wire.let_go("tasks/get")
        for sent in (first, second):
            assert (await sent.reply())["content"] == RICH["content"], "one call, and one result"
    assert len(wire.calls("work")) == 1
    assert KEY not in wire.calls("work")[0]["_meta"], "no key reaches the server"


async def test_a_key_finds_the_call_that_a_reference_has_found(wire: Wire) -> None:
    """A question of the server is put to the host by one call, whichever request waits for it."""
    journal, host = MemoryJournal(), MemoryHost(capabilities={})
    async with bridged(wire, host, journal):
        await give_up(host, wire, "asks", meta={KEY: "k"})
    later = MemoryHost(capabilities={})
    async with bridged(wire, later, journal, answer_within_s=LIMIT_S):
        (record,) = await records(journal)
        by_reference = await later.begin("task_result", {"reference": record.record_id})
        await later.request("tools/list")
        by_key = await later.begin("asks", meta={KEY: "k"})
        await later.request("tools/list")
        wire.let_go("tasks/get")
        told = [text_of(await one.reply()) for one in (by_reference, by_key)]
    assert all("Do not answer it yourself" in one for one in told)
    assert reference_in(told[0]) == reference_in(told[1]) == record.record_id
    assert len(wire.calls("asks")) == 1


@pytest.mark.parametrize("key", [42, "", ["k"], True])
async def test_a_key_that_is_none_is_refused(host: MemoryHost, wire: Wire, key: Any) -> None:
    async with bridged(wire, host):
        with pytest.raises(Refused, match="key") as refused:
            await host.call("work", meta={KEY: key})
    assert refused.value.code == -32602
    assert wire.calls("work") == []


async def test_a_call_under_a_key_is_not_joined_without_it(host: MemoryHost, wire: Wire) -> None:
    async with bridged(wire, host):
        await give_up(host, wire, "work", meta={KEY: "k"})
        sent = await host.begin("work")
        wire.let_go("tasks/get")
        await sent.reply()
    assert len(wire.calls("work")) == 2


@pytest.mark.parametrize(
    ("call_id", "arguments", "calls"), [("c1", {"x": 1}, 1), ("c2", {"x": 1}, 2), ("c1", {"x": 2}, 2)]
)
async def test_a_call_id_of_the_hosts_joins_its_own_repetition(
    host: MemoryHost,
    wire: Wire,
    call_id: str,
    arguments: Any,
    calls: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "_BEAT_S", 0.01)
    wire.hold("tasks/get")
    async with bridged(wire, host):
        first = await host.begin("work", {"x": 1}, meta={"callId": "c1"})
        await host.until(lambda: wire.of("tasks/get"))
        second = await host.begin("work", arguments, meta={"callId": call_id}, token="second")
        await host.until(lambda: host.progress("second"))
        wire.let_go("tasks/get")
        await first.reply()
        await second.reply()
    assert len(wire.calls("work")) == calls


@pytest.mark.parametrize("arguments", [{}, {"x": 1}])
async def test_a_call_of_a_bridge_that_is_gone_is_joined(
    host: MemoryHost, wire: Wire, tmp_path: Path, arguments: Any
) -> None:
    wire.hold("tasks/get")
    async with bridged(wire, host, SqliteJournal(tmp_path / "journal.db")):
        await host.begin("work")
        await host.until(lambda: wire.of("tasks/get"))
    wire.let_go("tasks/get")
    later = MemoryHost()
    async with bridged(wire, later, SqliteJournal(tmp_path / "journal.db")):
        assert (await later.call("work", arguments))["content"][:2] == RICH["content"]
    assert len(wire.calls("work")) == (2 if arguments else 1)


async def test_a_call_is_joined_whose_maker_is_gone_though_another_bridge_goes_on_with_it(
    host: MemoryHost, wire: Wire, tmp_path: Path
) -> None:
    file = tmp_path / "journal.db"
    wire.hold("tasks/get")
    async with bridged(wire, host, SqliteJournal(file)):
        await host.begin("work")
        await host.until(lambda: wire.of("tasks/get"))
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    origin = json.dumps({"program": "a bridge", "host": socket.gethostname(), "pid": gone.pid})
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE records SET origin = ?", [origin])
    polls, second, third = len(wire.of("tasks/get")), MemoryHost(), MemoryHost()
    async with bridged(wire, second, SqliteJournal(file)):
        await host.until(lambda: len(wire.of("tasks/get")) > polls)  # it goes on with the call
        async with bridged(wire, third, SqliteJournal(file)):
            joined = await third.begin("work")
            wire.let_go("tasks/get")
            assert (await joined.reply())["content"][:2] == RICH["content"]
    assert len(wire.calls("work")) == 1


async def test_a_call_of_another_living_bridge_is_not_joined(
    host: MemoryHost, wire: Wire, tmp_path: Path
) -> None:
    other = MemoryHost()
    wire.hold("tasks/get")
    async with (
        bridged(wire, host, SqliteJournal(tmp_path / "journal.db")),
        bridged(wire, other, SqliteJournal(tmp_path / "journal.db")),
    ):
        first = await host.begin("work")
        await host.until(lambda: wire.of("tasks/get"))
        second = await other.begin("work")
        await host.until(lambda: len(wire.calls("work")) == 2)
        wire.let_go("tasks/get")
        await first.reply()
        await second.reply()


async def test_a_call_of_another_application_is_not_joined(wire: Wire) -> None:
    journal = MemoryJournal()
    for name in ("one host", "another"):
        host = MemoryHost(name=name)
        async with bridged(wire, host, journal):
            await give_up(host, wire, "work")
    assert len(wire.calls("work")) == 2


async def test_hosts_that_share_an_application_share_calls(wire: Wire) -> None:
    journal = MemoryJournal()
    for name in ("one host", "another"):
        host = MemoryHost(name=name)
        async with bridged(wire, host, journal, application="ours", answer_within_s=1.5):
            wire.hold("tasks/get")
            assert "still running" in text_of(await host.call("work", wait_s=LIMIT_S))
    assert len(wire.calls("work")) == 1
