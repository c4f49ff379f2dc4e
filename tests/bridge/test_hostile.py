"""What a hostile or a careless server sends costs a host no reply, and tells it no task ID."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest
from mcp_types import SERVER_INFO_META_KEY

from mcp_tasks_client.bridge import calls, own_names, service, serving
from tests.kit.current_server import DISCOVERED, TASK_ID, WORKING, Fault, working
from tests.kit.probed_journal import ProbedJournal

from .behind import RICH, Wire, behind, replying
from .memory_host import VERSIONS, MemoryHost, Refused, reference_in, text_of
from .world import bridged

pytestmark = pytest.mark.anyio

HALF = "a\ud800b"


def in_ascii(body: dict[str, Any]) -> Wire:
    """A server that sends the same result, or error, for each call, as ASCII."""

    tools = {"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "private"}
    replies = {"tools/call": body, "tools/list": {"result": tools}}

    async def answer(request: httpx.Request) -> httpx.Response:
        message = json.loads(request.content)
        said = replies.get(message["method"], {"result": DISCOVERED})
        text = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **said})
        return httpx.Response(200, text=text, headers={"Content-Type": "application/json"})

    return Wire(httpx.MockTransport(answer))


@pytest.mark.parametrize("version", VERSIONS)
async def test_half_of_a_character_in_a_result_is_replaced(version: str) -> None:
    """Most hosts cannot read a message that has one. They would wait for ever."""
    wire = in_ascii({"result": {"resultType": "complete", "content": [{"type": "text", "text": HALF}]}})
    async with bridged(wire, MemoryHost(version)) as host:
        assert text_of(await host.call("plain")) == "a\ufffdb"


async def test_half_of_a_character_in_an_error_is_replaced() -> None:
    wire = in_ascii({"error": {"code": -32050, "message": HALF, "data": {HALF: HALF}}})
    async with bridged(wire, MemoryHost()) as host:
        with pytest.raises(Refused) as refused:
            await host.call("plain")
    assert (refused.value.message, refused.value.data) == ("a\ufffdb", {"a\ufffdb": "a\ufffdb"})


async def test_a_status_message_tells_no_task_id() -> None:
    said = working(statusMessage=f"at work on {TASK_ID}")
    wire = replying({"tools/call": said, "tasks/get": said})
    async with bridged(wire, MemoryHost(), answer_within_s=1.5) as host:
        told = text_of(await host.call("work"))
    assert "at work on task-" in told
    assert TASK_ID not in told


async def test_the_message_of_an_error_tells_no_task_id() -> None:
    failed = working() | {"status": "failed", "error": {"code": -32000, "message": f"{TASK_ID} broke"}}
    wire = replying({"tools/call": WORKING, "tasks/get": failed})
    async with bridged(wire, MemoryHost()) as host:
        with pytest.raises(Refused) as refused:
            await host.call("work")
    assert refused.value.code == -32000
    assert refused.value.message.endswith("broke")
    assert TASK_ID not in refused.value.message


@pytest.mark.parametrize("odd", [10**400, float("nan"), float("inf"), "1", None])
async def test_odd_progress_ends_no_call(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_BEAT_S", 0.02)
    told: list[Any] = []
    async with behind("2026-07-28") as wire:
        wire.hold("tasks/get")
        async with bridged(wire, MemoryHost(), told=told, answer_within_s=5.0) as host:
            sent = await host.begin("work", token="t")
            await host.until(lambda: wire.of("tasks/get"))
            (call,) = wire.calls("work")
            token = call["_meta"]["progressToken"]
            told[0]("notifications/progress", {"progressToken": token, "progress": odd, "total": odd})
            beats = len(host.progress("t"))
            await host.until(lambda: sent.is_answered or len(host.progress("t")) > beats + 1)
            wire.let_go("tasks/get")
            await sent.reply()


async def test_capabilities_of_another_shape_are_none() -> None:
    wire = replying({"server/discover": {**DISCOVERED, "capabilities": ["tools"]}})
    async with bridged(wire, MemoryHost()) as host:
        assert isinstance(host.introduction["capabilities"], dict)


async def test_notifications_that_a_host_does_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_MOST_TOLD", 3, raising=False)
    told: list[Any] = []
    async with behind("2026-07-28") as wire, bridged(wire, MemoryHost(), told=told) as host:
        await host.request("tools/list")
        before = len(host.notified("notifications/prompts/list_changed"))
        for _ in range(100):
            told[0]("notifications/prompts/list_changed", {})
        await anyio.wait_all_tasks_blocked()
        assert len(host.notified("notifications/prompts/list_changed")) - before == 3


async def test_a_call_without_a_task_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_LINGER_S", 0.05)
    async with behind("2026-07-28") as wire, bridged(wire, MemoryHost(), answer_within_s=1.5) as host:
        wire.hold("plain")
        reference = reference_in(text_of(await host.call("plain")))
        assert "asked to cancel" in text_of(await host.call("task_cancel", {"reference": reference}))
        await host.until(lambda: wire.given_up == ["plain"])


async def test_a_task_that_the_journal_cannot_take_for_a_while_is_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a host that was told of the failure calls again, and the tool runs twice."""
    monkeypatch.setattr(calls, "_RETRY_S", 0.02, raising=False)
    journal = ProbedJournal("save")
    async with (
        behind("2026-07-28") as wire,
        bridged(wire, MemoryHost(), journal, answer_within_s=1.5) as host,
    ):
        assert "still running" in text_of(await host.call("work"))
        journal.refuses = ()
        assert "earlier, equal call" in (await host.call("work"))["content"][-1]["text"]
    assert len(wire.calls("work")) == 1


