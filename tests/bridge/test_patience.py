"""A host is kept patient by progress, or is answered in between, and giving up is not cancelling."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest

from mcp_tasks_client import MemoryJournal, TasksClient
from mcp_tasks_client.bridge import calls, serving
from mcp_tasks_client.testing import ScriptedServer, complete, work
from tests.kit.probed_journal import ProbedJournal

from .behind import RICH, URL, Wire, behind, scripted
from .memory_host import LIMIT_S, VERSIONS, MemoryHost, Refused, reference_in, text_of
from .world import bridged

pytestmark = pytest.mark.anyio


@pytest.fixture
async def wire(anyio_backend: Any) -> AsyncIterator[Wire]:
    async with behind("2026-07-28") as made:
        yield made


@pytest.fixture
def host() -> MemoryHost:
    return MemoryHost()


@pytest.fixture
def quick_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_BEAT_S", 0.02)


@pytest.fixture
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_LINGER_S", 0.1)


@pytest.fixture
def some_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long enough for what a test does meanwhile, on a busy machine too."""
    monkeypatch.setattr(calls, "_LINGER_S", 2.0)


def token_of(wire: Wire, tool: str) -> Any:
    """The progress token of the latest call at the server."""
    return wire.calls(tool)[-1]["_meta"]["progressToken"]


def grows(progress: list[dict[str, Any]]) -> bool:
    return all(before["progress"] < after["progress"] for before, after in pairwise(progress))


# ── progress ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("token", ["t", 7])
@pytest.mark.usefixtures("quick_beat")
async def test_progress_is_told_while_nothing_is_new(wire: Wire, version: str, token: Any) -> None:
    host = MemoryHost(version)
    wire.hold("tasks/get")
    async with bridged(wire, host):
        with_token, without = await host.begin("work", token=token), await host.begin("must")
        await host.until(lambda: len(host.progress(token)) > 5)
        wire.let_go("tasks/get")
        await with_token.reply()
        await without.reply()
        told = len(host.progress(token))
        await host.call("plain")
    assert grows(host.progress(token))
    assert len(host.progress(token)) == len(host.notified("notifications/progress")), (
        "nobody else asked for it"
    )
    assert len(host.progress(token)) == told, "none comes after the reply"


@pytest.mark.usefixtures("quick_beat")
async def test_progress_of_the_server_passes_and_goes_on_growing(host: MemoryHost, wire: Wire) -> None:
    told: list[Callable[..., None]] = []
    wire.hold("plain")
    async with bridged(wire, host, told=told):
        sent = await host.begin("plain", token="t")
        await host.until(lambda: wire.calls("plain"))

        def tell(**params: Any) -> None:
            told[0]("notifications/progress", {"progressToken": token_of(wire, "plain"), **params})

        tell(progress=50, total=200, message="a\nb\x1b[2Jc")
        await host.until(lambda: len([one for one in host.progress("t") if one.get("total") == 200]) > 3)
        tell(progress=60, total=200)
        await host.until(lambda: host.progress("t")[-1]["progress"] >= 60)
        tell(progress="much")
        tell(progress=70, progressToken="another")
        wire.let_go("plain")
        await sent.reply()
    progress = host.progress("t")
    assert grows(progress)
    first = next(one for one in progress if one.get("total"))
    assert (first["progress"], first["total"]) == (50, 200)
    assert "\n" not in first["message"]
    assert "\x1b" not in first["message"]
    assert all(one["progress"] < 51 or one["progress"] >= 60 for one in progress if one.get("total"))


@pytest.mark.usefixtures("quick_beat")
async def test_progress_never_falls(host: MemoryHost, wire: Wire) -> None:
    """Also if the server's own begins late, with less than a second, and begins anew."""
    told: list[Callable[..., None]] = []
    wire.hold("plain")
    async with bridged(wire, host, told=told):
        sent = await host.begin("plain", token="t")
        await host.until(lambda: len(host.progress("t")) > 2)
        token = token_of(wire, "plain")
        for progress, total in ((0.01, 1), (0.005, 1), (0.02, 3)):
            told[0]("notifications/progress", {"progressToken": token, "progress": progress, "total": total})
            known = len(host.progress("t"))
            await host.until(lambda known=known: len(host.progress("t")) > known + 2)
        wire.let_go("plain")
        await sent.reply()
    progress = host.progress("t")
    assert grows(progress)
    assert not any("total" in one for one in progress[:2]), "the server has said nothing by then"
    assert [one["progress"] for one in progress if one["progress"] in (0.01, 0.02)] == [0.01, 0.02]


