"""A server of the generation before extensions (2025-11-25, core Tasks), on the SDK's last 1.x.

It cannot live where the tests do, as these have the SDK's 2.x: ``legacy_servers.py`` gives it an
environment of its own. ``legacy_node`` has the same tools, on the other official SDK.

- ``legacy_python.py http`` listens on a free loopback port and prints one line of JSON first,
  ``{"url": "http://127.0.0.1:PORT/mcp"}``. ``GET /witness`` gives all that arrived, see
  :class:`Witness`. It ends when its stdin closes, so that the death of the parent takes it along.
- ``legacy_python.py stdio`` speaks over stdin and stdout.

What the SDK does wrong would make a test depend on chance, and on the tests before it.
:class:`RecheckedStore`, :class:`TasksOfSession`, :func:`unless_over`, :func:`named_apart` and
:func:`unless_answered` keep that away, each of one kind; ``--as-shipped`` lets it be.
"""

from __future__ import annotations

import argparse
import contextvars
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

import anyio
import uvicorn
from anyio.abc import TaskGroup
from mcp import types
from mcp.server.experimental.task_context import ServerTaskContext
from mcp.server.experimental.task_support import TaskSupport
from mcp.server.lowlevel import Server
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import McpError
from mcp.shared.experimental.tasks.helpers import RELATED_TASK_METADATA_KEY, is_terminal
from mcp.shared.experimental.tasks.in_memory_task_store import InMemoryTaskStore
from mcp.shared.experimental.tasks.message_queue import InMemoryTaskMessageQueue, QueuedMessage
from mcp.shared.session import RequestResponder
from mcp.types import CallToolResult, CreateTaskResult, ServerRequest, Task, TaskMetadata
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

if not __package__:  # run as a script: Python has put this folder on its path, and not the repository
    sys.path[0] = str(Path(__file__).parents[2])

from tests.servers.announced import AnnouncedServer, die_with_parent, replayed, whole_body

JSONObject: TypeAlias = dict[str, Any]

NAME_FORM: Final = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
VERSION_FORM: Final = {
    "type": "object",
    "properties": {"version": {"type": "string"}},
    "required": ["version"],
}
COUNT: Final = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
MILLISECONDS: Final = {"type": "integer", "minimum": 0}
QUESTION: Final = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="2 + 2?"))
FINISHED_POLL_S: Final = 0.001


# ── tools ──


@dataclass(frozen=True, kw_only=True)
class Call:
    """A ``tools/call``, as the work of its task needs it."""

    arguments: Mapping[str, Any]
    session: ServerSession
    support: TaskSupport
    progress_token: str | int | None

    async def duration(self) -> None:
        await anyio.sleep(self.arguments.get("duration_ms", 50) / 1000)


Work: TypeAlias = Callable[[ServerTaskContext, Call], Awaitable[CallToolResult]]
Plainly: TypeAlias = Callable[[Call], Awaitable[CallToolResult]]
Cancel: TypeAlias = Callable[[RequestResponder[Any, Any]], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class LegacyTool:
    """A tool. Those that make tasks take ``duration_ms``, ``hint_ms`` and ``ttl_ms`` besides their own.

    Attributes:
        work: In a task; ``None`` if it makes none.
        plainly: Without a task; ``None`` if it needs one.
        properties: The schemas of its own arguments, none of which is needed.
        immediate: What the model is told at the creation of the task.
    """

    work: Work | None = None
    plainly: Plainly | None = None
    properties: JSONObject = field(default_factory=dict)
    output: JSONObject | None = None
    immediate: str | None = None

    @property
    def support(self) -> types.TaskExecutionMode | None:
        if self.work is None:
            return None
        return types.TASK_REQUIRED if self.plainly is None else types.TASK_OPTIONAL

    def declared(self, name: str) -> types.Tool:
        of_tasks = dict.fromkeys(("duration_ms", "hint_ms", "ttl_ms"), MILLISECONDS) if self.work else {}
        return types.Tool(
            name=name,
            inputSchema={"type": "object", "properties": {**of_tasks, **self.properties}},
            outputSchema=self.output,
            execution=types.ToolExecution(taskSupport=self.support) if self.support else None,
        )


def text(value: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[types.TextContent(type="text", text=value)], isError=is_error)


def structured(value: JSONObject) -> CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=json.dumps(value))]
    return CallToolResult(content=content, structuredContent=value)


def dumped(model: BaseModel) -> JSONObject:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


