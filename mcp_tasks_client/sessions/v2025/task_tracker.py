"""The tasks of a 2025-11-25 server that this client knows, and the ``tasks/result`` that is open for each.

In ``input_required`` a server sends its questions on the stream of an open ``tasks/result``, so the client
opens one, at most one a task. It stays open until the task ends, also while the task works: the next question
and the result come on it. Three rules keep questions from being lost:

- An open ``tasks/result`` on which a question is open is never cancelled: mcpkit v1 runs the question in the
  context of that request, and would abort it.
- A ``tasks/result`` whose stream has lost its reader is cancelled by its JSON-RPC ID, which is journaled,
  as soon as no question is open on it: when the client closes, when the task is not observed, and by the
  process that takes the task over. Otherwise the server would deliver the next question to it.
- A message of the server between two polls is delivered at once, as a snapshot of the task.

A task is known by the call that made it, or by the journal. Before that, messages of the server about it are
dropped, but for questions, which wait for the call: see :mod:`.inbound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from ...aio.clock import Clock
from ...errors import SessionError
from ...policy import growing_delay
from ...protocol import JSONObject, MalformedError, RequestId
from ...protocol.replies import Reply, RpcError
from ...protocol.task import TERMINAL_STATUSES, read_task
from ...protocol.text import shorten
from ...questions.context import CallContext
from ..base import ObservedTasks, Snapshot, TaskRef, latest_context, made_in_another
from .connection import SILENCE_S, Connection, OwnRequest, is_answer, new_request_id
from .mcp_sessions import McpSessions
from .question_log import QuestionLog
from .session_data import SessionData, is_foreign
from .shapes import CORE_TASKS_VERSION, inline_result, rename_task_fields

__all__ = ["TaskTracker", "TrackedTask"]

_UNOBSERVED_S: Final = 1.0
"""Seconds after which the ``tasks/result`` of a task that is not observed is cancelled."""

_FORGET_S: Final = 60.0
"""Seconds after which a task that was never observed is forgotten."""

_CLOSE_S: Final = 1.0
"""Seconds for all open requests to be cancelled while the client closes."""

_REOPEN_S: Final = 1.0
_LONGEST_REOPEN_S: Final = 30.0
"""Seconds before a ``tasks/result`` that broke is opened again. They double while it breaks at once."""

_PROGRESS_S: Final = 0.1
"""Seconds between two deliveries of one task's progress."""


@dataclass(eq=False, slots=True)
class _OpenResult:
    """A ``tasks/result`` whose reply is being waited for. Cancelling the scope ends the wait."""

    request_id: RequestId
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


@dataclass(eq=False, slots=True)
class TrackedTask:
    """One task, with the data that the engine does not know."""

    task_id: str
    connection: Connection
    questions: QuestionLog
    restored_from: str | None = None
    """The ``session_data`` that another client has written; ``None`` if the task was made here."""

    in_another: bool = False
    """Whether the task was made in an MCP session that cannot be reached over the connection."""

    since: float = 0.0
    """Monotonic seconds when this was made."""

    observed: bool = False
    """Whether it was among the observed tasks at some time."""

    latest: JSONObject = field(default_factory=dict)
    """The last snapshot, under the field names of 2026-07-28; empty before the first."""

    context: CallContext | None = field(default=None, repr=False)
    """The context of the task's call, as of the last request."""

    meta: JSONObject | None = None
    """The ``_meta`` of the creation, which may hold an immediate response for the model."""

    progress_token: str | int | None = None
    progress: JSONObject | None = None
    progress_at: float = -math.inf
    silenced: bool = False
    """Whether the task was cancelled. mcp 1.30 loses its session when a question is answered after that."""

    result: _OpenResult | None = None
    reply: JSONObject | None = None
    """The result, if ``tasks/result`` has brought it."""

    abandoned: RequestId | None = None
    """The ID of a ``tasks/result`` that may be open at the server without a reader."""

    reopen_at: float = -math.inf
    failures: int = 0
    refusals: int = 0
    """Times that the server had no result of a completed task."""

    news: anyio.Event = field(default_factory=anyio.Event)
    """Set by the next question, and when there will be none."""

    def __repr__(self) -> str:
        return f"<TrackedTask {shorten(self.task_id)}>"

    def data(self, owner: str) -> SessionData:
        """The ``session_data`` that the journal is to keep."""
        data = SessionData(
            owner=owner,
            session_id=self.connection.session_id,
            cancellable=self.connection.cancels_tasks,
            result_id=self.abandoned if self.result is None else self.result.request_id,
            progress_token=self.progress_token,
        )
        return self.questions.dump(data)


