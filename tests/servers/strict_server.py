"""A strict MCP 2026-07-28 server with the Tasks extension, on the official SDK's low-level server.

It refuses whatever the specification lets a server refuse, and writes down every message that
reaches it, see ``strict_log.py``. Its tools are those of ``strict_tasks.py``.

Three ways to run it:

- ``python strict_server.py http`` listens on a free loopback port and prints one line of JSON
  first, ``{"url": "http://127.0.0.1:PORT/mcp"}``. ``GET /witness?since=N`` gives the log as a JSON
  list without its first N entries, ``GET /witness/count`` how many there are. It ends when its
  stdin closes, so that the death of the parent takes it along.
- ``python strict_server.py stdio`` speaks over stdin and stdout. The tool ``witness`` gives the log.
- :func:`build_server` makes a server for ``mcp.Client(server)``. Its ``log`` is the log.

What the SDK checks by itself, and what is added here, stands beside :class:`HttpGate` and
:meth:`StrictServer._admit`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import mcp_types
from mcp import MCPError
from mcp.server import Server
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

if not __package__:  # run as a script: Python has put this folder on its path, and not the repository
    sys.path[0] = str(Path(__file__).parents[2])

from tests.servers.announced import replayed, whole_body
from tests.servers.strict_log import Entry, JSONObject, entry_of
from tests.servers.strict_tasks import (
    FORMS,
    TASK_TOOLS,
    TIMES,
    TOOLS,
    Task,
    TaskTool,
    check_answer,
    content,
    form,
    mismatch,
    one_more_poll,
    tool_error,
)

VERSION: Final = "2026-07-28"
EXTENSION: Final[JSONObject] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
"""The capability that a client declares in each request. Not from the package, which is on trial."""

TASK_METHODS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})


Context: TypeAlias = ServerRequestContext[dict[str, Any], Entry]


class TaskParams(mcp_types.RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: JSONObject


class StrictServer(Server[dict[str, Any]]):
    """The low-level server with the tools and tasks of this module, and the log of what reached it."""

    def __init__(self) -> None:
        super().__init__(
            "strict-tasks-server",
            version="1",
            on_list_tools=self._list_tools,
            # The SDK's own, which knows nothing of tasks: it acknowledges none of them, and stays silent.
            on_subscriptions_listen=ListenHandler(InMemorySubscriptionBus()),
        )
        self.log: list[Entry] = []
        self.tasks: dict[str, Task] = {}
        self._rounds: dict[str, JSONObject] = {}
        """Arguments of calls that wait for their second round, by ``requestState``."""
        self.extensions |= EXTENSION["extensions"]
        gate: ServerMiddleware[Any] = self._gate
        self.middleware.append(gate)
        # Not on_call_tool, whose type knows nothing of tasks.
        self.add_request_handler("tools/call", mcp_types.CallToolRequestParams, self._call)
        self.add_request_handler("tasks/get", TaskParams, self._get)
        self.add_request_handler("tasks/update", UpdateParams, self._update)
        self.add_request_handler("tasks/cancel", TaskParams, self._cancel)

    async def _gate(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Log and admit each message, whatever the transport. Handlers find its entry as ``request``."""
        if ctx.request is not None:
            entry: Entry = ctx.request.scope["entry"]  # HttpGate's
            if ctx.method != entry.method:
                # The SDK lists the tools by itself, to compare a call's Mcp-Param-* with the tool's schema.
                return await call_next(ctx)
        else:
            entry = entry_of(ctx.method, ctx.params, {})
            self.log.append(entry)
        try:
            if ctx.request_id is not None:  # not a notification
                self._admit(ctx)
            return await call_next(replace(ctx, request=entry))
        except MCPError as error:
            entry.error = error.code
            raise
        except ValidationError:
            entry.error = INVALID_PARAMS  # what the SDK makes of it
            raise
        finally:
            entry.answered_at = time.monotonic()

    def _admit(self, context: ServerRequestContext[Any, Any]) -> None:
        """Raise MCPError unless the request may pass.

        The SDK checks ``_meta`` over HTTP and over stdio, though not in-process, and it speaks the
        older versions over stdio. It never looks for an extension.
        """
        if context.protocol_version != VERSION:
            supported = {"supported": [VERSION], "requested": context.protocol_version}
            raise MCPError(UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", supported)
        route = classify_inbound_request({"method": context.method, "params": context.params})
        if isinstance(route, InboundLadderRejection):
            raise MCPError(route.code, route.message, route.data)
        listens = context.method == "subscriptions/listen" and "taskIds" in (context.params or {}).get(
            "notifications", {}
        )
        if context.method in TASK_METHODS or listens:
            require(context, EXTENSION)

    async def _list_tools(
        self, context: ServerRequestContext[Any, Any], params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=list(TOOLS.values()))

    async def _call(self, context: Context, params: mcp_types.CallToolRequestParams) -> HandlerResult:
        tool, arguments = TOOLS.get(params.name), dict(params.arguments or {})
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
        problem = mismatch(arguments, tool.input_schema)
        if problem is not None:
            return tool_error(problem)
        match params.name:
            case "echo":
                return content({"text": arguments["text"]})
            case "header_arg":
                return content({"region": arguments["region"]})
            case "witness":
                return content({"log": [asdict(entry) for entry in self.log]})
            case "ask_first":
                return self._ask_first(context, params, arguments)
            case name:
                return self._make_task(context, TASK_TOOLS[name], arguments)

    def _ask_first(
        self, context: Context, params: mcp_types.CallToolRequestParams, arguments: JSONObject
    ) -> HandlerResult:
        makes_task = arguments.get("then", "task") == "task"
        question = form("Are you sure?", "sure")
        require(context, {**FORMS, **(EXTENSION if makes_task else {})})
        if params.request_state is None and params.input_responses is None:
            state = secrets.token_urlsafe()
            self._rounds[state] = arguments
            return {
                "resultType": "input_required",
                "inputRequests": {"sure": question},
                "requestState": state,
            }
        if params.request_state is None or self._rounds.get(params.request_state) != arguments:
            raise MCPError(INVALID_PARAMS, "not the requestState of a first round with these arguments")
        # As it came: what the SDK read into its own types may have lost something.
        responses: JSONObject = (context.params or {}).get("inputResponses") or {}
        if responses.keys() != {"sure"}:
            raise MCPError(INVALID_PARAMS, "inputResponses must answer what was asked, and nothing else")
        check_answer("sure", question, responses["sure"])
        del self._rounds[params.request_state]  # a second call with it would run the tool twice
        answer = responses["sure"]
        if not makes_task:
            return content({"answer": answer})
        times = {name: value for name, value in arguments.items() if name in TIMES}
        tool = TaskTool(script=one_more_poll, description="", arguments={"answer": {}})
        return self._make_task(context, tool, {"answer": answer, **times})

    def _make_task(self, context: Context, tool: TaskTool, arguments: JSONObject) -> JSONObject:
        asks_anyone = arguments.pop("undeclared", False)
        require(context, {**EXTENSION, **({} if asks_anyone else tool.needs)})
        kind = arguments.get("kind")
        # One that no header can carry as it is, and one that any can.
        task_id = f" Aufgabe ä/{secrets.token_urlsafe()}" if kind == "strange_id" else secrets.token_urlsafe()
        times = {name: arguments.get(name, schema["default"]) for name, schema in TIMES.items()}
        task = Task(task_id, **times)
        own = {name: value for name, value in arguments.items() if name in tool.arguments}
        task.script = tool.script(task, **own)
        self.tasks[task_id] = task
        entry(context).task_id = task_id
        created = {"resultType": "task", **task.snapshot()}
        if kind == "no_status":
            del created["status"]
        elif kind == "done_at_creation":
            created["status"] = "completed"  # still without its result, which takes a tasks/get
        return created

    async def _get(self, context: Context, params: TaskParams) -> JSONObject:
        task = self._find(params.task_id)
        entry(context).early = entry(context).at < task.due_at
        return {"resultType": "complete", **task.look()}

    async def _update(self, context: Context, params: UpdateParams) -> JSONObject:
        task = self._find(params.task_id)
        entry(context).ignored_keys = task.answer(params.input_responses)
        return {"resultType": "complete"}

    async def _cancel(self, context: Context, params: TaskParams) -> JSONObject:
        self._find(params.task_id).cancel()
        return {"resultType": "complete"}

    def _find(self, task_id: str) -> Task:
        task = self.tasks.get(task_id)
        if task is None:
            raise MCPError(INVALID_PARAMS, "Task not found")
        if task.expired:
            raise MCPError(INVALID_PARAMS, "Task has expired")
        return task


def entry(context: Context) -> Entry:
    """The log's entry of the request that is being handled."""
    assert context.request is not None, "put there by StrictServer._gate"
    return context.request


def require(context: ServerRequestContext[Any, Any], needed: JSONObject) -> None:
    """Raise MCPError -32021 unless this request declares the client capabilities."""
    declared = dict((context.params or {})["_meta"][CLIENT_CAPABILITIES_META_KEY])
    if declared.get("elicitation") == {}:
        declared["elicitation"] = {"form": {}}  # what an empty declaration stands for
    missing = {name: value for name, value in needed.items() if not includes(declared, {name: value})}
    if missing:
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            "Missing required client capability",
            {"requiredCapabilities": missing},
        )