@pytest.mark.usefixtures("quick_beat")
async def test_the_status_message_is_told_as_one_harmless_line(host: MemoryHost) -> None:
    server = ScriptedServer(endpoint=URL)
    server.tool("work", [work(math.inf, "half\nway\x1b[31m \x07of 9")], poll_interval_ms=1)
    async with bridged(Wire(httpx.ASGITransport(server.app)), host, answer_within_s=LIMIT_S):
        sent = await host.begin("work", token="t")
        await host.until(lambda: any("half" in one.get("message", "") for one in host.progress("t")))
        await host.give_up(sent)
    messages = [one["message"] for one in host.progress("t") if "message" in one]
    assert not any(character in text for text in messages for character in "\n\x1b\x07")


@pytest.mark.usefixtures("quick_beat")
async def test_the_words_that_came_last_are_told(host: MemoryHost) -> None:
    """Of those with the server's progress, and those in the status of the task."""
    server, told = ScriptedServer(endpoint=URL), list[Callable[..., None]]()
    server.tool("work", [work(0.01, "one"), work(math.inf, "three")], poll_interval_ms=1)
    wire = Wire(httpx.ASGITransport(server.app))

    async def until_told(words: str) -> None:
        await host.until(lambda: host.progress("t") and host.progress("t")[-1].get("message") == words)

    wire.hold("tasks/get")
    async with bridged(wire, host, told=told, answer_within_s=LIMIT_S):
        sent = await host.begin("work", token="t")
        await until_told("one")
        said = {"progressToken": token_of(wire, "work"), "progress": 1}
        told[0]("notifications/progress", {**said, "message": "two"})
        await until_told("two")
        wire.let_go("tasks/get")
        await until_told("three")
        told[0]("notifications/progress", {**said, "progress": 2, "message": "four"})
        await until_told("four")
        told[0]("notifications/progress", {**said, "progress": 3})
        await until_told("three")
        await host.give_up(sent)


@pytest.mark.usefixtures("quick_beat")
async def test_progress_goes_on_while_a_person_thinks(host: MemoryHost, wire: Wire) -> None:
    host.answers["elicitation/create"] = lambda params: None
    async with bridged(wire, host):
        sent = await host.begin("asks", token="t")
        await host.until(lambda: host.asked)
        before = len(host.progress("t"))
        await host.until(lambda: len(host.progress("t")) > before + 3)
        await host.give_up(sent)


# ── giving up ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("short_linger")
async def test_a_plain_call_that_was_given_up_lingers_and_is_then_cancelled(
    host: MemoryHost, wire: Wire
) -> None:
    wire.hold("plain")
    async with bridged(wire, host, answer_within_s=LIMIT_S):
        sent = await host.begin("plain")
        await host.until(lambda: wire.calls("plain"))
        await host.give_up(sent)
        assert wire.given_up == []
        await host.until(lambda: wire.given_up == ["plain"])
        again = await host.begin("plain")
        await host.until(lambda: len(wire.calls("plain")) == 2)
        wire.let_go("plain")
        assert (await again.reply())["content"] == RICH["content"]


@pytest.mark.usefixtures("some_linger")
async def test_a_plain_call_that_was_joined_in_time_goes_on(host: MemoryHost, wire: Wire) -> None:
    wire.hold("plain")
    async with bridged(wire, host):
        first = await host.begin("plain", {"n": 1})
        await host.until(lambda: wire.calls("plain"))
        await host.give_up(first)
        second = await host.begin("plain", {"n": 1})
        other = await host.begin("plain", {"n": 2})
        await host.until(lambda: len(wire.calls("plain")) == 2)
        await host.give_up(other)
        await host.until(lambda: wire.given_up)  # the time of the first is over as well
        assert wire.given_up == ["plain"]
        wire.let_go("plain")
        assert (await second.reply())["content"][:2] == RICH["content"]


@pytest.mark.usefixtures("short_linger")
async def test_a_call_of_which_the_host_was_told_that_it_goes_on_does(host: MemoryHost, wire: Wire) -> None:
    wire.hold("plain")
    async with bridged(wire, host, answer_within_s=1.5):
        told = text_of(await host.call("plain", {"n": 1}))
        assert "if this connection ends first, the result is lost" in told
        other = await host.begin("plain", {"n": 2})
        await host.until(lambda: len(wire.calls("plain")) == 2)
        await host.give_up(other)
        with anyio.move_on_after(1.0):  # far longer than it would linger
            await host.until(lambda: wire.given_up and False)
        wire.let_go("plain")
        result = await host.call("task_result", {"reference": reference_in(told)})
        assert result["content"] == RICH["content"]


