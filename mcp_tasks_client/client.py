"""The client: ``call_tool`` that takes its time, handles, and the records of the journal."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeAlias, runtime_checkable

from mcp_types import CallToolResult, EmptyResult, InitializeResult, ListToolsResult, PaginatedRequestParams
from pydantic_core import to_jsonable_python

from .aio.host_code import call_host
from .aio.own_task import OwnTask
from .aio.uncut import run_to_its_end
from .engine.adoption import Adoption, check_limit
from .engine.audience import OnUpdate
from .engine.delivery import Store, deliver, deliver_for_all
from .engine.endpoint import Endpoint, HostLine
from .engine.engine import OnAbandon
from .engine.environment import Environment
from .engine.idempotency import OnUnknown
from .engine.notifications import OnNotification, tell_notifications
from .engine.progress import ProgressCallback, tell_progress
from .engine.tool_result import OutputSchema
from .errors import Handle, TasksClientError
from .estimate import Estimate
from .handle import TaskHandle, TaskReference
from .hosts.call_options import CallOptions, read_options
from .hosts.sdk.introspection import is_client
from .hosts.shared_options import SharedOptions
from .hosts.stand_in import introduce, list_tools, ping
from .journal.base import Journal
from .machine.record import Scope, TaskRecord, reference_of
from .policy import PollPolicy, ReceivePolicy, TaskPreference
from .protocol import OLDER_VERSION
from .questions.callbacks import ElicitationCallback, Inputs, RootsCallback, SamplingCallback
from .questions.kinds import Answer
from .questions.question import Question, to_wire
from .sessions.base import Session, ToolCall
from .sessions.stdio.stdio_server import StdioServer

if TYPE_CHECKING:
    import fastmcp
    import mcp

    from .sessions.http.http_session import AnyAuth, AnyClient, AnyHeaders

__all__ = ["TasksClient"]


@runtime_checkable
class Companion(Protocol):
    """A client, blocking or not, of another principal, as ``TasksClient.deliver`` needs it."""

    def _delivers_for(self) -> tuple[Scope, Hashable, str | None]:
        """Whose calls it delivers: endpoint and principal, the identity of its journal, the application."""

    async def _deliver_beside(self, store: Store, limit: int | None) -> None:
        """Deliver until the caller is cancelled. The caller may be in another event loop."""


ClientOf: TypeAlias = Callable[[str], Awaitable[Companion | None] | Companion | None]


class TasksClient:
    """Calls the tools of one MCP server, and sees tasks through to their results.

    Use it as ``async with TasksClient(...) as client``; nothing of it runs outside that block. On
    the way out, tasks that are not done are left to the server and to the journal. A host with ``connect()``
    and ``cleanup()`` awaits ``client.__aenter__()`` and ``client.__aexit__(None, None, None)``, or uses an
    ``AsyncExitStack``, in any of its tasks.

    Args:
        server: The server's URL; or a :class:`StdioServer`, the command that starts it; or the host's own
            client: an ``mcp.Client``, a ``fastmcp.Client`` or an ``mcp.ClientSession``, also one that a
            framework has made; or a ``Session``. Options that are not given here are taken from the client's
            :class:`TasksExtension`, if it has one, and callbacks from the client itself. The client's own
            calls are left as they are.
        journal: ``None`` is the user's default SQLite file; a path is another file; a
            :class:`Journal` is used as it is (``MemoryJournal()`` opts out of durability).
        endpoint: Names the server in the journal; derived from the URL or the command if ``None``,
            and required where there is neither.
        principal: On whose behalf; records of one principal are never used for another. ``None`` is the
            extension's, or else ``""``.
        application: Names the program, where several share a journal. The name is kept with each call that is
            made here, and ``resume()`` takes no call of another name. Calls without a name are anybody's, and
            a client without a name takes only those. ``None`` is the extension's, or else no name. An
            idempotency key is one for the endpoint and the principal, over all applications.
        elicitation: Answers ``elicitation/create``, form and URL.
        sampling: Answers ``sampling/createMessage``.
        roots: Answers ``roots/list``.
        poll: Latency against load.
        receive: Limits of the tasks that an older server may have the client run. Only for a server
            that is given by its URL or its command.
        on_notification: ``on_notification(method, params)`` is called with each notification of the server's
            that is not about a task's status: log messages, progress under a token that was given in
            ``meta``, changed lists, unknown ones. Only for a server that is given by its URL or its command.
            It is a plain function, called in the event loop, so that it must be quick. Its exceptions are
            logged.
        on_abandon: How to treat the task of a ``call_tool`` that times out or is cancelled: ``"detach"`` lets
            it go on, ``"cancel"`` sends ``tasks/cancel``. ``None`` is the extension's, or else ``"detach"``.
        output_schema: How to treat a result that does not match its tool's output schema: ``"raise"`` an
            error that has it, ``"warn"`` in the log, or ``"off"``, without a look at the schema. ``None`` is
            the extension's, or else ``"raise"``.
        http_client: An ``httpx.AsyncClient`` or ``httpx2.AsyncClient`` with your transport, proxies,
            certificates. Not closed.
        headers: Sent with every request. A function, which may be a coroutine function, is asked for them
            before each request, and once more when the server refuses them (HTTP 401): it renews the
            credential of the one user that the client is for. It runs in a task of the client's own; a plain
            function must not block. Its exception is the cause of the call's SessionError; resume the call. A
            SessionError that it raises is the call's own: one that is ``retryable`` delays a poll.
        auth: User and password, or any auth of httpx or httpx2.
        task_preference: Whether an older server, which has the client ask for tasks, is asked for
            them: ``"auto"`` where the tool allows it, ``"always"`` calls no other tool, ``"never"`` makes
            plain calls.
        task_ttl_s: Seconds for which such a server is asked to keep a task and its result; a day by default.
        protocol: ``"2025-11-25"`` speaks that version to a server by URL or command without asking for
            2026-07-28: for a server that speaks both, and makes tasks in the older one only.
        environment: Clock, jitter and process, for tests, and an observer; ``None`` is the real ones.

    Raises:
        TypeError: ``server`` or ``journal`` is none of the above, or ``on_notification`` no plain function.
        MissingCapabilityError: A callback is given for a client that is connected at an older version of the
            protocol, so that no server would ever ask it.
        ValueError: The URL is not an HTTP one, the server needs an ``endpoint``, a word is none of those that
            it can be, ``application`` is no name, HTTP options are given for a server that is none by URL, or
            ``receive`` or ``on_notification`` for a client of the host's own.
    """

    def __init__(
        self,
        server: str | StdioServer | Session | mcp.Client | fastmcp.Client[Any] | mcp.ClientSession,
        *,
        journal: Journal | str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        principal: str | None = None,
        application: str | None = None,
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
        poll: PollPolicy | None = None,
        receive: ReceivePolicy | None = None,
        on_notification: OnNotification | None = None,
        on_abandon: OnAbandon | None = None,
        output_schema: OutputSchema | None = None,
        http_client: AnyClient | None = None,
        headers: AnyHeaders | None = None,
        auth: AnyAuth | None = None,
        task_preference: TaskPreference = "auto",
        task_ttl_s: float = 86_400.0,
        protocol: Literal["2025-11-25"] | None = None,
        environment: Environment | None = None,
    ) -> None:
        if task_preference not in ("auto", "always", "never"):
            raise ValueError(f'task_preference must be "auto", "always" or "never", got {task_preference!r}')
        if not task_ttl_s > 0:
            raise ValueError(f"task_ttl_s must be more than 0 seconds, got {task_ttl_s}")
        if protocol not in (None, OLDER_VERSION):
            raise ValueError(f'protocol must be "{OLDER_VERSION}" or None, got {protocol!r}')
        tell = None if on_notification is None else tell_notifications(on_notification)
        if tell is not None and not isinstance(server, str | StdioServer):
            raise ValueError(
                "on_notification is for a server that is given by its URL or its command. A client of "
                "your own has its own."
            )
        options = SharedOptions(
            journal=journal,
            endpoint=endpoint,
            principal=principal,
            application=application,
            elicitation=elicitation,
            sampling=sampling,
            roots=roots,
            poll=poll,
            on_abandon=on_abandon,
            output_schema=output_schema,
            environment=environment,
        )
        session: Session
        if isinstance(server, str | StdioServer | Session):
            environment = environment or Environment()
            inputs: Inputs = options.callbacks
            policy = poll or PollPolicy()
            older = {"receive": receive, "task_preference": task_preference, "task_ttl_s": task_ttl_s}
            if isinstance(server, str):
                # Imported on use, because it imports an HTTP library.
                from .sessions.by_url.discovery import session_by_url

                session = session_by_url(
                    server,
                    inputs,
                    policy,
                    environment.clock,
                    asks_version=protocol is None,
                    older=older,
                    http_client=http_client,
                    headers=headers,
                    auth=auth,
                    endpoint=endpoint,
                    tell=tell,
                )
            elif isinstance(server, StdioServer):
                if any(option is not None for option in (http_client, headers, auth)):
                    raise ValueError("http_client, headers and auth are for a server by its URL")
                from .sessions.by_command.discovery import session_by_command

                session = session_by_command(
                    server,
                    inputs,
                    policy,
                    environment.clock,
                    asks_version=protocol is None,
                    older=older,
                    endpoint=endpoint,
                    tell=tell,
                )
            else:
                session = server
            self._session, self._inputs = session, inputs
            self._scope = Scope(endpoint or session.endpoint, principal or "")
            self._engine = options.make_engine()
            return
        if not is_client(server):
            raise TypeError(
                f"server must be a URL, a StdioServer, a client or a Session, not {type(server).__name__}"
            )
        if any(option is not None for option in (http_client, headers, auth, protocol)):
            raise ValueError("http_client, headers, auth and protocol belong to the client; give them to it")
        if receive is not None:
            raise ValueError("a client of your own runs no tasks for its server; give a URL, or no receive")
        # Needs the SDK, which is there if the host has a client of it.
        from .hosts.sdk.over_client import OverClient

        over = OverClient.of(server, options)
        self._session, self._inputs, self._scope = over.session, over.inputs, over.scope
        self._engine = over.engine

    _endpoint: Endpoint | None = None
    """Makes the calls, once the client is open."""

    @property
    def endpoint(self) -> str:
        """The server's name in the journal, as an :class:`Inbox` takes it."""
        return self._scope.endpoint

    # ── calling ───────────────────────────────────────────────────────────────────────────────

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        read_timeout_seconds: float | timedelta | None = None,
        progress_callback: ProgressCallback | None = None,
        *,
        timeout: float | None = None,
        timeout_excludes_questions: bool = False,
        raise_on_error: bool = False,
        idempotency_key: str | None = None,
        on_unknown: OnUnknown = "raise",
        label: str | None = None,
        on_update: OnUpdate | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """Call a tool and return its result, however long the server takes for it.

        Args:
            name: The tool.
            arguments: Its arguments: JSON values, and values that sessions of the SDK turn into JSON (dates,
                UUIDs, decimals, models).
            read_timeout_seconds: The SDK's own name for ``timeout``, a ``timedelta`` on mcp 1.x.
            progress_callback: Gets the status messages of the task, counted, as with :class:`TasksExtension`.
                It may be a coroutine function.
            timeout: Seconds for all of it, requests, questions and waiting included; ``None`` is
                no limit. When it is over the task goes on, see ``on_abandon``.
            timeout_excludes_questions: Whether the time does not count in which the host is asked:
                a person may take a day, while the server is given a minute.
            raise_on_error: Raise a :class:`ToolError` for a result that has ``is_error``.
            idempotency_key: Makes the call one that can be repeated: a second call with the same
                key joins the first or returns its result, in this process or a later one.
            on_unknown: Under a key, how to treat an earlier call whose reply was lost: ``"raise"``, or
                ``"resend"`` if the tool may run twice.
            label: A short text for people, of at most 200 characters. It is kept with the record, and never
                sent. A call that joins another one under its key leaves that one's label.
            on_update: Gets each changed :class:`Task`. It may be a coroutine function; it should be quick.
                Its exceptions are logged and otherwise ignored.
            meta: Further entries for the request's ``_meta``.

        Returns:
            The server's result, unchanged; ``is_error`` is a result like any other.

        Raises:
            TaskError: The call ended in an error, or its task was cancelled or is gone.
            ToolError: The tool raised, and ``raise_on_error`` is true.
            WaitTimeoutError: ``timeout`` is over; ``.handle`` is the task.
            InputUnansweredError: A question got no usable answer; ``.handle`` is the task.
            OutcomeUnknownError: The key's earlier call was sent and its reply was lost.
            IdempotencyConflictError: The key belongs to another tool or other arguments.
            SessionError: The server could not be reached, or refused, or broke the protocol.
            JournalError: The journal could not be written; no action that depends on it was taken.
            ValueError: Arguments or options make no sense.
        """
        if isinstance(read_timeout_seconds, timedelta):
            read_timeout_seconds = read_timeout_seconds.total_seconds()
        listeners = [] if progress_callback is None else [tell_progress(progress_callback)]
        if on_update is not None:
            listeners.append(on_update)
        options = read_options(idempotency_key, on_unknown, label, meta)
        endpoint, line = self._opened(), HostLine(listeners, on_unknown=options.on_unknown)
        try:
            return await endpoint.call(
                line,
                _call(name, arguments, options),
                key=options.key,
                timeout=read_timeout_seconds if timeout is None else timeout,
                timeout_excludes_questions=timeout_excludes_questions,
                raise_on_error=raise_on_error,
            )
        except TasksClientError as error:
            _name_call(error, endpoint, line)
            raise

    async def start_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        on_unknown: OnUnknown = "raise",
        label: str | None = None,
        meta: Mapping[str, Any] | None = None,
        record_id: str | None = None,
    ) -> TaskHandle:
        """Call a tool and return as soon as the server has answered, with a task or a result.

        The task is observed in the background until it ends or the client closes, and its
        questions are answered by the callbacks meanwhile.

        Args and errors are those of :meth:`call_tool`, up to the server's first answer. Besides,
        ``record_id`` is the ID of the call's record, such as one that the host has told of before the server
        has answered: 32 hexadecimal digits in lower case. ``None`` draws one. A call that joins another one
        under its key leaves that one's ID. An ID that is another call's is a ``ValueError``.
        """
        endpoint = self._opened()
        options = read_options(idempotency_key, on_unknown, label, meta)
        line = HostLine(on_unknown=options.on_unknown)
        try:
            call = await endpoint.start(
                line, _call(name, arguments, options), key=options.key, record_id=record_id
            )
        except TasksClientError as error:
            _name_call(error, endpoint, line)
            raise
        return TaskHandle(endpoint, call)

    # ── finding again ─────────────────────────────────────────────────────────────────────────

    async def resume(self, *, delivered_within_s: float | None = None) -> list[TaskHandle]:
        """Take up every unfinished task of this endpoint and principal that no process drives.

        Also returns handles of finished calls whose outcome was not received yet. Observation goes on in the
        background as with :meth:`start_tool`, at the pace that was kept before.

        Calls that this client looks after itself are left out: those that a caller waits for, or that it
        drives or has brought to their end for a handle that is still there. A handle that you drop is
        returned again. Calls of a client of another ``application`` are left out as well. Programs that give
        neither a ``journal`` nor an ``application`` take each other's calls.

        Args:
            delivered_within_s: Return besides outcomes that were delivered in these last seconds and are
                still in the journal. A session of the host's may have lost one: its caller had given up, or
                its process was killed before the result was passed on.

        Returns:
            Handles, oldest first.

        Raises:
            JournalError: The journal could not be read.
            ValueError: ``delivered_within_s`` is negative.
        """
        if delivered_within_s is not None and not delivered_within_s >= 0:
            raise ValueError(f"delivered_within_s cannot be negative, got {delivered_within_s}")
        endpoint = self._opened()
        return [TaskHandle(endpoint, call) for call in await endpoint.resume(delivered_within_s)]

    def adopt(self, limit: int | None = None) -> AsyncIterator[TaskHandle]:
        """Take up calls that no process drives, for as long as you iterate: :meth:`resume` without an end.

        ``async for handle in client.adopt():`` gives the handles that :meth:`resume` would return now, and
        later those of calls that come free: of a process that has died, within two lease times (of 30
        seconds, see ``Environment.lease_s``), of others that have released them, and of parked calls whose
        answer has come.

        Each comes once, and none that this client drives. A call that parks for want of an answer comes again
        when the answer is there. One that parks for another reason comes again with the next look, half a
        lease later at most, and so does an outcome whose handle is dropped, or whose block has failed.
        A call that was taken up is driven in the background. No other is taken up while the loop's body runs.
        The loop ends when the client closes.

        Args:
            limit: How many of the calls that this client has adopted, by this loop or another one, may be
                unfinished at once, so that several processes share what there is; ``None`` is no limit.
                A call that waits for a person does not count, unless a callback here is asking. When it is
                answered, there may be more than ``limit`` for a while.

        Raises:
            JournalError: While iterating: the journal could not be read or written. Iterate again.
            ValueError: ``limit`` is less than 1.
        """
        endpoint = self._opened()
        return Adoption(endpoint, limit, partial(TaskHandle, endpoint))

    async def deliver(
        self, store: Store, *, limit: int | None = None, client_of: ClientOf | None = None
    ) -> None:
        """Give the end of every call to a store of yours, until this is cancelled or the client closes.

        ``await client.deliver(store)`` takes up calls that no process drives, now and later, as :meth:`adopt`
        does. It sees each call to its end, and calls ``store(record, outcome)``. Once the store has returned,
        the end is acknowledged. The calls that this client makes are among them. An end that a caller awaits
        goes to that caller, and a call whose handle your program keeps is left to your program.

        The store gets one end several times if the process is killed between the store's own commit and the
        acknowledgement: have it insert by ``record.record_id``, and pass over an end that it has. A store
        that raises is asked again, after 1 to 60 seconds. A coroutine function that has not returned within a
        minute is cancelled and asked again; the thread of a plain function is waited for. Other ends do not
        wait for it: up to 50 are stored at the same time.

        Args:
            store: A coroutine function, or a plain one, which runs in a thread. It gets the
                :class:`TaskRecord` of the call, and the ``CallToolResult`` or the error that
                :meth:`TaskHandle.result` would raise.
            limit: As of :meth:`adopt`.
            client_of: Has the ends of other principals at this server delivered, too.
                ``client_of(principal)`` returns the open client whose credential polls that principal's
                tasks, on the same journal. It is asked once there are calls of a principal that no other
                process drives: within some seconds, and not again until that client closes.
                If it returns ``None`` or raises, the calls are left alone until a later look. ``limit`` is
                for each client. It may be a coroutine function; a plain one runs in a thread.

        Raises:
            ValueError: ``limit`` is less than 1.
            TypeError: ``store`` or ``client_of`` is no function.
        """
        for name, function in (("store", store), ("client_of", client_of)):
            if not (callable(function) or (function is None and name == "client_of")):
                raise TypeError(f"{name} must be a function, not {type(function).__name__}")
        check_limit(limit)
        endpoint = self._opened()
        own = partial(deliver, endpoint, store, limit)
        if client_of is None:
            await own()
            return

        async def find(principal: str) -> Callable[[], Awaitable[None]] | None:
            client = await call_host(client_of, "client_of", principal)
            if client is None:
                return None
            wanted = Scope(self._scope.endpoint, principal), *self._delivers_for()[1:]
            if not isinstance(client, Companion) or client._delivers_for() != wanted:
                raise ValueError(
                    "client_of(principal) must return a TasksClient of the same server, journal and "
                    "application, whose principal= is the one that was asked for"
                )
            return partial(client._deliver_beside, store, limit)

        await deliver_for_all(endpoint, own, find)

    def _delivers_for(self) -> tuple[Scope, Hashable, str | None]:
        return self._scope, self._engine.journal.identity, self._engine.application

    async def _deliver_beside(self, store: Store, limit: int | None) -> None:
        await self.deliver(store, limit=limit)

    async def attach(
        self, task_id_or_reference: str | TaskReference | TaskRecord, *, label: str | None = None
    ) -> TaskHandle:
        """A handle for a task that is known by its ID, by a handle's reference, or by its record.

        It is observed in the background. A task that the journal does not know yet becomes part of it
        and is looked at once before this returns; ``result()`` tells the outcome of that. A task is attached
        whether or not the call is of this application.

        Args:
            task_id_or_reference: The task.
            label: A short text for people, for a task that the journal does not know yet.

        Raises:
            ValueError: The ID is empty, or the reference belongs to another endpoint or principal
                or names a call without a record in this journal; or the label is none.
            JournalError: The journal could not be read or written.
        """
        endpoint, wanted = self._opened(), task_id_or_reference
        if isinstance(wanted, TaskRecord):
            wanted = reference_of(wanted)
        return TaskHandle(endpoint, await endpoint.attach(wanted, label))

    async def acknowledge(self, record_or_handle: TaskRecord | Handle, *, keep: bool = False) -> None:
        """Count the outcome of a call as delivered, without taking it: the host has it from elsewhere.

        For a host that reads :meth:`records`, and would otherwise be given each outcome by :meth:`resume`.
        The call may be another client's. It is in the journal when this returns, and may be said any number
        of times. A call without an idempotency key is forgotten by it, so that one that the journal does not
        show counts as acknowledged.

        Args:
            record_or_handle: A record that :meth:`records` returned, or a handle.
            keep: Whether a call without an idempotency key is not forgotten at once; see
                :meth:`TaskHandle.acknowledge`.

        Raises:
            TasksClientError: The call has not ended: its handle is ``.handle``.
            ValueError: The call belongs to another endpoint or principal.
            JournalError: It could not be written, or the journal does not show the record of a keyed call.
                The outcome may come once more.
            TypeError: It is neither a record nor a handle.
        """
        endpoint, wanted = self._opened(), record_or_handle
        if isinstance(wanted, TaskRecord):
            call = await endpoint.find_end(wanted.scope, wanted.record_id, wanted)
            return None if call is None else await TaskHandle(endpoint, call).acknowledge(keep)
        if not hasattr(wanted, "reference"):
            raise TypeError(f"acknowledge() takes a record or a handle, not {type(wanted).__name__}")
        reference = wanted.reference
        scope = Scope(reference["endpoint"], reference["principal"])
        call = await endpoint.find_end(scope, reference["record_id"])
        return None if call is None else await TaskHandle(endpoint, call).acknowledge(keep)

    async def questions(self) -> list[Question]:
        """The questions that wait for an answer, of all calls of this endpoint and principal, oldest first.

        Those before there is a task are among them where the call has an idempotency key, or is made here.

        Raises:
            JournalError: The journal could not be read.
        """
        return await self._opened().answering.questions()

    async def answer(self, question_id: str, answer: Answer) -> None:
        """Answer a question of this endpoint and principal; see :meth:`Question.answer`.

        Args:
            question_id: Of the question.
            answer: The result of the kind that the question asks for.

        Raises:
            ValueError: It is no ``question_id``.
            TasksClientError: As from :meth:`Question.answer`.
        """
        await self._opened().answering.take_answer(question_id, to_wire(answer))

    async def records(self, *, pending: bool = False) -> list[TaskRecord]:
        """The records of this endpoint and principal, of all applications, oldest first.

        A call without an idempotency key is forgotten as soon as its outcome was delivered.

        Args:
            pending: Only tasks that are not over, and outcomes that were not received. The cost is then that
                of these, however many others there are.

        Raises:
            JournalError: The journal could not be read.
        """
        return await self._opened().records(pending=pending)

    async def estimate(self, tool: str) -> Estimate:
        """The usual duration of calls of a tool, by the last 50 that have completed.

        The calls of this endpoint and principal count of which the server made a task, of all applications.
        :meth:`TaskHandle.estimate` is about one call that runs.

        Raises:
            JournalError: The journal could not be read.
        """
        return Estimate(await self._opened().durations(tool))

    async def prune(self, older_than_s: float | None = None) -> int:
        """Forget old calls in the whole journal, of any client.

        Calls whose outcome was delivered, and tasks whose time-to-live has passed. Happens by itself, with
        the journal's ``retention_s``. An outcome that was not delivered is never forgotten, nor a call of
        unknown outcome. Under the key of a forgotten call, a call is a new one.

        Args:
            older_than_s: Seconds since the delivery, at least a minute, for others may be waiting for
                the same call; ``None`` is the journal's ``retention_s``.

        Returns:
            How many calls.

        Raises:
            JournalError: The journal could not be written.
            ValueError: ``older_than_s`` is negative.
        """
        return await self._opened().prune(older_than_s)

    # ── other methods of a session ────────────────────────────────────────────────────────────

    async def initialize(self) -> InitializeResult:
        """Ask the server for its introduction, for hosts that do so with a session. It begins nothing.

        Raises:
            SessionError: The server could not be asked.
        """
        return await introduce(self._opened().session)

    async def list_tools(
        self, cursor: str | None = None, *, params: PaginatedRequestParams | None = None
    ) -> ListToolsResult:
        """Ask for one page of the server's tools, as a session of the SDK does.

        Args:
            cursor: Of the page; ``None`` is the first one.
            params: The cursor as sessions of the SDK take it.

        Raises:
            SessionError: The server could not be asked.
        """
        return await list_tools(self._opened().session, params.cursor if params is not None else cursor)

    async def send_ping(self) -> EmptyResult:
        """Check that the server answers. 2026-07-28 has no ping, so it is asked for its introduction.

        Raises:
            SessionError: The server does not answer.
        """
        return await ping(self._opened().session)

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request that concerns neither a call nor a task once, and return its result as it came.

        For a host that passes such requests on: ``resources/read``, ``prompts/get``, ``completion/complete``,
        any method that is not named here. The result is the server's object unchanged, also one that asks for
        input (``resultType`` of ``"input_required"``). The method must be one of the version that the server
        speaks. Only ``server/discover`` is answered at 2025-11-25 as well: by a ``ping``, and by the server's
        words in its handshake. Over a host's own client, the SDK checks the results of methods that it knows,
        and a connection at 2025-11-25 is refused.

        Args:
            method: The JSON-RPC method.
            params: Its params: JSON values, and values that sessions of the SDK turn into JSON. At 2026-07-28
                entries in their ``_meta``, such as a ``progressToken``, are sent besides the client's own,
                which they cannot replace.

        Raises:
            SessionError: No result. An error of the server's is in ``code``, ``remote_message`` and ``data``.
                The request is given up after as long a silence as a ``tools/call``, of 300 seconds.
            ValueError: The method is that of a call or a task, or none that a host sends; or the params have
                no JSON form. Nothing was sent.
        """
        endpoint = self._opened()
        if not isinstance(method, str) or not _METHOD.fullmatch(method):
            raise ValueError(f"a method is a text of letters, digits and signs, not {method!r}")
        if method == "tools/call" or method.startswith("tasks/"):
            raise ValueError(f"request() does not send {method}: use call_tool(), start_tool() and handles")
        if method in ("initialize", "subscriptions/listen") or method.startswith("notifications/"):
            raise ValueError(
                f"request() does not send {method}: the client does that itself, where it is due"
            )
        sent = _json(f"params of {method!r}", params)
        if not isinstance(sent.get("_meta", {}), dict):
            raise ValueError(f"the _meta of {method!r} must be a mapping")
        return await endpoint.session.ask(method, sent, patient=True)

    # ── opening and closing ───────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        """Open the journal, which proves that it can be written. Nothing is sent yet.

        Raises:
            JournalError: The journal cannot be used; the message says why and what to do.
        """
        if self._own is not None:
            raise TasksClientError("A client is opened once. Make another one.")
        self._own = OwnTask(self._open(), self._engine.tasks)
        await self._own.enter()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let go of every task, finish all writes, close.

        In code that the client awaits itself, such as a callback, it returns at once, and the closing goes
        on.
        """
        assert self._own is not None
        await self._own.leave()

    _own: OwnTask | None = None
    """The task in which everything is open, so that any task of the host's may leave it."""

    def _awaits_caller(self) -> bool:
        """True if closing would wait for the code that calls this."""
        return self._own is not None and self._own.awaits_caller()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        try:
            async with self._engine:
                self._endpoint = Endpoint(self._engine, self._session, self._inputs, self._scope, hears=True)
                self._endpoint.hear_session()
                yield
        finally:
            await run_to_its_end(self._session.aclose)

    def _opened(self) -> Endpoint:
        if self._endpoint is None:
            raise TasksClientError("The client is not open. Use: async with TasksClient(...) as client")
        self._engine.check_open()
        return self._endpoint