async def test_a_task_that_the_journal_never_takes_is_told_as_what_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "_JOURNAL_S", 0.0, raising=False)
    monkeypatch.setattr(calls, "_RETRY_S", 0.02, raising=False)
    async with behind("2026-07-28") as wire, bridged(wire, MemoryHost(), ProbedJournal("save")) as host:
        with pytest.raises(Refused, match="Do not call the tool again"):
            await host.call("work")


async def test_a_refused_cancel_tells_no_task_id() -> None:
    refused = Fault(-32603, f"no cancel of {TASK_ID}")
    wire = replying({"tools/call": WORKING, "tasks/get": WORKING, "tasks/cancel": refused})
    async with bridged(wire, MemoryHost(), answer_within_s=1.5) as host:
        reference = reference_in(text_of(await host.call("work")))
        with pytest.raises(Refused) as error:
            await host.call("task_cancel", {"reference": reference})
    assert TASK_ID not in error.value.message


@pytest.mark.parametrize("wait_s", [10**400, 1e308])
async def test_an_odd_time_to_wait_is_understood(wait_s: Any) -> None:
    async with behind("2026-07-28") as wire, bridged(wire, MemoryHost(), answer_within_s=1.5) as host:
        wire.hold("tasks/get")
        reference = reference_in(text_of(await host.call("work")))
        arguments = {"reference": reference, "wait_s": wait_s}
        assert "still running" in text_of(await host.call("task_result", arguments))


async def test_a_list_of_tools_that_does_not_come_holds_no_call_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_names, "_NAMES_S", 0.05)
    async with behind("2026-07-28") as wire, bridged(wire, MemoryHost(), answer_within_s=1.5) as host:
        wire.hold("tools/list")
        assert "still running" in text_of(await host.call("work"))
        wire.let_go("tools/list")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_result_tells_no_task_id(version: str) -> None:
    """A server of 2025-11-25 adds the ID to each result of a task."""
    async with behind("2025-11-25") as wire, bridged(wire, MemoryHost(version)) as host:
        result = await host.call("work")
    assert result["content"] == RICH["content"]
    assert result["_meta"].keys() - {SERVER_INFO_META_KEY} == RICH["_meta"].keys()
    assert "task-1" not in json.dumps(result)


async def test_a_notification_tells_no_task_id() -> None:
    told: list[Any] = []
    async with behind("2025-11-25") as wire, bridged(wire, MemoryHost(), told=told) as host:
        await host.request("tools/list")
        meta = {"io.modelcontextprotocol/related-task": {"taskId": TASK_ID}, "x.test/log": 1}
        told[0]("notifications/message", {"level": "info", "data": "half way", "_meta": meta})
        await host.until(lambda: host.notified("notifications/message"))
        (said,) = host.notified("notifications/message")
    assert said == {"level": "info", "data": "half way", "_meta": {"x.test/log": 1}}
