"""Requests of ours among a host's: as the host would send them. What is given up is taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import anyio
import pytest
from mcp.shared.memory import create_client_server_memory_streams
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY

from mcp_tasks_client import Limits, TaskRef, ToolCall
from mcp_tasks_client.hosts.host_call import HostCall
from mcp_tasks_client.hosts.relay.messages import make_message, read_message
from mcp_tasks_client.hosts.relay.relay_session import RelayedCall, RelaySession
from mcp_tasks_client.protocol import EXTENSION_ID, JSONObject
from mcp_tasks_client.sessions import awaited as awaited_module

from ._relay import relayed_to

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 30.0


async def nothing() -> None:
    pass


class StreamEnd:
    """The other end of the host's transport: the test reads and answers each message."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> JSONObject:
        return read_message(await self.receive_whole())

    async def receive_whole(self) -> Any:
        """With what the SDK notes of a message."""
        return await self._reader.receive()

    async def answer(self, request: JSONObject, result: JSONObject) -> None:
        await self._writer.send(make_message({"id": request["id"], "result": result}))


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[RelaySession, StreamEnd, Any]]:
    """A session, its server, and what the host reads."""
    with anyio.fail_after(LIMIT_S):
        async with (
            create_client_server_memory_streams() as (client, (reader, writer)),
            relayed_to(client) as (relay, host_reads),
        ):
            session = RelaySession(relay, "server", Limits(), None)
            yield session, StreamEnd(reader, writer), host_reads


async def test_a_request_for_the_sake_of_a_host_s_call_says_what_the_host_says_of_itself() -> None:
    tool_call, info = ToolCall(name="tool"), {"name": "host", "version": "1"}
    call = HostCall(
        request_id=1, tool_call=tool_call, is_current=True, client_info=info, capabilities={"roots": {}}
    )
    host = RelayedCall(call=call, headers={"mcp-name": "tool", "mcp-param-region": "eu"})
    sent: list[tuple[JSONObject, dict[str, str]]] = []
    async with relayed() as (session, server, _):
        for send in (
            lambda: session.call(replace(tool_call, context=host), nothing),
            lambda: session.get(TaskRef("t", None, host)),
            lambda: session.call(tool_call, nothing),
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                message = await server.receive_whole()
                sent.append((read_message(message)["params"]["_meta"], message.metadata.headers))
                tasks.cancel_scope.cancel()
            assert (await server.receive())["method"] == "notifications/cancelled"
    (of_call, headers), (of_poll, headers_of_poll), (own, own_headers) = sent
    for meta in (of_call, of_poll):
        assert meta[CLIENT_INFO_META_KEY] == info
        assert meta[CLIENT_CAPABILITIES_META_KEY] == {"roots": {}, "extensions": {EXTENSION_ID: {}}}
    assert headers == host.headers
    assert headers_of_poll["mcp-name"] == "t"
    assert "mcp-param-region" not in headers_of_poll
    assert own[CLIENT_CAPABILITIES_META_KEY] == {"extensions": {EXTENSION_ID: {}}}
    assert own_headers["mcp-name"] == "tool"


async def test_a_request_whose_caller_goes_away_is_taken_back() -> None:
    async with relayed() as (session, server, _):
        for send in (
            lambda: session.call(ToolCall(name="tool"), nothing),
            lambda: session.get(TaskRef("t")),
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                request = await server.receive()
                tasks.cancel_scope.cancel()
            taken_back = await server.receive()
            assert taken_back["method"] == "notifications/cancelled"
            assert taken_back["params"]["requestId"] == request["id"]


async def test_late_replies_to_requests_of_ours_do_not_reach_the_host_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert awaited_module._MAX_GIVEN_UP == 1000
    monkeypatch.setattr(awaited_module, "_MAX_GIVEN_UP", 2)
    async with relayed() as (session, server, host_reads):
        given_up: list[JSONObject] = []
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.get, TaskRef("t"))
                given_up.append(await server.receive())
                tasks.cancel_scope.cancel()
            assert (await server.receive())["method"] == "notifications/cancelled"
        for request in reversed(given_up):
            await server.answer(request, {"late": True})
        assert read_message(await host_reads.receive())["id"] == given_up[0]["id"], "the oldest is forgotten"
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.WouldBlock):
            host_reads.receive_nowait()