@pytest.mark.usefixtures("short_linger")
async def test_a_task_goes_on_that_the_host_has_given_up(host: MemoryHost, wire: Wire) -> None:
    wire.hold("tasks/get")
    wire.hold("plain")
    async with bridged(wire, host):
        for tool, seen in (("work", "tasks/get"), ("plain", "tools/call")):
            sent = await host.begin(tool)
            await host.until(lambda seen=seen, tool=tool: wire.of(seen) and wire.calls(tool))
            await host.give_up(sent)
        await host.until(lambda: wire.given_up == ["plain"])
        wire.let_go("tasks/get")
        assert (await host.call("work"))["content"][:2] == RICH["content"]
    assert wire.of("tasks/cancel") == []
    assert len(wire.calls("work")) == 1


# ── answers in between, and the tools ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("server", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("within_s", [0, LIMIT_S])
async def test_tools_are_listed_as_ordinary_ones(version: str, server: str, within_s: float) -> None:
    host = MemoryHost(version)
    async with behind(server) as wire, bridged(wire, host, answer_within_s=within_s):
        listed = {one["name"]: one for one in (await host.request("tools/list"))["tools"]}
    own = {"task_result", "task_list", "task_cancel"}
    assert own & listed.keys() == (own if within_s else set())
    assert ("outputSchema" in listed["plain"]) == (within_s == 0), "an answer in between fits no schema"
    assert not any("execution" in one for one in listed.values())


async def test_the_answer_in_between_says_what_to_do_next(host: MemoryHost, wire: Wire) -> None:
    wire.hold("tasks/get")
    async with bridged(wire, host, answer_within_s=1.5):
        result = await host.call("work")
        told = text_of(result)
        assert not result["isError"]
        assert "structuredContent" not in result
        reference = reference_in(told)
        assert told == (
            "The call of work is still running. Its latest status: half way\n"
            f'Do not call the tool again. Call task_result with reference "{reference}" to wait for the '
            "result."
        )
        listed = text_of(await host.call("task_list"))
        assert listed == f'reference "{reference}": work: working (half way)'
        wire.let_go("tasks/get")


@pytest.mark.parametrize("lists_first", [True, False])
async def test_names_that_the_server_uses_are_the_servers(host: MemoryHost, lists_first: bool) -> None:
    server = scripted()
    server.tool("task_list", [work(0.01), complete(RICH)], poll_interval_ms=1)
    wire = Wire(httpx.ASGITransport(server.app))
    wire.hold("tasks/get")
    async with bridged(wire, host, answer_within_s=1.5):
        if lists_first:
            names = [one["name"] for one in (await host.request("tools/list"))["tools"]]
            assert names.count("task_list") == 1
            assert {"mcp_tasks_task_list", "mcp_tasks_task_result", "mcp_tasks_task_cancel"} <= {*names}
        told = text_of(await host.call("task_list"))
        assert "The call of task_list is still running." in told
        assert "Call mcp_tasks_task_result with" in told
        wire.let_go("tasks/get")
        result = await host.call("mcp_tasks_task_result", {"reference": reference_in(told)})
        assert result["content"] == RICH["content"]


async def test_the_list_has_the_calls_of_this_host_only(wire: Wire) -> None:
    journal, one, another = MemoryJournal(), MemoryHost(name="one"), MemoryHost(name="another")
    wire.hold("tasks/get")
    async with (
        bridged(wire, one, journal, answer_within_s=1.5),
        bridged(wire, another, journal, answer_within_s=1.5),
    ):
        reference = reference_in(text_of(await one.call("work")))
        assert reference in text_of(await one.call("task_list"))
        assert text_of(await another.call("task_list")) == "No call is running, and no result is waiting."
        for tool in ("task_result", "task_cancel"):
            result = await another.call(tool, {"reference": reference})
            assert result["isError"]
            assert f'There is no call with reference "{reference}"' in text_of(result)
    assert wire.of("tasks/cancel") == []


@pytest.mark.parametrize("reference", ["nothing", "", None, 7, ["x"], "x\n" * 500, "\x1b[2J"])
async def test_a_reference_that_names_no_call_is_told_as_that(
    host: MemoryHost, wire: Wire, reference: Any
) -> None:
    async with bridged(wire, host, answer_within_s=1):
        result = await host.call("task_result", {"reference": reference})
    assert result["isError"]
    assert text_of(result).startswith('There is no call with reference "')
    assert len(text_of(result)) < 400
    assert "\x1b" not in text_of(result)