class TaskTracker:
    """Knows the tasks, keeps their ``tasks/result`` open, and delivers unasked snapshots of the server.

    Args:
        clock: By which everything here waits.
        sessions: The MCP sessions that tasks are made in.

    Attributes:
        owner: This client's name in ``session_data``.
        changed: Set when the set of connections or of tasks has changed.
        unfinished: Task IDs, and IDs of ``tools/call`` that may still run: the current MCP session must not
            be ended while there are some.
    """

    def __init__(self, clock: Clock, sessions: McpSessions) -> None:
        self.owner = str(new_request_id())
        self.changed = anyio.Event()
        self.unfinished: set[RequestId] = set()
        self._clock = clock
        self._sessions = sessions
        self._tasks: dict[str, TrackedTask] = {}
        self._running: tuple[TaskGroup, ObservedTasks] | None = None
        self._streams: dict[Connection, anyio.CancelScope] = {}

    # ── the tasks ─────────────────────────────────────────────────────────────────────────────

    def find(self, task_id: str) -> TrackedTask | None:
        """The task of that ID, if it is known."""
        return self._tasks.get(task_id)

    def only_task_of(self, connection: Connection) -> TrackedTask | None:
        """The only task of an MCP session that was not cancelled; ``None`` if there are several, or none."""
        found = [task for task in self._tasks.values() if task.connection is connection and not task.silenced]
        return found[0] if len(found) == 1 else None

    def add(self, task_id: str, connection: Connection, context: CallContext | None) -> TrackedTask:
        """Take up a task that a call has created, unless another call has created the same one before."""
        task = self._tasks.get(task_id)
        if task is None:
            questions, since = QuestionLog(SessionData()), self._clock.monotonic()
            task = TrackedTask(task_id, connection, questions, since=since, context=context)
            self._tasks[task_id] = task
            self.unfinished.add(task_id)
        return task

    def latest_context(self) -> CallContext | None:
        """The context of the newest of the observed tasks."""
        return None if self._running is None else latest_context(self._running[1].refs())

    async def take_up(self, ref: TaskRef) -> TrackedTask:
        """The task, restored from the journal if it is not known, or another client had it since.

        Raises:
            RemoteProtocolError: The task is one of another version.
            SessionError: A new MCP session was needed, and could not be begun.
        """
        if is_foreign(ref.session_data):
            raise made_in_another(
                CORE_TASKS_VERSION,
                "Resume it once the server speaks that version again, or make the call again.",
            )
        task = self._find_current(ref)
        if task is None:
            data = SessionData.read(ref.session_data)
            connection = await self._sessions.of_task(
                data.session_id, ref.context, cancellable=data.cancellable
            )
            # Another caller may have restored it meanwhile.
            task = self._find_current(ref) or self._restore(ref, data, connection)
        task.context = ref.context
        return task

    def _find_current(self, ref: TaskRef) -> TrackedTask | None:
        """The task, unless another client wrote its ``session_data`` last."""
        task = self._tasks.get(ref.task_id)
        if task is None or ref.session_data in (None, task.restored_from):
            return task
        return task if SessionData.read(ref.session_data).owner == self.owner else None

    def _restore(self, ref: TaskRef, data: SessionData, connection: Connection) -> TrackedTask:
        before = self._tasks.get(ref.task_id)
        if before is not None:
            self._drop_result(before)
        task = TrackedTask(
            ref.task_id,
            connection,
            QuestionLog(data),
            restored_from=ref.session_data,
            since=self._clock.monotonic(),
            progress_token=data.progress_token,
        )
        if data.session_id is not None and data.session_id != connection.session_id:
            task.questions.lose_session()
            task.in_another = not connection.reaches_others  # else its own session has ended
        else:
            task.abandoned = data.result_id
        self._tasks[ref.task_id] = task
        self.unfinished.add(ref.task_id)
        self.begin(self._settle_abandoned, task)
        return task

    def move(self, task: TrackedTask, connection: Connection) -> None:
        """Note that a task goes on in another MCP session, because its own has ended."""
        self._drop_result(task)
        task.connection, task.abandoned, task.in_another = connection, None, False
        task.questions.lose_session()

    def forget(self, task_id: str) -> None:
        """Forget a task whose end is journaled."""
        self.unfinished.discard(task_id)
        task = self._tasks.pop(task_id, None)
        if task is not None:
            self._drop_result(task)
            task.questions.clear()
            task.news.set()

    def silence(self, task: TrackedTask) -> None:
        """Answer no more questions of a task: it is being cancelled."""
        task.silenced = True
        task.questions.clear()
        task.news.set()

    # ── snapshots ─────────────────────────────────────────────────────────────────────────────

    def snapshot(self, task: TrackedTask, raw: JSONObject | None = None) -> Snapshot:
        """The task with its oldest open question, its progress, and its data for the journal.

        ``raw`` is a new snapshot of the server's; ``None`` is for the latest.

        Raises:
            MalformedError: The snapshot is not one.
        """
        if raw is not None:
            task.latest = raw
        wire: JSONObject = {"taskId": task.task_id}
        if task.meta is not None:
            wire["_meta"] = task.meta
        if task.progress is not None:
            wire["progress"] = task.progress
        wire |= task.latest
        if wire.get("status") not in TERMINAL_STATUSES:
            asked = task.questions.show()
            # FastMCP 3 says that a task works as soon as it has sent a question.
            if asked or wire.get("status") == "input_required":
                wire |= {"status": "input_required", "inputRequests": asked}
        return Snapshot(read_task(wire), task.data(self.owner).write())

    def deliver(self, task: TrackedTask, raw: JSONObject | None = None) -> None:
        """Tell the engine how a task is, without being asked."""
        if self._running is None or not (raw or task.latest):
            return  # a poll tells the same
        with suppress(MalformedError):
            self._running[1].deliver(self.snapshot(task, raw))

    def take_status(self, task_id: str, params: JSONObject) -> None:
        """Take a ``notifications/tasks/status``. It tells when to fetch the result or the questions."""
        task, raw = self._tasks.get(task_id), rename_task_fields(params)
        if task is None:
            return
        match raw.get("status"):
            case "working" | "cancelled":
                self.deliver(task, raw)
            case "completed" | "failed" | "input_required":
                task.latest = {**task.latest, **raw}
                self._act_on_status(task)

    def _act_on_status(self, task: TrackedTask) -> None:
        """Fetch the result or the questions of the latest status, before a poll is due."""
        if not self._is_observed(task):
            return
        match task.latest.get("status"):
            case "completed" | "failed":
                self.begin(self._fetch_end, task)
            case "input_required":
                self.open_result(task)

    async def _fetch_end(self, task: TrackedTask) -> None:
        """Deliver the end of a task that the server has told of.

        By a request of its own: TypeScript's server looks only once a poll interval whether it can answer the
        ``tasks/result`` that is open.
        """
        own = OwnRequest("tasks/result", {"taskId": task.task_id}, task.context, task.task_id)
        try:
            reply: Reply = await task.connection.request(own)
        except SessionError as error:
            if not is_answer(error):
                return  # a poll tells
            reply = RpcError(error.code, error.remote_message, error.data)
        self._take_end(task, reply)

    def take_progress(self, params: JSONObject) -> None:
        """Take a ``notifications/progress``."""
        token, tasks = params.get("progressToken"), self._tasks.values()
        task = next((one for one in tasks if token is not None and one.progress_token == token), None)
        if task is None:
            return
        now = self._clock.monotonic()
        task.progress = {name: params[name] for name in ("progress", "total", "message") if name in params}
        if now - task.progress_at >= _PROGRESS_S:  # the next one, or a poll, tells the rest
            task.progress_at = now
            self.deliver(task)

    # ── questions ─────────────────────────────────────────────────────────────────────────────

    def hear(self, task: TrackedTask, request_id: RequestId, request: JSONObject) -> bool:
        """Take a question of a task. Returns whether there was room for it."""
        heard = task.questions.hear(request_id, request)
        if heard == "new":
            task.news.set()
            self.deliver(task)
        return heard != "too many"

    def withdraw(self, connection: Connection, request_id: RequestId) -> None:
        """The server has cancelled one of its requests."""
        for task in self._tasks.values():
            if task.connection is connection and task.questions.withdraw(request_id):
                self.deliver(task)

    def go_on(self, task: TrackedTask) -> None:
        """Deliver the next question after an acknowledged answer, and cancel a request without a reader."""
        self.deliver(task)
        if task.abandoned is not None:
            self.begin(self._settle_answered, task)

    async def wait_for_question(self, task: TrackedTask, limit_s: float) -> None:
        """Return when a question has come on the open ``tasks/result``, or when the time is over."""
        if task.result is not None and not task.questions:
            task.news = anyio.Event()
            await self._clock.wait(task.news, limit_s)

    # ── tasks/result ──────────────────────────────────────────────────────────────────────────

    def open_result(self, task: TrackedTask) -> None:
        """Open ``tasks/result`` of an observed task, unless one is open, or was open just now."""
        held = task.silenced or self._clock.monotonic() < task.reopen_at
        if held or task.result is not None or not self._is_observed(task):
            return
        task.observed = True
        self.changed.set()  # from now on it matters whether the task is observed still
        own = OwnRequest("tasks/result", {"taskId": task.task_id}, task.context, task.task_id, SILENCE_S)
        task.result = _OpenResult(own.request_id)
        self.begin(self._follow, task, task.result, own)

    async def _follow(self, task: TrackedTask, result: _OpenResult, own: OwnRequest) -> None:
        """Send ``tasks/result``, and wait for the reply."""
        begun, reply, lost = self._clock.monotonic(), None, None
        with result.scope:
            try:
                reply = await task.connection.request(own)
            except SessionError as error:
                lost = error
        if task.result is not result or result.scope.cancelled_caught:
            return
        task.result, task.reply = None, reply
        if lost is None:
            self._take_end(task, reply)
        else:
            self._note_lost(task, own, lost, self._clock.monotonic() - begun)
        task.news.set()  # this stream brings no further question
        await self._settle_abandoned(task)

    def _take_end(self, task: TrackedTask, reply: Reply | None) -> None:
        """Deliver the end of a task, if the reply tells it without a poll."""
        status = task.latest.get("status")
        if isinstance(reply, dict) and "content" in reply and status is not None:
            latest = {**task.latest, "status": "completed"}
            if status != "completed":
                latest.pop("lastUpdatedAt", None)  # the server has not said when the task has ended
            self.deliver(task, inline_result(latest, reply))
        elif reply is not None and status == "failed":
            self.deliver(task, inline_result(task.latest, reply))
        else:
            task.reopen_at = self._clock.monotonic() + _REOPEN_S  # a poll tells how the task has ended

    def _note_lost(self, task: TrackedTask, own: OwnRequest, error: SessionError, lasted_s: float) -> None:
        """Have a poll open ``tasks/result`` again.

        Also after an error that the server answered. It may only say that the request was cancelled, by
        ourselves or by another client of the journal; a task that has failed says so to the next request.
        """
        task.questions.lose_stream()
        task.failures = 0 if lasted_s > _REOPEN_S else task.failures + 1
        pause_s = growing_delay(_REOPEN_S, task.failures, _LONGEST_REOPEN_S)
        task.reopen_at = self._clock.monotonic() + max(pause_s, error.retry_after_s or 0.0)
        if not (error.not_executed or task.connection.lost or is_answer(error)):
            task.abandoned = own.request_id  # it may be open at the server still

    async def _settle_answered(self, task: TrackedTask) -> None:
        """Cancel a ``tasks/result`` without a reader, once the server has done what the answer sets off."""
        # The answer may end the task, and mcp 1.30 ends the MCP session with all its tasks if a request is
        # cancelled while it is answered. The reply to a ping comes after that.
        with suppress(SessionError):
            await task.connection.request(OwnRequest("ping", {}, task.context, task.task_id))
        await self._settle_abandoned(task)

    async def _settle_abandoned(self, task: TrackedTask) -> None:
        """Cancel a ``tasks/result`` without a reader, unless a question is open on it."""
        if task.abandoned is None or task.silenced or task.questions:
            return
        request_id, task.abandoned = task.abandoned, None
        with suppress(SessionError):
            await self._cancel_request(task, request_id)

    def _drop_result(self, task: TrackedTask) -> None:
        """Stop reading without a word to the server, which knows that the task or the session is over."""
        if task.result is not None:
            task.result.scope.cancel()
            task.result = None

    async def _close_result(self, task: TrackedTask) -> None:
        """Stop reading, and tell the server so, unless a question is open on the stream."""
        result = task.result
        if result is None or task.questions:
            return
        with suppress(SessionError):  # a question that the server sends before it knows is lost
            await self._cancel_request(task, result.request_id)
        result.scope.cancel()
        if task.result is result:
            task.result = None

    async def _cancel_request(self, task: TrackedTask, request_id: RequestId) -> None:
        # A server answers ``tasks/result`` by itself once the task is over. mcp 1.30 ends the MCP session and
        # all its tasks if the request is cancelled in that instant.
        if not task.connection.lost and task.latest.get("status") not in TERMINAL_STATUSES:
            await task.connection.notify("notifications/cancelled", {"requestId": request_id}, task.context)

    # ── while a client is open ────────────────────────────────────────────────────────────────

    def _is_observed(self, task: TrackedTask) -> bool:
        return self._running is not None and task.task_id in self._running[1].refs()

    def begin(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> bool:
        """Run a coroutine function in the background. Returns False if no client is open."""
        if self._running is None:
            return False
        self._running[0].start_soon(work, *args)
        return True

    async def run(self, observed: ObservedTasks) -> None:
        """Keep the streams and requests open that the observed tasks need. Runs until cancelled."""
        async with anyio.create_task_group() as group:
            self._running = group, observed
            group.start_soon(self._note_changes, observed)
            try:
                while True:
                    self.changed = anyio.Event()
                    await self._attend(observed)
                    waiting = any(task.result is not None for task in self._tasks.values())
                    await self._clock.wait(self.changed, _UNOBSERVED_S if waiting else None)
            finally:
                self._running = None
                with anyio.move_on_after(_CLOSE_S, shield=True):
                    async with anyio.create_task_group() as closing:
                        for task in list(self._tasks.values()):
                            closing.start_soon(self._close_result, task)
                self._tasks.clear()
                self._streams.clear()

    async def _note_changes(self, observed: ObservedTasks) -> None:
        while True:
            await observed.changed()
            self.changed.set()

    async def _attend(self, observed: ObservedTasks) -> None:
        refs = observed.refs()
        for task_id in refs.keys() - self._tasks.keys():
            with suppress(SessionError):  # the task's own poll tells
                await self.take_up(refs[task_id])
        for task in list(self._tasks.values()):
            if task.task_id in refs:
                first, task.observed = not task.observed, True
                if first:
                    self._act_on_status(task)
                if first and task.questions:
                    self.deliver(task)
            elif task.observed or self._clock.monotonic() - task.since > _FORGET_S:
                self.begin(self._close_result, task)
                if not task.questions:
                    self._tasks.pop(task.task_id, None)
        used = [*(task.connection for task in self._tasks.values()), self._sessions.current]
        needed = {connection for connection in used if connection is not None}
        for connection in needed:
            self.listen_to(connection)
        for connection in self._streams.keys() - needed:
            self._streams.pop(connection).cancel()

    def listen_to(self, connection: Connection) -> None:
        """Open the GET stream of an MCP session, on which the server may send questions."""
        if self._running is not None and connection not in self._streams and not connection.lost:
            scope = self._streams[connection] = anyio.CancelScope()
            self.begin(self._listen, connection, scope, self._running[1])

    async def _listen(
        self, connection: Connection, scope: anyio.CancelScope, observed: ObservedTasks
    ) -> None:
        with scope:
            await connection.listen(lambda: latest_context(observed.refs()) or connection.context)
