"""A host in a process of its own, which does what the test tells it over a pipe.

All cells use it, since only a process can be killed, and only one of its own shows that nothing is left.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import httpx
import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_client_server_memory_streams

from mcp_tasks_client import (
    Inbox,
    PollPolicy,
    SqliteJournal,
    TasksClient,
    TasksExtension,
    TasksHttpTransport,
    TasksTransport,
    idempotency_key,
    tasks_http_client,
)
from mcp_tasks_client.bridge import Options, serve_streams
from tests._forked import Program
from tests.kit.json_rpc_client import JsonRpcClient
from tests.kit.person import Person

from .axes import Cell
from .site import LIMIT_S

__all__ = ["GIVES_UP_S", "HostProcess", "hosting"]

GIVES_UP_S: Final = 1.5
"""Seconds until the host's own time-out. Its call has become a task by then."""

META_KEY: Final = "mcp-tasks-client/idempotency-key"

APPLICATION: Final = "the host"
"""The name of the calls of every way in. Those of a bridge have one in any case."""

ASKED: Final = "asked"
"""The file that has the questions of all hosts of a cell."""

PLAIN: Final = 5
"""The argument of a call that makes no task."""

POOLS: Final = ("AnyIO worker", "Trio thread")
"""Threads of the event loop, which keeps them for the next work."""

KEYS: Final = {
    "url": ("argument", "block", "meta"),
    "extension": ("argument", "block", "meta"),
    "http": ("block", "meta"),
    "httpx": ("block", "meta"),
    "stream": ("meta",),
    "bridge": ("meta",),
}
"""How each way takes a key. Beside a client whose key it does not take, a client has the first of these."""

Outcome: TypeAlias = dict[str, Any]
"""``result``, or ``error`` (the name of its class) with ``code`` and ``message``."""


class User(Person):
    """A user, who answers each question with their name, and whose questions are kept in a file.

    Args:
        name: Of the user.
        asked: The file, with a line for each question: the user, a tab, and the message.
    """

    def __init__(self, name: str, asked: Path) -> None:
        super().__init__(name=name)
        self._name = name
        self._asked = asked

    async def elicit(self, context: Any, params: Any) -> Any:
        with self._asked.open("a") as file:
            file.write(f"{self._name}\t{params.message}\n")
        return await super().elicit(context, params)


