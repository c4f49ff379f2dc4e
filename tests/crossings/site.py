"""A server of either version, which can be upgraded while it runs, and knows whose each request is.

It has two tools: ``work``, whose calls become tasks that end when the test says so, and ``plain``, which
answers at once. A task asks for its user's name first if the cell has questions. Each reply about a call has
the name of the call's user in it, and so has the output schema: a mix-up shows.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import uvicorn

__all__ = ["LIMIT_S", "Site", "Sites", "answer_of", "question_of", "result_of", "serving", "user_of"]

LIMIT_S: Final = 60.0
JSONObject: TypeAlias = dict[str, Any]

NEWER, OLDER = "2026-07-28", "2025-11-25"
EXTENSION: Final = "io.modelcontextprotocol/tasks"
DONE: Final[JSONObject] = {"resultType": "complete"}
HINT_MS: Final = 20
METHOD_NOT_FOUND, INVALID_PARAMS, UNSUPPORTED, NOT_DECLARED = -32601, -32602, -32022, -32021
CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"


def user_of(n: int) -> str:
    """Whose call it is that has this argument."""
    return "ada" if n < 100 else "bob"


def result_of(n: int) -> JSONObject:
    """What the tool makes of its argument."""
    said = [{"type": "text", "text": f"{n} for {user_of(n)}"}]
    return {
        "content": said,
        "structuredContent": {user_of(n): n},
        "isError": False,
        "_meta": {"own": [None, n]},
    }


def question_of(n: int) -> str:
    """The message of the form that the task of a call shows."""
    return f"Who are you, {user_of(n)}? ({n})"


def answer_of(n: int) -> JSONObject:
    """The one answer that the task of a call is to get."""
    return {"action": "accept", "content": {"name": user_of(n)}}


def _form_of(n: int) -> JSONObject:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    params = {"mode": "form", "message": question_of(n), "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


class Refused(Exception):  # noqa: N818  # an answer
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}
        self.status = status


@dataclass(slots=True)
class Task:
    """A task.

    Attributes:
        waits: Whether its question is open.
        is_asking: Whether a stream carries that question, at 2025-11-25.
    """

    task_id: str
    n: int
    session: str | None
    waits: bool
    is_asking: bool = False


class Site:
    """One server.

    Attributes:
        version: Which it speaks.
        has_sessions: Whether it hands out an ``Mcp-Session-Id``, at 2025-11-25.
        asks: Whether each task asks for a name before it works.
        tokens: The credentials that it takes, and whose they are.
        done: Whether the tasks are over.
        withheld: Arguments of the calls that it does not answer yet.
        runs: How often the tool has run, by its argument.
        answers: What the question of a task was answered with, by the argument of its call.
        polls: How often its task was asked for.
        refused: How often it has refused a credential, by that.
        seen: All that has arrived, as text.
        crossed: What came under the name of another.
    """

    def __init__(
        self, url: str, loop: asyncio.AbstractEventLoop, version: str, *, has_sessions: bool, asks: bool
    ) -> None:
        self.url = url
        self.version = version
        self.has_sessions = has_sessions
        self.asks = asks
        self.tokens = {"ada-1": "ada", "bob-1": "bob"}
        self.done = False
        self.withheld: set[int] = set()
        self.runs: Counter[int] = Counter()
        self.answers: defaultdict[int, list[JSONObject]] = defaultdict(list)
        self.polls: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()
        self.seen: list[str] = []
        self.crossed: list[str] = []
        self._sessions: dict[str, str] = {}
        self._tasks: dict[str, Task] = {}
        self._asked: dict[str, Task] = {}
        self._ids = itertools.count(1)
        self._loop = loop
        self._news = asyncio.Event()
        self._change = threading.Condition()

    # ── for the test ──

    def set(self, **attributes: Any) -> None:
        """Change the server, and return when it is."""
        done = threading.Event()

        def apply() -> None:
            for name, value in attributes.items():
                setattr(self, name, value)
            self._tell()
            done.set()

        self._loop.call_soon_threadsafe(apply)
        assert done.wait(LIMIT_S)

    def wait_until(self, holds: Callable[[], Any]) -> None:
        """Return when something holds, of the server or of a host."""
        end = time.monotonic() + LIMIT_S
        with self._change:
            while not holds():
                assert time.monotonic() < end, (self.runs, self.refused, self.seen[-20:])
                self._change.wait(0.05)  # a host does not tell

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
        with self._change:
            self._change.notify_all()

    # ── one request ──

    async def answer(
        self, verb: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, JSONObject | AsyncGenerator[JSONObject, None] | None, dict[str, str]]:
        """Status, body and headers of the response. The body of an event stream is its messages."""
        self.seen.append(f"{headers} {body.decode()}")
        token = headers.get("authorization", "").removeprefix("Bearer ")
        user = self.tokens.get(token)
        if user is None:
            self.refused[token] += 1
            self._tell()
            return 401, {"error": f"not you, {token.partition('-')[0]}"}, {}
        if verb != "POST":
            return (200 if verb == "DELETE" else 405), None, {}
        message = json.loads(body)
        try:
            if "method" not in message or "id" not in message:
                if "result" in message:
                    self._hear(user, self._asked[message["id"]], message["result"])
                return 202, None, {}
            reply, more = await self._reply(user, headers, message["method"], message.get("params") or {})
            if isinstance(reply, Task):
                return 200, self._tell_result(reply, message["id"]), {}
        except Refused as refused:
            return refused.status, {"jsonrpc": "2.0", "id": message["id"], "error": refused.error}, {}
        finally:
            self._tell()
        return 200, {"jsonrpc": "2.0", "id": message["id"], "result": reply}, more

    async def _reply(
        self, user: str, headers: dict[str, str], method: str, params: JSONObject
    ) -> tuple[JSONObject | Task, dict[str, str]]:
        if self.version == NEWER:
            if headers.get("mcp-protocol-version") != NEWER:
                raise Refused(UNSUPPORTED, "Unsupported protocol version")
            if "requestState" in params:
                self.crossed.append(f"{method} with a requestState, which this server hands out to nobody")
            return await self._newer(user, method, params), {}
        if headers.get("mcp-protocol-version", OLDER) != OLDER:
            raise Refused(UNSUPPORTED, "Unsupported protocol version")
        session = headers.get("mcp-session-id")
        if method == "initialize":
            more = {}
            if self.has_sessions:
                session = f"session-{next(self._ids)}-of-{user}"
                self._sessions[session] = user
                more = {"mcp-session-id": session}
            tasks = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
            return {
                "protocolVersion": OLDER,
                "capabilities": {"tools": {}, "tasks": tasks},
                "serverInfo": {"name": "site", "version": "1"},
            }, more
        if self.has_sessions and self._sessions.get(session or "") != user:
            if session in self._sessions:
                self.crossed.append(f"{method} of {user} in {session}")
            raise Refused(-32600, "no such session", 404)
        return await self._older(user, session, method, params), {}

    async def _newer(self, user: str, method: str, params: JSONObject) -> JSONObject:
        match method:
            case "server/discover":
                able = {"tools": {}, "extensions": {EXTENSION: {}}}
                return DONE | _private(supportedVersions=[NEWER], capabilities=able)
            case "tools/list":
                return DONE | _private(tools=_tools(user))
            case "tools/call" if params["name"] == "plain":
                return DONE | self._answer(user, params)
            case "tools/call":
                if self.asks and "elicitation" not in params["_meta"][CAPABILITIES]:
                    raise Refused(NOT_DECLARED, "the call declares no elicitation")
                task = await self._run(user, params, None)
                return {"resultType": "task", **self._state(task, "ttlMs", "pollIntervalMs")}
            case "tasks/get":
                task = self._find(user, params, None)
                state = DONE | self._state(task, "ttlMs", "pollIntervalMs")
                if task.waits:
                    return state | {"inputRequests": {"name": _form_of(task.n)}}
                return state | ({"result": DONE | result_of(task.n)} if self.done else {})
            case "tasks/update":
                self._hear(user, self._find(user, params, None), params["inputResponses"]["name"])
                return DONE
            case "tasks/cancel":
                self._find(user, params, None)
                return DONE
        raise Refused(METHOD_NOT_FOUND, f"no {method}", 404)

    async def _older(
        self, user: str, session: str | None, method: str, params: JSONObject
    ) -> JSONObject | Task:
        match method:
            case "ping":
                return {}
            case "tools/list":
                support = {"work": "required", "plain": "forbidden"}
                tools = [
                    tool | {"execution": {"taskSupport": support[tool["name"]]}} for tool in _tools(user)
                ]
                return {"tools": tools}
            case "tools/call" if params["name"] == "plain":
                return self._answer(user, params)
            case "tools/call":
                if "task" not in params:
                    raise Refused(METHOD_NOT_FOUND, "the tool requires a task", 200)
                task = await self._run(user, params, session)
                return {"task": self._state(task, "ttl", "pollInterval")}
            case "tasks/get" | "tasks/cancel":
                return self._state(self._find(user, params, session), "ttl", "pollInterval")
            case "tasks/result":
                return self._find(user, params, session)
        raise Refused(METHOD_NOT_FOUND, f"no {method}", 200)

    async def _tell_result(self, task: Task, request_id: Any) -> AsyncGenerator[JSONObject, None]:
        """Ask the question of a task if no other stream does, and send its result in the end."""
        mark = {"io.modelcontextprotocol/related-task": {"taskId": task.task_id}}
        while task.waits:
            if task.is_asking:
                await self._until(lambda: not (task.waits and task.is_asking))
                continue
            task.is_asking, own_id = True, f"question-{next(self._ids)}"
            self._asked[own_id] = task
            form = _form_of(task.n)
            try:
                yield {"jsonrpc": "2.0", "id": own_id, **form, "params": form["params"] | {"_meta": mark}}
                await self._until(lambda: not task.waits)
            finally:
                task.is_asking = False
                self._tell()
        await self._until(lambda: self.done)
        result = result_of(task.n)
        yield {"jsonrpc": "2.0", "id": request_id, "result": result | {"_meta": result["_meta"] | mark}}

    def _hear(self, user: str, task: Task, answer: JSONObject) -> None:
        if user_of(task.n) != user:
            self.crossed.append(f"an answer of {user} to a question of {user_of(task.n)}")
        task.waits = False
        self.answers[task.n].append({name: answer[name] for name in ("action", "content")})
        self._tell()

    def _answer(self, user: str, params: JSONObject) -> JSONObject:
        return result_of(self._note_run(user, params))

    def _note_run(self, user: str, params: JSONObject) -> int:
        n: int = params["arguments"]["n"]
        if user_of(n) != user:
            self.crossed.append(f"a call of {user_of(n)} under the credential of {user}")
        self.runs[n] += 1
        return n

    async def _run(self, user: str, params: JSONObject, session: str | None) -> Task:
        n = self._note_run(user, params)
        task = Task(f"task-{next(self._ids)}-of-{user}", n, session, waits=self.asks)
        self._tasks[task.task_id] = task
        self._tell()
        await self._until(lambda: n not in self.withheld)
        return task

    def _find(self, user: str, params: JSONObject, session: str | None) -> Task:
        task = self._tasks.get(params["taskId"])
        if task is None:
            raise Refused(INVALID_PARAMS, "no such task", 200)
        if user_of(task.n) != user:
            self.crossed.append(f"{user} asks for {task.task_id}")
            raise Refused(INVALID_PARAMS, "no such task", 200)
        if task.session != session:
            raise Refused(INVALID_PARAMS, "no such task in this session", 200)
        self.polls[task.n] += 1
        return task

    def _state(self, task: Task, ttl: str, hint: str) -> JSONObject:
        return {
            "taskId": task.task_id,
            "status": "input_required" if task.waits else "completed" if self.done else "working",
            "createdAt": "2026-07-28T00:00:00Z",
            "lastUpdatedAt": "2026-07-28T00:00:00Z",
            ttl: 3_600_000,
            hint: HINT_MS,
        }

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._news.wait()


def _private(**members: Any) -> JSONObject:
    return {"ttlMs": 0, "cacheScope": "private", **members}


def _tools(user: str) -> list[JSONObject]:
    schemas = {
        "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "outputSchema": {"type": "object", "properties": {user: {"type": "integer"}}, "required": [user]},
    }
    return [{"name": name, **schemas} for name in ("work", "plain")]


class Sites:
    """The application: any number of servers, each at a path of its own."""

    def __init__(self) -> None:
        self._sites: dict[str, Site] = {}
        self.server: uvicorn.Server | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.started = threading.Event()

    def add(self, version: str, **options: bool) -> Site:
        """A new server."""
        assert self.server is not None
        assert self.loop is not None
        port = self.server.servers[0].sockets[0].getsockname()[1]
        path = f"/{len(self._sites)}/mcp"
        site = Site(f"http://127.0.0.1:{port}{path}", self.loop, version, **options)
        self._sites[path] = site
        return site

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        site = self._sites[scope["path"]]
        work = asyncio.ensure_future(_respond(site.answer(scope["method"], headers, body), send))
        gone = asyncio.ensure_future(receive())
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not work.done():
            work.cancel()
            return
        work.result()


async def _respond(answer: Awaitable[Any], send: Callable[[Any], Awaitable[None]]) -> None:
    status, reply, given = await answer
    if isinstance(reply, AsyncGenerator):
        await send(_head(status, {"content-type": "text/event-stream"}))
        async with aclosing(reply) as messages:
            async for message in messages:
                data = f"data: {json.dumps(message)}\n\n".encode()
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    content = json.dumps(reply).encode() if reply is not None else b""
    given |= {"content-type": "application/json", "content-length": str(len(content))}
    await send(_head(status, given))
    await send({"type": "http.response.body", "body": content})


def _head(status: int, headers: dict[str, str]) -> dict[str, Any]:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


@contextmanager
def serving() -> Iterator[Sites]:
    """The servers, in a thread."""
    sites = Sites()

    class SitesServer(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            sites.loop = asyncio.get_running_loop()
            sites.started.set()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        sites, port=0, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1
    )
    sites.server = SitesServer(config)
    thread = threading.Thread(target=sites.server.run, name="sites")
    thread.start()
    try:
        assert sites.started.wait(LIMIT_S)
        yield sites
    finally:
        sites.server.should_exit = True
        thread.join(LIMIT_S)
