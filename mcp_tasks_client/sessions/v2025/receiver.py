"""Tasks that a 2025-11-25 server has the client run: elicitations and sampling requests with ``params.task``.

Theory of operation
===================

The server sends ``elicitation/create`` or ``sampling/createMessage`` with ``params.task``. The client
answers at once with a new task, asks the host in the background, and serves ``tasks/get``,
``tasks/result``, ``tasks/list`` and ``tasks/cancel`` about that task.

- A task is ``working`` until it is ``completed``, ``failed`` or ``cancelled``. It is never
  ``input_required``, because the client needs nothing from the server for it.
- A task belongs to the session in which it was created. Another session is told that it is unknown.
- Each task is one coroutine, :meth:`Receiver._live`: it asks the host, keeps the answer, and forgets the task
when its time-to-live is over. - Tasks live in memory. They end with the :class:`Receiver`, and after a
restart the server is told that
  the task is unknown (-32602).

Source: 2025-11-25, "Tasks".
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias

import anyio
from anyio.abc import TaskGroup
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST

from ...aio.clock import Clock
from ...errors import SessionError
from ...policy import ReceivePolicy
from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply, RpcError
from ...protocol.text import digest, shorten
from ...questions.callbacks import InputContext, Inputs
from ...questions.context import CallContext
from ...questions.kinds import KINDS, is_declared
from .shapes import mark_answer, read_related_task

__all__ = ["Notify", "Receiver"]

logger = logging.getLogger("mcp_tasks_client")

Notify: TypeAlias = Callable[[str, str, JSONObject], Awaitable[None]]
"""Sends a notification: session ID, method, params. May raise :class:`SessionError`, which is ignored."""


_KINDS: Final = {method: kind for method, kind in KINDS.items() if kind.may_be_task}
_ABOUT_TASKS: Final = frozenset({"tasks/get", "tasks/result", "tasks/cancel", "tasks/list"})

_BURST_S: Final = 10.0
"""Seconds' worth of requests that a session may send at once."""

_NOT_NEEDED: Final = "The task that this was needed for was cancelled."

_MOST_ABANDONED: Final = 10_000
"""Cancelled tasks of the server that are remembered, at most."""


