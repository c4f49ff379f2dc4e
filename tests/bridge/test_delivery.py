"""An outcome is delivered when the host has it, and no moment before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from mcp_tasks_client import Inbox, MemoryJournal, TaskRecord
from mcp_tasks_client.bridge.serving import Serving

from .behind import RICH, URL, Wire, behind
from .memory_host import LIMIT_S, VERSIONS, MemoryHost, reference_in, text_of
from .world import bridged

pytestmark = pytest.mark.anyio


@pytest.fixture
async def wire(anyio_backend: Any) -> AsyncIterator[Wire]:
    async with behind("2026-07-28") as made:
        yield made


async def records(journal: MemoryJournal, **options: Any) -> list[TaskRecord]:
    async with Inbox(journal, endpoint=URL, principal="ada") as inbox:
        return await inbox.records(**options)


async def until_delivered(journal: MemoryJournal) -> None:
    with anyio.fail_after(LIMIT_S):
        while await records(journal, pending=True):
            await anyio.sleep(0.01)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_reply_that_could_not_be_written_leaves_the_outcome_for_the_next_bridge(
    wire: Wire, version: str
) -> None:
    broken, journal = anyio.Event(), MemoryJournal()

    async def break_pipe(method: str) -> None:
        if method == "tools/call":
            broken.set()
            raise anyio.BrokenResourceError

    host = MemoryHost(version)
    async with bridged(wire, host, journal, before_reply=break_pipe):
        await host.begin("work")
        await broken.wait()
    (record,) = await records(journal, pending=True)
    assert record.finished
    later = MemoryHost(version)
    async with bridged(wire, later, journal):
        assert (await later.call("work"))["content"][:2] == RICH["content"]
        await until_delivered(journal)
    assert len(wire.calls("work")) == 1


async def test_an_outcome_is_pending_while_its_reply_is_written(wire: Wire) -> None:
    journal, writing, go_on = MemoryJournal(), anyio.Event(), anyio.Event()

    async def hold(method: str) -> None:
        if method == "tools/call":
            writing.set()
            await go_on.wait()

    host = MemoryHost()
    async with bridged(wire, host, journal, before_reply=hold):
        sent = await host.begin("work")
        await writing.wait()
        with anyio.move_on_after(0.5):
            await until_delivered(journal)
        assert len(await records(journal, pending=True)) == 1
        go_on.set()
        await sent.reply()
        await until_delivered(journal)


async def test_an_answer_in_between_delivers_nothing_and_the_result_is_kept_for_a_while(wire: Wire) -> None:
    journal, host = MemoryJournal(), MemoryHost()
    wire.hold("tasks/get")
    async with bridged(wire, host, journal, answer_within_s=1.5):
        reference = reference_in(text_of(await host.call("work")))
        wire.let_go("tasks/get")
        with anyio.fail_after(LIMIT_S):
            while not (await records(journal))[0].finished:
                await anyio.sleep(0.01)
        assert len(await records(journal, pending=True)) == 1
        for _ in range(3):  # a host may lose what it has read
            result = await host.call("task_result", {"reference": reference})
            assert result["content"] == RICH["content"]
            await until_delivered(journal)
        assert text_of(await host.call("task_list")) == "No call is running, and no result is waiting."
    later = MemoryHost()
    async with bridged(wire, later, journal, answer_within_s=10):
        result = await later.call("task_result", {"reference": reference})
        assert result["content"] == RICH["content"]
    assert len(wire.calls("work")) == 1


async def test_an_error_is_delivered_as_a_result_is(wire: Wire) -> None:
    journal, host = MemoryJournal(), MemoryHost()
    async with bridged(wire, host, journal):
        sent = await host.begin("fails")
        await host.until(lambda: sent.is_answered)
        await until_delivered(journal)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_result_that_was_ready_as_the_host_gave_up_is_that_of_the_repetition(
    wire: Wire, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK sends no reply then, also if the cancellation has not reached the call."""
    host, wait, given_up = MemoryHost(version), Serving.wait, anyio.Event()

    async def wait_and_be_given_up(*given: Any, **options: Any) -> Any:
        result = await wait(*given, **options)
        if not given_up.is_set():
            given_up.set()
            with anyio.CancelScope(shield=True):
                await host.give_up(sent)
        return result

    monkeypatch.setattr(Serving, "wait", wait_and_be_given_up)
    async with bridged(wire, host):
        sent = await host.begin("work")
        await given_up.wait()
        result = await host.call("work")
        assert "earlier, equal call" in text_of({"content": result["content"][-1:]})
        assert not sent.is_answered
    assert len(wire.calls("work")) == 1
