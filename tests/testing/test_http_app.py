"""A scripted server over HTTP: what it demands of a request, and what it answers."""

from __future__ import annotations

import json
import math

import anyio
import httpx
import pytest

from mcp_tasks_client import Limits
from mcp_tasks_client.errors import ConnectionLostError
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.testing import (
    LostReply,
    LostRequest,
    ManualClock,
    ScriptedServer,
    Stalled,
    Unreachable,
    reply,
    work,
)
from tests.testing.asking import DONE, HEADERS, META, URL, call, catch, get, over_asgi, post, serve, start

pytestmark = pytest.mark.anyio

GET: JSONObject = {"method": "tasks/get", "params": {"taskId": "task-1", "_meta": META}}


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in HEADERS.items() if key != name}


@pytest.mark.parametrize(
    ("headers", "meta", "code", "name"),
    [
        (HEADERS, META, None, None),
        (HEADERS | {"Mcp-Name": "=?base64?dGFzay0x?="}, META, None, None),
        (without("Mcp-Name"), META, -32020, "Mcp-Name"),
        (HEADERS | {"Mcp-Name": "task-2"}, META, -32020, "Mcp-Name"),
        (HEADERS | {"Mcp-Name": "=?base64?*?="}, META, -32020, "Mcp-Name"),
        (without("Mcp-Method"), META, -32020, "Mcp-Method"),
        (HEADERS | {"Mcp-Method": "tasks/cancel"}, META, -32020, "Mcp-Method"),
        (without("MCP-Protocol-Version"), META, -32020, "MCP-Protocol-Version"),
        (HEADERS | {"MCP-Protocol-Version": "2025-11-25"}, META, -32022, "MCP-Protocol-Version"),
        (HEADERS | {"Accept": "application/json"}, META, -32020, "Accept"),
        (HEADERS, {}, -32020, "_meta io.modelcontextprotocol/protocolVersion"),
        (
            HEADERS,
            {"io.modelcontextprotocol/protocolVersion": "2026-07-28"},
            -32021,
            "_meta io.modelcontextprotocol/tasks",
        ),
    ],
)
async def test_what_a_request_over_http_lacks_is_refused_and_written_down(
    server: ScriptedServer,
    clock: ManualClock,
    headers: dict[str, str],
    meta: JSONObject,
    code: int | None,
    name: str | None,
) -> None:
    server.tool("tool", [work(math.inf)])
    await start(server.session())
    await clock.advance(1)
    response = await post(
        server, {"jsonrpc": "2.0", "id": 7, **GET, "params": {"taskId": "task-1", "_meta": meta}}, headers
    )
    message = response.json()
    assert message["id"] == 7
    if code is None:
        assert response.status_code == 200
        assert message["result"]["status"] == "working"
        server.witness.check()
    else:
        assert response.status_code == 400
        assert message["error"]["code"] == code
        assert server.witness.missing_headers[0].name == name
        with pytest.raises(AssertionError, match=name):
            server.witness.check()


async def test_arguments_that_are_marked_have_to_travel_as_headers_too(server: ScriptedServer) -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    server.tool("tool", [reply(DONE)], input_schema=schema)
    async with over_asgi(server) as session:
        await call(session, "tool", arguments={"region": "Türkiye"})
    server.witness.check()
    params = {"name": "tool", "arguments": {"region": "eu"}, "_meta": META}
    headers = HEADERS | {"Mcp-Method": "tools/call", "Mcp-Name": "tool"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    assert (await post(server, message, headers)).status_code == 400
    assert (await post(server, message, headers | {"Mcp-Param-Region": "us"})).status_code == 400
    assert [one.found for one in server.witness.missing_headers] == [None, "us"]
    assert (await post(server, message, headers | {"Mcp-Param-Region": "eu"})).status_code == 200


async def test_no_task_is_made_for_a_client_without_the_capability(server: ScriptedServer) -> None:
    server.tool("task", [work(math.inf)])
    server.tool("plain", [reply(DONE)])
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    codes = {}
    for name in ("task", "plain"):
        params = {"name": name, "arguments": {}, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answered = await post(server, message, HEADERS | {"Mcp-Method": "tools/call", "Mcp-Name": name})
        codes[name] = answered.json().get("error", {}).get("code")
    assert codes == {"task": -32021, "plain": None}
    assert list(server.witness.calls) == [("plain", "{}")]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"[]", 400, -32600),
        (b'{"jsonrpc": "2.0", "method": "notifications/cancelled"}', 202, None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tasks/list"}', 400, -32020),
    ],
)
async def test_what_is_no_request_is_told_so(
    server: ScriptedServer, body: bytes, status: int, code: int | None
) -> None:
    response = await post(server, body, {})
    assert response.status_code == status
    if code is not None:
        assert response.json()["error"]["code"] == code


