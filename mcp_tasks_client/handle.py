"""A task in the host's hands: look at it, wait for it, cancel it, find it again elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from mcp_types import CallToolResult

from .engine.audience import InHand
from .engine.endpoint import Endpoint
from .engine.live_call import LiveCall
from .engine.time_limit import TimeLimit
from .errors import TasksClientError
from .estimate import Estimate
from .machine.record import TaskRecord, TaskReference, reference_of
from .machine.states import LastFailure
from .protocol.task import Task
from .protocol.text import quote, shorten
from .questions.kinds import Answer
from .questions.question import Question, record_of, to_wire

__all__ = ["TaskHandle", "TaskReference", "detached"]


class TaskHandle:
    """One call of one tool, whether or not the server made a task of it.

    ``await handle`` is ``await handle.result()``. A handle pickles as its reference; the other
    side attaches that with :meth:`TasksClient.attach`. Handles of the same call are equal, also before and
    after that, and of several clients.

    Handles come from :class:`TasksClient`; there is no use in making one.
    """

    __slots__ = ("_call", "_endpoint", "_in_hand", "_label", "_reference", "_task")

    def __init__(self, endpoint: Endpoint, call: LiveCall) -> None:
        self._endpoint: Endpoint | None = endpoint
        self._call: LiveCall | None = call
        self._in_hand: InHand | None = call.audience.take_in_hand()
        self._reference: TaskReference | None = None
        self._label: str | None = None
        self._task: Task | None = None

    @property
    def reference(self) -> TaskReference:
        """A token for :meth:`TasksClient.attach`, here or elsewhere."""
        if self._call is None:
            assert self._reference is not None
            return self._reference
        return reference_of(self._call.record, self._call.task_id)

    @property
    def task_id(self) -> str | None:
        """The server's ID; ``None`` while there is no task, or if the server answered at once."""
        return self.reference["task_id"]

    @property
    def tool(self) -> str | None:
        """The tool's name; ``None`` if the task was attached by its bare ID."""
        return self.reference["tool"]

    @property
    def label(self) -> str | None:
        """The text for people that the call was given; ``None`` if none."""
        return self._label if self._call is None else self._call.record.label

    @property
    def record(self) -> TaskRecord | None:
        """All that is known here of the call; ``None`` of a handle that is detached."""
        return None if self._call is None else self._call.record

    @property
    def task(self) -> Task | None:
        """The latest snapshot; ``None`` if there is no task."""
        return self._task if self._call is None else self._call.task

    @property
    def last_failure(self) -> LastFailure | None:
        """Why the task is not seen, and since when; ``None`` while requests for it get through."""
        return None if self._call is None else self._call.record.last_failure

    @property
    def immediate_response(self) -> str | None:
        """The server's words for the model while the task goes on; ``None`` if there are none."""
        return self.task.immediate_response if self.task is not None else None

    @property
    def done(self) -> bool:
        """Whether the outcome is known; ``result()`` then returns or raises at once."""
        return self._call is not None and self._call.record.finished

    async def result(
        self,
        timeout: float | None = None,
        *,
        timeout_excludes_questions: bool = False,
        raise_on_error: bool = False,
    ) -> CallToolResult:
        """Wait for the outcome and return it, as often as you like.

        Args:
            timeout: Seconds to wait, requests included; ``None`` waits as long as it takes.
            timeout_excludes_questions: Whether the time does not count in which the host is asked.
            raise_on_error: Raise a :class:`ToolError` for a result that has ``is_error``.

        Returns:
            The server's result, unchanged; ``is_error`` is a result like any other. Fields that
            ``CallToolResult`` does not name are in ``model_extra``, at every level.

        Raises:
            TaskError: The task ended otherwise: failed, cancelled, expired, not found.
            ToolError: The tool raised, and ``raise_on_error`` is true.
            WaitTimeoutError: The time is over. The task goes on.
            InputUnansweredError: The server asked something that got no answer. The task goes on.
            SessionError: The server refused to be asked, or broke the protocol.
            JournalError: A step could not be made durable, and was therefore not taken.
        """
        endpoint, call = self._attached()
        with self._named():
            deadline = await _wait_for_end(endpoint, call, timeout, timeout_excludes_questions)
            return await endpoint.outcomes.deliver(call, deadline, raise_on_error=raise_on_error)

    async def peek(
        self, timeout: float | None = None, *, timeout_excludes_questions: bool = False
    ) -> CallToolResult | TasksClientError:
        """Wait for the outcome and look at it, without receiving it.

        It stays for the program that it belongs to, which has it from :meth:`result`, or by
        :meth:`TasksClient.resume` or :meth:`TasksClient.deliver`. The outcome of a call that another
        application made is free for that one at once. After :meth:`acknowledge` no program gets it.

        Args are those of :meth:`result`.

        Returns:
            The server's result, or the error that :meth:`result` would raise for this end.

        Raises:
            WaitTimeoutError: The time is over. The task goes on.
            InputUnansweredError: The server asked something that got no answer. The task goes on.
            SessionError: The server refused to be asked, or broke the protocol.
            JournalError: A step could not be made durable, and was therefore not taken.
        """
        endpoint, call = self._attached()
        with self._named():
            await _wait_for_end(endpoint, call, timeout, timeout_excludes_questions)
        with endpoint.outcomes.awaited(call):
            end = await endpoint.outcomes.read_end(call)
        if call.record.application != endpoint.engine.application:
            self._in_hand = None  # this handle is for looking, and keeps the outcome from nobody
            await endpoint.outcomes.put_back(call)
        return end

    @asynccontextmanager
    async def outcome(
        self,
        timeout: float | None = None,
        *,
        timeout_excludes_questions: bool = False,
        raise_on_error: bool = False,
    ) -> AsyncIterator[CallToolResult]:
        """Wait for the outcome, and count it as delivered only once the block is left without an error.

        ``async with handle.outcome() as result:`` is for a host that writes the result to a place of its own.
        If the block raises or is cancelled, or the process is killed within it, the outcome was not received:
        the next :meth:`TasksClient.resume` or :meth:`TasksClient.adopt` of any process has it, and so has a
        call with the same idempotency key.

        Args and errors are those of :meth:`result`. An end that is an error is raised before the block
        begins, and counts as delivered. Besides, on leaving the block:

        Raises:
            JournalError: The delivery could not be written. The outcome may come once more.
            TasksClientError: The client was closed within the block. The outcome comes once more.
        """
        endpoint, call = self._attached()
        with self._named():
            deadline = await _wait_for_end(endpoint, call, timeout, timeout_excludes_questions)
        is_within = False
        try:
            with endpoint.outcomes.awaited(call):
                with self._named():
                    result = await endpoint.outcomes.read(call, deadline, raise_on_error=raise_on_error)
                is_within = True
                yield result
                is_within = False
                with self._named():
                    await endpoint.outcomes.acknowledge(call)
        except BaseException:
            if is_within:
                self._in_hand = None  # the holder of this handle has not got the outcome by it
                await endpoint.outcomes.put_back(call)
            raise

    async def acknowledge(self, keep: bool = False) -> None:
        """Count the outcome as delivered, without taking it: the host has it from elsewhere.

        It is in the journal when this returns, and may be said any number of times.

        Args:
            keep: Whether the outcome may still be lost on its way, as where the host has passed it on. The
                record of a call without an idempotency key, which is forgotten otherwise, then stays in the
                journal for the journal's ``keep_delivered_s``.

        Raises:
            TasksClientError: The call has not ended, or the client is closed.
            JournalError: It could not be written. The outcome may come once more.
        """
        endpoint, call = self._attached()
        with self._named():
            await endpoint.outcomes.acknowledge(call, keep=keep)

    async def refresh(self) -> Task:
        """The snapshot that the next poll brings.

        The poll keeps the server's pace, so this takes up to one ``pollIntervalMs``. Once the task
        is over it returns the last snapshot at once.

        Raises:
            TaskError: The server has forgotten the task.
            SessionError: The poll failed. ``last_failure`` says since when; the task is polled on if a caller
                waits for it.
            TasksClientError: As :meth:`result`; also if the server made no task of the call.
        """
        endpoint, call = self._attached()
        with self._named():
            if not call.record.finished or call.task is None:
                await endpoint.refresh(call)
            if call.record.gone:
                await endpoint.outcomes.deliver(call, None)  # raises
        if call.task is None:
            raise TasksClientError("The server answered this call at once; there is no task.", handle=self)
        return call.task

    def updates(self) -> AsyncIterator[Task]:
        """The task as it changes: the latest snapshot first, the final one last.

        A slow reader misses intermediate snapshots, never the latest. Leaving the loop does not
        stop the task, nor its observation.

        Raises:
            TasksClientError: While iterating: the error that parked the task, as from :meth:`result`. An end
                that is no result (failed, cancelled) just ends the loop.
        """
        return _Updates(*self._attached())

    async def questions(self) -> list[Question]:
        """The questions of the server's that wait for an answer, driven here or by another process.

        Raises:
            JournalError: The journal could not be read.
        """
        endpoint, call = self._attached()
        with self._named():
            return await endpoint.answering.questions(call)

    async def answer(self, question_id: str, answer: Answer) -> None:
        """Answer a question of this call; see :meth:`Question.answer`.

        Raises:
            ValueError: It is no ``question_id``, or one of another call.
            TasksClientError: As from :meth:`Question.answer`.
        """
        endpoint, call = self._attached()
        if record_of(question_id) != call.record.record_id:
            raise ValueError("this question belongs to another call; use client.answer()")
        await endpoint.answering.take_answer(question_id, to_wire(answer))

    async def estimate(self) -> Estimate:
        """The expected duration of this call, by completed calls of its tool.

        See :class:`Estimate`. It says nothing of a task that was attached by its bare ID.

        Raises:
            JournalError: The journal could not be read.
        """
        endpoint, call = self._attached()
        return Estimate(await endpoint.durations(call.record.tool)).after(endpoint.ran_s(call))

    async def cancel(self) -> None:
        """Ask the server to cancel the task.

        Cancelling is cooperative: ``result()`` then raises :class:`TaskCancelledError`, or returns
        a result that was faster. Questions that are open are withdrawn. While ``tools/call`` is in
        flight the wish is remembered, and the server is told as soon as there is a task. A finished
        call has nothing to cancel. While a ``Retry-After`` runs, the server is told after it. Where another
        client drives the task, also in another process, the journal tells that one, and this returns at once.

        Raises:
            SessionError: The server could not be told. The wish is journaled, and repeated with the
                polls or by resuming.
            JournalError: The wish could not be journaled, and was not sent.
        """
        endpoint, call = self._attached()
        with self._named():
            await endpoint.cancel(call)

    def __await__(self) -> Generator[Any, Any, CallToolResult]:
        return self.result().__await__()

    def __eq__(self, other: object) -> bool:
        return self._names_call() == other._names_call() if isinstance(other, TaskHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._names_call())

    def _names_call(self) -> tuple[str, str, str]:
        reference = self.reference
        return reference["endpoint"], reference["principal"], reference["record_id"]

    def __repr__(self) -> str:
        record_id = shorten(self.reference["record_id"])
        task_id = shorten(self.task_id) if self.task_id else None
        label = "" if self.label is None else f" label={quote(self.label, self.task_id)!r}"
        status = "detached" if self._call is None else quote(self._call.record.status, self.task_id)
        return f"<TaskHandle {record_id} tool={self.tool!r}{label} task_id={task_id!r} {status}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, (self.reference, self.task, self.label)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Have each error of the block name this handle."""
        try:
            yield
        except TasksClientError as error:
            error.handle = self
            raise

    def _attached(self) -> tuple[Endpoint, LiveCall]:
        if self._endpoint is None or self._call is None:
            raise TasksClientError(
                "This handle is detached: nobody here drives its task. Use: "
                "await client.attach(handle.reference)",
                handle=self,
            )
        return self._endpoint, self._call


