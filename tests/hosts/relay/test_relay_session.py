"""Requests of ours among a host's: what is given up is taken back, and its late reply is nobody's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest
from mcp.shared.memory import create_client_server_memory_streams

from mcp_tasks_client.hosts.relay import relay as relay_module
from mcp_tasks_client.hosts.relay.messages import make_message, read_message
from mcp_tasks_client.hosts.relay.relay_session import RelaySession
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.sessions.base import Limits, TaskRef, ToolCall

from ._relay import relayed_to

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 10.0


async def nothing() -> None:
    pass


class Server:
    """The other end of the host's transport: the test reads and answers each message."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> JSONObject:
        return read_message(await self._reader.receive())

    async def answer(self, request: JSONObject, result: JSONObject) -> None:
        await self._writer.send(make_message({"id": request["id"], "result": result}))


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[RelaySession, Server, Any]]:
    """A session, its server, and what the host reads."""
    with anyio.fail_after(LIMIT_S):
        async with (
            create_client_server_memory_streams() as (client, (reader, writer)),
            relayed_to(client) as (relay, host_reads),
        ):
            session = RelaySession(relay, "server", Limits(), None)
            yield session, Server(reader, writer), host_reads


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
    assert relay_module._MAX_GIVEN_UP == 1000
    monkeypatch.setattr(relay_module, "_MAX_GIVEN_UP", 2)
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