async def plain(call: Call) -> CallToolResult:
    return text("plain")


async def rest(call: Call) -> CallToolResult:
    await call.duration()
    return text("rested")


async def slow(task: ServerTaskContext, call: Call) -> CallToolResult:
    await task.update_status("resting")
    return await rest(call)


async def must(task: ServerTaskContext, call: Call) -> CallToolResult:
    await call.duration()
    return structured({"n": call.arguments.get("n", 1)})


async def fails(task: ServerTaskContext, call: Call) -> CallToolResult:
    how = call.arguments.get("how", "message")
    if how == "message":
        raise McpError(types.ErrorData(code=-32050, message="quota exceeded"))
    result = text("the tool said no", is_error=True)
    if how == "result":
        await call.support.store.store_result(task.task_id, result)
        await task.fail("the tool failed")
    return result


async def asks(task: ServerTaskContext, call: Call) -> CallToolResult:
    return text(f"Hello, {said(await task.elicit('What is your name?', NAME_FORM))}")


async def deploy(task: ServerTaskContext, call: Call) -> CallToolResult:
    """That of the tutorial, without the work."""
    service = call.arguments["service"]
    answer = await task.elicit(f"Which version of {service}?", VERSION_FORM)
    return text(f"{service} {said(answer, 'version')} is deployed")


async def asks_aside(task: ServerTaskContext, call: Call) -> CallToolResult:
    """Over the stream of the session, with the task's mark. Nobody is asked while there is no such stream."""
    meta = types.RequestParams.Meta(**{RELATED_TASK_METADATA_KEY: {"taskId": task.task_id}})  # type: ignore[arg-type]
    form = types.ElicitRequestFormParams(message="What is your name?", requestedSchema=NAME_FORM, _meta=meta)
    request = ServerRequest(types.ElicitRequest(params=form))
    return text(f"Hello, {said(await call.session.send_request(request, types.ElicitResult))}")


def said(answer: types.ElicitResult, key: str = "name") -> str:
    if answer.action == "accept":
        return str((answer.content or {})[key])
    return {"decline": "declined", "cancel": "cancelled"}[answer.action]


async def asks_twice(task: ServerTaskContext, call: Call) -> CallToolResult:
    names: dict[str, str] = {}

    async def ask(whose: str) -> None:
        named = "pet" if call.arguments.get("alike", False) else whose
        names[whose] = said(await task.elicit(f"What is the name of your {named}?", NAME_FORM))

    if call.arguments.get("together", True):
        async with anyio.create_task_group() as questions:
            questions.start_soon(ask, "cat")
            questions.start_soon(ask, "dog")
    else:
        await ask("cat")
        await call.duration()
        await ask("dog")
    return text(f"{names['cat']} and {names['dog']}")


async def asks_in_branches(task: ServerTaskContext, call: Call) -> CallToolResult:
    """Two that know nothing of each other: one asks twice, the other once, ``stagger_ms`` later."""
    names: dict[str, str] = {}

    async def ask(*kinds: str) -> None:
        for number, kind in enumerate(kinds):
            if number:
                await call.duration()
            names[kind] = said(await task.elicit(f"What is the name of your {kind}?", NAME_FORM))

    async with anyio.create_task_group() as branches:
        branches.start_soon(ask, "cat", "kitten")
        await anyio.sleep(call.arguments.get("stagger_ms", 0) / 1000)
        branches.start_soon(ask, "dog")
    return text(f"{names['cat']}, {names['kitten']} and {names['dog']}")


async def samples(task: ServerTaskContext, call: Call) -> CallToolResult:
    answer = await task.create_message([QUESTION], max_tokens=16)
    return text(model_said(answer))


def model_said(answer: types.CreateMessageResult) -> str:
    return answer.content.text if isinstance(answer.content, types.TextContent) else answer.content.type


async def progresses(task: ServerTaskContext, call: Call) -> CallToolResult:
    """Over the stream of the session, as the SDK sends it, or of ``tasks/result``, with the task's mark."""
    assert call.progress_token is not None, "who wants progress gives a token"
    for step in range(1, 4):
        await call.duration()
        if call.arguments.get("where", "session") == "session":
            await call.session.send_progress_notification(call.progress_token, step, 3, f"step {step}")
        else:
            await call.support.queue.enqueue(
                task.task_id, QueuedMessage("notification", progress(task, call, step))
            )
    return text("progressed")