async def test_a_call_is_cancelled_by_its_reference(host: MemoryHost) -> None:
    server = ScriptedServer(endpoint=URL)
    server.tool("work", [work(math.inf)], poll_interval_ms=1, settle_s=0.0)
    wire = Wire(httpx.ASGITransport(server.app))
    async with bridged(wire, host, answer_within_s=1.5):
        reference = {"reference": reference_in(text_of(await host.call("work")))}
        assert "was asked to cancel" in text_of(await host.call("task_cancel", reference))
        with pytest.raises(Refused, match="was cancelled"):
            await host.call("task_result", reference)
    assert len(wire.of("tasks/cancel")) == 1


async def ended(host: MemoryHost, wire: Wire) -> dict[str, Any]:
    """The reference of a call that has ended, and whose result was not received."""
    wire.hold("tasks/get")
    reference = {"reference": reference_in(text_of(await host.call("work")))}
    wire.let_go("tasks/get")
    while "ended, its result is waiting" not in text_of(await host.call("task_list")):
        await anyio.sleep(0.01)
    return reference


async def cancel_ended(host: MemoryHost, reference: dict[str, Any]) -> None:
    told = text_of(await host.call("task_cancel", reference))
    assert told == (
        "There is nothing to cancel: the call has ended. Call task_result with reference "
        f'"{reference["reference"]}" for its result.'
    )


async def test_a_call_that_has_ended_is_not_cancelled(host: MemoryHost, wire: Wire) -> None:
    journal, later = MemoryJournal(), MemoryHost()
    async with bridged(wire, host, journal, answer_within_s=1.5):
        reference = await ended(host, wire)
        await cancel_ended(host, reference)
    async with bridged(wire, later, journal, answer_within_s=LIMIT_S):
        await cancel_ended(later, reference)
        assert (await later.call("task_result", reference))["content"] == RICH["content"]
    assert wire.of("tasks/cancel") == []


ODD = [math.nan, -1, -math.inf, "soon", None, True, [1], {"s": 1}, math.inf, 1e300]


@pytest.mark.parametrize("wait_s", ODD)
async def test_seconds_that_are_odd_wait_as_a_call_does(host: MemoryHost, wire: Wire, wait_s: Any) -> None:
    wire.hold("tasks/get")
    async with bridged(wire, host, answer_within_s=1.5):
        arguments = {"reference": reference_in(text_of(await host.call("work"))), "wait_s": wait_s}
        began = anyio.current_time()
        assert "still running" in text_of(await host.call("task_result", arguments))
        assert anyio.current_time() - began >= 0.29


async def test_a_call_of_a_program_without_a_name_is_not_shown(host: MemoryHost, wire: Wire) -> None:
    journal = MemoryJournal()
    wire.hold("tasks/get")
    async with (
        httpx.AsyncClient(transport=wire) as http,
        TasksClient(URL, http_client=http, journal=journal, principal="ada") as client,
        bridged(wire, host, journal, answer_within_s=1.5),
    ):
        handle = await client.start_tool("work")
        assert text_of(await host.call("task_list")) == "No call is running, and no result is waiting."
        result = await host.call("task_result", {"reference": handle.reference["record_id"]})
        assert result["isError"]


async def test_the_seconds_of_the_model_count_if_they_are_fewer(wire: Wire) -> None:
    journal, host, later = MemoryJournal(), MemoryHost(), MemoryHost()
    wire.hold("tasks/get")
    async with bridged(wire, host, journal, answer_within_s=1.5):
        reference = reference_in(text_of(await host.call("work")))
    async with bridged(wire, later, journal, answer_within_s=10 * LIMIT_S):
        for wait_s in (0, 0.0, 0.05):
            result = await later.call("task_result", {"reference": reference, "wait_s": wait_s})
            assert "still running" in text_of(result)


async def test_a_call_of_an_earlier_bridge_that_has_ended_is_not_waited_for(
    host: MemoryHost, wire: Wire
) -> None:
    journal, later = ProbedJournal(), MemoryHost()
    journal.before("by_task_id", partial(anyio.sleep, 0.02))  # the journal gives the call back late
    async with bridged(wire, host, journal, answer_within_s=1.5):
        reference = await ended(host, wire)
    async with bridged(wire, later, journal, answer_within_s=LIMIT_S):
        result = await later.call("task_result", {**reference, "wait_s": 0})
        assert result["content"] == RICH["content"]


async def test_a_journal_that_does_not_give_a_call_back_holds_no_request_up(
    host: MemoryHost, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_READ_S", 0.05)
    journal, later = ProbedJournal(), MemoryHost()
    async with bridged(wire, host, journal, answer_within_s=1.5):
        reference = await ended(host, wire)
    journal.before("by_task_id", anyio.sleep_forever)
    async with bridged(wire, later, journal, answer_within_s=LIMIT_S):
        told = text_of(await later.call("task_result", {**reference, "wait_s": 0}))
        assert "still running" in told
