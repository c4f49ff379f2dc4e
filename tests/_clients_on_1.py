"""Clients of mcp 1.x for tests on mcp 2.x.

The two cannot be in one environment. ``servers/sdk_1_clients.py`` runs the clients in a process of its own,
and says what lines of JSON the two ends send each other. Here is the other end: it makes the calls, and
answers the questions of the clients with a host's callbacks.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    CreateMessageRequestParams,
    ElicitRequestFormParams,
    ErrorData,
)

from .kit.person import Person

__all__ = ["ClientOn1", "client_on_1"]

LONGEST_LINE: Final = 2**20
PARAMS: Final[Mapping[str, Any]] = {"elicit": ElicitRequestFormParams, "sample": CreateMessageRequestParams}


class _Call:
    """A call over there, and the message with its end once that has come."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.ended = anyio.Event()
        self.end: Any = None


class ClientOn1:
    """One client. Results and errors are those of the SDK's 2.x, so that callers need not tell them apart.

    Attributes:
        closed: Set once the other end has closed it.
    """

    def __init__(self, stream: SocketStream, host: Person, prompts: TaskGroup) -> None:
        self.closed = anyio.Event()
        self._stream = stream
        self._host = host
        self._prompts = prompts
        self._lines = BufferedByteReceiveStream(stream)
        self._writing = anyio.Lock()
        self._numbers = itertools.count()
        self._calls: dict[int, _Call] = {}

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], *, progress_callback: Any
    ) -> CallToolResult:
        """Call a tool over there. Cancelling this cancels that."""
        number = next(self._numbers)
        call = self._calls[number] = _Call(progress_callback)
        await self.tell(call=number, tool=name, arguments=arguments)
        try:
            await call.ended.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self.tell(withdraw=number)
            raise
        if "error" in call.end:
            raise MCPError(**call.end["error"])
        return CallToolResult.model_validate(call.end["result"])

    async def tell(self, **fields: Any) -> None:
        """Send a line."""
        async with self._writing:
            await self._stream.send(json.dumps(fields).encode() + b"\n")

    async def read(self) -> Any:
        """The next line."""
        return json.loads(await self._lines.receive_until(b"\n", LONGEST_LINE))

    async def listen(self) -> None:
        """Take what comes, until the other end has closed the client."""
        while True:
            try:
                message = await self.read()
            except anyio.IncompleteRead:
                self.closed.set()
                return
            if "ask" in message:
                self._prompts.start_soon(self._answer, message)
                continue
            call = self._calls[message["call"]]
            if "progress" in message:
                await call.progress(0.0, None, message["progress"])
            else:
                call.end = message
                call.ended.set()

    async def _answer(self, message: Any) -> None:
        kind = message["kind"]
        params = [PARAMS[kind].model_validate(message["params"])] if kind in PARAMS else []
        answer = await getattr(self._host, kind)(None, *params)
        fields = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        await self.tell(
            answer=message["ask"], **{"error" if isinstance(answer, ErrorData) else "result": fields}
        )


@asynccontextmanager
async def client_on_1(
    url: str, mode: str, server: Any, host: Person, options: Mapping[str, Any]
) -> AsyncIterator[ClientOn1]:
    """A client of mcp 1.x with a transport of ours.

    Args:
        url: Where the process with the clients listens.
        mode: ``"beneath"`` or ``"around"`` its own transport.
        server: A URL, or a command as a list.
        host: Whose callbacks the client has.
        options: Of our transport; of JSON.
    """
    where = urlsplit(url)
    async with (
        await anyio.connect_tcp(str(where.hostname), where.port or 0) as stream,
        anyio.create_task_group() as prompts,
    ):
        client = ClientOn1(stream, host, prompts)
        await client.tell(mode=mode, server=server, options=options)
        assert await client.read() == {"open": True}
        prompts.start_soon(client.listen)
        yield client
        await client.tell(close=True)
        await client.closed.wait()
        prompts.cancel_scope.cancel()
