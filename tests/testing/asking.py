"""Requests to a scripted server, in memory, over ASGI and over real sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio.lowlevel
import httpx
import pytest
import uvicorn

from mcp_tasks_client import Session, Task, TaskRef, ToolCall
from mcp_tasks_client.errors import SessionError
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import CallReply, Created
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.testing import ScriptedServer, form, text_result

__all__ = [
    "ADA",
    "BOB",
    "DONE",
    "HEADERS",
    "META",
    "NAME",
    "URL",
    "call",
    "catch",
    "get",
    "over_asgi",
    "post",
    "refused",
    "serve",
    "serve_app",
    "start",
]

DONE: Final = text_result("done")
NAME: Final = form("Who?", name="string")
ADA: Final[JSONObject] = {"action": "accept", "content": {"name": "Ada"}}
BOB: Final[JSONObject] = {"action": "accept", "content": {"name": "Bob"}}
URL: Final = "http://server.test/mcp"
META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}
HEADERS: Final = {
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tasks/get",
    "Mcp-Name": "task-1",
    "Accept": "application/json, text/event-stream",
}


async def call(session: Session, name: str = "tool", **fields: Any) -> CallReply:
    return await session.call(ToolCall(name=name, **fields), anyio.lowlevel.checkpoint)


async def get(session: Session, ref: TaskRef) -> Task:
    return (await session.get(ref)).task


async def start(session: Session, tool: str = "tool", **arguments: Any) -> TaskRef:
    created = await call(session, tool, arguments=arguments)
    assert isinstance(created, Created)
    return TaskRef(created.task.task_id, created.session_data)


async def catch(session: Session, method: str, ref: TaskRef) -> SessionError:
    """What a request of a method raises."""
    requests: Mapping[str, Callable[[], Any]] = {
        "tools/call": lambda: call(session),
        "tasks/get": lambda: session.get(ref),
        "tasks/update": lambda: session.update(ref, {"name": ADA}),
        "tasks/cancel": lambda: session.cancel(ref),
    }
    with pytest.raises(SessionError) as caught:
        await requests[method]()
    return caught.value


@contextmanager
def refused(code: int, words: str | None = None) -> Iterator[None]:
    with pytest.raises(SessionError, match=words) as caught:
        yield
    assert caught.value.code == code


@asynccontextmanager
async def over_asgi(server: ScriptedServer, **options: Any) -> AsyncIterator[HttpSession]:
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        yield HttpSession(URL, http_client=client, **options)


async def post(server: ScriptedServer, message: object, headers: Mapping[str, str]) -> httpx.Response:
    """One request with just these headers."""
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        client.headers.clear()
        return await client.post(URL, content=content, headers=headers)


@contextmanager
def serve(server: ScriptedServer) -> Iterator[str]:
    """The server behind real sockets, in a thread with an event loop of its own."""
    with serve_app(server.app) as url:
        yield url


@contextmanager
def serve_app(app: Any, **options: Any) -> Iterator[str]:
    """The same for any ASGI application.

    Args:
        app: The application.
        options: Of uvicorn.
    """
    given = {"lifespan": "on", "ws": "none", **options}
    config = uvicorn.Config(app, port=0, log_config=None, log_level="critical", **given)
    listener = config.bind_socket()
    listener.listen()  # so that clients wait until the server is there
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    try:
        scheme = "https" if config.is_ssl else "http"
        yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        running.should_exit = True
        thread.join(60)
        listener.close()
    assert not thread.is_alive()