def includes(declared: object, needed: JSONObject) -> bool:
    return isinstance(declared, Mapping) and all(
        name in declared and includes(declared[name], inner) for name, inner in needed.items()
    )


def build_server() -> StrictServer:
    """A server of its own, with no tasks and an empty log."""
    return StrictServer()


# ── HTTP ──


class HttpGate:
    """ASGI middleware that logs each request with its headers, and refuses what the SDK lets through.

    The SDK itself compares ``MCP-Protocol-Version``, ``Mcp-Method``, the ``Mcp-Name`` of
    ``tools/call`` and the ``Mcp-Param-*`` of marked arguments with the body, once it takes a request
    for one of this version. Where the version header is missing or names an older version, it serves
    that version instead, or asks for a session. It does not know ``tasks/*``, and never reads their
    ``Mcp-Name``.
    """

    def __init__(self, app: ASGIApp, log: list[Entry]) -> None:
        self.app = app
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/mcp":
            await self.app(scope, receive, send)
            return
        arrived_at = time.monotonic()
        body = await whole_body(receive)
        message = read_json(body)
        headers = Headers(scope=scope)
        entry = entry_of(message.get("method"), message.get("params"), headers, arrived_at)
        self.log.append(entry)
        scope["entry"] = entry
        refusal = refused(scope["method"], message, headers)
        answered = watched(send, entry)
        if refusal is not None:
            await refusal(scope, receive, answered)
        else:
            await self.app(scope, replayed(body, receive), answered)


