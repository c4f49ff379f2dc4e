"""The client: ``call_tool`` that takes its time, handles, and what the journal remembers."""

from __future__ import annotations

import inspect
import json
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import anyio
from anyio.abc import TaskGroup
from mcp_types import CallToolResult

from .clock import Clock
from .drive import Drive
from .driver import Driver
from .errors import IdempotencyConflictError, OutcomeUnknownError, TasksClientError, WaitTimeoutError
from .events import CallAgain, CallLost, SendCall, TaskCreated
from .handle import TaskHandle, TaskReference, Updates
from .inputs import Callbacks, ElicitationCallback, Inputs, RootsCallback, SamplingCallback
from .journal.base import Journal, Scope, TaskRecord
from .policy import PollPolicy
from .scheduler import Scheduler
from .sessions.base import Session, ToolCall
from .states import Calling, OutcomeUnknown
from .wire import Task, digest

if TYPE_CHECKING:
    import httpx

__all__ = ["TasksClient"]

logger = logging.getLogger("mcp_tasks_client")

OnUnknown: TypeAlias = Literal["raise", "resend"]
OnAbandon: TypeAlias = Literal["detach", "cancel"]
OnUpdate: TypeAlias = Callable[[Task], Awaitable[None] | None]


class TasksClient:
    """Calls the tools of one MCP server, and sees tasks through to their results.

    Use it as ``async with TasksClient(...) as client``; nothing of it runs outside that block. On
    the way out, tasks that are not done are left to the server and to the journal.

    Args:
        server: The server's URL, or a :class:`Session`.
        journal: ``None`` is the user's default SQLite file; a path is another file; a
            :class:`Journal` is used as it is (``MemoryJournal()`` opts out of durability).
        endpoint: Names the server in the journal; derived from the URL if ``None``.
        principal: On whose behalf; records of one principal are never used for another.
        elicitation: Answers ``elicitation/create``, form and URL.
        sampling: Answers ``sampling/createMessage``.
        roots: Answers ``roots/list``.
        poll: Latency against load.
        on_abandon: What happens to the task of a ``call_tool`` that times out or is cancelled:
            ``"detach"`` lets it go on, ``"cancel"`` sends ``tasks/cancel``.
        http_client: An ``httpx.AsyncClient`` with your transport, proxies, certificates. Not closed.
        headers: Sent with every request.
        auth: Any ``httpx`` auth.

    Raises:
        TypeError: ``server`` or ``journal`` is none of the above.
        ValueError: The URL is not an HTTP one, or ``on_abandon`` is neither word.
    """

    def __init__(
        self,
        server: str | Session,
        *,
        journal: Journal | str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        principal: str = "",
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
        poll: PollPolicy | None = None,
        on_abandon: OnAbandon = "detach",
        http_client: httpx.AsyncClient | None = None,
        headers: Mapping[str, str] | None = None,
        auth: httpx.Auth | tuple[str, str] | None = None,
    ) -> None:
        if on_abandon not in ("detach", "cancel"):
            raise ValueError(f'on_abandon must be "detach" or "cancel", got {on_abandon!r}')
        self._inputs: Inputs = Callbacks(elicitation=elicitation, sampling=sampling, roots=roots)
        self._policy = poll or PollPolicy()
        self._on_abandon = on_abandon
        self._journal = _journal(journal)
        self._session = _session(
            server,
            endpoint=endpoint,
            capabilities=self._inputs.capabilities,
            policy=self._policy,
            http_client=http_client,
            headers=headers,
            auth=auth,
        )
        self._scope = Scope(endpoint or self._session.endpoint, principal)
        self._clock: Clock | None = None
        self._running: Scheduler | None = None
        self._tasks: TaskGroup | None = None
        self._joining = anyio.Lock()

    # ── calling ───────────────────────────────────────────────────────────────────────────────

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        on_unknown: OnUnknown = "raise",
        on_update: OnUpdate | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """Call a tool and return its result, however long the server takes for it.

        Args:
            name: The tool.
            arguments: Its arguments, as JSON values.
            timeout: Seconds for all of it, requests, questions and waiting included; ``None`` is
                no limit. When it is over the task goes on, see ``on_abandon``.
            idempotency_key: Makes the call one that can be repeated: a second call with the same
                key joins the first or returns its result, in this process or a later one.
            on_unknown: Under a key, what to do about an earlier call whose reply was lost:
                ``"raise"``, or ``"resend"`` if the tool may run twice.
            on_update: Gets each changed :class:`Task`. It may be a coroutine function; it should be
                quick. What it raises is logged and otherwise ignored.
            meta: Further entries for the request's ``_meta``.

        Returns:
            The server's result, unchanged; ``is_error`` is a result like any other.

        Raises:
            TaskError: The call ended in an error, or its task was cancelled or is gone.
            WaitTimeoutError: ``timeout`` is over; ``.handle`` is the task.
            InputUnansweredError: A question got no usable answer; ``.handle`` is the task.
            OutcomeUnknownError: The key's earlier call was sent and its reply was lost.
            IdempotencyConflictError: The key belongs to another tool or other arguments.
            SessionError: The server could not be reached, or refused, or broke the protocol.
            JournalError: The journal could not be written; what depended on it was not done.
            ValueError: Arguments or options make no sense.
        """
        scheduler, handle = self._scheduler, None
        with anyio.move_on_after(timeout) as waiting:
            drive = await self._begin(name, arguments, idempotency_key, on_unknown, meta)
            handle = TaskHandle(scheduler, drive)
            if not drive.record.finished:
                await self._see_through(handle, drive, on_update)
        if handle is None:
            raise WaitTimeoutError(f"The journal took longer than {timeout} seconds; nothing was sent.")
        if not handle.done:
            raise handle._timed_out(timeout)
        return await handle._deliver(scheduler, drive, waiting.deadline)

    async def start_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        on_unknown: OnUnknown = "raise",
        meta: Mapping[str, Any] | None = None,
    ) -> TaskHandle:
        """Call a tool and return as soon as the server has answered, with a task or a result.

        The task is observed in the background until it ends or the client closes, and its
        questions are answered by the callbacks meanwhile.

        Args and errors are those of :meth:`call_tool`, up to the server's first answer.
        """
        drive = await self._begin(name, arguments, idempotency_key, on_unknown, meta)
        handle = TaskHandle(self._scheduler, drive)
        if not drive.record.finished:
            async with self._scheduler.hold(drive):
                await handle._wait(self._scheduler, drive, lambda d: d.task is not None)
                await self._scheduler.keep(drive)
        return handle

    async def _see_through(self, handle: TaskHandle, drive: Drive, on_update: OnUpdate | None) -> None:
        """Hold the drive until it is over. Being stopped here is what abandons a call."""
        async with self._scheduler.hold(drive):
            try:
                if on_update is not None:
                    async for task in Updates(handle, keep=False):
                        await _tell(on_update, task)
                await handle._wait(self._scheduler, drive, lambda _: False)
            except anyio.get_cancelled_exc_class():
                # Not under others who wait for the same call.
                if self._on_abandon == "cancel" and drive.held == 1:
                    await self._cancel_abandoned(drive)
                raise

    async def _cancel_abandoned(self, drive: Drive) -> None:
        deadline = anyio.current_time() + self._policy.cancel_timeout_s
        with anyio.CancelScope(shield=True, deadline=deadline) as scope:
            try:
                # The reply with the task ID may be on its way.
                await self._scheduler.wait(drive, lambda d: not isinstance(d.record.state, Calling))
                await self._scheduler.cancel(drive)
            except TasksClientError as error:
                logger.warning("The abandoned %r could not be cancelled: %s", drive.record, error)
        if scope.cancelled_caught:
            logger.warning("The abandoned %r could not be cancelled in time; its task goes on", drive.record)

    async def _begin(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        idempotency_key: str | None,
        on_unknown: OnUnknown,
        meta: Mapping[str, Any] | None,
    ) -> Drive:
        """The drive of a call: a new one, or the one that its key stands for."""
        if on_unknown not in ("raise", "resend"):
            raise ValueError(f'on_unknown must be "raise" or "resend", got {on_unknown!r}')
        if idempotency_key == "":
            raise ValueError("an idempotency key cannot be empty; leave it out to call without one")
        call = ToolCall(name=name, arguments=_json(name, arguments), meta=_json(name, meta) if meta else None)
        scheduler = self._scheduler
        scheduler.check_open()
        now = scheduler.driver.clock.time()
        record = TaskRecord(
            record_id=uuid.uuid4().hex,
            scope=self._scope,
            tool=name,
            arguments_digest=digest(call.arguments),
            idempotency_key=idempotency_key,
            state=Calling(),
            created_at=now,
            updated_at=now,
            owner=scheduler.driver.owner,
        )
        drive = Drive(record, call)
        drive.pending = SendCall()
        # Registered first: whoever finds the record in the journal must find the drive here.
        scheduler.register(drive)
        if idempotency_key is None:
            return drive
        with scheduler.lookup():
            try:
                standing = await scheduler.to_its_end(self._claim, drive)
            except BaseException:
                scheduler.forget(drive)
                raise
            if standing.record_id == record.record_id:
                return drive
            return await scheduler.to_its_end(self._join, standing, call, on_unknown)

    async def _claim(self, drive: Drive) -> TaskRecord:
        """Journal the intent to call, or find the call that the key stands for."""
        standing = await self._journal.claim(drive.record)
        if drive.abandoned and not drive.held and standing.record_id == drive.record.record_id:
            await self._journal.remove(standing.record_id)
        return standing

    async def _join(self, standing: TaskRecord, call: ToolCall, on_unknown: OnUnknown) -> Drive:
        """Take up the call that an idempotency key already stands for; one at a time."""
        async with self._joining:
            return await self._joined(standing, call, on_unknown)

    async def _joined(self, standing: TaskRecord, call: ToolCall, on_unknown: OnUnknown) -> Drive:
        if standing.tool != call.name or standing.arguments_digest != digest(call.arguments):
            what = f"the tool {standing.tool!r}" if standing.tool != call.name else "other arguments"
            raise IdempotencyConflictError(
                f"The idempotency key {standing.idempotency_key!r} belongs to a call with {what}. Use a key "
                "of its own for each different call."
            )
        drive = self._drive(standing)
        drive.call = drive.call or call
        ours = drive.record.owner == self._scheduler.driver.owner
        if isinstance(drive.record.state, Calling) and ours and not drive.sending:
            # Abandoned here before it was sent, or there would be a drive that is sending.
            drive.pending = SendCall()
        elif isinstance(drive.record.state, Calling | OutcomeUnknown) and not drive.sending:
            if on_unknown == "raise":
                raise OutcomeUnknownError(
                    f"An earlier call of {call.name!r} under this key was sent and its reply was lost, so "
                    'the tool may have run. Pass on_unknown="resend" only if it may run twice.',
                    record=drive.record,
                )
            if isinstance(drive.record.state, Calling):
                await self._scheduler.driver.feed(drive, CallLost())
            (send,) = await self._scheduler.driver.feed(drive, CallAgain())
            assert isinstance(send, SendCall)
            drive.error, drive.pending = None, send
        return drive

    def _drive(self, record: TaskRecord) -> Drive:
        """The drive of a record: the live one if there is one."""
        return self._scheduler.register(Drive(record))

    # ── finding again ─────────────────────────────────────────────────────────────────────────

    async def resume(self) -> list[TaskHandle]:
        """Take up every unfinished task of this endpoint and principal.

        Also returns handles of finished calls whose outcome nobody has received yet. Observation
        goes on in the background as with :meth:`start_tool`, at the pace that was kept before.

        Returns:
            Handles, oldest first.

        Raises:
            JournalError: The journal could not be read.
        """
        with self._scheduler.lookup():
            records = await self._journal.records(self._scope, pending=True)
            drives = [self._drive(record) for record in records]
        async with anyio.create_task_group() as tasks:
            for drive in drives:
                # Together, so that their commits share one write to the disk.
                tasks.start_soon(self._scheduler.keep, drive)
        return [TaskHandle(self._scheduler, drive) for drive in drives]

    async def attach(self, task_id_or_reference: str | TaskReference) -> TaskHandle:
        """A handle for a task that is known by its ID or by a handle's reference.

        It is observed in the background. A task that the journal does not know yet becomes part of it
        and is looked at once before this returns; whatever that brought, ``result()`` tells.

        Raises:
            ValueError: The ID is empty, or the reference belongs to another endpoint or principal
                or names a call of which this journal holds nothing.
            JournalError: The journal could not be read or written.
        """
        with self._scheduler.lookup():
            found = await self._find(task_id_or_reference)
            known = isinstance(found, TaskRecord)
            drive = self._drive(found) if isinstance(found, TaskRecord) else self._attached(*found)
        handle = TaskHandle(self._scheduler, drive)
        await self._scheduler.keep(drive)
        if not known:
            # Nothing is known of it yet, so a first look is taken; an error waits for result().
            drive.refreshing += 1
            try:
                while not drive.polls and not drive.over:
                    await drive.change()
            finally:
                drive.refreshing -= 1
        return handle

    async def _find(self, wanted: str | TaskReference) -> TaskRecord | tuple[str, str | None]:
        """The record, or the task ID and tool of a task that the journal does not hold."""
        if isinstance(wanted, str):
            task_id, tool, record_id = wanted, None, None
        else:
            if (wanted["endpoint"], wanted["principal"]) != (self._scope.endpoint, self._scope.principal):
                raise ValueError(
                    f"the reference belongs to endpoint {wanted['endpoint']!r} and principal "
                    f"{wanted['principal']!r}; attach it with a client for those"
                )
            task_id, tool, record_id = wanted["task_id"] or "", wanted["tool"], wanted["record_id"]
        if task_id:
            return await self._journal.by_task_id(self._scope, task_id) or (task_id, tool)
        for record in await self._journal.records(self._scope) if record_id is not None else ():
            if record.record_id == record_id:
                return record
        raise ValueError("there is no task ID in it, and the journal holds nothing of such a call")

    def _attached(self, task_id: str, tool: str | None) -> Drive:
        for drive in self._scheduler.drives.values():
            if drive.task is not None and drive.task.task_id == task_id:
                return drive  # somebody else is just attaching it
        now = self._scheduler.driver.clock.time()
        record = TaskRecord(
            record_id=uuid.uuid4().hex,
            scope=self._scope,
            tool=tool,
            state=Calling(),
            created_at=now,
            updated_at=now,
        )
        drive = Drive(record)
        # No status was ever received, so none is claimed.
        task = Task(task_id=task_id, status="unknown")
        drive.unsaved.append(TaskCreated(task=task, now=now, jitter=0.0, attached=True))
        return self._scheduler.register(drive)

    async def records(self) -> list[TaskRecord]:
        """What the journal knows of this endpoint and principal, oldest first.

        Raises:
            JournalError: The journal could not be read.
        """
        self._scheduler.check_open()
        return await self._journal.records(self._scope)

    # ── opening and closing ───────────────────────────────────────────────────────────────────

    @property
    def _scheduler(self) -> Scheduler:
        if self._running is None:
            raise TasksClientError("The client is not open. Use: async with TasksClient(...) as client")
        return self._running

    async def __aenter__(self) -> Self:
        """Open the journal, which proves that it can be written. Nothing is sent yet.

        Raises:
            JournalError: The journal cannot be used; the message says why and what to do.
        """
        if self._running is not None:
            raise TasksClientError("A client is opened once. Make another one.")
        await self._journal.open()
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        driver = Driver(
            session=self._session,
            journal=self._journal,
            inputs=self._inputs,
            policy=self._policy,
            owner=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}",
            clock=self._clock,
        )
        self._running = Scheduler(driver, tasks)
        tasks.start_soon(self._running.run)
        self._tasks = tasks
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let go of every task, finish what has to be written, close."""
        assert self._tasks is not None
        self._scheduler.close()
        try:
            # Without the block's own exception, which would come back wrapped in a group.
            await self._tasks.__aexit__(None, None, None)
        finally:
            # In a task of its own, which asyncio's own cancellation of this one does not stop.
            async with anyio.create_task_group() as closing:
                closing.start_soon(self._close)

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self._journal.aclose()
            finally:
                await self._session.aclose()


def _session(
    server: str | Session, *, endpoint: str | None, capabilities: Any, policy: PollPolicy, **http: Any
) -> Session:
    if isinstance(server, Session):
        return server
    if isinstance(server, str):
        from .sessions.http import HttpSession

        return HttpSession(
            server,
            endpoint=endpoint,
            capabilities=capabilities,
            tasks_in_flight=policy.polls_in_flight,
            **http,
        )
    raise TypeError(f"server must be a URL or a Session, not {type(server).__name__}")


def _journal(journal: Journal | str | os.PathLike[str] | None) -> Journal:
    if isinstance(journal, Journal):
        return journal
    if journal is None or isinstance(journal, str | os.PathLike):
        from .journal.sqlite import SqliteJournal

        return SqliteJournal(journal)
    raise TypeError(f"journal must be a path, a Journal or None, not {type(journal).__name__}")


def _json(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy that later changes do not reach, and proof that it can be sent."""
    try:
        copied = json.loads(json.dumps(dict(value or {}), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the arguments of {name!r} cannot be sent as JSON: {error}") from None
    assert isinstance(copied, dict)
    return copied


async def _tell(on_update: OnUpdate, task: Task) -> None:
    try:
        told = on_update(task)
        if inspect.isawaitable(told):
            await told
    except Exception:
        logger.exception("on_update raised; the call goes on")
