"""A real FastMCP server with the Tasks extension, for the tests to talk to over HTTP, or over stdio.

Run as a script, in a process of its own. It listens on a free loopback port and, once it
accepts requests, prints one line of JSON on stdout: ``{"url": "http://127.0.0.1:PORT/mcp"}``.
It ends at once when its stdin closes, so that the death of the parent takes it along, and on
SIGTERM. Tasks live in its memory.

``GET /witness`` gives every MCP request so far as a JSON list, oldest first; see :class:`Witness`.
``?method=``, ``?task_id=`` and ``?since=`` give some of them, and ``/witness/count`` says how many there are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import mcp_types
import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.extensions import ToolCallContinuation, ToolCallOutcome
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp import MCPError
from mcp_types import InputRequiredResult
from pydantic import BaseModel, Field
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

if not __package__:  # run as a script: Python has put this folder on its path, and not the repository
    sys.path[0] = str(Path(__file__).parents[2])

from tests.servers.announced import AnnouncedServer, die_with_parent, replayed, whole_body


class City(BaseModel):
    """What ``typed`` returns."""

    name: str
    inhabitants: int


class Witness:
    """ASGI middleware that writes down each MCP request with its time.

    An entry holds:

    - ``method``, and ``subject``: the tool's name for ``tools/call``, the task ID for ``tasks/*``;
    - ``at`` and ``answered_at``: ``time.monotonic()`` seconds, which Linux and macOS share
      between processes; ``answered_at`` is null while there is no answer;
    - ``mcp_method``, ``mcp_name``, and ``mcp_params`` (the ``Mcp-Param-*`` ones by lower-case
      name): headers as they came;
    - ``meta``: ``params._meta``, and ``input_keys``: the keys of ``params.inputResponses``;
    - ``http_status``, and ``task_id``: the task that a ``tools/call`` created, else null.
    """

    def __init__(self, app: ASGIApp, entries: list[dict[str, Any]]) -> None:
        self.app = app
        self.entries = entries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        arrived_at = time.monotonic()
        body = await whole_body(receive)
        entry = seen(body, scope["headers"], arrived_at)
        self.entries.append(entry)
        answer = bytearray()

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry["http_status"] = message["status"]
            elif message["type"] == "http.response.body":
                answer.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    # Set before it is sent, so that nobody can have the answer and miss its entry.
                    entry["task_id"] = created_task_id(answer)
                    entry["answered_at"] = time.monotonic()
            await send(message)

        await self.app(scope, replayed(body, receive), watch)


def seen(body: bytes, raw_headers: list[tuple[bytes, bytes]], at: float) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except ValueError:
        message = None
    message = message if isinstance(message, dict) else {}
    params = message.get("params") or {}
    headers = {name.decode(): value.decode("latin-1") for name, value in raw_headers}
    return {
        "method": message.get("method"),
        "subject": params.get("taskId", params.get("name")),
        "at": at,
        "answered_at": None,
        "mcp_method": headers.get("mcp-method"),
        "mcp_name": headers.get("mcp-name"),
        "mcp_params": {name: value for name, value in headers.items() if name.startswith("mcp-param-")},
        "meta": params.get("_meta"),
        "input_keys": sorted(params.get("inputResponses") or {}),
        "http_status": None,
        "task_id": None,
    }


def created_task_id(answer: bytearray) -> str | None:
    try:
        result = json.loads(answer)["result"]
    except (ValueError, KeyError):  # an event stream, an error, nothing: no task in any of them
        return None
    return result.get("taskId") if result.get("resultType") == "task" else None


class AskFirst(TasksExtension):
    """Adds a multi round-trip before the task of ``ask_then_task``.

    FastMCP itself makes a task of the first call, and asks from inside it.
    """

    async def intercept_tool_call(
        self, params: mcp_types.CallToolRequestParams, context: Context, call_next: ToolCallContinuation
    ) -> ToolCallOutcome:
        if params.name == "ask_then_task" and not context.input_responses:
            return form({"name": "What is your name?"}, state="asked-first")
        return await super().intercept_tool_call(params, context, call_next)


def form(questions: dict[str, str], *, state: str | None = None) -> InputRequiredResult:
    """Ask for one required text per key."""
    return InputRequiredResult(
        input_requests={
            key: mcp_types.ElicitRequest(
                params=mcp_types.ElicitRequestFormParams(
                    message=message,
                    requested_schema={
                        "type": "object",
                        "properties": {key: {"type": "string"}},
                        "required": [key],
                    },
                )
            )
            for key, message in questions.items()
        },
        request_state=state,
    )


EACH_KIND: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "title": "Your name"},
        "email": {"type": "string", "format": "email"},
        "born": {"type": "string", "format": "date"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "height": {"type": "number", "default": 1.75},
        "news": {"type": "boolean", "default": True},
        "colour": {"type": "string", "enum": ["red", "green"]},
        "size": {
            "type": "string",
            "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}],
        },
        "days": {
            "type": "array",
            "items": {"type": "string", "enum": ["mo", "tu", "we"]},
            "minItems": 1,
            "maxItems": 2,
        },
        "note": {"type": "string"},
    },
    "required": ["name", "email", "born", "age", "height", "news", "colour", "size", "days"],
}
"""A form with a field of each kind."""


def reply(context: Context, key: str) -> str:
    """The text that was entered under a key, or ``declined`` or ``cancelled``."""
    answer = (context.input_responses or {})[key]
    assert isinstance(answer, mcp_types.ElicitResult)
    if answer.action == "accept":
        return str((answer.content or {})[key])
    return {"decline": "declined", "cancel": "cancelled"}[answer.action]


def build(poll_interval_ms: int, entries: list[dict[str, Any]], *, makes_tasks: bool = True) -> FastMCP:
    mcp = FastMCP("real-tasks-server", version="1")
    optional = required = TaskConfig(mode="forbidden")
    if makes_tasks:
        # Docket's default of 10 running tasks would let one test's long tasks hold up another's.
        mcp.add_extension(AskFirst(url="memory://", concurrency=500))
        interval = timedelta(milliseconds=poll_interval_ms)
        optional = TaskConfig(mode="optional", poll_interval=interval)
        required = TaskConfig(mode="required", poll_interval=interval)

    @mcp.custom_route("/witness", methods=["GET"])
    async def witness(request: Request) -> JSONResponse:
        asked = request.query_params
        task_id, method = asked.get("task_id"), asked.get("method")
        return JSONResponse(
            [
                entry
                for entry in entries[int(asked.get("since", 0)) :]
                if method in (None, entry["method"]) and task_id in (None, entry["subject"], entry["task_id"])
            ]
        )

    @mcp.custom_route("/witness/count", methods=["GET"])
    async def count(request: Request) -> JSONResponse:
        return JSONResponse(len(entries))

    add_working_tools(mcp, optional, required)
    add_asking_tools(mcp, optional, required)
    add_failing_tools(mcp, optional)
    return mcp


def add_working_tools(mcp: FastMCP, optional: TaskConfig, required: TaskConfig) -> None:
    runs_by_token: Counter[str] = Counter()

    @mcp.tool(task=optional)
    async def fast(x: int = 1) -> int:
        return x

    @mcp.tool
    async def plain(x: int = 1) -> int:
        return x

    @mcp.tool(task=required)
    async def must_task(n: int = 1) -> int:
        return n

    @mcp.tool(task=optional)
    async def slow(context: Context, seconds: float = 1.0) -> str:
        for step in range(1, 5):
            await context.report_progress(step, 4, f"step {step} of 4")
            await asyncio.sleep(seconds / 4)
        return "rested"

    @mcp.tool(task=optional)
    async def cancelable(seconds: float = 60.0) -> str:
        await asyncio.sleep(seconds)
        return "was not cancelled"

    @mcp.tool(task=optional)
    async def typed(name: str = "Bern") -> City:
        return City(name=name, inhabitants=137_000)

    @mcp.tool(task=optional)
    async def count(token: str, seconds: float = 0.0) -> int:
        runs_by_token[token] += 1
        await asyncio.sleep(seconds)
        return runs_by_token[token]

    @mcp.tool
    async def nap(token: str, seconds: float) -> str:
        runs_by_token[token] += 1
        await asyncio.sleep(seconds)
        return "rested"

    @mcp.tool
    async def runs(token: str) -> int:
        return runs_by_token[token]

    @mcp.tool(task=optional)
    async def routed(
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})], load: int = 1
    ) -> str:
        return f"{load} to {region}"


def add_asking_tools(mcp: FastMCP, optional: TaskConfig, required: TaskConfig) -> None:
    # A tool asks by returning, and runs again from its top once everything is answered
    # (``Context.elicit`` is refused inside a task). ``input_responses`` holds the last round only.

    @mcp.tool(task=optional)
    async def ask_name(context: Context, seconds: float = 0.0) -> str | InputRequiredResult:
        asked = context.input_responses is not None
        await context.report_progress(int(asked), 2, "greeting" if asked else "thinking of a question")
        await asyncio.sleep(seconds)
        return f"Hello, {reply(context, 'name')}" if asked else form({"name": "What is your name?"})

    @mcp.tool(task=optional)
    async def deploy(context: Context, service: str) -> str | InputRequiredResult:
        """That of the tutorial, without the work."""
        if context.input_responses is None:
            return form({"version": f"Which version of {service}?"})
        return f"{service} {reply(context, 'version')} is deployed"

    @mcp.tool(task=optional)
    async def ask_many(context: Context) -> str | InputRequiredResult:
        if context.input_responses is None:
            return form({"colour": "Which colour?", "size": "Which size?"})
        if context.request_state is None:
            chosen = f"{reply(context, 'size')} and {reply(context, 'colour')}"
            return form({"sure": f"Really {chosen}?"}, state=chosen)
        return f"{context.request_state}: {reply(context, 'sure')}"

    @mcp.tool(task=optional)
    async def ask_model_and_roots(context: Context) -> str | InputRequiredResult:
        if context.input_responses is None:
            question = mcp_types.SamplingMessage(
                role="user", content=mcp_types.TextContent(type="text", text="2 + 2?")
            )
            sampling = mcp_types.CreateMessageRequestParams(messages=[question], max_tokens=16)
            return InputRequiredResult(
                input_requests={
                    "model": mcp_types.CreateMessageRequest(params=sampling),
                    "roots": mcp_types.ListRootsRequest(),
                }
            )
        said, roots = context.input_responses["model"], context.input_responses["roots"]
        assert isinstance(said, mcp_types.CreateMessageResult)
        assert isinstance(said.content, mcp_types.TextContent)
        assert isinstance(roots, mcp_types.ListRootsResult)
        return f"{said.content.text} in {', '.join(str(root.uri) for root in roots.roots)}"

    @mcp.tool(task=optional)
    async def register(context: Context) -> str | InputRequiredResult:
        """Asks for a value of each kind, and tells what it was answered."""
        if context.input_responses is None:
            params = mcp_types.ElicitRequestFormParams(message="Who are you?", requested_schema=EACH_KIND)
            return InputRequiredResult(input_requests={"who": mcp_types.ElicitRequest(params=params)})
        answer = context.input_responses["who"]
        assert isinstance(answer, mcp_types.ElicitResult)
        return json.dumps({"action": answer.action, **(answer.content or {})}, sort_keys=True)

    @mcp.tool(task=optional)
    async def ask_url(context: Context) -> str | InputRequiredResult:
        if context.input_responses is None:
            params = mcp_types.ElicitRequestURLParams(
                message="Please sign in", url="http://127.0.0.1:9/sign-in", elicitation_id="sign-in-1"
            )
            return InputRequiredResult(input_requests={"url": mcp_types.ElicitRequest(params=params)})
        answer = context.input_responses["url"]
        assert isinstance(answer, mcp_types.ElicitResult)
        return answer.action

    @mcp.tool
    async def ask_plainly(context: Context, item: str = "tea") -> str | InputRequiredResult:
        if context.input_responses is None:
            return form({"amount": f"How much {item}?"}, state=f"item:{item}")
        return f"{reply(context, 'amount')} of {context.request_state}"

    @mcp.tool(task=required)
    async def ask_then_task(item: str = "tea") -> str:
        return f"{item}, after a question"


def add_failing_tools(mcp: FastMCP, optional: TaskConfig) -> None:
    @mcp.tool(task=optional)
    async def fail_tool() -> str:
        raise ToolError("the tool said no")

    @mcp.tool(task=optional)
    async def fail_rpc() -> str:
        raise MCPError(code=-32050, message="quota exceeded", data={"retryAfter": 7})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--poll-interval-ms", type=int, default=50, help="hint of every task (default: 50)")
    parser.add_argument("--stdio", action="store_true", help="speak over stdin and stdout instead")
    parser.add_argument("--no-tasks", action="store_true", help="without the extension")
    arguments = parser.parse_args()

    if arguments.stdio:
        build(arguments.poll_interval_ms, []).run("stdio", show_banner=False)
        return

    threading.Thread(target=die_with_parent, daemon=True).start()
    entries: list[dict[str, Any]] = []
    app = build(arguments.poll_interval_ms, entries, makes_tasks=not arguments.no_tasks).http_app(
        middleware=[Middleware(Witness, entries=entries)]
    )
    AnnouncedServer(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="on")).run()


if __name__ == "__main__":
    main()