class Credential(httpx.Auth, httpx2.Auth):
    """A user's token, and the next one when a server refuses it."""

    def __init__(self, tokens: dict[str, str], user: str) -> None:
        self._tokens = tokens
        self._user = user
        self._token = tokens[user]

    def auth_flow(self, request: Any) -> Any:
        token = self._token
        request.headers["authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401 and self._tokens[self._user] != token:
            self._token = self._tokens[self._user]
            request.headers["authorization"] = f"Bearer {self._token}"
            yield request


class HostProgram:
    """What runs in the process.

    Args:
        cell: How it reaches the server.
        url: Of the server.
        folder: With the journal's file.
    """

    def __init__(self, cell: Cell, url: str, folder: Path) -> None:
        self.cell = cell
        self.url = url
        self.path = folder / "journal.sqlite3"
        self.users = {name: User(name, folder / ASKED) for name in ("ada", "bob")}
        self.tokens = {"ada": "ada-1", "bob": "bob-1"}
        self.journals: dict[str, SqliteJournal] = {}
        self.clients: dict[str, Client] = {}
        self.shared: Any = None
        self.unseen: list[str] = []
        self.tasks: anyio.abc.TaskGroup

    # ── what can be told ──

    async def open(self, name: str, way: str, user: str, journal: str) -> None:
        """Open a client."""
        client = self.clients[name] = Client(self, way, user, self._journal(journal))
        await self.tasks.start(client.run)

    async def call(self, client: str, label: str, n: int, key: Any, gives_up: bool = False) -> Outcome:
        """Call the tool, and wait for the outcome."""
        return await self.clients[client].call(label, n, key, GIVES_UP_S if gives_up else None)

    async def cancel(self, client: str, label: str) -> None:
        """Have ``asyncio.timeout`` end a call now."""
        self.clients[client].timers[label].reschedule(asyncio.get_running_loop().time())

    async def close(self, client: str) -> None:
        """Leave a client, with whatever calls it still has."""
        await self.clients.pop(client).close()
        if not self.clients and self.shared is not None:
            await self.shared.aclose()
            self.shared = None

    async def renew(self, user: str, token: str) -> None:
        """Give a user the next token, to be had when the present one is refused."""
        self.tokens[user] = token

    async def resume(self, user: str, journal: str, **options: Any) -> list[Outcome]:
        """What ``resume()`` finds, by its outcomes."""
        async with self._by_url(user, journal) as client:
            return [await outcome_of(handle.result) for handle in await client.resume(**options)]

    async def count_resumed(self, user: str, journal: str) -> int:
        """How many calls ``resume()`` takes."""
        async with self._by_url(user, journal) as client:
            return len(await client.resume())

    async def records(self, user: str, journal: str) -> list[tuple[str, bool]]:
        """The status of each record, and whether somebody owns it."""
        async with self._by_url(user, journal) as client:
            return [(record.status, record.owner is not None) for record in await client.records()]

    async def leave(self) -> list[str]:
        """Close everything, and say what is left of it."""
        for client in list(self.clients):
            await self.close(client)
        self.journals.clear()
        main = threading.main_thread()
        left = [
            one.name for one in threading.enumerate() if one is not main and not one.name.startswith(POOLS)
        ]
        if self.cell.loop == "asyncio":
            own = {asyncio.current_task()}
            left += [
                str(task.get_coro()) for task in asyncio.all_tasks() - own if "Program.serve" not in str(task)
            ]
        return left + self.unseen

    # ── what it has ──

    def _journal(self, name: str) -> SqliteJournal:
        return self.journals.setdefault(name, SqliteJournal(self.path))

    @property
    def poll(self) -> PollPolicy:
        grace_s = 0.3 if self.cell.fate == "cancelled unanswered" else 5.0
        return PollPolicy(jitter=0.0, backoff_floor_s=0.05, call_grace_s=grace_s, cancel_timeout_s=1.0)

    def principal(self, user: str) -> str:
        """As the guide says: one for each user, but where both are on one HTTP client, which has one."""
        return "" if self.cell.one_http_client else user

    def credential(self, user: str) -> dict[str, Any]:
        """Options of an HTTP client: a header, or an auth flow where the token is renewed."""
        if self.cell.fate == "renewed":
            return {"auth": Credential(self.tokens, user)}
        return {"headers": {"Authorization": f"Bearer {self.tokens[user]}"}}

    def _by_url(self, user: str, journal: str) -> TasksClient:
        return TasksClient(
            self.url,
            journal=self._journal(journal),
            principal=self.principal(user),
            application=APPLICATION,
            poll=self.poll,
            elicitation=self.users[user].elicit,
            **self.credential(user),
        )

    # ── the pipe ──

    async def serve(self, told: Connection, said: Connection) -> None:
        """Do what is told, until nothing is."""
        if self.cell.loop == "asyncio":
            asyncio.get_running_loop().set_exception_handler(lambda loop, told: self.unseen.append(str(told)))
        async with anyio.create_task_group() as self.tasks:
            while True:
                await anyio.wait_readable(told.fileno())
                try:
                    number, command, arguments = told.recv()
                except EOFError:  # the test is over
                    self.tasks.cancel_scope.cancel()
                    return
                self.tasks.start_soon(self._do, said, number, getattr(self, command), arguments)

    async def _do(self, said: Connection, number: int, command: Any, arguments: Any) -> None:
        try:
            reply = (number, await command(**arguments), None)
        except Exception:
            reply = (number, None, traceback.format_exc())
        said.send(reply)


class Client:
    """One client of the host, in whichever way it comes to the server.

    Args:
        program: Whose it is.
        way: Its way in.
        user: Whose credential it has.
        journal: Its journal.
    """

    def __init__(self, program: HostProgram, way: str, user: str, journal: SqliteJournal) -> None:
        self.way = way
        self.timers: dict[str, asyncio.Timeout] = {}
        self._program = program
        self._user = user
        self._person = program.users[user]
        self._options = {
            "journal": journal,
            "principal": program.principal(user),
            "application": APPLICATION,
            "poll": program.poll,
        }
        self._client: Any = None
        self._calls: set[anyio.CancelScope] = set()
        self._closing, self._closed = anyio.Event(), anyio.Event()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Be open until it is closed, in one task."""
        try:
            async with AsyncExitStack() as stack:
                self._client = await self._open(stack)
                if not isinstance(self._client, JsonRpcClient):
                    await self._client.list_tools()  # as hosts do, and else a call would take its time for it
                task_status.started()
                await self._closing.wait()
        except* (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass  # of the SDK's own stream, which has a reply and nobody to give it to
        self._closed.set()

    async def close(self) -> None:
        for scope in self._calls:
            scope.cancel()
        self._closing.set()
        await self._closed.wait()

    async def _open(self, stack: AsyncExitStack) -> Any:
        program, cell, options = self._program, self._program.cell, self._options
        credential = program.credential(self._user)
        if self.way == "url":
            ours = {"elicitation": self._person.elicit}
            return await stack.enter_async_context(TasksClient(program.url, **ours, **options, **credential))
        its = {"elicitation_callback": self._person.elicit}
        http: Any
        if self.way in ("http", "httpx"):
            library: Any = httpx2 if self.way == "http" else httpx
            if cell.one_http_client:
                if program.shared is None:
                    program.shared = TasksHttpTransport(library.AsyncHTTPTransport(), **options)
                # Each session with a client of its own over it, since that is where a credential stands.
                http = library.AsyncClient(transport=program.shared, timeout=LIMIT_S, **credential)
            else:
                http = tasks_http_client(
                    library=library.__name__, trust_env=False, timeout=LIMIT_S, **options, **credential
                )
                await stack.enter_async_context(http)
            if self.way == "httpx":
                version = "2025-11-25" if cell.older else "2026-07-28"
                return JsonRpcClient(http, program.url, self._person, version)
            return await stack.enter_async_context(
                mcp.Client(streamable_http_client(program.url, http_client=http), **its)
            )
        if self.way == "bridge":
            transport: Any = _bridged(program.url, options, credential)
            return await stack.enter_async_context(mcp.Client(transport, **its))
        sessions: dict[str, str] = {}

        async def note(response: Any) -> None:
            if "mcp-session-id" in response.headers:
                sessions["id"] = response.headers["mcp-session-id"]

        http = httpx2.AsyncClient(
            trust_env=False, timeout=LIMIT_S, event_hooks={"response": [note]}, **credential
        )
        await stack.enter_async_context(http)
        transport = streamable_http_client(program.url, http_client=http, terminate_on_close=False)
        if self.way == "stream":
            find = partial(sessions.get, "id")
            around = TasksTransport(transport, endpoint=program.url, session_id=find, **options)
            return await stack.enter_async_context(mcp.Client(around, **its))
        extension = TasksExtension(endpoint=program.url, **options)
        client = await stack.enter_async_context(mcp.Client(transport, extensions=[extension], **its))
        if cell.key != "no key":
            return await stack.enter_async_context(TasksClient(client))
        return client

    # ── one call ──

    async def call(self, label: str, n: int, key: Any, gives_up_s: float | None) -> Outcome:
        """The outcome, or how it ended here."""
        outcome: Outcome = {"error": "Closed", "message": ""}
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            if self._program.cell.loop == "trio":
                return await outcome_of(partial(self._make, n, key, gives_up_s))
            try:
                async with asyncio.timeout(None) as self.timers[label]:
                    outcome = await outcome_of(partial(self._make, n, key, gives_up_s))
            except TimeoutError:
                outcome = {"error": "TimeoutError", "message": "of asyncio"}
        self._calls.discard(scope)
        return outcome

    async def _make(self, n: int, key: Any, gives_up_s: float | None) -> Any:
        tool = "plain" if n == PLAIN else "work"
        arguments, options, block = {"n": n}, dict[str, Any](), nullcontext()
        wanted = self._program.cell.key
        match None if key is None else wanted if wanted in KEYS[self.way] else KEYS[self.way][0]:
            case "argument":
                options["idempotency_key"] = key
            case "block":
                block = idempotency_key(key)
            case "meta":
                options["meta"] = {META_KEY: key}
        with block:
            if isinstance(self._client, JsonRpcClient):
                with anyio.fail_after(gives_up_s):
                    return await self._client.call_tool(tool, arguments, **options)
            return await self._client.call_tool(tool, arguments, read_timeout_seconds=gives_up_s, **options)


@asynccontextmanager
async def _bridged(url: str, options: dict[str, Any], credential: dict[str, Any]) -> AsyncIterator[Any]:
    """A transport whose other end is a bridge, which ends as its host goes."""

    def connect(application: str, **callbacks: Any) -> tuple[TasksClient, Inbox]:
        client = TasksClient(url, output_schema="off", **callbacks, **options, **credential)
        shown = {name: options[name] for name in ("principal", "application")}
        return client, Inbox(options["journal"], endpoint=client.endpoint, **shown)

    async with (
        create_client_server_memory_streams() as (host, (read, write)),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(serve_streams, connect, url, read, write, Options(application=APPLICATION))
        yield host
        await host[1].aclose()


async def outcome_of(make: Any) -> Outcome:
    try:
        made = await make()
    except Exception as error:
        return {"error": type(error).__name__, "code": getattr(error, "code", None), "message": str(error)}
    return {"result": made.model_dump(by_alias=True, mode="json", exclude_none=True)}


def main() -> None:
    """Take what is given from standard input, and do what comes from there."""
    told, said = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    sys.stdout = sys.stderr
    host = HostProgram(*told.recv())
    anyio.run(host.serve, told, said, backend=host.cell.loop)


# ── as the test sees it ──


class HostProcess:
    """A process, told what to do."""

    def __init__(self, *given: Any) -> None:
        self._process = Program("-m", __name__)
        self._orders = Connection(os.dup(self._process.stdin.fileno()), readable=False)
        self._said = Connection(os.dup(self._process.stdout.fileno()), writable=False)
        self._orders.send(given)
        self._numbers = itertools.count()
        self._replies: dict[int, Any] = {}
        self.alive = True

    def begin(self, command: str, **arguments: Any) -> int:
        """Tell it to do something. :meth:`end` waits for it."""
        number = next(self._numbers)
        self._orders.send((number, command, arguments))
        return number

    def end(self, number: int) -> Any:
        """What came of a command."""
        while number not in self._replies:
            assert self._said.poll(LIMIT_S), "nothing comes of it"
            self._take()
        return self._replies.pop(number)

    def is_over(self, number: int) -> bool:
        """Whether a command has come to its end."""
        while self._said.poll():
            self._take()
        return number in self._replies

    def _take(self) -> None:
        number, reply, failure = self._said.recv()
        assert failure is None, failure
        self._replies[number] = reply

    def do(self, command: str, **arguments: Any) -> Any:
        """Tell it, and wait."""
        return self.end(self.begin(command, **arguments))

    def kill(self) -> None:
        """As ``kill -9`` does."""
        with self._process, self._orders, self._said:
            self._process.kill()
        self.alive = False


@contextmanager
def hosting(cell: Cell, url: str, folder: Path) -> Iterator[Any]:
    """Makes processes; they are gone after the block."""
    hosts: list[HostProcess] = []

    def start() -> HostProcess:
        hosts.append(HostProcess(cell, url, folder))
        return hosts[-1]

    try:
        yield start
    finally:
        for host in hosts:
            if host.alive:
                host.kill()


if __name__ == "__main__":
    main()
