"""The servers that the hosts talk to: one process, one port, three endpoints, and a ledger of it all.

``/fastmcp`` is a real FastMCP server with the Tasks extension, ``/scripted`` the package's own scripted
server, and ``/flaky`` another of those, over a bad connection. All three offer the same tools, each of
which takes an ``intent``, which its questions and its result name, and ``seconds`` of work:

==========  ==========================================
``greet``   asks one thing
``rest``    asks nothing
``survey``  asks two things, and then another
``first``   asks before there is a task
``quick``   makes no task
``nap``     is polled seldom, and in vain at first
``vigil``   asks one thing, and is polled seldom
==========  ==========================================

Run as a module, it prints one line of JSON, ``{"url": "http://127.0.0.1:PORT/mcp"}``, and ends when its
stdin closes. ``GET /ledger?since=N`` gives the requests so far but for the first N, ``GET /complaints``
what the scripted servers hold against their clients.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any, Final

import mcp_types
import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.server.extensions import ToolCallContinuation, ToolCallOutcome
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp_types import InputRequiredResult
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_tasks_client import testing
from mcp_tasks_client.testing import HttpError, LostReply, ScriptedServer, text_result, work
from tests.servers.announced import AnnouncedServer, die_with_parent, replayed, whole_body
from tests.servers.fastmcp_server import form, reply

from .evidence import LIFE_HEADER, POLL_INTERVAL_MS, SENT_HEADER, Request

__all__ = ["ENDPOINTS"]

ENDPOINTS: Final = ("scripted", "fastmcp", "flaky")

NAP_POLL_INTERVAL_MS: Final = 500
NAP_S: Final = 1.2
"""Longer than it takes to begin another process, so that this one may be tempted to poll too soon."""

FAULTS: Final[dict[str, float]] = {"tools/call": 0.05, "tasks/update": 0.15, "tasks/get": 0.05}
"""How often a request to ``/flaky`` goes wrong."""


def made(intent: str) -> str:
    """The text of a result that is like no other."""
    return json.dumps({"intent": intent, "made": uuid.uuid4().hex})


# ── the ledger ──


class Ledger:
    """ASGI middleware that writes down each request to an endpoint, and what was replied."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.requests: list[Request] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body = await whole_body(receive)
        at = time.monotonic()  # a client may be suspended in the middle of it
        number = len(self.requests)
        self.requests.append(arrived(body, dict(scope["headers"]), at))
        answer = bytearray()

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.body":
                answer.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    # Before it goes, so that nobody has a reply that is not in here.
                    self.requests[number] = replied(self.requests[number], bytes(answer), time.monotonic())
            await send(message)

        await self.app(scope, replayed(body, receive), watch)


def arrived(body: bytes, headers: dict[bytes, bytes], at: float) -> Request:
    try:
        message = json.loads(body)
    except ValueError:  # the client was killed while it sent
        return Request(method="broken off", at=at)
    params = message.get("params") or {}
    life, sent_at = headers.get(LIFE_HEADER.encode()), headers.get(SENT_HEADER.encode())
    return Request(
        method=message["method"],
        at=at,
        life=int(life) if life is not None else None,
        sent_at=float(sent_at) if sent_at is not None else None,
        intent=(params.get("arguments") or {}).get("intent"),
        request_state=params.get("requestState"),
        task_id=params.get("taskId"),
        answers=params.get("inputResponses") or {},
    )


def replied(request: Request, answer: bytes, now: float) -> Request:
    try:
        message = json.loads(answer)
    except ValueError:
        return replace(request, answered_at=now, kind="error")
    if "result" not in message:
        return replace(request, answered_at=now, kind="error")
    result = message["result"]
    outcome = result if request.method == "tools/call" else result.get("result")
    return replace(
        request,
        answered_at=now,
        kind=result.get("resultType"),
        task_id=result.get("taskId", request.task_id),
        poll_interval_ms=result.get("pollIntervalMs"),
        made=made_of(outcome) if isinstance(outcome, dict) else None,
    )


def made_of(result: dict[str, Any]) -> str | None:
    for block in result.get("content") or ():
        return str(json.loads(block["text"])["made"])
    return None


# ── the scripted ones ──


def question(intent: str, what: str) -> dict[str, Any]:
    return testing.form(f"{intent}: {what}?", **{what: "string"})


