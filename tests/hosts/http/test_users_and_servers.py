"""Several users, servers and sessions over one HTTP client."""

from __future__ import annotations

import json

import anyio
import anyio.lowlevel
import httpx
import pytest

from mcp_tasks_client import Environment, MemoryJournal, TasksHttpTransport
from mcp_tasks_client.hosts.http import servers
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.testing import Delayed
from tests.kit.json_rpc_host import LIMIT_S, OLDER, QUICK, URL, JsonRpcHost, asking_server, count, hosted
from tests.kit.older_server import OlderServer, refusal, text

pytestmark = pytest.mark.anyio

KEY = {"mcp-tasks-client/idempotency-key": "k"}


async def call_as(host: JsonRpcHost, user: str, meta: JSONObject, **headers: str) -> JSONObject:
    response = await host.post(host.body("slow", meta=meta), Authorization=f"Bearer {user}", **headers)
    return host.read(response)


async def test_a_principal_says_that_all_credentials_are_one_user_s() -> None:
    server = asking_server()
    async with hosted(server, principal="ada") as host:
        assert "result" in await call_as(host, "old token", KEY)
        assert "result" in await call_as(host, "new token", KEY)
    assert count(server, "tools/call") == 1
    assert count(server, "server/discover") == 1, "the session goes on"


async def test_a_key_is_one_of_each_server_and_of_each_user_at_it() -> None:
    server, journal = asking_server(), MemoryJournal()
    transport = TasksHttpTransport(
        httpx.ASGITransport(server.app), journal=journal, environment=Environment(clock=server.clock)
    )
    with anyio.fail_after(LIMIT_S):
        async with httpx.AsyncClient(transport=transport) as client:
            one, other = JsonRpcHost(client), JsonRpcHost(client, url=f"{URL}?other")
            assert "result" in await call_as(one, "token of one", KEY)
            assert "result" in await call_as(other, "token of the other", KEY)
            assert "another credential" in (await call_as(one, "token of the other", KEY))["error"]["message"]
    assert count(server, "tools/call") == 2


CREDENTIALS = [
    *("Authorization", "Cookie", "X-Api-Key", "X-Access-Token", "X-Secret", "X-Credential", "X-User"),
    *("X-Tenant-Id", "X-Account", "X-Customer", "X-Org", "X-Principal"),
]
"""Headers by which hosts tell a server for whom they ask."""


@pytest.mark.parametrize("header", CREDENTIALS)
async def test_each_user_has_a_session_and_keys_and_headers_of_tracing_make_no_user(header: str) -> None:
    server = asking_server()

    async def call_as(number: int, user: str, meta: JSONObject) -> JSONObject:
        headers = {header: user, "traceparent": f"00-{number}", "Idempotency-Key": str(number)}
        return host.read(await host.post(host.body("slow", meta=meta), **headers))

    async with hosted(server) as host:
        for number, user in enumerate(["ada", "ada", "bob", "ada", "bob"]):
            assert "result" in await call_as(number, user, {})
        assert count(server, "server/discover") == 2
        assert "result" in await call_as(5, "ada", KEY)
        refused = await call_as(6, "bob", KEY)
        assert "was used with another credential" in refused["error"]["message"]
        assert "result" in await call_as(7, "ada", KEY)
    assert count(server, "tools/call") == 6


async def test_arguments_that_are_no_object_are_refused() -> None:
    server = asking_server()
    async with hosted(server) as host:
        answer = await host.call("slow", arguments=[1])
    assert answer["error"]["code"] == -32602
    assert "params.arguments" in answer["error"]["message"]
    assert count(server, "tools/call") == 0