class _RefusedError(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = RpcError(code, message, None)


@dataclass(eq=False)
class _Received:
    """One task."""

    task_id: str
    number: int
    """Grows with each task; its place in ``tasks/list``."""

    session_id: str
    question: JSONObject
    origin: str
    """Digest of the request that created the task, its JSON-RPC ID included."""

    related: str | None
    """The server's own task that needs this one, if the server named one."""

    wire: JSONObject
    """The task as ``tasks/get`` shows it."""

    expires_at: float
    """By the monotonic clock."""

    reply: Reply | None = None
    """The reply to ``tasks/result``; ``None`` until the task has ended."""

    asking: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Surrounds the question to the host."""

    settled: anyio.Event = field(default_factory=anyio.Event)
    """Set when the task has ended or is forgotten."""

    def __repr__(self) -> str:
        return f"<task {shorten(self.task_id)} ({self.wire['status']}) of {self.question['method']}>"

    def end(self, status: str, reply: Reply, message: str | None, now: str) -> bool:
        """Move to a terminal status. Returns False if the task had ended before; that end stands."""
        if self.reply is not None:
            return False
        said = {} if message is None else {"statusMessage": message}
        self.wire = {**self.wire, "status": status, **said, "lastUpdatedAt": now}
        self.reply = reply
        self.settled.set()
        return True


class _Allowance:
    """A token bucket: so many requests per second, and ten seconds' worth of them at once."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._left = _BURST_S * rate
        self._at = now

    def take(self, now: float) -> bool:
        """Use up one request. Returns False if none is left."""
        self._left = min(self._left + (now - self._at) * self._rate, _BURST_S * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Receiver:
    """Runs the tasks of one server, for as long as :meth:`run` runs."""

    def __init__(self, inputs: Inputs, policy: ReceivePolicy, clock: Clock) -> None:
        self._inputs = inputs
        self._policy = policy
        self._clock = clock
        self._tasks: dict[str, _Received] = {}
        self._created = 0
        self._serving = 0
        self._allowances: dict[str, _Allowance] = {}
        self._abandoned: dict[str, None] = {}
        self._running: tuple[TaskGroup, Notify] | None = None

    @property
    def capabilities(self) -> JSONObject:
        """The client capabilities to declare besides those of ``inputs``: empty if the host answers nothing.

        Source: 2025-11-25, "Capabilities"; the set of request types is exhaustive.
        """
        # A method is the name of a capability and that of a request type: elicitation/create.
        types = [method.split("/") for method in _KINDS]
        declared = self._inputs.capabilities
        requests: JSONObject = {name: {type_: {}} for name, type_ in types if name in declared}
        return {"tasks": {"list": {}, "cancel": {}, "requests": requests}} if requests else {}

    def concerns(self, method: str, params: JSONObject) -> bool:
        """Whether a server's request is one for :meth:`handle`.

        A question of a kind for which no task capability was declared is a plain question, even with
        ``params.task``.

        Source: 2025-11-25, "Task Support and Handling", rule 1 (MUST).
        """
        if not self.capabilities:
            return False
        if method in _ABOUT_TASKS:
            return True
        may_be_task = method in _KINDS and is_declared(method, self._inputs.capabilities)
        return may_be_task and params.get("task") is not None

    async def run(self, notify: Notify) -> None:
        """Ask the host, and forget expired tasks. Runs until cancelled, which forgets every task.

        ``notify`` tells the server that a task has ended.
        """
        try:
            async with anyio.create_task_group() as tasks:
                self._running = tasks, notify
                await anyio.sleep_forever()
        finally:
            self._running = None

    async def handle(
        self,
        method: str,
        params: JSONObject,
        session_id: str,
        request_id: RequestId | None = None,
        context: CallContext | None = None,
    ) -> Reply:
        """The reply to a request that :meth:`concerns` accepts. ``tasks/result`` waits for the end.

        A reply must not be sent once :meth:`is_abandoned` is true of the request.

        Args:
            method: ``elicitation/create``, ``sampling/createMessage`` or one of ``tasks/*``.
            params: Of the request.
            session_id: Of the MCP session; for a connection without an ID, a name of its own.
            request_id: A question that comes twice under one ID is one task. ``None`` makes a task of each.
            context: Of the request on whose stream it came.
        """
        if self._serving >= self._policy.max_requests:
            return RpcError(INTERNAL_ERROR, "Too many requests about tasks at once; ask again later", None)
        self._serving += 1
        try:
            self._check_pace(session_id)
            if method in _KINDS:
                return self._create(method, params, session_id, request_id, context)
            if method == "tasks/list":
                return self._list(params.get("cursor"), session_id)
            task = self._find(params.get("taskId"), session_id)
            match method:
                case "tasks/get":
                    return task.wire
                case "tasks/result":
                    return await self._result(task)
                case "tasks/cancel":
                    return self._cancel(task)
                case _:
                    raise ValueError(f"{method!r} is not about tasks that a server has the client run")
        except _RefusedError as refused:
            return refused.error
        finally:
            self._serving -= 1

    def abandon(self, server_task_id: str) -> None:
        """Cancel the tasks that a task of the server's needed, because that one was cancelled."""
        self._abandoned[server_task_id] = None
        if len(self._abandoned) > _MOST_ABANDONED:
            del self._abandoned[next(iter(self._abandoned))]
        for task in list(self._tasks.values()):
            if task.related == server_task_id:
                self._end_cancelled(task, _NOT_NEEDED)

    def is_abandoned(self, params: JSONObject) -> bool:
        """Whether only a cancelled task of the server's needed this request of the server's.

        Such a request gets no reply: mcp 1.30's server loses its session by one.
        """
        task_id = params.get("taskId")
        task = self._tasks.get(task_id) if isinstance(task_id, str) else None
        return (read_related_task(params) if task is None else task.related) in self._abandoned

    def forget_session(self, session_id: str) -> None:
        """Forget every task of a session that has ended, and stop asking the host about them."""
        self._allowances.pop(session_id, None)
        for task in [one for one in self._tasks.values() if one.session_id == session_id]:
            self._forget(task)

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def _check_pace(self, session_id: str) -> None:
        now = self._clock.monotonic()
        allowance = self._allowances.get(session_id)
        if allowance is None:
            allowance = self._allowances[session_id] = _Allowance(self._policy.max_requests_per_s, now)
        if not allowance.take(now):
            logger.warning(
                "The server asks about tasks more than %d times a second", self._policy.max_requests_per_s
            )
            raise _RefusedError(INTERNAL_ERROR, "Too many requests about tasks; ask again in a second")

    def _create(
        self,
        method: str,
        params: JSONObject,
        session_id: str,
        request_id: RequestId | None,
        context: CallContext | None,
    ) -> JSONObject:
        if self._running is None:
            raise _RefusedError(INTERNAL_ERROR, "The client runs no tasks at present")
        ttl_ms = self._ttl_ms(params.get("task"))
        related = read_related_task(params)
        if related in self._abandoned:
            raise _RefusedError(INTERNAL_ERROR, _NOT_NEEDED)
        of_session = [task for task in self._tasks.values() if task.session_id == session_id]
        origin = digest([request_id, method, params])
        # A server may reuse the ID of an answered request, so that only an unfinished task is the same.
        same = (
            task
            for task in of_session
            if task.origin == origin and task.reply is None and request_id is not None
        )
        task = next(same, None)
        if task is None:
            self._check_room(of_session)
            self._created += 1
            # A request in the same session that knows the ID can read the answer, so the ID is a secret.
            task_id, now = secrets.token_urlsafe(24), self._now()
            task = self._tasks[task_id] = _Received(
                task_id=task_id,
                number=self._created,
                session_id=session_id,
                question={"method": method, "params": {k: v for k, v in params.items() if k != "task"}},
                origin=origin,
                related=related,
                wire={
                    "taskId": task_id,
                    "status": "working",
                    "createdAt": now,
                    "lastUpdatedAt": now,
                    "ttl": ttl_ms,
                    "pollInterval": self._policy.poll_interval_ms,
                },
                expires_at=self._clock.monotonic() + ttl_ms / 1000,
            )
            logger.info("The server has the client run %r", task)
            self._running[0].start_soon(self._live, task, self._running[1], context)
        created: JSONObject = {"task": task.wire}
        return created if related is None else mark_answer(created, related)

    def _check_room(self, of_session: list[_Received]) -> None:
        working = sum(task.reply is None for task in of_session)
        if working >= self._policy.max_working:
            raise _RefusedError(
                INVALID_REQUEST, f"Too many tasks: {working} are being worked on; wait for one to end"
            )
        if len(of_session) >= self._policy.max_kept:
            raise _RefusedError(
                INVALID_REQUEST, f"Too many tasks: {len(of_session)} are kept; ask for a shorter ttl"
            )

    def _ttl_ms(self, wish: object) -> int:
        """The time-to-live of a new task. A ``ttl`` of ``null`` asks for as long as possible."""
        if not isinstance(wish, dict):
            raise _RefusedError(INVALID_PARAMS, "Invalid params: task must be an object")
        ttl = wish.get("ttl", 0)
        if ttl is None:
            return self._policy.max_ttl_ms
        if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not ttl >= 0:
            raise _RefusedError(INVALID_PARAMS, "Invalid params: task.ttl must be a number of milliseconds")
        return math.ceil(min(ttl or self._policy.default_ttl_ms, self._policy.max_ttl_ms))

    def _find(self, task_id: object, session_id: str) -> _Received:
        if not isinstance(task_id, str) or not task_id:
            raise _RefusedError(INVALID_PARAMS, "Invalid params: taskId must be a string that is not empty")
        task = self._tasks.get(task_id)
        if task is None or task.session_id != session_id:
            raise _RefusedError(INVALID_PARAMS, "Failed to retrieve task: Task not found")
        return task

    async def _result(self, task: _Received) -> Reply:
        await task.settled.wait()
        if task.reply is None:
            raise _RefusedError(INVALID_PARAMS, "Failed to retrieve task: Task has expired")
        logger.info("The server gets the result of %r", task)
        return task.reply if isinstance(task.reply, RpcError) else mark_answer(task.reply, task.task_id)

    def _cancel(self, task: _Received) -> JSONObject:
        if not self._end_cancelled(task, "The task was cancelled by request."):
            status = f"already in terminal status {task.wire['status']!r}"
            raise _RefusedError(INVALID_PARAMS, f"Cannot cancel task: {status}")
        return task.wire

    def _end_cancelled(self, task: _Received, message: str) -> bool:
        ended = task.end("cancelled", RpcError(INTERNAL_ERROR, message, None), message, self._now())
        task.asking.cancel()
        return ended

    def _list(self, cursor: object, session_id: str) -> JSONObject:
        # A cursor is the number of the last task that was shown, so that each task that stays is in one page.
        after = 0 if cursor is None else self._read_cursor(cursor)
        # In the order of creation, which is the order of the dictionary.
        rest = [
            task for task in self._tasks.values() if task.session_id == session_id and task.number > after
        ]
        shown = rest[: self._policy.page_size]
        reply: JSONObject = {"tasks": [task.wire for task in shown]}
        return {**reply, "nextCursor": str(shown[-1].number)} if len(rest) > len(shown) else reply

    def _read_cursor(self, cursor: object) -> int:
        if isinstance(cursor, str) and cursor.isascii() and cursor.isdigit() and len(cursor) < 20:
            number = int(cursor)
            if 0 < number <= self._created and str(number) == cursor:
                return number
        raise _RefusedError(INVALID_PARAMS, "Invalid params: there is no such cursor")

    # ── the life of a task ────────────────────────────────────────────────────────────────────

    async def _live(self, task: _Received, notify: Notify, context: CallContext | None) -> None:
        """Ask the host, keep the answer, and forget the task when its time-to-live is over."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._ask, task, notify, context)
                await self._clock.sleep(task.expires_at - self._clock.monotonic())
                tasks.cancel_scope.cancel()
        finally:
            self._forget(task)

    async def _ask(self, task: _Received, notify: Notify, context: CallContext | None) -> None:
        with task.asking:
            asked = InputContext(tool=None, key=task.task_id, task=None, context=context)
            answer = await self._inputs.reply(asked, task.question)
            if isinstance(answer, RpcError):
                ended = task.end("failed", answer, answer.message, self._now())
            else:
                ended = task.end("completed", answer, None, self._now())
            if ended:
                logger.info("The host has answered %r", task)
                with suppress(SessionError):  # the server polls in any case
                    await notify(task.session_id, "notifications/tasks/status", task.wire)

    def _forget(self, task: _Received) -> None:
        if self._tasks.pop(task.task_id, None) is not None:
            task.asking.cancel()
            task.settled.set()

    def _now(self) -> str:
        """The wall clock as ISO 8601."""
        now = datetime.fromtimestamp(self._clock.time(), UTC)
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