async def _wait_for_end(
    endpoint: Endpoint, call: LiveCall, timeout: float | None, excludes_questions: bool
) -> float:
    """Wait until a call is finished. Returns until when there is time, by the event loop's clock."""
    with TimeLimit(timeout, excludes_questions=excludes_questions) as limit:
        limit.count_for(call)
        if not call.record.finished:
            async with endpoint.held(call):
                await endpoint.wait(call)
    if not call.record.finished:
        raise endpoint.timed_out(call, timeout)
    return limit.deadline


class _Updates(AsyncIterator[Task]):
    """Follows one call. A class, because an abandoned async generator is a warning on trio."""

    def __init__(self, endpoint: Endpoint, call: LiveCall) -> None:
        self._endpoint = endpoint
        self._call = call
        self._seen: Task | None = None
        self._begun = False
        self._ended = False

    async def __anext__(self) -> Task:
        """Return the next snapshot that differs from the last one returned."""
        try:
            return await self._next()
        except TasksClientError as error:
            error.handle = TaskHandle(self._endpoint, self._call)
            raise

    async def _next(self) -> Task:
        call = self._call
        if not self._begun:
            self._begun = True
            await self._endpoint.drive_anew(call)
        while not self._ended:
            if not call.over and not call.is_driven:
                self._endpoint.engine.check_open()
                self._endpoint.drive_in_background(call)
            self._ended, task = call.over, call.task
            if self._ended:
                await self._endpoint.wait(call)
            if task is not None and task != self._seen:
                self._seen = task
                return task
            if not self._ended:
                await call.audience.change()
        raise StopAsyncIteration


def detached(endpoint: Endpoint, call: LiveCall) -> TaskHandle:
    """A handle of a call that nobody here drives: to be attached first, like those from other processes."""
    return _detached(reference_of(call.record, call.task_id), call.task, call.record.label)


def _detached(reference: TaskReference, task: Task | None, label: str | None = None) -> TaskHandle:
    handle = object.__new__(TaskHandle)
    handle._endpoint, handle._call, handle._in_hand = None, None, None
    handle._reference, handle._task, handle._label = reference, task, label
    return handle
