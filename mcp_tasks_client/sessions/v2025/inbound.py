"""Messages of a 2025-11-25 server on its own account: questions, cancellations, status, progress."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import anyio
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from ...aio.clock import Clock
from ...errors import SessionError
from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply, RpcError
from ...questions.callbacks import InputContext, Inputs
from ..repetition import repeat
from .connection import CREATION_S, GET_STREAM, MOST_WAITING, Connection, OwnRequest
from .receiver import Receiver
from .shapes import QUESTIONS, is_own_token, read_related_task, read_request_id, strip_volatile
from .task_tracker import TaskTracker, TrackedTask

__all__ = ["Inbound"]

logger = logging.getLogger("mcp_tasks_client")


_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 2.0
"""Seconds before a reply that did not arrive is sent again."""


class Inbound:
    """Decides whose each request and notification is.

    Args:
        tracker: Takes the messages that belong to a task of the server.
        inputs: Answers the questions that belong to none.
        receiver: Runs the tasks that the server wants of us.
        clock: By which a reply is sent again.
        tools_changed: Called when the server's list of tools has changed.
        tell: Told of each notification, but of those about requests of the server's, and of the progress of a
            call whose host has asked for none; ``None`` if nobody is.
    """

    def __init__(
        self,
        tracker: TaskTracker,
        inputs: Inputs,
        receiver: Receiver,
        clock: Clock,
        tools_changed: Callable[[], None],
        tell: Callable[[JSONObject], None] | None = None,
    ) -> None:
        self._tracker = tracker
        self._inputs = inputs
        self._receiver = receiver
        self._clock = clock
        self._tools_changed = tools_changed
        self._tell = tell
        self._replying: dict[tuple[Connection, RequestId], anyio.CancelScope] = {}
        self._waiting = 0

    def hear(self, connection: Connection, message: JSONObject, source: OwnRequest) -> None:
        """Take a message. One that cannot be read is passed over."""
        try:
            self._take(connection, message, source)
        except (RecursionError, ValueError, TypeError, OverflowError) as error:
            logger.warning("A message of the server cannot be read: %s", type(error).__name__)

    def _take(self, connection: Connection, message: JSONObject, source: OwnRequest) -> None:
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        request_id = read_request_id(message)
        if request_id is not None and isinstance(method, str):
            self._take_request(connection, request_id, method, params, source)
            return
        if self._tell is not None and not is_own_token(params.get("progressToken")):
            self._tell(message)
        match method:
            case "notifications/tasks/status" if isinstance(params.get("taskId"), str):
                self._tracker.take_status(params["taskId"], params)
            case "notifications/progress":
                self._tracker.take_progress(params)
            case "notifications/tools/list_changed":
                self._tools_changed()
            case "notifications/cancelled":
                cancelled = read_request_id({"id": params.get("requestId")})
                if cancelled is not None:
                    self._tracker.withdraw(connection, cancelled)
                    scope = self._replying.pop((connection, cancelled), None)
                    if scope is not None:
                        scope.cancel()

    def _take_request(
        self,
        connection: Connection,
        request_id: RequestId,
        method: str,
        params: JSONObject,
        source: OwnRequest,
    ) -> None:
        name = connection, request_id
        asks = method in QUESTIONS and not self._receiver.concerns(method, params)
        # A stream of its own says nothing of the call that a question is about. A mark names a task instead.
        says_no_call = source.method == GET_STREAM or read_related_task(params) is not None
        calls = tuple(connection.calls) if asks and says_no_call else ()
        task = self._task_of(connection, params, source, calls) if asks else None
        if task is not None:
            self._ask(task, name, method, params, source)
        elif name not in self._replying:
            scope = anyio.CancelScope()
            if self._tracker.begin(self._reply, scope, name, method, params, source, calls):
                self._replying[name] = scope

    def _ask(
        self,
        task: TrackedTask,
        name: tuple[Connection, RequestId],
        method: str,
        params: JSONObject,
        source: OwnRequest,
    ) -> None:
        """Take a question of a task's."""
        if task.silenced:
            pass  # mcp 1.30 loses its session when a question of a cancelled task is answered
        elif not self._tracker.hear(task, name[1], strip_volatile(method, params)):
            refusal = RpcError(
                INVALID_PARAMS, "The task has too many open questions, or too large ones", None
            )
            self._tracker.begin(self._send, name, refusal, params, source.context)

    def _task_of(
        self, connection: Connection, params: JSONObject, source: OwnRequest, calls: Sequence[OwnRequest]
    ) -> TrackedTask | None:
        """The task that asks; ``None`` if it is a plain call, or nothing tells.

        ``calls`` were under way when the question came.
        """
        marked = read_related_task(params)
        if marked is not None:
            return self._tracker.find(marked)
        if source.task_id is not None:
            return self._tracker.find(source.task_id)
        # FastMCP 3 asks on the GET stream, without a mark. A call that goes on may be meant by that.
        if source.method == GET_STREAM and not _still(connection, calls):
            return self._tracker.only_task_of(connection)
        return None

    async def _wait_for_tasks(
        self, connection: Connection, calls: Sequence[OwnRequest], *, marked: bool
    ) -> None:
        """Return when these calls have made their tasks: the question of one may come before the task.

        Without a mark, a plain call may be meant after a while.
        """
        if self._waiting >= MOST_WAITING:
            return
        tasks = [call for call in calls if "task" in call.params]
        deadline = self._clock.monotonic() + (math.inf if marked else CREATION_S)
        self._waiting += 1
        try:
            while (left_s := deadline - self._clock.monotonic()) > 0 and _still(connection, tasks):
                await self._clock.wait(connection.call_ended, None if marked else left_s)
        finally:
            self._waiting -= 1

    async def _reply(
        self,
        scope: anyio.CancelScope,
        name: tuple[Connection, RequestId],
        method: str,
        params: JSONObject,
        source: OwnRequest,
        calls: Sequence[OwnRequest],
    ) -> None:
        """Answer a request that belongs to no task of the server, or to none that is known yet."""
        connection, request_id = name
        try:
            with scope:
                received = self._receiver.concerns(method, params)
                marked = not received and read_related_task(params) is not None
                if calls:
                    await self._wait_for_tasks(connection, calls, marked=marked)
                    task = self._task_of(connection, params, source, calls)
                    if task is not None:
                        self._ask(task, name, method, params, source)
                        return
                if marked and method in QUESTIONS:
                    logger.warning("A question is passed over: nobody here waits for the task that asks it")
                    return
                context = self._context_of(connection, source, calls)
                answer: Reply = {}
                if received:
                    answer = await self._receiver.handle(method, params, connection.name, request_id, context)
                elif method in QUESTIONS:
                    asked = InputContext(tool=None, key=str(request_id), task=None, context=context)
                    answer = await self._inputs.reply(asked, {"method": method, "params": params})
                elif method != "ping":
                    answer = RpcError(METHOD_NOT_FOUND, "Method not found", None)
                # Another request may come under the same ID as soon as this one is answered.
                self._replying.pop(name, None)
                await self._send(name, answer, params, context)
        finally:
            if self._replying.get(name) is scope:
                del self._replying[name]

    def _context_of(self, connection: Connection, source: OwnRequest, calls: Sequence[OwnRequest]) -> object:
        """Of the call that a request is most likely about."""
        if source.method != GET_STREAM:
            return source.context
        # The stream was opened for a call that may be over.
        still = _still(connection, calls)
        return still[-1].context if still else self._tracker.latest_context() or source.context

    async def _send(
        self, name: tuple[Connection, RequestId], answer: Reply, params: JSONObject, context: object
    ) -> None:
        connection, request_id = name

        async def send() -> None:
            if not self._receiver.is_abandoned(params):
                await connection.answer(request_id, answer, context, None)

        with suppress(SessionError):  # the request of the server fails by itself
            await repeat(send, self._clock.sleep, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)


def _still(connection: Connection, calls: Sequence[OwnRequest]) -> list[OwnRequest]:
    """Those of the calls that are under way."""
    return [call for call in calls if call in connection.calls]
