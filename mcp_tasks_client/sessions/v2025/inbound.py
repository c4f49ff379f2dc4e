"""Messages of a 2025-11-25 server on its own account: questions, cancellations, status, progress."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import anyio
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from ...aio.clock import Clock
from ...errors import SessionError
from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply, RpcError
from ...questions.callbacks import InputContext, Inputs
from ...questions.context import CallContext
from ...questions.kinds import KINDS
from ..repetition import repeat
from .connection import CREATION_S, GET_STREAM, MOST_WAITING, Connection, OwnRequest
from .receiver import Receiver
from .shapes import is_own_token, read_related_task, read_request_id, strip_volatile
from .task_tracker import TaskTracker, TrackedTask

__all__ = ["Inbound"]

logger = logging.getLogger("mcp_tasks_client")

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 2.0
"""Seconds before a reply that did not arrive is sent again."""


@dataclass(frozen=True, eq=False, slots=True)
class _Request:
    """A request of the server's."""

    connection: Connection
    request_id: RequestId
    method: str
    params: JSONObject
    source: OwnRequest
    """The request of ours on whose stream it came."""

    calls: tuple[OwnRequest, ...]
    """The ``tools/call`` that were under way when it came, one of which may have made the task that asks."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Surrounds the answering."""

    @property
    def name(self) -> tuple[Connection, RequestId]:
        """Tells it from the other requests that are being answered."""
        return self.connection, self.request_id

    @property
    def marked(self) -> str | None:
        """The task that it is marked with."""
        return read_related_task(self.params)

    @property
    def calls_left(self) -> list[OwnRequest]:
        """The calls that are under way still."""
        return [call for call in self.calls if call in self.connection.calls]


class Inbound:
    """Gives each request and notification to the task, the host or the receiver that it is for.

    Args:
        tracker: Takes the messages that belong to a task of the server.
        inputs: Answers the questions that belong to none.
        receiver: Runs the tasks that the server has the client run.
        clock: By which a question waits for its task, and a reply for its repetition.
        tools_changed: Called when the server's list of tools has changed.
        tell: Told of each notification, except those about requests of the server's, and the progress of a
            call whose host has asked for none. ``None`` tells of none.
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
        self._replying: dict[tuple[Connection, RequestId], _Request] = {}
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
            calls = tuple(connection.calls)
            self._take_request(_Request(connection, request_id, method, params, source, calls))
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
                    replying = self._replying.pop((connection, cancelled), None)
                    if replying is not None:
                        replying.scope.cancel()

    def _take_request(self, request: _Request) -> None:
        if self._is_question(request):
            task = self._task_of(request)
            if task is not None:
                self._ask(task, request)
                return
        if request.name not in self._replying and self._tracker.begin(self._reply, request):
            self._replying[request.name] = request

    # ── questions ─────────────────────────────────────────────────────────────────────────────

    def _is_question(self, request: _Request) -> bool:
        """Whether a host answers the request at once, without a task of the client's."""
        return request.method in KINDS and not self._receiver.concerns(request.method, request.params)

    def _task_of(self, request: _Request) -> TrackedTask | None:
        """The task that asks; ``None`` if a plain call asks, or nothing tells which task does."""
        if request.marked is not None:
            return self._tracker.find(request.marked)
        if request.source.task_id is not None:
            return self._tracker.find(request.source.task_id)
        # FastMCP 3 asks on the GET stream, without a mark. A call that goes on may be meant by that.
        if request.source.method == GET_STREAM and not request.calls_left:
            return self._tracker.only_task_of(request.connection)
        return None

    def _ask(self, task: TrackedTask, request: _Request) -> None:
        """Take a question of a task."""
        if task.silenced:
            return  # mcp 1.30 loses its session when a question of a cancelled task is answered
        if not self._tracker.hear(task, request.request_id, strip_volatile(request.method, request.params)):
            refusal = RpcError(
                INVALID_PARAMS, "The task has too many open questions, or too large ones", None
            )
            self._tracker.begin(self._send, request, refusal, request.source.context)

    async def _is_settled(self, request: _Request) -> bool:
        """Wait for the task of a question that comes before the reply to the call that makes the task.

        Returns:
            Whether the question is a task's, and not to be answered here. That of an unknown task is left to
            the next client.
        """
        if request.marked is None and request.source.method != GET_STREAM:
            return False  # the call asks on whose stream the question came
        await self._wait_for_tasks(request)
        task = self._task_of(request)
        if task is not None:
            self._ask(task, request)
        elif request.marked is not None:
            logger.warning("A question is passed over: nobody here waits for the task that asks it")
        return task is not None or request.marked is not None

    async def _wait_for_tasks(self, request: _Request) -> None:
        """Return when the calls that were under way have made their tasks.

        A question without a mark waits ``CREATION_S`` at most, since a call that makes no task may ask it.
        """
        if self._waiting >= MOST_WAITING:
            return
        limit_s = CREATION_S if request.marked is None else math.inf
        deadline = self._clock.monotonic() + limit_s
        self._waiting += 1
        try:
            while any("task" in call.params for call in request.calls_left):
                left_s = deadline - self._clock.monotonic()
                if left_s <= 0:
                    return
                await self._clock.wait(request.connection.call_ended, None if left_s == math.inf else left_s)
        finally:
            self._waiting -= 1

    # ── answers ───────────────────────────────────────────────────────────────────────────────

    async def _reply(self, request: _Request) -> None:
        """Answer a request, unless it turns out to be a task's question."""
        try:
            with request.scope:
                if self._is_question(request) and await self._is_settled(request):
                    return
                context = self._context_of(request)
                answer = await self._answer(request, context)
                # Another request may come under the same ID as soon as this one is answered.
                self._replying.pop(request.name, None)
                await self._send(request, answer, context)
        finally:
            if self._replying.get(request.name) is request:
                del self._replying[request.name]

    async def _answer(self, request: _Request, context: CallContext | None) -> Reply:
        method, params = request.method, request.params
        if self._receiver.concerns(method, params):
            name = request.connection.name
            return await self._receiver.handle(method, params, name, request.request_id, context)
        if method in KINDS:
            asked = InputContext(tool=None, key=str(request.request_id), task=None, context=context)
            return await self._inputs.reply(asked, {"method": method, "params": params})
        return {} if method == "ping" else RpcError(METHOD_NOT_FOUND, "Method not found", None)

    def _context_of(self, request: _Request) -> CallContext | None:
        """The context of the call that a request is most likely about."""
        source, calls = request.source, request.calls_left
        if source.method != GET_STREAM:
            return source.context
        # The stream was opened for a call that may be over.
        return calls[-1].context if calls else self._tracker.latest_context() or source.context

    async def _send(self, request: _Request, answer: Reply, context: CallContext | None) -> None:
        async def send() -> None:
            if not self._receiver.is_abandoned(request.params):
                await request.connection.answer(request.request_id, answer, context, None)

        with suppress(SessionError):  # the request of the server fails by itself
            await repeat(send, self._clock.sleep, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
