"""Which connections requests go over: calls, which are never repeated, over none that was idle for long."""

from __future__ import annotations

import json
import math
from typing import Any

import anyio
import pytest

from mcp_tasks_client import MemoryJournal, TasksClient
from mcp_tasks_client.sessions.http import transport_aiohttp, transport_httpx
from mcp_tasks_client.sessions.http.transport import JUST_USED_S
from mcp_tasks_client.testing import ScriptedServer, reply, text_result, work
from tests.kit.older_server import OlderServer, as_app, refusal
from tests.testing.asking import serve_app

from .sockets import also_over_httpx2, anyio_backend

__all__ = ["anyio_backend"]

pytestmark = pytest.mark.anyio


class Noted:
    """Notes over which connection each request comes, by the port at its other end."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.ports: dict[str, list[int]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def noting() -> Any:
            message = await receive()
            if message.get("body"):
                method = json.loads(message["body"])["method"]
                self.ports.setdefault(method, []).append(scope["client"][1])
            return message

        await self._app(scope, noting, send)


@also_over_httpx2
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_a_call_goes_over_no_connection_that_the_server_may_just_drop(version: str) -> None:
    """Whether a request still arrives on one is chance, and what became of a call would not be known."""
    server = ScriptedServer()
    server.tool("plain", [reply(text_result("plain"))])
    wire = OlderServer()
    wire.replies["server/discover"] = lambda _: refusal(-32601, "Method not found", 404)
    noted = Noted(server.app if version == "2026-07-28" else as_app(wire))
    with serve_app(noted) as url, anyio.fail_after(30):
        async with TasksClient(url, journal=MemoryJournal()) as client:
            await client.call_tool("plain", idempotency_key="a")
            await anyio.sleep(JUST_USED_S + 0.1)
            await client.call_tool("plain", idempotency_key="b")
    calls = noted.ports["tools/call"]
    assert len(set(calls)) == 2
    assert set(calls).isdisjoint(noted.ports["tools/list"])
    assert JUST_USED_S <= 0.5, "some servers drop a connection after a second"


@also_over_httpx2
async def test_polls_share_a_connection_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    for transport in (transport_aiohttp, transport_httpx):
        monkeypatch.setattr(transport, "KEEPALIVE_S", 60.0)  # on a busy machine a poll may come late
    server = ScriptedServer()
    server.tool("slow", [work(math.inf)], poll_interval_ms=600)
    noted = Noted(server.app)
    with serve_app(noted, timeout_keep_alive=60) as url, anyio.fail_after(30):
        async with TasksClient(url, journal=MemoryJournal()) as client:
            await client.start_tool("slow")
            while len(noted.ports.get("tasks/get", ())) < 2:
                await anyio.sleep(0.01)
    assert len({*noted.ports["tasks/get"], *noted.ports["tools/list"]}) == 1
