"""A server that is a process of the command's own, over stdio. Its tasks end with it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import one_line

from .asking import Elicit
from .exits import CommandError, Exit, as_command_error
from .journal import APPLICATION, Where

if TYPE_CHECKING:
    from mcp.client.stdio import StdioServerParameters

__all__ = ["Command"]

_VERSION: Final = "2026-07-28"
"""The version of the protocol in which tasks go over any connection. Later ones sort behind it."""

_START_S: Final = 120.0
"""Seconds in which a server answers for the first time. It may have to be downloaded before."""

_LAST_WORDS: Final = 8
"""Lines of the server's stderr that are shown if it ends too soon."""

_LONGEST_LINE: Final = 10_000
_DRAIN_S: Final = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Command:
    """A server by the command that starts it."""

    command: str
    arguments: Sequence[str] = field(default=(), repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Beside the few variables that the SDK passes to each server."""

    folder: str | None = None
    name: str = ""
    """As a line names the server; empty for a command that was typed."""

    words: tuple[str, ...] = ()
    """Options of that line."""

    @property
    def outlives_us(self) -> bool:
        """False: no task can be gone on with."""
        return False

    @property
    def is_in_record(self) -> bool:
        """False: the journal has only a name."""
        return False

    @asynccontextmanager
    async def client(
        self,
        where: Where,
        elicitation: Elicit,
        *,
        scope: tasks.Scope | None = None,
        application: str = APPLICATION,
    ) -> AsyncIterator[tasks.TasksClient]:
        """A client for the server, which is started here. Args are those of :meth:`Server.client`.

        Raises:
            CommandError: The SDK is not installed. Or the server did not start, speaks an older version, or
                has ended too soon.
        """
        try:
            from mcp import Client
            from mcp.client.stdio import StdioServerParameters
        except ImportError:
            raise CommandError(
                Exit.USAGE, "A server by its command needs mcp, of the extra [mcp]: pip install mcp"
            ) from None
        parameters = StdioServerParameters(
            command=self.command,
            args=list(self.arguments),
            env=dict(self.environment),
            cwd=self.folder,
        )
        last_words = deque[str](maxlen=_LAST_WORDS)
        try:
            with _reading_into(last_words) as log:
                transport: Any = _Transport(parameters, log)
                async with _open_in_own_task(Client(transport)) as connected:
                    _check_version(connected.protocol_version)
                    async with tasks.TasksClient(
                        connected,
                        journal=where.name_journal(),
                        endpoint=None if scope is None else scope.endpoint,
                        principal=where.principal if scope is None else scope.principal,
                        application=application,
                        elicitation=elicitation,
                    ) as client:
                        yield client
        except _NotStartedError as error:
            raise _tell(Exit.UNREACHABLE, f"The server did not start: {error}", last_words) from None
        except tasks.ConnectionLostError as error:
            failure = as_command_error(error)
            if error.handle is not None and error.handle.reference["task_id"] is not None:
                failure.exit = Exit.GONE
            raise _tell(failure.exit, "The server has ended.", last_words, failure.record) from None


def _check_version(version: str) -> None:
    if version < _VERSION:
        raise CommandError(
            Exit.USAGE,
            f"The server speaks MCP {one_line(version, 40)}. Of a command mcp-tasks needs {_VERSION}; a "
            "server by its URL may be older.",
        )


def _tell(exit: Exit, message: str, last_words: deque[str], record: str | None = None) -> CommandError:
    if last_words:
        message = "\n  ".join([f"{message} It said last:", *last_words.copy()])
    return CommandError(exit, message, record=record)


class _Transport:
    """The SDK's transport to a process. Its attributes give the server its name in the journal."""

    def __init__(self, parameters: StdioServerParameters, log: IO[str]) -> None:
        from mcp.client.stdio import stdio_client

        self.command, self.args, self.cwd = parameters.command, parameters.args, parameters.cwd
        self._inner = stdio_client(parameters, errlog=log)  # type: ignore[arg-type]  # takes any with a descriptor

    async def __aenter__(self) -> Any:
        return await self._inner.__aenter__()

    async def __aexit__(self, *details: Any) -> Any:
        return await self._inner.__aexit__(*details)


class _NotStartedError(Exception):
    pass


@asynccontextmanager
async def _open_in_own_task(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Have something of the SDK open, which has to be left in the task that entered it.

    Raises:
        _NotStartedError: It could not be opened in time, or at all.
    """
    opened, leave = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def hold() -> None:
        async with context as value:
            opened.set_result(value)
            await leave.wait()

    task = asyncio.ensure_future(hold())
    try:
        await asyncio.wait([task, opened], timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            raise _NotStartedError(_reason(task))
        yield opened.result()
    finally:
        leave.set()
        if not opened.done():
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # of closing: there is nobody left to whom it matters


def _reason(task: asyncio.Future[None]) -> str:
    if not task.done():
        return f"it has not answered within {_START_S:.0f} s."
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{one_line(str(error))}."


@contextmanager
def _reading_into(lines: deque[str]) -> Iterator[IO[str]]:
    """A file whose last lines are kept. It is the stderr of a server, which may write for days."""
    reading, writing = os.pipe()

    def read() -> None:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as stream:
            while line := stream.readline(_LONGEST_LINE):
                lines.append(one_line(line))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        with os.fdopen(writing, "w") as log:
            yield log
    finally:
        reader.join(_DRAIN_S)  # a child of the server may hold the pipe open
