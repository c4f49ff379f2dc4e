"""What a host sees of a call, at each version in front of each kind of server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import pytest

from mcp_tasks_client import TaskFailedError
from mcp_tasks_client.bridge.serving import as_rpc_error
from mcp_tasks_client.protocol import JSONObject

from .behind import DATA, RICH, SERVERS, Wire, behind
from .memory_host import LIMIT_S, VERSIONS, MemoryHost, Refused, reference_in, text_of
from .world import bridged

pytestmark = pytest.mark.anyio

NOTE: Final = "This is the result of the earlier, equal call"


@pytest.fixture(params=SERVERS)
async def wire(request: pytest.FixtureRequest, anyio_backend: Any) -> AsyncIterator[Wire]:
    async with behind(request.param) as made:
        yield made


@pytest.fixture(params=VERSIONS)
def host(request: pytest.FixtureRequest) -> MemoryHost:
    return MemoryHost(request.param)


def unwrapped(host: MemoryHost, result: JSONObject) -> JSONObject:
    """A result without the envelope of the newest version."""
    if not host.is_current:
        assert "resultType" not in result
        return result
    assert result["resultType"] == "complete"
    meta = {name: value for name, value in result["_meta"].items() if not name.startswith("io.model")}
    rest = {name: value for name, value in result.items() if name not in ("resultType", "_meta")}
    return {**rest, **({"_meta": meta} if meta else {})}


@pytest.mark.parametrize("tool", ["plain", "work", "must"])
async def test_a_result_comes_with_all_its_fields(host: MemoryHost, wire: Wire, tool: str) -> None:
    async with bridged(wire, host):
        assert unwrapped(host, await host.call(tool)) == RICH
    assert len(wire.calls(tool)) == 1


async def test_an_error_of_a_tool_is_a_result(host: MemoryHost, wire: Wire) -> None:
    async with bridged(wire, host):
        result = await host.call("bad")
    assert (result["isError"], text_of(result)) == (True, "no")


async def test_a_json_rpc_error_comes_with_code_and_data(host: MemoryHost, wire: Wire) -> None:
    async with bridged(wire, host):
        with pytest.raises(Refused) as refused:
            await host.call("fails")
    assert (refused.value.code, refused.value.message, refused.value.data) == (-32050, "quota exceeded", DATA)


@pytest.mark.parametrize(
    ("message", "status", "told"),
    [
        ("no result of t1", "quota exceeded", "no result of t1 (quota exceeded)"),
        ("quota exceeded", "quota exceeded", "quota exceeded"),
        ("quota exceeded", None, "quota exceeded"),
    ],
)
def test_an_error_says_why_also_where_the_status_of_the_task_does(
    message: str, status: str | None, told: str
) -> None:
    error = TaskFailedError("…", code=-32603, message=message, status_message=status)
    assert as_rpc_error(error).error.message == told


async def test_a_question_reaches_the_person_at_the_host(host: MemoryHost, wire: Wire) -> None:
    host.answers["elicitation/create"] = lambda params: {"action": "accept", "content": {"name": "Ada"}}
    async with bridged(wire, host):
        assert text_of(await host.call("asks")) == "hello Ada"
    ((method, params, _),) = host.asked
    assert (method, params["message"]) == ("elicitation/create", "Who?")
    assert len(wire.calls("asks")) == 1


@pytest.mark.parametrize("tool", ["plain", "work"])
async def test_a_call_that_is_repeated_after_the_host_gave_up_is_the_same(
    host: MemoryHost, wire: Wire, tool: str
) -> None:
    held = "tools/call" if tool == "plain" or wire.server == "no tasks" else "tasks/get"
    wire.hold(held)
    async with bridged(wire, host):
        first = await host.begin(tool, {"x": 1})
        await host.until(lambda: wire.of(held))
        await host.give_up(first)
        second = await host.begin(tool, {"x": 1})
        wire.let_go(held)
        result = await second.reply()
    assert not first.is_answered
    assert len(wire.calls(tool)) == 1
    *content, note = result["content"]
    assert content == RICH["content"]
    assert note["text"].startswith(NOTE)


async def test_a_call_that_takes_long_is_answered_in_between(host: MemoryHost, wire: Wire) -> None:
    held = "tools/call" if wire.server == "no tasks" else "tasks/get"
    wire.hold(held)
    async with bridged(wire, host, answer_within_s=1.5):
        told = text_of(await host.call("work"))
        reference = reference_in(told)
        assert ("if this connection ends first" in told) == (wire.server == "no tasks")
        assert f'reference "{reference}": work: working' in text_of(await host.call("task_list"))
        wire.let_go(held)
        while "ended, its result is waiting" not in text_of(await host.call("task_list")):
            await anyio.sleep(0.01)
        result = await host.call("task_result", {"reference": reference, "wait_s": LIMIT_S})
        while "still running" in text_of(result):
            result = await host.call("task_result", {"reference": reference, "wait_s": LIMIT_S})
        assert unwrapped(host, result) == RICH
    assert len(wire.calls("work")) == 1


@pytest.mark.parametrize("tool", ["plain", "work"])
async def test_an_outcome_that_is_unknown_is_told_as_that(host: MemoryHost, wire: Wire, tool: str) -> None:
    wire.lost.add(tool)
    async with bridged(wire, host):
        with pytest.raises(Refused) as refused:
            await host.call(tool)
        assert "It is not known whether the tool has run. Do not call it again" in refused.value.message
    assert len(wire.calls(tool)) == 1


@pytest.mark.parametrize("tool", ["plain", "work"])
async def test_a_server_that_is_away_is_an_error_to_each_request_and_comes_back(
    host: MemoryHost, wire: Wire, tool: str
) -> None:
    wire.is_away = True
    async with bridged(wire, host):
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                await host.call(tool)
            assert "It is not known whether" not in refused.value.message, "nothing was sent"
            with pytest.raises(Refused):
                await host.request("tools/list")
        wire.is_away = False
        assert unwrapped(host, await host.call(tool)) == RICH
        assert "plain" in {one["name"] for one in (await host.request("tools/list"))["tools"]}


async def test_a_call_goes_on_while_its_server_is_away(host: MemoryHost, wire: Wire) -> None:
    if wire.server == "no tasks":
        pytest.skip("there is no task that goes on")
    wire.hold("tasks/get")
    async with bridged(wire, host):
        sent = await host.begin("work")
        await host.until(lambda: wire.of("tasks/get"))
        wire.is_away = True
        wire.let_go("tasks/get")
        await host.until(lambda: wire.refused > 2)
        wire.is_away = False
        assert unwrapped(host, await sent.reply()) == RICH
    assert len(wire.calls("work")) == 1
