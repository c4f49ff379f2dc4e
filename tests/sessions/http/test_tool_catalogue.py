"""What a server says of itself before the first call: asked for once, shared, and repeated if it may pass."""

from __future__ import annotations

import base64
import json
import logging

import anyio
import mcp_types
import pytest

from mcp_tasks_client import ToolCall
from mcp_tasks_client.errors import CredentialRefusedError, RemoteProtocolError, SessionError
from mcp_tasks_client.protocol.replies import Returned
from mcp_tasks_client.sessions import tool_catalogue
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.sessions.oddities import note_oddity
from mcp_tasks_client.sessions.tool_catalogue import OtherVersionError

from .scripted import REF, URL, Answer, HttpAnswers, Turnstile, error, http, result, send_call

pytestmark = pytest.mark.anyio


async def test_version_and_tools_are_asked_for_once_before_the_first_call(
    server: HttpAnswers, session: HttpSession
) -> None:
    await send_call(session)
    await send_call(session)
    assert server.methods == ["server/discover", "tools/list", "tools/call", "tools/call"]


async def test_tasks_never_wait_for_the_catalogue(server: HttpAnswers, session: HttpSession) -> None:
    await session.get(REF)
    await session.update(REF, {})
    await session.cancel(REF)
    assert server.methods == ["tasks/get", "tasks/update", "tasks/cancel"]


async def test_the_tools_of_all_pages_are_known(server: HttpAnswers, session: HttpSession) -> None:
    def page(name: str, cursor: object) -> Answer:
        return result({"tools": [{"name": name, "inputSchema": {}, "x-own": 1}], "nextCursor": cursor})

    server.answers("tools/list", page("a", "1"), page("b", "2"), page("c", None))
    tool = await session.tool("b")
    assert isinstance(tool, mcp_types.Tool)
    assert tool.name == "b"
    assert await session.tool("a") is not None
    assert await session.tool("c") is not None
    assert server.methods == ["server/discover", "tools/list", "tools/list", "tools/list"]
    cursors = [json.loads(r.content)["params"].get("cursor") for r in server.requests[1:]]
    assert cursors == [None, "1", "2"]


async def test_a_name_that_is_not_listed_is_looked_for_once_more_in_a_new_list(
    server: HttpAnswers, session: HttpSession
) -> None:
    await session.tool("deploy")
    server.answers("tools/list", result({"tools": [{"name": "later", "inputSchema": {}}]}))
    assert await session.tool("later") is not None
    assert await session.tool("later") is not None
    assert server.methods == ["server/discover", "tools/list", "tools/list"]


async def test_a_tool_that_no_list_has_is_remembered_as_absent_until_a_fresh_list_is_asked_for(
    server: HttpAnswers, session: HttpSession
) -> None:
    """Each call of an unlisted tool fetched the whole list again."""
    for _ in range(3):
        assert await session.tool("hidden") is None
        await send_call(session, ToolCall(name="hidden"))
    assert server.methods == ["server/discover", "tools/list", *["tools/call"] * 3]
    server.answers("tools/list", result({"tools": [{"name": "hidden", "inputSchema": {}}]}))
    assert await session.tool("hidden") is None
    assert await session.tool("hidden", fresh=True) is not None