def _name_call(error: TasksClientError, endpoint: Endpoint, line: HostLine) -> None:
    """Have an error name the call that the line has begun, if there is one."""
    if line.call is not None:
        error.handle = TaskHandle(endpoint, line.call)


def _call(name: str, arguments: Mapping[str, Any] | None, options: CallOptions) -> ToolCall:
    what = f"arguments of {name!r}"
    meta = _json(what, options.meta) if options.meta else None
    return ToolCall(name=name, arguments=_json(what, arguments), meta=meta, label=options.label)


_METHOD: Final = re.compile(r"[!#-\[\]-~]+")
"""Texts that need no escape in JSON, and none in a header."""


_encode_as_the_sdk: Final = partial(to_jsonable_python, by_alias=True, exclude_none=True)
"""Dates, UUIDs, models and the like in the form in which a session of the SDK sends them."""

# Made once: json.dumps would make one each time.
_JSON: Final = json.JSONEncoder(allow_nan=False, default=_encode_as_the_sdk)


def _json(what: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy that later changes do not reach, and proof that it can be sent."""
    if not value:
        return {}
    try:
        try:
            text = _JSON.encode(dict(value))
        except TypeError:  # such as a UUID as the name of a member
            text = _JSON.encode(_encode_as_the_sdk(dict(value)))
        copied = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the {what} cannot be sent as JSON: {error}") from None
    assert isinstance(copied, dict)
    return copied