def scripted(*, flaky: bool, seed: int) -> ScriptedServer:
    # What is early is for the verdict to say, which knows who was dead by when.
    server = ScriptedServer(tolerance_s=60, new_task_id=lambda: uuid.uuid4().hex)
    server.witness.tolerance_s = 60

    def plan(steps: Callable[[str, float], list[testing.Step]]) -> Callable[[Any], list[testing.Step]]:
        def made_steps(arguments: Any) -> list[testing.Step]:
            intent, seconds = arguments.get("intent", ""), arguments.get("seconds", 0.0)
            end = text_result(made(intent))
            last = (
                testing.reply({**end, "resultType": "complete"}) if steps is quick else testing.complete(end)
            )
            return [*steps(intent, seconds), last]

        return made_steps

    def greet(intent: str, seconds: float) -> list[testing.Step]:
        return [work(seconds, "thinking"), testing.ask("name", question(intent, "name")), work(seconds)]

    def rest(intent: str, seconds: float) -> list[testing.Step]:
        return [work(seconds, "resting")]

    def survey(intent: str, seconds: float) -> list[testing.Step]:
        both = {"colour": question(intent, "colour"), "size": question(intent, "size")}
        return [
            testing.ask(both),
            work(seconds),
            testing.ask("sure", question(intent, "sure")),
            work(seconds),
        ]

    def first(intent: str, seconds: float) -> list[testing.Step]:
        return [testing.ask_first("item", question(intent, "item")), work(seconds)]

    def quick(intent: str, seconds: float) -> list[testing.Step]:
        return []

    def nap(intent: str, seconds: float) -> list[testing.Step]:
        return [work(NAP_S + seconds, "napping")]

    def vigil(intent: str, seconds: float) -> list[testing.Step]:
        return [work(seconds, "watching"), testing.ask("name", question(intent, "name")), work(seconds)]

    for steps in (greet, rest, survey, first, quick, nap, vigil):
        server.tool(
            steps.__name__,
            plan(steps),
            poll_interval_ms=NAP_POLL_INTERVAL_MS if steps in (nap, vigil) else POLL_INTERVAL_MS,
            settle_s=0.02,
            request_state=steps is greet,
        )
    chance = random.Random(seed)

    def fault(arrival: testing.Arrival) -> Any:
        if chance.random() < FAULTS.get(arrival.method, 0.0):
            # A call that a gateway refuses has not run for sure, as our server knows; its client does not.
            return LostReply() if chance.random() < 0.7 else HttpError(503)
        return None

    if flaky:
        server.on_request = fault
        server.app.ids_as_text = True
    return server


# ── the real one ──


class AskFirst(TasksExtension):
    """Adds a round of questions before the task of ``first``; FastMCP itself asks from inside a task."""

    async def intercept_tool_call(
        self, params: mcp_types.CallToolRequestParams, context: Context, call_next: ToolCallContinuation
    ) -> ToolCallOutcome:
        if params.name == "first" and not context.input_responses:
            intent = str((params.arguments or {})["intent"])
            return form({"item": f"{intent}: item?"}, state=uuid.uuid4().hex)
        return await super().intercept_tool_call(params, context, call_next)


def fastmcp_server() -> FastMCP:
    mcp = FastMCP("torture", version="1")
    mcp.add_extension(AskFirst(url="memory://", concurrency=500))
    task = TaskConfig(mode="required", poll_interval=timedelta(milliseconds=POLL_INTERVAL_MS))

    # A tool asks by returning, and runs again from its top when everything is answered.

    @mcp.tool(task=task)
    async def greet(context: Context, intent: str, seconds: float = 0.0) -> str | InputRequiredResult:
        await asyncio.sleep(seconds)
        if context.input_responses is None:
            return form({"name": f"{intent}: name?"})
        reply(context, "name")
        return made(intent)

    @mcp.tool(task=task)
    async def rest(intent: str, seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return made(intent)

    @mcp.tool(task=task)
    async def survey(context: Context, intent: str, seconds: float = 0.0) -> str | InputRequiredResult:
        if context.input_responses is None:
            return form({"colour": f"{intent}: colour?", "size": f"{intent}: size?"})
        await asyncio.sleep(seconds)
        if context.request_state is None:
            return form({"sure": f"{intent}: sure?"}, state="sure")
        reply(context, "sure")
        return made(intent)

    @mcp.tool(task=task)
    async def first(intent: str, seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return made(intent)

    seldom = replace(task, poll_interval=timedelta(milliseconds=NAP_POLL_INTERVAL_MS))

    @mcp.tool(task=seldom)
    async def vigil(context: Context, intent: str, seconds: float = 0.0) -> str | InputRequiredResult:
        return await greet(context, intent, seconds)

    @mcp.tool(task=seldom)
    async def nap(intent: str, seconds: float = 0.0) -> str:
        await asyncio.sleep(NAP_S + seconds)
        return made(intent)

    @mcp.tool
    async def quick(intent: str, seconds: float = 0.0) -> str:
        return made(intent)

    return mcp


# ── all of them on one port ──


def build(seed: int) -> ASGIApp:
    mcp = fastmcp_server()
    servers = {name: scripted(flaky=name == "flaky", seed=seed) for name in ("scripted", "flaky")}

    @mcp.custom_route("/ledger", methods=["GET"])
    async def entries(request: HttpRequest) -> JSONResponse:
        since = int(request.query_params["since"])
        return JSONResponse([asdict(one) for one in ledger.requests[since:]])

    @mcp.custom_route("/complaints", methods=["GET"])
    async def complaints(request: HttpRequest) -> JSONResponse:
        return JSONResponse([one for server in servers.values() for one in server.witness.broken()])

    real = mcp.http_app(path="/fastmcp")

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        server = servers.get(scope.get("path", "").strip("/"))
        await (server.app if server is not None else real)(scope, receive, send)

    ledger = Ledger(dispatch)
    return ledger


def main() -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    app = build(int(sys.argv[1]))
    AnnouncedServer(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="on")).run()


if __name__ == "__main__":
    main()
