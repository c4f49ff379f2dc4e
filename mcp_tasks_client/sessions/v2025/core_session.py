"""A server of MCP 2025-11-25 as one :class:`Session`: the client asks for tasks, and fetches their results.

Theory of operation
===================

There is a handshake, and an MCP session to which a server may bind its tasks. So the ID of the MCP session is
kept with each task (``session_data``), and another process goes on in that MCP session.

``tasks/get`` tells the status and nothing else. The rest of a snapshot is put together here:

- the result of a task that is over, from ``tasks/result``, which then answers at once;
- the questions of a task in ``input_required``, from requests that the server sends on the stream of an open
  ``tasks/result``, or on the GET stream. See :mod:`.task_tracker`.

An answer is the reply to such a request. The server may acknowledge it, and the task may not use it. So the
answer is sent once more if the task still waits two snapshots later.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import anyio
from mcp_types import SERVER_INFO_META_KEY, Tool

from ...aio.clock import Clock
from ...errors import ConnectionLostError, MissingCapabilityError, RemoteProtocolError, SessionError
from ...policy import ReceivePolicy, TaskPreference
from ...protocol import PROTOCOL_VERSION, JSONObject, MalformedError
from ...protocol.params import call_params
from ...protocol.replies import CallReply, Created, Reply, Returned, RpcError
from ...protocol.task import TERMINAL_STATUSES
from ...protocol.text import quote, shorten
from ...questions.callbacks import Inputs
from ...questions.context import CallContext
from ..base import (
    INVALID_PARAMS,
    BeforeSend,
    Limits,
    ObservedTasks,
    Session,
    Snapshot,
    TaskRef,
    ToolCall,
    latest_context,
)
from ..request_errors import RequestErrors
from ..slots import Slots
from ..tool_catalogue import ToolCatalogue
from . import shapes
from .connection import Connection, Hear, OwnRequest, finish_soon, is_answer
from .inbound import Inbound
from .mcp_sessions import McpSessions
from .receiver import Receiver
from .task_policy import TaskPolicy
from .task_tracker import TaskTracker, TrackedTask

if TYPE_CHECKING:
    from ..http.http_session import HttpSession
    from ..stdio.stdio_session import StdioSession

__all__ = ["CoreTasksSession", "session_over", "session_over_stdio"]

_QUESTION_S: Final = 1.0
"""Seconds for which a poll waits for a question to come. A later question is delivered when it comes."""

_LISTENING_S: Final = 5.0
"""Seconds for which a call waits for the GET stream to open, on which the server may ask. Some proxies hold
the stream back, so that only one call waits that long."""

_END_S: Final = 1.0
"""Seconds for the end of an MCP session while the client closes."""

_MOST_REFUSALS: Final = 3
"""Times that the result of a completed task may be refused. Then the refusal is the result."""


def session_over(
    http: HttpSession,
    *,
    inputs: Inputs,
    receive: ReceivePolicy | None,
    task_preference: TaskPreference,
    task_ttl_s: float,
    clock: Clock,
) -> Session:
    """The session at a server that has turned out not to speak 2026-07-28. Nothing is sent yet.

    Args:
        http: Its channel, limits and ``tell`` are used. The channel is left open.
        inputs: Answers the questions of the server that belong to none of its tasks.
        receive: Limits of the tasks that the server has the client run; ``None`` is the defaults.
        task_preference: Whether to ask for tasks.
        task_ttl_s: Seconds for which the server is asked to keep a task.
        clock: By which everything waits.

    Raises:
        ValueError: ``task_preference`` or ``task_ttl_s`` makes no sense.
    """
    from .http_connection import HttpConnection  # here, since a process is reached without an HTTP library

    def connect(hear: Hear, session_id: str | None) -> Connection:
        return HttpConnection(
            http.channel,
            hear,
            timeout_s=http.limits.task_timeout_s,
            clock=clock,
            session_id=session_id,
        )

    return _session_beside(http, connect, inputs, receive, task_preference, task_ttl_s, clock)


def session_over_stdio(
    stdio: StdioSession,
    *,
    inputs: Inputs,
    receive: ReceivePolicy | None,
    task_preference: TaskPreference,
    task_ttl_s: float,
    clock: Clock,
) -> Session:
    """The session at a server whose process has turned out not to speak 2026-07-28. Nothing is sent yet.

    Args:
        stdio: Its process and limits are used, and left as they are.
        inputs: As for :func:`session_over`, and all others as well.
        receive: As above.
        task_preference: As above.
        task_ttl_s: As above.
        clock: As above.

    Raises:
        ValueError: ``task_preference`` or ``task_ttl_s`` makes no sense.
    """
    from .stdio_connection import StdioConnection

    def connect(hear: Hear, session_id: str | None) -> Connection:
        return StdioConnection(stdio.process, hear, stdio.limits.task_timeout_s)

    return _session_beside(stdio, connect, inputs, receive, task_preference, task_ttl_s, clock)


def _session_beside(
    native: HttpSession | StdioSession,
    connect: Callable[[Hear, str | None], Connection],
    inputs: Inputs,
    receive: ReceivePolicy | None,
    task_preference: TaskPreference,
    task_ttl_s: float,
    clock: Clock,
) -> Session:
    return CoreTasksSession(
        connect,
        endpoint=native.endpoint,
        limits=native.limits,
        client_info=native.client_info,
        inputs=inputs,
        receiver=Receiver(inputs, receive or ReceivePolicy(), clock),
        preference=TaskPolicy(prefer=task_preference, ttl_s=task_ttl_s),
        clock=clock,
        tell=native.tell,
    )


class CoreTasksSession(Session):
    """A server of 2025-11-25.

    ``connect`` makes a connection: of the MCP session with an ID, or of a new one. ``inputs`` answers the
    questions that belong to none of the server's tasks. ``tell`` is told of the server's notifications.
    """

    def __init__(
        self,
        connect: Callable[[Hear, str | None], Connection],
        *,
        endpoint: str,
        limits: Limits,
        client_info: JSONObject,
        inputs: Inputs,
        receiver: Receiver,
        preference: TaskPolicy,
        clock: Clock,
        tell: Callable[[JSONObject], None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self._preference = preference
        self._receiver = receiver
        self._clock = clock
        self._slots = Slots(limits)
        self._catalogue = ToolCatalogue(self._look_up, endpoint, clock.sleep)
        self._answering: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._is_heard = tell is not None
        self._sessions = McpSessions(
            lambda session_id: connect(self._inbound.hear, session_id),
            {**inputs.capabilities, **receiver.capabilities},
            client_info,
            self._begun,
        )
        self._tracker = TaskTracker(clock, self._sessions)
        forget_tools = self._catalogue.forget_tools
        self._inbound = Inbound(self._tracker, inputs, receiver, clock, forget_tools, tell)

    def __repr__(self) -> str:
        return f"<CoreTasksSession {self.endpoint}>"

    async def tool(
        self, name: str, *, fresh: bool = False, context: CallContext | None = None
    ) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none that may be called.

        Raises:
            SessionError: The server could not be asked, or does not speak this generation.
        """
        listed = await self._catalogue.find(name, context, fresh=fresh)
        return listed.tool if listed is not None and listed.fault is None else None

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    async def may_make_task(self, name: str, *, context: CallContext | None = None) -> bool:
        """Whether the server makes tasks of a tool, and the host wants them.

        Raises:
            SessionError: The server could not be asked, or does not speak this generation.
        """
        connection = await self._sessions.begin(context)
        listed = await self._catalogue.find(name, context) if connection.makes_tasks else None
        tool = listed.tool if listed is not None else None
        return self._preference.wants_task(name, tool, server_makes_tasks=connection.makes_tasks)

    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        """Send ``tools/call`` once; again only if the server denied the MCP session, and so never read it.

        Raises:
            SessionError: No result. ``not_executed`` is set if nothing can have happened.
            ValueError: The arguments have no JSON form.
        """
        async with self._slots.calls:
            await self._sessions.begin(call.context)  # else the catalogue would say that we speak 2026-07-28
            listed = await self._catalogue.find_for_call(call.name, call.context)
            connection = await self._sessions.begin(call.context)
            tool = listed.tool if listed is not None else None
            as_task = self._preference.wants_task(call.name, tool, server_makes_tasks=connection.makes_tasks)
            params = self._call_params(call, as_task=as_task)
            await self._wait_for_stream(connection)
            await before_send()
            try:
                return await self._send_call(connection, params, call.context)
            except SessionError as error:
                if not (connection.lost and error.not_executed):
                    raise
            connection = await self._begin_instead_of(connection, call.context)
            await self._wait_for_stream(connection)
            return await self._send_call(connection, params, call.context)

    async def _wait_for_stream(self, connection: Connection) -> None:
        """Return when the server can be heard. A question that it sends before that is lost."""
        listening = connection.listening
        self._tracker.listen_to(connection)
        await self._clock.wait(listening, _LISTENING_S)
        listening.set()

    def _call_params(self, call: ToolCall, *, as_task: bool) -> JSONObject:
        params = call_params(call.name, call.arguments)
        meta = dict(call.meta or {})
        if as_task:
            params["task"] = {"ttl": self._preference.ttl_ms}
            if shapes.read_progress_token({"_meta": meta}) is None:
                meta["progressToken"] = shapes.make_progress_token(secrets.token_hex(8))
        return {**params, "_meta": meta} if meta else params

    async def _send_call(
        self, connection: Connection, params: JSONObject, context: CallContext | None
    ) -> CallReply:
        own = OwnRequest("tools/call", params, context, silence_s=self.limits.call_read_timeout_s)
        unfinished = self._tracker.unfinished
        unfinished.add(own.request_id)
        try:
            with connection.calling(own):
                result = await connection.request(own)
        except SessionError as error:
            if error.not_executed or is_answer(error):
                unfinished.discard(own.request_id)
            raise
        # No checkpoint from here until the task is noted, so that a waiting question finds it.
        unfinished.discard(own.request_id)
        created = shapes.read_created_task(result)
        if created is None:
            return Returned(result)
        task = self._tracker.add(str(created["taskId"]), connection, context)
        task.progress_token = shapes.read_progress_token(params)
        meta = created.pop("_meta", None)
        task.meta = meta if isinstance(meta, dict) else None
        snapshot = self._snapshot(task, created, "tools/call")
        return Created(snapshot.task, snapshot.session_data)

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    async def get(self, ref: TaskRef) -> Snapshot:
        """Send ``tasks/get`` once, and add the other parts of a snapshot.

        Raises:
            SessionError: No snapshot; its code is -32602 if the server does not know the task.
        """
        async with self._slots.polls:
            task = await self._tracker.take_up(ref)
            await _before_send(ref)
            raw = await self._ask("tasks/get", task)
        try:
            raw = shapes.rename_task_fields(raw)
        except MalformedError as error:
            raise RequestErrors("tasks/get", task.task_id).malformed(str(error)) from None
        status = raw.get("status")
        if status in ("completed", "failed"):
            raw = shapes.inline_result(raw, await self._fetch_result(task, completed=status == "completed"))
        elif status not in TERMINAL_STATUSES:
            task.latest, task.reply = raw, None
            await self._send_once_more(task, waiting=status == "input_required")
            if status == "input_required":
                self._tracker.open_result(task)
                await self._tracker.wait_for_question(task, _QUESTION_S)
        return self._snapshot(task, raw, "tasks/get")

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> str:
        """Answer requests of the server's for a task.

        Returns:
            The task's ``session_data``, by which another client tells these questions from later ones of the
            same text.

        Raises:
            SessionError: Not all answers were acknowledged. ``retryable`` if the server does not ask now.
        """
        task = await self._tracker.take_up(ref)
        if task.silenced:
            raise SessionError(
                "The task was cancelled, so that its questions are not answered.", code=INVALID_PARAMS
            )
        async with self._slots.task_requests, self._answering.setdefault(ref.task_id, anyio.Lock()):
            await _before_send(ref)
            for key, answer in answers.items():
                await self._answer(task, key, shapes.mark_answer(answer, ref.task_id))
        self._tracker.go_on(task)
        return task.data(self._tracker.owner).write()

    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once. From here on none of the task's questions is answered.

        Raises:
            MissingCapabilityError: The server does not declare ``tasks.cancel``.
            SessionError: No acknowledgement; its code is -32602 if the task is over already.
        """
        task = await self._tracker.take_up(ref)
        if not task.connection.cancels_tasks:
            raise MissingCapabilityError(
                f"Task {shorten(ref.task_id)} was not cancelled: the server does not declare tasks.cancel. "
                "The task goes on; stop waiting for it, or wait for its end.",
                not_executed=True,
            )
        self._tracker.silence(task)
        self._receiver.abandon(ref.task_id)
        async with self._slots.task_requests:
            await _before_send(ref)
            await self._ask("tasks/cancel", task)

    def forget(self, task_id: str) -> None:
        """Note that the end of a task is journaled."""
        self._tracker.forget(task_id)

    async def ask(
        self, method: str, params: JSONObject, *, context: CallContext | None = None, patient: bool = False
    ) -> JSONObject:
        """Send a request once. ``server/discover`` is a ``ping``, and the server's words in the handshake.

        Raises:
            SessionError: No result.
        """
        connection = await self._sessions.begin(context)
        if method != "server/discover":
            if patient and self._is_heard:
                await self._wait_for_stream(connection)
            silence_s = self.limits.call_read_timeout_s if patient else None
            return await connection.request(OwnRequest(method, params, context, silence_s=silence_s))
        await connection.request(OwnRequest("ping", params, context))
        said = connection.introduction
        return {
            "supportedVersions": [said.get("protocolVersion")],
            "capabilities": said.get("capabilities"),
            "instructions": said.get("instructions"),
            "_meta": {SERVER_INFO_META_KEY: said.get("serverInfo")},
        }

    async def run(self, observed: ObservedTasks) -> None:
        """Keep the streams open on which the server speaks, and deliver the snapshots that they bring."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._receiver.run, partial(self._notify, observed))
            await self._tracker.run(observed)

    async def aclose(self) -> None:
        """End the MCP session that was begun here, if no call or task may live in it; the channel stays."""
        if not self._tracker.unfinished:
            with anyio.move_on_after(_END_S), suppress(Exception):
                await self._sessions.end()

    # ── parts of a request ────────────────────────────────────────────────────────────────────

    async def _ask(self, method: str, task: TrackedTask) -> JSONObject:
        """Send one of ``tasks/*`` in the task's own MCP session, or in the current one if that has ended."""
        own = task.connection
        try:
            return await self._send(own, method, task)
        except SessionError as error:
            if task.in_another and error.code == INVALID_PARAMS and not error.retryable:
                raise RemoteProtocolError(
                    "The server does not know the task in this MCP session. It was made in another one. "
                    "TasksClient(url).resume() goes on with it there.",
                    not_executed=True,
                ) from error
            if not own.lost:
                raise
            denied = error
        current = await self._begin_instead_of(own, task.context)
        try:
            raw = await self._send(current, method, task)
        except SessionError as error:
            if error.code != INVALID_PARAMS or error.retryable:
                raise
            message = "The server has ended the session that the task was made in"
            raise SessionError(
                f"{message}, and does not know the task in another. Make the call again.",
                code=INVALID_PARAMS,
                remote_message=f"{quote(error.remote_message)} ({message.lower()})",
            ) from denied
        if task.connection is own:
            self._tracker.move(task, current)
        return raw

    async def _send(self, connection: Connection, method: str, task: TrackedTask) -> JSONObject:
        return await connection.request(
            OwnRequest(method, {"taskId": task.task_id}, task.context, task.task_id)
        )

    async def _fetch_result(self, task: TrackedTask, *, completed: bool) -> Reply:
        """The answer to ``tasks/result`` of a task that is over."""
        if task.reply is not None:
            return task.reply
        try:
            return await self._send(task.connection, "tasks/result", task)
        except SessionError as error:
            if not is_answer(error):
                raise
            if completed and error.code == INVALID_PARAMS:
                raise  # the server has forgotten the task meanwhile
            task.refusals += 1
            if completed and task.refusals < _MOST_REFUSALS:
                error.retryable = True  # a completed task has a result, which the server may find later
                raise
            return RpcError(error.code, error.remote_message, error.data)

    async def _answer(self, task: TrackedTask, key: str, answer: JSONObject) -> None:
        if task.questions.was_answered(key):
            return
        request_id = task.questions.begin_answer(key)
        if request_id is None:
            raise ConnectionLostError(
                "The server does not ask this just now. The answer is kept until it asks again.",
                retryable=True,
            )

        async def send() -> None:
            try:
                await task.connection.answer(request_id, answer, task.context, task.task_id)
            except BaseException:
                task.questions.abort_answer(key)
                raise
            task.questions.finish_answer(key, answer, acknowledged=task.connection.acknowledges)

        # Else the question counts as open, and the open ``tasks/result`` could not be cancelled.
        await finish_soon(send)

    async def _send_once_more(self, task: TrackedTask, *, waiting: bool) -> None:
        unused = task.questions.look(waiting=waiting)
        if unused is not None:
            with suppress(SessionError):
                await task.connection.answer(unused.request_id, unused.content, task.context, task.task_id)
                task.questions.finish_once_more(unused)

    def _snapshot(self, task: TrackedTask, raw: JSONObject, method: str) -> Snapshot:
        try:
            return self._tracker.snapshot(task, raw)
        except MalformedError as error:
            raise RequestErrors(method, task.task_id).malformed(str(error)) from None

    # ── MCP sessions ──────────────────────────────────────────────────────────────────────────

    async def _begin_instead_of(self, denied: Connection, context: CallContext | None) -> Connection:
        """The MCP session that goes on in place of one that the server has denied."""
        self._receiver.forget_session(denied.name)
        return await self._sessions.begin(context)

    def _begun(self) -> None:
        self._catalogue.forget_tools()  # the tools of the last session may not be those of this one
        self._tracker.changed.set()

    async def _look_up(self, method: str, params: JSONObject, context: CallContext | None) -> JSONObject:
        connection = await self._sessions.begin(context)
        if method == "server/discover":
            return {"supportedVersions": [PROTOCOL_VERSION]}  # the version was agreed on in the handshake
        return await connection.request(OwnRequest(method, params, context))

    async def _notify(
        self, observed: ObservedTasks, session_id: str, method: str, params: JSONObject
    ) -> None:
        current = self._sessions.current
        if current is not None and current.name == session_id and not current.lost:
            context = latest_context(observed.refs())
            await current.notify(method, params, context)


async def _before_send(ref: TaskRef) -> None:
    if ref.before_send is not None:
        await ref.before_send()