async def test_the_session_that_is_closed_for_a_new_one_has_no_call_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "_MOST_SERVERS", 2)
    server = asking_server()
    async with hosted(server) as host, anyio.create_task_group() as calls:
        calls.start_soon(call_as, host, "busy", {})
        while not count(server, "tools/call"):
            await anyio.lowlevel.checkpoint()
        busy = host.body("for_ever")
        calls.start_soon(lambda: host.post(busy, Authorization="Bearer busy"))
        while count(server, "tools/call") < 2:
            await anyio.lowlevel.checkpoint()
        for user in ("first", "second", "first"):
            await call_as(host, user, {})
        before = count(server, "server/discover")
        await call_as(host, "busy", {})
        assert count(server, "server/discover") == before == 4, "first twice, second once, busy once"
        calls.cancel_scope.cancel()


async def test_more_users_at_once_than_sessions_are_kept_do_not_close_each_other_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "_MOST_SERVERS", 2)
    server, answers = asking_server(), list[JSONObject]()
    server.misbehave("server/discover", *[Delayed(0.05)] * 12)  # so that all are asked at the same time
    async with hosted(server) as host, anyio.create_task_group() as calls:

        async def call(user: str) -> None:
            answers.append(await call_as(host, user, {"mcp-tasks-client/idempotency-key": user}))

        for number in range(12):
            calls.start_soon(call, f"user {number}")
    assert [answer for answer in answers if "error" in answer] == []
    assert count(server, "tools/call") == len(answers) == 12


async def test_the_mcp_sessions_of_all_users_are_ended_at_the_same_time() -> None:
    users, ended = 3, list[str]()
    all_arrived, wire = anyio.Event(), OlderServer()

    async def serve(request: httpx.Request) -> httpx.Response:
        response = await wire(request)
        if request.method == "DELETE":
            if len(wire.of("DELETE")) == users:
                all_arrived.set()
            await all_arrived.wait()
            ended.append(request.headers["authorization"])
        return response

    wire.replies["server/discover"] = lambda arrived: refusal(-32600, "Unsupported protocol version", 400)
    wire.replies["tasks/get"] = lambda arrived: {**wire.task, "status": "completed"}
    wire.replies["tasks/result"] = lambda arrived: text("done")
    transport = TasksHttpTransport(httpx.MockTransport(serve), journal=MemoryJournal(), poll=QUICK)
    with anyio.fail_after(LIMIT_S):
        async with httpx.AsyncClient(transport=transport) as client:
            for number in range(users):
                await call_as(JsonRpcHost(client), f"user {number}", {})
    assert sorted(ended) == [f"Bearer user {number}" for number in range(users)]


@pytest.mark.parametrize("other", ["another server", "another user", "the same"])
async def test_a_call_is_given_up_by_its_own_host_only(other: str) -> None:
    server, journal = asking_server(), MemoryJournal()
    transport = TasksHttpTransport(
        httpx.ASGITransport(server.app),
        journal=journal,
        poll=QUICK,
        environment=Environment(clock=server.clock),
    )
    ended: list[str] = []
    with anyio.fail_after(LIMIT_S):
        async with httpx.AsyncClient(transport=transport) as client, anyio.create_task_group() as calls:
            url = f"{URL}?other" if other == "another server" else URL
            host, others = JsonRpcHost(client, version=OLDER), JsonRpcHost(client, version=OLDER, url=url)
            credential = {"Authorization": "Bearer bob"} if other == "another user" else {}

            async def call(host: JsonRpcHost, **headers: str) -> None:
                await host.post(host.body("for_ever"), **headers)
                ended.append("others" if host is others else "host")

            calls.start_soon(call, host)
            while count(server, "tools/call") < 1:
                await anyio.lowlevel.checkpoint()
            calls.start_soon(lambda: call(others, **credential))
            while count(server, "tools/call") < 2:
                await anyio.lowlevel.checkpoint()
            given_up = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}}
            response = await others.post(given_up, **credential)
            assert response.status_code == 202
            if other != "the same":
                while not ended:
                    await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            # Of two under one name nobody can tell which is meant.
            assert ended == ([] if other == "the same" else ["others"]), json.dumps(ended)
            calls.cancel_scope.cancel()