async def test_so_many_names_are_remembered_as_absent_and_no_more(
    server: HttpAnswers, session: HttpSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tool_catalogue._MOST_ABSENT == 1000
    monkeypatch.setattr(tool_catalogue, "_MOST_ABSENT", 2)
    for name in ("a", "b", "c"):
        await session.tool(name)
    assert len(session._catalogue._absent) <= 2


async def test_a_tool_that_is_not_listed_can_be_called(server: HttpAnswers, session: HttpSession) -> None:
    assert isinstance(await send_call(session, ToolCall(name="hidden")), Returned)


async def test_a_server_without_tools_list_has_no_tools(server: HttpAnswers, session: HttpSession) -> None:
    server.answers("tools/list", error(-32601, 404))
    assert await session.tool("deploy") is None
    assert isinstance(await send_call(session), Returned)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        {},
        {"name": "broken"},
        {"name": 1, "inputSchema": {}},
        {"name": "broken", "input_schema": {}},
        {"name": "broken", "inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}},
    ],
)
async def test_a_broken_entry_costs_itself_and_not_the_list(
    server: HttpAnswers, session: HttpSession, entry: object, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers("tools/list", result({"tools": [entry, {"name": "deploy", "inputSchema": {}}]}))
    assert await session.tool("broken") is None
    assert await session.tool("deploy") is not None
    (logged,) = [r for r in caplog.records if r.name == "mcp_tasks_client"]
    assert logged.levelno == logging.WARNING
    assert f"{URL} lists 1 tools that are left out" in logged.getMessage()


async def test_the_log_does_not_grow_with_a_broken_list_and_shows_its_words_escaped(
    server: HttpAnswers, session: HttpSession, caplog: pytest.LogCaptureFixture
) -> None:
    broken = {"name": "\x1b[2J" + "x" * 5000}
    server.answers("tools/list", result({"tools": [broken] * 500}))
    await session.tool("deploy")
    (logged,) = [r for r in caplog.records if r.name == "mcp_tasks_client"]
    assert len(logged.getMessage()) < 600
    assert "lists 500 tools" in logged.getMessage()
    assert "\x1b" not in logged.getMessage()


async def test_a_tool_with_marks_that_are_not_allowed_is_not_called_until_they_are_mended(
    server: HttpAnswers, session: HttpSession
) -> None:
    """MUST reject tool definitions whose x-mcp-header breaks the rules (Streamable HTTP)."""
    marked = {"name": "deploy", "inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}}
    mended = {"name": "deploy", "inputSchema": {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}}
    server.answers("tools/list", result({"tools": [marked]}), result({"tools": [mended]}))
    with pytest.raises(RemoteProtocolError, match="x-mcp-header") as caught:
        await send_call(session, ToolCall(name="deploy", arguments={"a": "x"}))
    assert caught.value.not_executed
    assert not caught.value.retryable
    assert "tools/call" not in server.methods
    await send_call(session, ToolCall(name="deploy", arguments={"a": "x"}))
    assert server.requests[-1].headers["mcp-param-a"] == "x"


@pytest.mark.parametrize(
    "page",
    [{}, {"tools": None}, {"tools": {}}, {"tools": [], "resultType": "task"}],
)
async def test_a_list_that_is_none_is_refused(
    server: HttpAnswers, session: HttpSession, page: object
) -> None:
    server.answers("tools/list", result(page))
    with pytest.raises(RemoteProtocolError) as caught:
        await send_call(session)
    assert caught.value.retryable
    assert caught.value.not_executed


@pytest.mark.parametrize("cursors", [("",), (7,), (False,), ("a", ""), ("a", "b", "a"), ("a", "a")])
async def test_a_list_ends_where_its_cursor_does_not_advance(
    server: HttpAnswers,
    session: HttpSession,
    cursors: tuple[object, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    note_oddity.cache_clear()
    pages = [
        {"tools": [{"name": f"t{i}", "inputSchema": {}}], "nextCursor": c} for i, c in enumerate(cursors)
    ]
    server.answers("tools/list", *map(result, pages))
    for i in range(len(cursors)):
        assert await session.tool(f"t{i}") is not None
    assert server.methods.count("tools/list") == len(cursors)
    (told,) = caplog.messages
    assert session.endpoint in told
    await send_call(session, ToolCall(name="on-a-later-page"))
    assert server.methods[-1] == "tools/call"
    assert len(caplog.messages) == 1


async def test_a_list_that_breaks_off_for_good_is_used_as_far_as_it_was_read(
    server: HttpAnswers, session: HttpSession
) -> None:
    first = result({"tools": [{"name": "a", "inputSchema": {}}], "nextCursor": "2"})
    server.answers("tools/list", first, error(-32602), first, error(-32602))
    assert await session.tool("a") is not None
    await send_call(session, ToolCall(name="b"))


async def test_a_list_without_end_is_used_as_far_as_it_was_read(
    server: HttpAnswers, session: HttpSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tool_catalogue._MOST_PAGES == 1000
    monkeypatch.setattr(tool_catalogue, "_MOST_PAGES", 7)
    pages = [{"tools": [{"name": f"t{i}", "inputSchema": {}}], "nextCursor": str(i)} for i in range(20)]
    server.answers("tools/list", *map(result, pages))
    assert await session.tool("t6") is not None
    assert server.methods.count("tools/list") == 7


async def test_a_list_of_too_many_tools_is_used_as_far_as_it_was_read(
    server: HttpAnswers, session: HttpSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tool_catalogue._MOST_TOOLS == 100_000
    monkeypatch.setattr(tool_catalogue, "_MOST_TOOLS", 50)
    pages = [[{"name": f"{page}.{i}", "inputSchema": {}} for i in range(15)] for page in range(9)]
    answers = [result({"tools": [*tools, None], "nextCursor": str(i)}) for i, tools in enumerate(pages)]
    server.answers("tools/list", *answers)
    assert await session.tool("3.14") is not None
    assert server.methods.count("tools/list") == 4


@pytest.mark.parametrize(
    "answer",
    [
        result({"supportedVersions": ["2025-11-25", "2026-11-30"]}),
        result({"supportedVersions": "2026-07-28"}),
        result({}),
        error(-32601, 404),
        error(-32601),
        error(-32022, 400, data={"supported": ["2025-11-25"], "requested": "2026-07-28"}),
        error(-32022, 400, data="?"),
        error(-32000, 400),
        error(-32600),
    ],
)
async def test_a_server_of_another_version_is_told_from_a_broken_one(
    server: HttpAnswers, session: HttpSession, answer: Answer
) -> None:
    server.answers("server/discover", answer)
    with pytest.raises(RemoteProtocolError, match="does not speak MCP 2026-07-28") as caught:
        await send_call(session)
    assert not caught.value.retryable
    assert caught.value.not_executed
    assert server.methods == ["server/discover"]
    server.answers("server/discover", result({"supportedVersions": ["2026-07-28"]}))
    await send_call(session)


@pytest.mark.parametrize("status", [400, 404, 405, 406, 415])
async def test_a_bare_status_tells_of_another_version_only_when_it_comes_twice(
    server: HttpAnswers, session: HttpSession, status: int
) -> None:
    """It may be that of a gateway, at a loss for a moment, and the version is decided once."""
    server.answers("server/discover", http(status), result({"supportedVersions": ["2026-07-28"]}))
    await session.discover()
    server.answers("server/discover", http(status))
    again = server.session()
    with pytest.raises(OtherVersionError) as caught:
        await again.discover()
    assert caught.value.not_executed
    assert server.methods == ["server/discover"] * 4


async def test_discovery_names_no_session(server: HttpAnswers, session: HttpSession) -> None:
    """2026-07-28 has no sessions, and a strict gateway may refuse one."""
    await session.discover()
    assert "mcp-session-id" not in server.last.headers


async def test_the_versions_that_are_offered_instead_are_told(
    server: HttpAnswers, session: HttpSession
) -> None:
    server.answers("server/discover", result({"supportedVersions": ["2025-11-25", 7, "x" * 99]}))
    with pytest.raises(RemoteProtocolError, match=r"it offers 2025-11-25, x{20}\)"):
        await session.tool("deploy")


async def test_what_may_pass_is_asked_again_before_the_first_call(
    server: HttpAnswers, session: HttpSession
) -> None:
    server.answers("server/discover", http(503), http(502), result({"supportedVersions": ["2026-07-28"]}))
    server.answers("tools/list", error(-32603), result({"tools": []}))
    await send_call(session)
    assert server.methods == ["server/discover"] * 3 + ["tools/list"] * 2 + ["tools/call"]
    assert len(server.slept) == 3
    assert all(0.2 <= nap <= 2.2 for nap in server.slept)


async def test_a_server_that_refuses_the_version_that_it_offers_is_asked_again(
    server: HttpAnswers, session: HttpSession
) -> None:
    """A client should choose a mutually supported version of the error's list and retry."""
    refused = error(-32022, 400, data={"supported": ["2026-07-28"], "requested": "2026-07-28"})
    server.answers("server/discover", refused, result({"supportedVersions": ["2026-07-28"]}))
    await send_call(session)
    assert server.methods == ["server/discover"] * 2 + ["tools/list", "tools/call"]
    assert len(server.slept) == 1


async def test_a_server_that_keeps_refusing_the_version_that_it_offers_is_given_up(
    server: HttpAnswers, session: HttpSession
) -> None:
    server.answers("server/discover", error(-32022, 400, data={"supported": ["2026-07-28"]}))
    with pytest.raises(RemoteProtocolError, match="-32022") as caught:
        await send_call(session)
    assert caught.value.not_executed
    assert server.methods == ["server/discover"] * 3


async def test_asking_again_has_an_end_and_nothing_was_executed(
    server: HttpAnswers, session: HttpSession
) -> None:
    server.answers("server/discover", http(503))
    with pytest.raises(SessionError, match="HTTP 503") as caught:
        await send_call(session)
    assert caught.value.retryable
    assert caught.value.not_executed
    assert server.methods == ["server/discover"] * 3


async def test_asking_again_waits_as_long_as_the_server_wishes(
    server: HttpAnswers, session: HttpSession
) -> None:
    good = result({"supportedVersions": ["2026-07-28"]})
    server.answers("server/discover", http(429, **{"retry-after": "9"}), good)
    await session.tool("deploy")
    assert server.slept == [9.0]


async def test_a_long_wait_is_left_to_the_caller(server: HttpAnswers, session: HttpSession) -> None:
    server.answers("server/discover", http(429, **{"retry-after": "3600"}))
    with pytest.raises(SessionError) as caught:
        await session.tool("deploy")
    assert caught.value.retry_after_s == 3600
    assert server.methods == ["server/discover"]


@pytest.mark.parametrize("answer", [http(401), error(-32021, 400), error(-32020, 400)])
async def test_what_will_not_pass_is_not_asked_again(
    server: HttpAnswers, session: HttpSession, answer: Answer
) -> None:
    server.answers("server/discover", answer)
    with pytest.raises(SessionError):
        await session.tool("deploy")
    assert server.methods == ["server/discover"]


async def test_the_version_is_kept_although_the_list_failed(
    server: HttpAnswers, session: HttpSession
) -> None:
    server.answers("tools/list", http(403), result({"tools": []}))
    with pytest.raises(CredentialRefusedError):
        await session.tool("deploy")
    await session.tool("deploy")
    assert server.methods == ["server/discover", "tools/list", "tools/list"]


async def test_a_call_is_never_repeated(server: HttpAnswers, session: HttpSession) -> None:
    server.answers("tools/call", http(503), result({"content": []}))
    with pytest.raises(SessionError) as caught:
        await send_call(session)
    assert not caught.value.not_executed
    assert server.methods.count("tools/call") == 1


MARKED = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


async def test_marked_arguments_also_travel_as_headers(server: HttpAnswers, session: HttpSession) -> None:
    server.answers("tools/list", result({"tools": [{"name": "deploy", "inputSchema": MARKED}]}))
    await send_call(session, ToolCall(name="deploy", arguments={"region": "eu ü"}))
    assert (
        server.last.headers["mcp-param-region"] == f"=?base64?{base64.b64encode('eu ü'.encode()).decode()}?="
    )
    await send_call(session, ToolCall(name="deploy", arguments={}))
    assert "mcp-param-region" not in server.last.headers


async def test_a_list_is_fetched_again_when_asked_for(server: HttpAnswers, session: HttpSession) -> None:
    listed = await session.tool("deploy")
    assert listed is not None
    schema = {"type": "object", "required": ["amount"]}
    new = {"name": "deploy", "inputSchema": {"type": "object"}, "outputSchema": schema}
    server.answers("tools/list", result({"tools": [new]}))
    listed = await session.tool("deploy")
    assert listed is not None
    assert listed.output_schema is None, "what was listed before is good enough"
    listed = await session.tool("deploy", fresh=True)
    assert listed is not None
    assert listed.output_schema == schema
    assert server.methods == ["server/discover", "tools/list", "tools/list"]


# ── concurrent callers ────────────────────────────────────────────────────────────────────────


async def test_calls_that_begin_together_send_one_discovery_and_one_list(
    server: HttpAnswers, session: HttpSession
) -> None:
    gate = Turnstile(result({"supportedVersions": ["2026-07-28"]}))
    server.answers("server/discover", gate)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for _ in range(70):  # more than the cap on calls
                group.start_soon(send_call, session)
                group.start_soon(send_call, session, ToolCall(name="unlisted"))
            await gate.holds(1)
            gate.open.set()
    assert server.methods.count("server/discover") == 1
    assert server.methods.count("tools/list") == 1
    assert server.methods.count("tools/call") == 140


async def test_callers_that_wait_for_a_discovery_share_its_failure(
    server: HttpAnswers, session: HttpSession
) -> None:
    """A whole discovery for each, one after the other, kept the last caller of many waiting for minutes."""
    server.answers("server/discover", http(503))
    failures: list[SessionError] = []

    async def fail() -> None:
        with pytest.raises(SessionError, match="HTTP 503") as caught:
            await send_call(session)
        failures.append(caught.value)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(fail)
    assert server.methods == ["server/discover"] * 3
    assert all(failure.not_executed and failure.retryable for failure in failures)
    assert len({id(failure) for failure in failures}) == 20, "an error is changed by whoever raises it"
    server.answers("server/discover", result({"supportedVersions": ["2026-07-28"]}))
    await send_call(session)


async def test_a_caller_that_is_cancelled_during_the_discovery_leaves_it_to_the_next(
    server: HttpAnswers, session: HttpSession
) -> None:
    gate = Turnstile(result({"supportedVersions": ["2026-07-28"]}))
    server.answers("server/discover", gate)
    listed: list[mcp_types.Tool | None] = []

    async def ask() -> None:
        listed.append(await session.tool("deploy"))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as first:

                async def leave() -> None:
                    await gate.holds(1)
                    group.start_soon(ask)
                    group.start_soon(ask)
                    await anyio.wait_all_tasks_blocked()
                    first.cancel()
                    gate.open.set()

                group.start_soon(leave)
                await session.tool("deploy")
            assert first.cancelled_caught
    assert [tool is not None for tool in listed] == [True, True]
    assert server.methods == ["server/discover", "server/discover", "tools/list"]
