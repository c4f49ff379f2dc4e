"""A scripted HTTP server behind httpx, without sockets."""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import httpx
import pytest

from mcp_tasks_client import TaskRef, ToolCall
from mcp_tasks_client.errors import SessionError
from mcp_tasks_client.protocol.replies import CallReply
from mcp_tasks_client.sessions.http.http_session import HttpSession

URL = "https://server.example/mcp"
TASK_ID = "786512e2-9e0d-44bd-8f29-789f320fe840"
REF = TaskRef(TASK_ID)
TASK = {"resultType": "complete", "taskId": TASK_ID, "status": "working", "pollIntervalMs": 5000}
CLIENT_INFO = {"name": "host", "version": "1"}

Answer = Callable[[httpx.Request], httpx.Response | Awaitable[httpx.Response]]


def rpc_id(request: httpx.Request) -> Any:
    return json.loads(request.content)["id"]


def result(value: object, status: int = 200, **headers: str) -> Answer:
    """Answers with a JSON-RPC result."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": rpc_id(request), "result": value}
        return httpx.Response(status, json=body, headers=headers)

    return answer


def error(
    code: object, status: int = 200, message: str = "no", data: object = None, **headers: str
) -> Answer:
    """Answers with a JSON-RPC error."""

    def answer(request: httpx.Request) -> httpx.Response:
        failure = {"code": code, "message": message, "data": data}
        body = {"jsonrpc": "2.0", "id": rpc_id(request), "error": failure}
        return httpx.Response(status, json=body, headers=headers)

    return answer


def http(status: int, content: bytes | str = b"", media_type: str = "text/html", **headers: str) -> Answer:
    """Answers with plain HTTP."""
    return lambda _: httpx.Response(status, content=content, headers={"content-type": media_type, **headers})


def events(*texts: str, status: int = 200) -> Answer:
    """Answers with an event stream; ``ID`` stands for the request's id."""

    def answer(request: httpx.Request) -> httpx.Response:
        stream = "".join(texts).replace("ID", str(rpc_id(request)))
        return httpx.Response(status, content=stream.encode(), headers={"content-type": "text/event-stream"})

    return answer


class RawResponse(httpx.Response):
    """Not decoded when it is made, as httpx does with content that it is given."""

    def __init__(self, status: int, *content: bytes, **headers: str) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for chunk in content:
                yield chunk

        super().__init__(
            status, content=chunks(), headers={k.replace("_", "-"): v for k, v in headers.items()}
        )


class HttpAnswers:
    """Answers by method and keeps what it was sent. Several answers are given in turn, the last for ever."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.slept: list[float] = []
        self._answers: dict[str, list[Answer]] = {}
        self.answers("server/discover", result({"supportedVersions": ["2025-11-25", "2026-07-28"]}))
        self.answers("tools/list", result({"tools": [{"name": "deploy", "inputSchema": {"type": "object"}}]}))
        self.answers("tools/call", result({"content": [], "resultType": "complete"}))
        self.answers("tasks/get", result(TASK))
        self.answers("tasks/update", result({}))
        self.answers("tasks/cancel", result({}))

    def answers(self, method: str, *answers: Answer) -> None:
        self._answers[method] = list(answers)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        waiting = self._answers[json.loads(request.content)["method"]]
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        response = answer(request)
        return response if isinstance(response, httpx.Response) else await response

    def client(self, **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self), **options)

    def session(self, url: str = URL, **options: Any) -> HttpSession:
        """A session at this server, which notes in ``slept`` what it would have slept."""
        options.setdefault("http_client", self.client())
        return HttpSession(url, sleep=self._sleep, **options)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await anyio.lowlevel.checkpoint()

    @property
    def methods(self) -> list[str]:
        return [json.loads(request.content)["method"] for request in self.requests]

    @property
    def last(self) -> httpx.Request:
        return self.requests[-1]

    @property
    def sent(self) -> dict[str, Any]:
        """Body of the last request."""
        body = json.loads(self.last.content)
        assert isinstance(body, dict)
        return body


class Turnstile:
    """Answers when told, and counts how many requests wait for that."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.inside = self.most = 0
        self.open = anyio.Event()
        self._changed = anyio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self._changed.set()
        try:
            await self.open.wait()
        finally:
            self.inside -= 1
        response = self._answer(request)
        assert isinstance(response, httpx.Response)
        return response

    async def holds(self, count: int) -> None:
        """Return when so many wait, and nobody else is on the way."""
        while self.inside != count:
            self._changed = anyio.Event()
            await self._changed.wait()
        await anyio.wait_all_tasks_blocked()
        assert self.inside == count


async def send_call(session: HttpSession, call: ToolCall | None = None) -> CallReply:
    return await session.call(call or ToolCall(name="deploy"), anyio.lowlevel.checkpoint)


async def fail_to_get(session: HttpSession, ref: TaskRef = REF) -> SessionError:
    """The error of a poll, which must pickle and must not tell the task ID."""
    with anyio.fail_after(30), pytest.raises(SessionError) as caught:
        await session.get(ref)
    assert type(pickle.loads(pickle.dumps(caught.value))) is type(caught.value)
    assert TASK_ID not in str(caught.value)
    return caught.value