def progress(task: ServerTaskContext, call: Call, step: int) -> types.JSONRPCNotification:
    params = {
        "progressToken": call.progress_token,
        "progress": step,
        "total": 3,
        "message": f"step {step}",
        "_meta": {RELATED_TASK_METADATA_KEY: {"taskId": task.task_id}},
    }
    return types.JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params=params)


async def crashes(task: ServerTaskContext, call: Call) -> CallToolResult:
    await call.duration()
    os._exit(1)


# ── the client as the one who has tasks ──


async def asks_as_task(call: Call) -> CallToolResult:
    params = types.ElicitRequestFormParams(
        message="What is your name?",
        requestedSchema=NAME_FORM,
        task=TaskMetadata(ttl=call.arguments.get("ttl_ms")),
    )
    return await follow(call, types.ElicitRequest(params=params), types.ElicitResult)


async def samples_as_task(call: Call) -> CallToolResult:
    params = types.CreateMessageRequestParams(
        messages=[QUESTION], maxTokens=16, task=TaskMetadata(ttl=call.arguments.get("ttl_ms"))
    )
    return await follow(call, types.CreateMessageRequest(params=params), types.CreateMessageResult)


async def follow(
    call: Call,
    request: types.ElicitRequest | types.CreateMessageRequest,
    result_type: type[types.ElicitResult] | type[types.CreateMessageResult],
) -> CallToolResult:
    """Have the client make a task, follow it to its end, and tell all that it said.

    The SDK's own ``elicit_as_task`` does the same, but never lists or cancels.
    """
    session = call.session
    created = (await session.send_request(ServerRequest(request), CreateTaskResult)).task
    told: JSONObject = {"created": dumped(created)}
    if call.arguments.get("list"):
        listed = await session.send_request(ServerRequest(types.ListTasksRequest()), types.ListTasksResult)
        told["listed"] = [dumped(task) for task in listed.tasks]
    if call.arguments.get("cancel"):
        params = types.CancelTaskRequestParams(taskId=created.taskId)
        cancel = ServerRequest(types.CancelTaskRequest(params=params))
        await tell(told, "cancelled", session.send_request(cancel, types.CancelTaskResult))
    told["polled"] = [task.status async for task in session.experimental.poll_task(created.taskId)]
    await tell(told, "result", session.experimental.get_task_result(created.taskId, result_type))
    return structured(told)


async def tell(told: JSONObject, what: str, reply: Awaitable[BaseModel]) -> None:
    try:
        told[what] = dumped(await reply)
    except McpError as refusal:
        told[f"{what}_error"] = dumped(refusal.error)


async def asks_as_task_inside(task: ServerTaskContext, call: Call) -> CallToolResult:
    answer = await task.elicit_as_task("What is your name?", NAME_FORM)
    return structured({"result": dumped(answer)})


async def samples_as_task_inside(task: ServerTaskContext, call: Call) -> CallToolResult:
    answer = await task.create_message_as_task([QUESTION], max_tokens=16)
    return structured({"result": dumped(answer)})


BOOLEAN: Final = {"type": "boolean"}
OF_FOLLOWED: Final = {"list": BOOLEAN, "cancel": BOOLEAN, "ttl_ms": {"type": "integer"}}
TOOLS: Final[Mapping[str, LegacyTool]] = {
    "plain": LegacyTool(plainly=plain),
    "slow": LegacyTool(work=slow, plainly=rest, properties={"finish_first": BOOLEAN}),
    "must": LegacyTool(work=must, properties={"n": {"type": "integer"}}, output=COUNT),
    "fails": LegacyTool(work=fails, properties={"how": {"enum": ["message", "result", "completed"]}}),
    "asks": LegacyTool(work=asks),
    "asks_aside": LegacyTool(work=asks_aside),
    "deploy": LegacyTool(work=deploy, properties={"service": {"type": "string"}}),
    "asks_twice": LegacyTool(work=asks_twice, properties={"together": BOOLEAN, "alike": BOOLEAN}),
    "asks_in_branches": LegacyTool(work=asks_in_branches, properties={"stagger_ms": MILLISECONDS}),
    "samples": LegacyTool(work=samples),
    "progresses": LegacyTool(work=progresses, properties={"where": {"enum": ["session", "result"]}}),
    "immediate": LegacyTool(work=slow, immediate="Started; the result comes later."),
    "crashes": LegacyTool(work=crashes),
    "asks_as_task": LegacyTool(plainly=asks_as_task, properties=OF_FOLLOWED),
    "samples_as_task": LegacyTool(plainly=samples_as_task, properties=OF_FOLLOWED),
    "asks_as_task_inside": LegacyTool(work=asks_as_task_inside),
    "samples_as_task_inside": LegacyTool(work=samples_as_task_inside),
}


