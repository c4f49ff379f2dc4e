"""The server for one host: a client whose calls are the host's, opened when they are first needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskGroup
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp_types import METHOD_NOT_FOUND, Notification

import mcp_tasks_client as tasks

from .calls import Calls
from .host_request import Host
from .introspection import Context, Session, when_ended
from .questions import Asker
from .serving import Serving
from .task_tools import TaskTools, choose_prefix

__all__ = ["Connect", "Opened", "Service"]

_MOST_PAGES: Final = 100

_NAMES_S: Final = 5.0
"""Seconds for which a call waits for the names of the server's tools. No progress is told meanwhile."""

_MOST_TOLD: Final = 1_000
"""Notifications that wait for the host to read, at most. Further ones are dropped."""

_LIST_CHANGED: Final = "notifications/tools/list_changed"


class Connect(Protocol):
    """Makes the client for one host."""

    def __call__(
        self,
        application: str,
        *,
        elicitation: Any,
        sampling: Any,
        roots: Any,
        on_notification: Callable[[str, dict[str, Any]], None],
    ) -> tuple[tasks.TasksClient, tasks.Inbox]:
        """A client that is not open yet, and an inbox that shows its calls."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A service whose client is open."""

    client: tasks.TasksClient
    inbox: tasks.Inbox
    calls: Calls


class Service:
    """One host at the server.

    Args:
        host: As it has introduced itself first.
        application: The name under which its calls are in the journal.
        connect: Makes the client.
        group: Runs the calls.
        asks_host: Whether questions are put to the host.
        is_new: Tells of which tools each call is a new one.
        line_for: The line by which a person answers a question in a terminal, by the question's ID.
    """

    def __init__(
        self,
        host: Host,
        application: str,
        connect: Connect,
        group: TaskGroup,
        *,
        asks_host: bool,
        is_new: Callable[[str], bool],
        line_for: Callable[[str], str],
    ) -> None:
        self._line_for = line_for
        self._application = application
        self._asker = Asker(host, line_for, asks_host=asks_host)
        declared = host.capabilities
        self._connect = partial(
            connect,
            application,
            elicitation=self._asker.elicit,
            sampling=self._asker.sample if asks_host and "sampling" in declared else None,
            roots=self._asker.list_roots if asks_host and "roots" in declared else None,
            on_notification=self._hear,
        )
        self._group = group
        self._is_new = is_new
        self._stack = AsyncExitStack()
        self._opening = anyio.Lock()
        self._opened: Opened | None = None
        self._prefix: str | None = None
        self._listeners: set[Session] = set()
        self._being_told = 0
        self._bus = InMemorySubscriptionBus()
        self.subscribe = ListenHandler(self._bus)

    async def opened(self) -> Opened:
        """The open client. The first request opens it, and has unfinished calls of earlier processes go on.

        Raises:
            TasksClientError: The journal cannot be used. The next request tries again.
            ValueError: The server or the journal cannot be named so.
        """
        async with self._opening:
            if self._opened is None:
                client, inbox = self._connect()
                async with AsyncExitStack() as stack:
                    await stack.enter_async_context(client)
                    await stack.enter_async_context(inbox)
                    calls = Calls(client, inbox, self._application, self._group, self._is_new)
                    await calls.take_up()
                    self._stack = stack.pop_all()
                self._asker.calls = calls
                self._opened = Opened(client, inbox, calls)
            return self._opened

    async def aclose(self) -> None:
        """Let go of the calls, which others can go on with, and close."""
        self.subscribe.close()
        await self._stack.aclose()

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The server's result of a request that concerns no call, as it came.

        Raises:
            TasksClientError: There is none.
        """
        return await (await self.opened()).client.request(method, params)

    async def tools(self) -> TaskTools:
        """The tools of the bridge, by names that the server does not use.

        Raises:
            TasksClientError: The journal could not be opened.
        """
        opened = await self.opened()
        if self._prefix is None:
            try:
                with anyio.fail_after(_NAMES_S):
                    self._prefix = choose_prefix(await self._names())
            except (
                tasks.SessionError,
                TimeoutError,
            ):  # the server is away, and results that are here are handed out
                return TaskTools(opened.inbox, opened.calls, "")
        return TaskTools(opened.inbox, opened.calls, self._prefix)

    async def serving(self, answer_within_s: float) -> Serving:
        """Has the requests of the host wait, each for its call.

        Args:
            answer_within_s: Seconds after which a request is answered although its call goes on; 0 is never.

        Raises:
            TasksClientError: The journal could not be opened.
        """
        opened = await self.opened()
        result_tool = (await self.tools()).result_tool if answer_within_s else ""
        return Serving(opened.calls, answer_within_s, result_tool, self._line_for)

    async def _names(self) -> set[str]:
        names: set[str] = set()
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            try:
                page = await self.ask("tools/list", {} if cursor is None else {"cursor": cursor})
            except tasks.SessionError as error:
                if error.code == METHOD_NOT_FOUND:
                    return names
                raise
            names |= {str(one.get("name")) for one in page.get("tools") or () if isinstance(one, dict)}
            before, cursor = cursor, page.get("nextCursor")
            if cursor is None or cursor == before:
                break
        return names

    # ── what the server tells ─────────────────────────────────────────────────────────────────

    def listen(self, context: Context) -> None:
        """Have a connection of the host told of the server's notifications, until it ends."""
        self._listeners.add(context.session)
        when_ended(context.session, partial(self._listeners.discard, context.session))

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "notifications/progress":
            token = params.get("progressToken")
            opened = self._opened
            call = None if opened is None or not isinstance(token, str) else opened.calls.of_record(token)
            progress, total = _number(params.get("progress")), _number(params.get("total"))
            message = params.get("message")
            if call is not None and progress is not None:
                call.progress = progress, total
                call.message = message if isinstance(message, str) else None
                call.note_change()
            return
        if method == _LIST_CHANGED:
            self._prefix = None
        self.tell(method, params)

    def tell(self, method: str, params: dict[str, Any]) -> None:
        """Tell the host of something that concerns no request."""
        self._publish(method, params)
        for session in self._listeners:
            if self._being_told < _MOST_TOLD:
                self._being_told += 1
                self._group.start_soon(self._send, session, method, params)

    async def _send(self, session: Session, method: str, params: dict[str, Any]) -> None:
        try:
            with suppress(Exception):  # the connection may be gone, and nobody is owed a notification
                await session.send_notification(
                    Notification[dict[str, Any], str](method=method, params=params)  # type: ignore[arg-type]  # any
                )
        finally:
            self._being_told -= 1

    def _publish(self, method: str, params: dict[str, Any]) -> None:
        event: Any
        match method:
            case "notifications/tools/list_changed":
                event = ToolsListChanged()
            case "notifications/prompts/list_changed":
                event = PromptsListChanged()
            case "notifications/resources/list_changed":
                event = ResourcesListChanged()
            case "notifications/resources/updated" if isinstance(params.get("uri"), str):
                event = ResourceUpdated(uri=params["uri"])
            case _:
                return
        self._group.start_soon(self._bus.publish, event)


def _number(value: Any) -> float | None:
    """A number that a host can be sent; ``None`` if it is none."""
    try:
        is_one = isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        is_one = False
    return value if is_one else None