async def test_an_unknown_method_is_not_found(server: ScriptedServer) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": {"_meta": META}}
    response = await post(server, message, HEADERS | {"Mcp-Method": "tasks/list"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, -32601)


async def test_only_posts_are_answered(server: ScriptedServer) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app), trust_env=False) as client:
        response = await client.get(URL)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


async def test_responses_are_json_or_event_streams_as_wished(server: ScriptedServer) -> None:
    server.tool("tool", [work(math.inf)])
    await start(server.session())
    message = {"jsonrpc": "2.0", "id": 1, **GET}
    plain = await post(server, message, HEADERS)
    assert plain.headers["content-type"] == "application/json"
    server.app.event_stream = True
    streamed = await post(server, message, HEADERS)
    assert streamed.headers["content-type"] == "text/event-stream"
    data = streamed.text.partition("event: message\ndata: ")[2]
    assert json.loads(data) == plain.json()


async def test_ids_come_back_as_text_as_wished(server: ScriptedServer) -> None:
    server.tool("tool", [work(math.inf)])
    await start(server.session())
    unknown = {"method": "tasks/get", "params": {"taskId": "task-1", "_meta": {}}}
    for ids_as_text, came in ((False, [7, 7, "a"]), (True, ["7", "7", "a"])):
        server.app.ids_as_text = ids_as_text
        messages = [{"id": 7, **GET}, {"id": 7, **unknown}, {"id": "a", **GET}]
        replies = [(await post(server, {"jsonrpc": "2.0", **one}, HEADERS)).json() for one in messages]
        assert [one["id"] for one in replies] == came
        assert [("error" in one) for one in replies] == [False, True, False]


async def test_replies_are_sloppy_as_wished(server: ScriptedServer) -> None:
    server.tool("tool", [work(math.inf)])
    server.app.sloppy = True
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "tool", "_meta": META}}
    of_call = {**HEADERS, "mcp-method": "tools/call", "mcp-name": "tool"}
    (created,) = (await post(server, call, of_call)).json()
    assert (created["id"], created["result"]["resultType"]) == (7, "task")
    assert created["result"]["task"]["taskId"] == "task-1"
    listing = {"jsonrpc": "2.0", "id": 8, "method": "tools/list", "params": {"_meta": META}}
    (listed,) = (await post(server, listing, {**HEADERS, "mcp-method": "tools/list"})).json()
    assert listed["result"]["nextCursor"] == ""
    server.app.event_stream = True
    streamed = await post(server, {"jsonrpc": "2.0", "id": 9, **GET}, HEADERS)
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert events[:2] == [None, []]
    assert [event["id"] for event in events[2:]] == ["nobody's", 9]


async def test_the_catalogue_tells_the_version_and_the_tools(server: ScriptedServer) -> None:
    output = {"type": "object", "required": ["n"]}
    server.tool("tool", [reply(DONE)], output_schema=output)
    async with over_asgi(server) as session:
        tool = await session.tool("tool")
        assert tool is not None
        assert tool.output_schema == output
        assert tool == await server.session().tool("tool")
    assert [arrival.method for arrival in server.witness.arrivals] == ["server/discover", "tools/list"]
    server.witness.check()


@pytest.mark.parametrize("event_stream", [False, True])
async def test_over_real_sockets_a_lost_reply_is_a_broken_connection(event_stream: bool) -> None:
    server = ScriptedServer(event_stream=event_stream)
    server.tool("tool", [work(math.inf)])
    with serve(server) as url, anyio.fail_after(30):
        session = HttpSession(url)
        ref = await start(session)
        for fault in (LostRequest(), LostReply(), Unreachable()):
            server.misbehave("tasks/get", fault)
            error = await catch(session, "tasks/get", ref)
            assert isinstance(error, ConnectionLostError)
            assert error.retryable
            assert not error.not_executed
            assert (await get(session, ref)).status == "working"
        server.misbehave("tasks/cancel", LostReply())
        await catch(session, "tasks/cancel", ref)
        while (await get(session, ref)).status != "cancelled":
            await anyio.sleep(0.02)
        await session.aclose()
    assert server.witness.missing_headers == []


async def test_over_real_sockets_a_client_that_gives_up_gets_no_reply() -> None:
    server = ScriptedServer()
    server.tool("tool", [work(math.inf)])
    with serve(server) as url, anyio.fail_after(30):
        session, hasty = HttpSession(url), HttpSession(url, limits=Limits(task_timeout_s=2.0))
        ref = await start(session)
        server.misbehave("tasks/get", Stalled())
        assert isinstance(await catch(hasty, "tasks/get", ref), ConnectionLostError)
        assert (await get(session, ref)).status == "working"
        await hasty.aclose()
        await session.aclose()
    assert [poll.answered_at is None for poll in server.witness.log("tasks/get")] == [True, False]
