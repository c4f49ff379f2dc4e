"""A server whose reply to ``tools/call`` comes when the test says so."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio

from mcp_tasks_client.protocol.replies import CallReply, read_call_reply
from mcp_tasks_client.sessions.base import BeforeSend, ToolCall
from tests.engine.world import World
from tests.scripted_session import ScriptedSession

__all__ = ["LateSession", "late_world"]


class LateSession(ScriptedSession):
    """Holds each ``tools/call`` back until ``go`` is set.

    Attributes:
        called: Set once a call is held back.
        go: Lets it through.
        leaves: Whether a request leaves before it is held back, so that the tool may run.
    """

    def __init__(self, *, leaves: bool = True, **script: Any) -> None:
        super().__init__(**script)
        self.called, self.go, self.leaves = anyio.Event(), anyio.Event(), leaves

    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        if not self.leaves:
            self.called.set()
            await self.go.wait()
        await before_send()
        self._log("tools/call", call=call)
        self.called.set()
        await self.go.wait()
        return read_call_reply(await self._play(self.calls))


def late_world(*, leaves: bool = True, **script: Any) -> tuple[World, LateSession]:
    """A world with such a server."""
    world = World(partial(LateSession, leaves=leaves), **script)
    return world, world.server
