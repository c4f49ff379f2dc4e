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
from mcp_types import Notification

import mcp_tasks_client as tasks

from .calls import Calls
from .host_request import Host
from .in_hand import InHand
from .introspection import Context, Session, when_ended
from .options import Options
from .own_names import OwnNames
from .questions import Asker
from .related_task import without_task
from .serving import Serving
from .task_tools import TaskTools

__all__ = ["Connect", "Opened", "Service"]

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
    """The client for one host, which is open, and all that works on it."""

    client: tasks.TasksClient
    in_hand: InHand
    calls: Calls
    serving: Serving
    names: OwnNames
    tools: TaskTools


class Service:
    """One host at the server.

    Args:
        host: As it has introduced itself first.
        application: The name under which its calls are in the journal.
        connect: Makes the client.
        group: Runs the calls.
        options: Of the bridge.
    """

    def __init__(
        self, host: Host, application: str, connect: Connect, group: TaskGroup, options: Options
    ) -> None:
        self._host = host
        self._application = application
        self._connect = connect
        self._group = group
        self._options = options
        self._stack = AsyncExitStack()
        self._opening = anyio.Lock()
        self._opened: Opened | None = None
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
                self._opened = await self._open()
            return self._opened

    async def _open(self) -> Opened:
        options, in_hand = self._options, InHand()
        callbacks = Asker(in_hand, self._host, options).callbacks()
        client, inbox = self._connect(self._application, on_notification=self._hear, **callbacks)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(client)
            await stack.enter_async_context(inbox)
            calls = Calls(client, inbox, in_hand, self._application, self._group, options.is_new)
            await calls.take_up()
            self._stack = stack.pop_all()
        names = OwnNames(client)
        serving = Serving(calls, names, options)
        tools = TaskTools(names, inbox, calls, serving, options.line_for)
        return Opened(client, in_hand, calls, serving, names, tools)

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

    # ── notifications of the server ───────────────────────────────────────────────────────────

    def listen(self, context: Context) -> None:
        """Have a connection of the host told of the server's notifications, until it ends."""
        self._listeners.add(context.session)
        when_ended(context.session, partial(self._listeners.discard, context.session))

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        opened = self._opened
        if method == "notifications/progress":
            token = params.get("progressToken")
            call = None if opened is None or not isinstance(token, str) else opened.in_hand.by_id(token)
            progress, total = _number(params.get("progress")), _number(params.get("total"))
            message = params.get("message")
            if call is not None and progress is not None:
                call.take_progress(progress, total, message if isinstance(message, str) else None)
            return
        if method == _LIST_CHANGED and opened is not None:
            opened.names.choose_anew()
        self.tell(method, params)

    def tell(self, method: str, params: dict[str, Any]) -> None:
        """Tell the host of something that concerns no request."""
        params = without_task(params)
        self._publish(method, params)
        for session in self._listeners:
            if self._being_told < _MOST_TOLD:
                self._being_told += 1
                self._group.start_soon(self._send, session, method, params)

    async def _send(self, session: Session, method: str, params: dict[str, Any]) -> None:
        try:
            with suppress(Exception):  # the connection may be gone, and no notification is owed
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
