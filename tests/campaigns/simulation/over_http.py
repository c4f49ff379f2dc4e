"""The server's HTTP application in virtual time, behind a gateway: replies as real ones come.

JSON-RPC IDs may come back as text, replies as events of a stream, and a credential expires every few
requests. All of it is as :mod:`mcp_tasks_client.testing` offers it to hosts.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any, Final

import anyio
import httpx

from mcp_tasks_client import Limits
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.testing import ExpiringToken, ScriptedServer

from ..virtual_time import ProcessClock
from .parts import Parts

__all__ = ["Gateway"]

_PAUSE_S: Final = 0.7
"""Pauses of the session's are multiples of it, which hides their jitter: a history is the same each time."""


class Gateway:
    """What stands before the server of one history."""

    def __init__(self, server: ScriptedServer, random: Random, parts: Parts) -> None:
        server.app.ids_as_text = random.random() < 0.5
        server.app.event_stream = random.random() < 0.5
        self._token = ExpiringToken(requests=random.choice([2, 5, 20]))
        self._app = self._token.guard(server.app)
        self._endpoint = server.endpoint
        self._parts = parts

    def session(self, limits: Limits, clock: ProcessClock) -> HttpSession:
        """The session of one process, whose time-outs go by the clock of that process."""
        transport = self._parts.transport(InVirtualTime(self._app, clock))
        client = httpx.AsyncClient(transport=transport, trust_env=False)
        return HttpSession(
            "http://gateway.test/mcp",
            http_client=client,
            headers=self._parts.headers(self._token.headers),
            endpoint=self._endpoint,
            limits=limits,
            sleep=lambda seconds: clock.sleep(_PAUSE_S * math.ceil(seconds / _PAUSE_S)),
        )


class InVirtualTime(httpx.AsyncBaseTransport):
    """Waits for the application no longer than the client's time-out says."""

    def __init__(self, app: Any, clock: ProcessClock) -> None:
        self._inner = httpx.ASGITransport(app)
        self._clock = clock

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        over = anyio.Event()
        outcome: list[httpx.Response | httpx.HTTPError] = []

        async def ask() -> None:
            try:
                outcome.append(await self._inner.handle_async_request(request))
            except httpx.HTTPError as error:
                outcome.append(error)
            over.set()

        await self._clock.pass_on()  # a process that is suspended sends nothing
        async with anyio.create_task_group() as asking:
            asking.start_soon(ask)
            await self._clock.wait(over, request.extensions["timeout"]["read"])
            asking.cancel_scope.cancel()
        if not outcome:
            raise httpx.ReadTimeout("no reply in time", request=request)
        if isinstance(outcome[0], httpx.HTTPError):
            raise outcome[0]
        return outcome[0]