def refused(http_method: str, message: JSONObject, headers: Headers) -> Response | None:
    """The answer to what must not reach the SDK; ``None`` for everything else."""
    if http_method != "POST":
        return Response(status_code=405, headers={"Allow": "POST"})
    if headers.get("mcp-protocol-version") != VERSION and "id" in message:
        verdict = classify_inbound_request(message, headers=headers)
        if isinstance(verdict, InboundLadderRejection):
            return error_response(message, verdict.code, verdict.message, verdict.data)
    if message.get("method") in TASK_METHODS:
        task_id = message["params"].get("taskId") if isinstance(message.get("params"), dict) else None
        named = decode_header_value(headers.get("mcp-name"))
        if named is None or named != task_id:
            return error_response(message, HEADER_MISMATCH, "mcp-name header does not match params.taskId")
    return None


def error_response(message: JSONObject, code: int, text: str, data: object = None) -> Response:
    error = {"code": code, "message": text} | ({} if data is None else {"data": data})
    body = {"jsonrpc": "2.0", "id": message.get("id"), "error": error}
    return JSONResponse(body, status_code=ERROR_CODE_HTTP_STATUS[code])


def watched(send: Send, entry: Entry) -> Send:
    """A ``send`` that notes the answer, before it is sent: nobody can have it and miss its entry."""
    answer = bytearray()

    async def watch(message: Message) -> None:
        if message["type"] == "http.response.start":
            entry.http_status = message["status"]
        elif message["type"] == "http.response.body":
            answer.extend(message.get("body", b""))
            if not message.get("more_body", False):
                entry.error = (read_json(bytes(answer)).get("error") or {}).get("code")
                entry.answered_at = time.monotonic()
        await send(message)

    return watch


def read_json(body: bytes) -> JSONObject:
    """The object in ``body``; an empty one if there is something else."""
    try:
        message = json.loads(body)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def http_app(server: StrictServer) -> Starlette:
    """The server as an ASGI application with ``/mcp`` and ``/witness``."""

    async def witness(request: Request) -> JSONResponse:
        since = int(request.query_params.get("since", "0"))
        return JSONResponse([asdict(entry) for entry in server.log[since:]])

    async def count(request: Request) -> JSONResponse:
        return JSONResponse(len(server.log))

    routes = [Route("/witness", witness), Route("/witness/count", count)]
    app = server.streamable_http_app(custom_starlette_routes=routes)
    app.add_middleware(HttpGate, log=server.log)
    return app


def serve_http() -> None:
    import uvicorn  # not needed where the module is imported for build_server

    threading.Thread(target=die_with_parent, daemon=True).start()
    config = uvicorn.Config(http_app(build_server()), log_level="warning", lifespan="on")
    # With its protocol: asyncio sets TCP_NODELAY only where it is named, and every answer would wait 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        # It listens from here on; who connects before uvicorn runs waits in the backlog.
        host, port = listener.getsockname()[:2]
        print(json.dumps({"url": f"http://{host}:{port}/mcp"}), flush=True)
        uvicorn.Server(config).run(sockets=[listener])


def die_with_parent() -> None:
    """End the process when stdin does."""
    # os.read, as a thread inside sys.stdin holds a lock that the interpreter wants at its exit.
    while os.read(0, 4096):
        pass
    os._exit(0)  # there is nothing to save


async def serve_stdio() -> None:
    server = build_server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("transport", choices=["http", "stdio"])
    if parser.parse_args().transport == "http":
        serve_http()
    else:
        anyio.run(serve_stdio)


if __name__ == "__main__":
    main()