# ── tasks ──


class HintedStore(InMemoryTaskStore):
    """Hints at an interval between polls, and lets a tool say otherwise. The SDK's own says 500 ms."""

    def __init__(self, poll_interval_ms: int) -> None:
        super().__init__()
        self.poll_interval_ms = poll_interval_ms
        self.wishes: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar("wishes")

    async def create_task(self, metadata: TaskMetadata, task_id: str | None = None) -> Task:
        wishes = self.wishes.get()
        task = await super().create_task(TaskMetadata(ttl=wishes.get("ttl_ms", metadata.ttl)), task_id)
        self._tasks[task.taskId].task.pollInterval = wishes.get("hint_ms", self.poll_interval_ms)
        return Task(**self._tasks[task.taskId].task.model_dump())


class RecheckedStore(HintedStore):
    """Whoever waits for a task looks at it again from time to time, as on Node.

    With the SDK's own, ``tasks/result`` may never answer: it misses what happens between a look and
    the wait, has one waiter per task (a second one takes the place of the first), and hears nothing
    of a task that is forgotten.
    """

    async def wait_for_update(self, task_id: str) -> None:
        await anyio.sleep(self.poll_interval_ms / 1000)


GROUP: Final[contextvars.ContextVar[TaskGroup]] = contextvars.ContextVar("tasks of the session")


class TasksOfSession(TaskSupport):
    """Each session has its own running tasks.

    The SDK keeps one group of them for all sessions: the latest session's, and none at all once any
    session has ended, after which "TaskSupport not running" is all that a task-augmented call gets.
    """

    @property
    def task_group(self) -> TaskGroup:
        return GROUP.get()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            GROUP.set(group)
            yield
            group.cancel_scope.cancel()


def unless_over(work: Work, call: Call) -> Callable[[ServerTaskContext], Awaitable[CallToolResult]]:
    """Work whose end nobody hears of, if the task was cancelled or forgotten meanwhile.

    The SDK would complete the task nevertheless, fail to, fail to note that, and close the session.
    """

    async def never_if_over(task: ServerTaskContext) -> None:
        state = await call.support.store.get_task(task.task_id)
        if state is None or is_terminal(state.status):
            await anyio.sleep_forever()

    async def careful(task: ServerTaskContext) -> CallToolResult:
        try:
            result = await work(task, call)
        except Exception:
            await never_if_over(task)
            raise
        await never_if_over(task)
        return result

    return careful


OPEN: Final[WeakValueDictionary[types.RequestId, types.JSONRPCRequest]] = WeakValueDictionary()


def named_apart(build: Callable[..., types.JSONRPCRequest]) -> Callable[..., types.JSONRPCRequest]:
    """What builds a task's questions, so that no two have one ID while both are open.

    The SDK names a question by an address in memory, which is free again at once. Of two with one ID, the
    second one gets both answers.
    """

    def built(*args: Any, **options: Any) -> types.JSONRPCRequest:
        request = build(*args, **options)
        while request.id in OPEN:
            request.id = f"{request.id}'"
        OPEN[request.id] = request  # which whoever waits for its answer has as well
        return request

    return built


def unless_answered(cancel: Cancel) -> Cancel:
    """The cancellation of a request, which does nothing once the request is being answered.

    The SDK would cut off the answer, and end the session by that.
    """

    async def careful(request: RequestResponder[Any, Any]) -> None:
        if not request._completed:
            await cancel(request)

    return careful


async def finished(call: Call, created: CreateTaskResult) -> CreateTaskResult:
    """The creation of a task, told once there is nothing left to do."""
    while (task := await call.support.store.get_task(created.task.taskId)) and not is_terminal(task.status):
        await anyio.sleep(FINISHED_POLL_S)
    return CreateTaskResult(task=task or created.task)


