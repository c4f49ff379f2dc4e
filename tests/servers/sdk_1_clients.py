"""Clients of mcp 1.x, in an environment of their own, whose calls and callbacks are those of another process.

``sdk_1_clients.py BACKEND`` listens on a free loopback port and prints one line of JSON first,
``{"url": "tcp://127.0.0.1:PORT"}``. It ends when its stdin closes. Each connection is one client for as long
as it lasts. Both ends send lines of JSON; ``_clients_on_1.py`` is the other end, and this one gets:

- ``{"mode": "beneath" or "around", "server": URL or command, "options": {...}}``, first and once: the way in
  of the client, and the options of ours that it has. The reply is ``{"open": true}``.
- ``{"call": N, "tool": ..., "arguments": ...}``: a call. What comes of it is
  ``{"call": N, "progress": MESSAGE}``, any number of times, and ``{"call": N, "result" or "error": ...}``.
- ``{"withdraw": N}``: the caller of the call has been cancelled.
- ``{"answer": N, "result" or "error": ...}``: to ``{"ask": N, "kind": ..., "params": ...}``.
- ``{"close": true}``: the last one. The end of the connection says the same.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import McpError

if not __package__:  # run as a script: Python has put this folder on its path, and not the repository
    sys.path[0] = str(Path(__file__).parents[2])

from mcp_tasks_client import TasksTransport, tasks_http_client
from tests.servers.announced import die_with_parent

LONGEST_LINE = 2**20


class Question:
    """A question at the other end, and the message with its answer once that has come."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.answer: Any = None


class Caller:
    """The process at the other end of a connection: it makes the calls, and it is the callbacks."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._lines = BufferedByteReceiveStream(stream)
        self._writing = anyio.Lock()
        self._numbers = itertools.count()
        self._questions: dict[int, Question] = {}

    async def read(self) -> Any:
        try:
            return json.loads(await self._lines.receive_until(b"\n", LONGEST_LINE))
        except (anyio.IncompleteRead, anyio.BrokenResourceError):
            return {"close": True}

    async def tell(self, **fields: Any) -> None:
        async with self._writing:
            with suppress(anyio.BrokenResourceError):  # a test that failed leaves at once
                await self._stream.send(json.dumps(fields).encode() + b"\n")

    async def ask(self, kind: str, params: Any, result_type: Any) -> Any:
        number = next(self._numbers)
        question = self._questions[number] = Question()
        await self.tell(ask=number, kind=kind, params=params and dumped(params))
        await question.answered.wait()
        if "error" in question.answer:
            return types.ErrorData.model_validate(question.answer["error"])
        return result_type.model_validate(question.answer["result"])

    def answer(self, message: Any) -> None:
        question = self._questions[message["answer"]]
        question.answer = message
        question.answered.set()

    @property
    def callbacks(self) -> dict[str, Any]:
        async def elicit(context: Any, params: Any) -> Any:
            return await self.ask("elicit", params, types.ElicitResult)

        async def sample(context: Any, params: Any) -> Any:
            return await self.ask("sample", params, types.CreateMessageResult)

        async def roots(context: Any) -> Any:
            return await self.ask("roots", None, types.ListRootsResult)

        return {
            "elicitation_callback": elicit,
            "sampling_callback": sample,
            "list_roots_callback": roots,
        }


def dumped(model: Any) -> Any:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


@asynccontextmanager
async def connected(mode: str, server: Any, options: Any, callbacks: Any) -> AsyncIterator[ClientSession]:
    """A session of mcp 1.x over one of our transports."""
    async with AsyncExitStack() as stack:
        if mode == "beneath":
            http_client = tasks_http_client(library="httpx", trust_env=False, **options)
            http: Any = await stack.enter_async_context(http_client)
            transport: Any = streamable_http_client(server, http_client=http)
        elif isinstance(server, str):
            transport = TasksTransport(streamable_http_client(server), **options)
        else:
            command = StdioServerParameters(command=server[0], args=server[1:])
            transport = TasksTransport(stdio_client(command), **options)
        read, write, *_ = await stack.enter_async_context(transport)
        session = await stack.enter_async_context(ClientSession(read, write, **callbacks))
        await session.initialize()
        yield session


class Calls:
    """The calls of one client."""

    def __init__(self, session: ClientSession, caller: Caller, tasks: TaskGroup) -> None:
        self._session = session
        self._caller = caller
        self._tasks = tasks
        self._under_way: dict[int, tuple[anyio.CancelScope, int]] = {}

    def start(self, message: Any) -> None:
        self._tasks.start_soon(self._make, message)

    async def withdraw(self, number: int) -> None:
        """Cancel a call. This SDK tells the server nothing of it, so the notification is the host's own."""
        scope, request_id = self._under_way[number]
        params = types.CancelledNotificationParams(requestId=request_id)
        await self._session.send_notification(
            types.ClientNotification(types.CancelledNotification(params=params))
        )
        scope.cancel()

    async def _make(self, message: Any) -> None:
        number = message["call"]

        async def progressed(done: float, total: float | None, said: str | None) -> None:
            await self._caller.tell(call=number, progress=said)

        with anyio.CancelScope() as scope:
            # The ID that the next request gets. No public name gives it.
            self._under_way[number] = scope, self._session._request_id
            try:
                result = await self._session.call_tool(
                    message["tool"], message["arguments"], progress_callback=progressed
                )
                await self._caller.tell(call=number, result=dumped(result))
            except McpError as error:
                await self._caller.tell(call=number, error=dumped(error.error))


async def serve(stream: SocketStream) -> None:
    async with stream:
        caller = Caller(stream)
        setup = await caller.read()
        async with connected(setup["mode"], setup["server"], setup["options"], caller.callbacks) as session:
            await caller.tell(open=True)
            async with anyio.create_task_group() as tasks:
                calls = Calls(session, caller, tasks)
                while "close" not in (message := await caller.read()):
                    if "call" in message:
                        calls.start(message)
                    elif "withdraw" in message:
                        await calls.withdraw(message["withdraw"])
                    else:
                        caller.answer(message)
                tasks.cancel_scope.cancel()


async def main() -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    print(json.dumps({"url": f"tcp://127.0.0.1:{port}"}), flush=True)
    await listener.serve(serve)


if __name__ == "__main__":
    threading.Thread(target=die_with_parent, daemon=True).start()
    anyio.run(main, backend=sys.argv[1])