def build(poll_interval_ms: int, *, as_shipped: bool) -> Server[Any, Any]:
    server: Server[Any, Any] = Server("legacy-python", version="1")
    store = HintedStore(poll_interval_ms) if as_shipped else RecheckedStore(poll_interval_ms)
    support = server.experimental.enable_tasks(store=store)
    if not as_shipped:
        support = TasksOfSession(store=store, queue=InMemoryTaskMessageQueue())
        server.experimental._task_support = support
        for request in (
            types.GetTaskRequest,
            types.GetTaskPayloadRequest,
            types.ListTasksRequest,
            types.CancelTaskRequest,
        ):
            del server.request_handlers[request]  # they have the other one
        server.experimental._register_default_task_handlers()
        for name in ("_build_elicit_form_request", "_build_create_message_request"):
            setattr(ServerSession, name, named_apart(getattr(ServerSession, name)))
        RequestResponder.cancel = unless_answered(RequestResponder.cancel)  # type: ignore[method-assign]

    @server.list_tools()
    async def list_tools() -> list[types.Tool]:
        return [tool.declared(name) for name, tool in TOOLS.items()]

    @server.call_tool()
    async def call_tool(name: str, arguments: JSONObject) -> CallToolResult | CreateTaskResult:
        tool, context = TOOLS[name], server.request_context
        token = context.meta.progressToken if context.meta else None
        call = Call(arguments=arguments, session=context.session, support=support, progress_token=token)
        context.experimental.validate_task_mode(tool.support)
        if not context.experimental.is_task:
            assert tool.plainly is not None
            return await tool.plainly(call)
        assert tool.work is not None
        store.wishes.set(arguments)
        work = partial(tool.work, call=call) if as_shipped else unless_over(tool.work, call)
        created = await context.experimental.run_task(work, model_immediate_response=tool.immediate)
        return await finished(call, created) if arguments.get("finish_first") else created

    return server


# ── transports ──


class Witness:
    """ASGI middleware that writes down each request to ``/mcp``, and each message that it brought.

    An entry holds ``verb``, ``at`` (``time.monotonic()`` seconds, which processes of one Linux
    share), ``session_id``, ``http_status`` (null while there is no answer), and of the message,
    which a GET and a DELETE have not: ``method``, ``id``, ``params``, ``result``, ``error``.
    """

    def __init__(self, app: ASGIApp, entries: list[JSONObject]) -> None:
        self.app = app
        self.entries = entries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/mcp":
            await self.app(scope, receive, send)
            return
        at = time.monotonic()
        body = await whole_body(receive)
        entry = seen(scope, body, at)
        self.entries.append(entry)

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry["http_status"] = message["status"]
            await send(message)

        await self.app(scope, replayed(body, receive), watch)


def seen(scope: Scope, body: bytes, at: float) -> JSONObject:
    try:
        message = json.loads(body)
    except ValueError:
        message = None
    message = message if isinstance(message, dict) else {}
    session_id = dict(scope["headers"]).get(b"mcp-session-id")
    return {
        "verb": scope["method"],
        "at": at,
        "session_id": session_id and session_id.decode("latin-1"),
        "http_status": None,
        **{key: message.get(key) for key in ("method", "id", "params", "result", "error")},
    }


class Endpoint:
    """The manager as an ASGI application: Starlette takes a function for a handler of requests."""

    def __init__(self, manager: StreamableHTTPSessionManager) -> None:
        self.manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.manager.handle_request(scope, receive, send)


def serve_http(server: Server[Any, Any], *, json_response: bool) -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    manager = StreamableHTTPSessionManager(server, json_response=json_response)
    entries: list[JSONObject] = []

    async def witness(request: Request) -> JSONResponse:
        return JSONResponse(entries)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    app = Starlette(
        routes=[Route("/witness", witness), Route("/mcp", Endpoint(manager))],
        middleware=[Middleware(Witness, entries=entries)],
        lifespan=lifespan,
    )
    AnnouncedServer(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="on")).run()


async def serve_stdio(server: Server[Any, Any]) -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("transport", choices=["http", "stdio"])
    parser.add_argument("--poll-interval-ms", type=int, default=50, help="hint of every task (default: 50)")
    parser.add_argument("--json-response", action="store_true", help="answer in JSON, not in event streams")
    parser.add_argument("--as-shipped", action="store_true", help="with the SDK's faults")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)  # tasks as they were are what this server is for
    server = build(arguments.poll_interval_ms, as_shipped=arguments.as_shipped)
    if arguments.transport == "http":
        serve_http(server, json_response=arguments.json_response)
    else:
        anyio.run(serve_stdio, server)


if __name__ == "__main__":
    main()
