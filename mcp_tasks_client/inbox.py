"""The calls of a journal, of all servers: listed, answered, cancelled, acknowledged without a session."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from weakref import WeakSet

import anyio.lowlevel
from mcp_types import CallToolResult

from .aio.uncut import run_to_its_end
from .engine.adoption import check_limit
from .engine.call_store import CallStore
from .engine.environment import Environment
from .engine.live_call import LiveCall
from .engine.news import News
from .engine.outcome import read_outcome
from .engine.registry import BATCH
from .errors import TasksClientError
from .estimate import Estimate
from .journal.base import Instruction, Journal
from .journal.guarded import GuardedJournal
from .journal.sqlite.journal import choose_journal
from .machine.record import Scope, TaskRecord
from .policy import PollPolicy
from .protocol import JSONObject
from .protocol.text import name_tool
from .questions.kinds import Answer
from .questions.question import CANCEL, Question, read_questions, record_of, to_wire, unanswered

__all__ = ["Inbox"]

T = TypeVar("T")

_OVERLAP_S: Final = 60.0
"""Seconds by which a look for ends reaches back before the look before it: clocks differ."""


class Inbox:
    """The calls in a journal and their open questions, of every server and every caller.

    ``async with Inbox("tasks.sqlite3") as inbox``. An inbox talks to no server and drives no call. It leaves
    answers and cancellations in the journal. The client that drives the call, in this process or in another
    one, sends them within seconds. If no client drives it, the next one to take it up sends them, as by
    :meth:`TasksClient.resume`.

    ``endpoint``, ``principal`` and ``application`` bound what an inbox shows and touches, so that a page for
    one user is an inbox for that principal.

    Args:
        journal: ``None`` is the user's default SQLite file; a path is another file; a :class:`Journal` is
            used as it is.
        endpoint: The server's name in the journal; ``None`` is every server.
        principal: On whose behalf calls are made; ``None`` is all, and ``""`` are the calls without any.
        application: Shows the calls of clients of this name, or without a name; ``None`` is all.
        environment: Clock and process, for tests, and an observer; ``None`` is the real ones.

    Raises:
        TypeError: ``journal`` is none of the above.
    """

    def __init__(
        self,
        journal: Journal | str | os.PathLike[str] | None = None,
        *,
        endpoint: str | None = None,
        principal: str | None = None,
        application: str | None = None,
        environment: Environment | None = None,
    ) -> None:
        self._journal = GuardedJournal(choose_journal(journal))
        self._endpoint, self._principal, self._application = endpoint, principal, application
        self._environment = (environment or Environment()).around(self._journal)
        self._store: CallStore | None = None
        self._iterated: WeakSet[News[Any]] = WeakSet()

    # ── seeing ────────────────────────────────────────────────────────────────────────────────

    async def records(
        self,
        *,
        endpoint: str | None = None,
        principal: str | None = None,
        pending: bool = False,
        label: str | None = None,
        limit: int | None = None,
        before: TaskRecord | float | None = None,
    ) -> list[TaskRecord]:
        """The records of calls, oldest first.

        A call without an idempotency key is there from its task on, and until its outcome was delivered.
        ``limit`` and ``before`` show a long history in pages: ``page = await inbox.records(limit=50)`` has
        the last 50 calls, and ``records(limit=50, before=page[0])`` the 50 before those.

        Args:
            endpoint: Only those at this server.
            principal: Only those on behalf of this principal.
            pending: Only tasks that are not over, and outcomes that were not received.
            label: Only those of exactly this label.
            limit: At most this many of the matching records, the newest ones; ``None`` is all.
            before: Only records that come before this one; or records that were made before a time, in
                seconds since the epoch. A record that was forgotten meanwhile stands for its time.

        Raises:
            JournalError: The journal could not be read.
            TasksClientError: The inbox is not open.
            ValueError: ``limit`` is less than 1, or ``before`` is not a number.
            TypeError: ``before`` is neither.
        """
        self._opened()
        check_limit(limit)
        if not isinstance(before, TaskRecord | float | int | None):
            raise TypeError(f"before must be a TaskRecord or a time, not {type(before).__name__}")
        if not isinstance(before, TaskRecord | None) and math.isnan(before):
            raise ValueError("before must be a time, and is not a number")
        server, whose = self._at(endpoint, principal)
        found = await self._journal.records(
            self._scope_of(endpoint, principal),
            pending=pending,
            endpoint=server,
            principal=whose,
            label=label,
            application=self._application,
            limit=limit,
            before=before,
        )
        return [one for one in found if self._matches(one, endpoint, principal, label)]

    async def questions(
        self, *, endpoint: str | None = None, principal: str | None = None, label: str | None = None
    ) -> list[Question]:
        """The questions that wait for an answer, those of the oldest call first.

        Args and errors are those of :meth:`records`. Questions from before there is a task are among them
        where the call has an idempotency key.
        """
        self._opened()
        found = list[Question]()
        for number, asking in enumerate(await self._journal.asking(self._scope_of(endpoint, principal)), 1):
            if number % BATCH == 0:
                await anyio.lowlevel.checkpoint()  # thousands of them must not hold the event loop
            if self._matches(asking.record, endpoint, principal, label):
                found += unanswered(asking, self)
        return found

    async def question(self, question_id: str) -> Question | None:
        """One question; ``None`` if it waits for no answer, or the inbox does not show its call.

        Args:
            question_id: Of the question. Any other text, as from a link, finds none.

        Raises:
            JournalError: The journal could not be read.
            TasksClientError: The inbox is not open.
        """
        self._opened()
        try:
            record = await self.record(record_of(question_id))
        except ValueError:
            return None
        found = [] if record is None else await read_questions(self._journal, record, self)
        return next((one for one in found if one.question_id == question_id), None)

    async def record(self, record_id: str) -> TaskRecord | None:
        """The record of one call; ``None`` if there is none, or the inbox does not show it.

        Args:
            record_id: Of the call. It tells nothing of the server or its task, and may be shown in a page.

        Raises:
            JournalError: The journal could not be read.
            TasksClientError: The inbox is not open.
        """
        self._opened()
        record = await self._journal.by_id(record_id)
        return record if record is not None and self._shows(record) else None

    async def outcome(self, record: TaskRecord) -> CallToolResult | TasksClientError | None:
        """The outcome of a call, for showing it. It does not count as received by this.

        Args:
            record: One that :meth:`records` returned.

        Returns:
            The server's result, or the error that :meth:`TaskHandle.result` would raise; ``None`` if the call
            has not ended.

        Raises:
            ValueError: The inbox does not show this call.
            TasksClientError: The inbox is not open.
        """
        self._check_shown(record)
        if not record.finished:
            return None
        try:
            return await read_outcome(record, None, None)
        except TasksClientError as error:
            return error

    async def is_driven(self, record: TaskRecord) -> bool:
        """Whether a living process has the call, as far as can be seen from here.

        A process on this machine is looked at. One that is elsewhere counts as living until its lease has run
        out, which takes up to half a minute.

        Args:
            record: One that :meth:`records` returned just now.

        Raises:
            JournalError: The journal could not be read.
            TasksClientError: The inbox is not open.
        """
        return await self._opened().owning.is_driven(record)

    async def estimate(self, record: TaskRecord) -> Estimate:
        """The expected duration of a call, by completed calls of its tool; see :class:`Estimate`.

        To show it again a moment later, ``estimate.after(record.ran_s(time.time()))`` reads nothing.

        Args:
            record: One that :meth:`records` returned.

        Raises:
            JournalError: The journal could not be read.
            ValueError: The inbox does not show this call.
            TasksClientError: The inbox is not open.
        """
        self._check_shown(record)
        known = [] if record.tool is None else await self._journal.durations(record.scope, record.tool)
        return Estimate(known).after(record.ran_s(self._environment.clock.time()))

    def _at(self, endpoint: str | None, principal: str | None) -> tuple[str | None, str | None]:
        """The server and the principal that are asked for; ``None`` is any."""
        server = self._endpoint if endpoint is None else endpoint
        return server, self._principal if principal is None else principal

    def _scope_of(self, endpoint: str | None, principal: str | None) -> Scope | None:
        """The one scope that is asked for; ``None`` is all scopes."""
        server, whose = self._at(endpoint, principal)
        return None if server is None or whose is None else Scope(server, whose)

    def _matches(
        self, record: TaskRecord, endpoint: str | None, principal: str | None, label: str | None
    ) -> bool:
        """True if the inbox shows a record, and the caller asks for it."""
        return (
            self._shows(record)
            and endpoint in (None, record.scope.endpoint)
            and principal in (None, record.scope.principal)
            and label in (None, record.label)
        )

    # ── being told ────────────────────────────────────────────────────────────────────────────

    def asked(
        self, *, endpoint: str | None = None, principal: str | None = None, label: str | None = None
    ) -> AsyncIterator[Question]:
        """The questions that wait for an answer, and each new one as it is asked, for as long as you iterate.

        ``async for question in inbox.asked():`` gives each question once, the oldest first. One that opens
        again, since the server has refused its answer, is a new one. A question of a process of this machine
        is there within a second, as is one of another host that shares a database. The loop ends when the
        inbox closes.

        Args are those of :meth:`questions`.

        Raises:
            JournalError: While iterating: the journal could not be read. Iterate on, over the same iterator.
            TasksClientError: The inbox is not open.
        """

        async def look() -> Mapping[str, Question]:
            found = await self.questions(endpoint=endpoint, principal=principal, label=label)
            return {one.question_id: one for one in sorted(found, key=lambda one: one.asked_at)}

        return self._news(look)

    def ended(
        self, *, endpoint: str | None = None, principal: str | None = None, label: str | None = None
    ) -> AsyncIterator[TaskRecord]:
        """The calls whose outcome was not received, and each other call as it ends, while you iterate.

        ``async for record in inbox.ended():`` gives each call once, in the order of their ends. It receives
        no outcome; :meth:`TasksClient.deliver` is for a program that does. An end is told within a second on
        one machine, and within some seconds where hosts share a database. A call without an idempotency key
        is forgotten once its outcome is received, and is not told of if that was faster. The loop ends when
        the inbox closes.

        Args are those of :meth:`records`, and errors those of :meth:`asked`.
        """
        since = [self._environment.clock.time()]

        async def look() -> Mapping[str, TaskRecord]:
            now = self._environment.clock.time()
            scope = self._scope_of(endpoint, principal)
            found = [one for one in await self._journal.records(scope, pending=True) if one.finished]
            found += await self._journal.records(scope, delivered_since=since[0])
            since[0] = now - _OVERLAP_S
            shown = [one for one in found if self._matches(one, endpoint, principal, label)]
            return {one.record_id: one for one in sorted(shown, key=lambda one: one.updated_at)}

        return self._news(look)

    def _news(self, look: Callable[[], Awaitable[Mapping[str, T]]]) -> AsyncIterator[T]:
        store = self._opened()
        news = News(self._journal, self._environment.clock, look, lambda: self._store is store)
        self._iterated.add(news)
        return news

    # ── doing ─────────────────────────────────────────────────────────────────────────────────

    async def answer(self, question_id: str, answer: Answer) -> None:
        """Answer a question; see :meth:`Question.answer`. Returns when the answer is committed.

        Args:
            question_id: Of the question.
            answer: The result of the kind that the question asks for.

        Raises:
            InvalidAnswerError: The answer does not fit the question. Nothing was committed.
            AlreadyAnsweredError: The question has an answer. Nothing was committed.
            QuestionWithdrawnError: The server does not wait for an answer, the call is being cancelled, or
                the inbox does not show it. The answer is not sent.
            JournalError: The answer could not be committed.
            ValueError: It is no ``question_id``.
            TasksClientError: The inbox is not open.
        """
        await self.take_answer(question_id, to_wire(answer))

    async def take_answer(self, question_id: str, answer: JSONObject) -> None:
        """Commit an answer in its form on the wire; see :meth:`answer`."""
        store = self._opened()
        record = await self.record(record_of(question_id))
        await run_to_its_end(store.steps.leave_answer, record, question_id, answer)

    async def cancel(self, record: TaskRecord) -> None:
        """Have the task of a call cancelled; see :meth:`TaskHandle.cancel`.

        Returns when the wish is committed. A call that has ended has nothing to cancel.

        Args:
            record: One that :meth:`records` returned.

        Raises:
            JournalError: The wish could not be committed.
            ValueError: The inbox does not show this call.
            TasksClientError: The inbox is not open.
        """
        wish = Instruction(CANCEL, "", self._environment.clock.time())
        await run_to_its_end(self._opened().steps.instruct, self._live(record), wish)

    async def acknowledge(self, record: TaskRecord) -> None:
        """Count the outcome of a call as delivered; see :meth:`TasksClient.acknowledge`.

        Args:
            record: One that :meth:`records` returned.

        Raises:
            JournalError: It could not be written, or the journal shows no record of a keyed call. The outcome
                may come once more.
            ValueError: The inbox does not show this call.
            TasksClientError: The call has not ended, or the inbox is not open.
        """
        if not await self._opened().ends.acknowledge(self._live(record)):
            raise TasksClientError(
                f"The call of {name_tool(record.tool)} has not ended. There is no outcome to acknowledge."
            )

    async def prune(self, older_than_s: float | None = None) -> int:
        """Forget old calls of any client; see :meth:`TasksClient.prune`.

        Args:
            older_than_s: Seconds since the delivery, at least a minute; ``None`` is the journal's
                ``retention_s``.

        Returns:
            The number of forgotten calls.

        Raises:
            JournalError: The journal could not be written.
            ValueError: ``older_than_s`` is negative.
            TasksClientError: The inbox is not open, or shows only a part of the journal.
        """
        if (self._endpoint, self._principal, self._application) != (None, None, None):
            raise TasksClientError("prune() is for the whole journal. Open an Inbox(journal) for all calls.")
        return await self._opened().ends.prune(older_than_s)

    def _shows(self, record: TaskRecord) -> bool:
        return (
            self._endpoint in (None, record.scope.endpoint)
            and self._principal in (None, record.scope.principal)
            and (self._application is None or record.application in (None, self._application))
        )

    def _live(self, record: TaskRecord) -> LiveCall:
        self._check_shown(record)
        return self._opened().registry.live_of(record)

    def _check_shown(self, record: TaskRecord) -> None:
        self._opened()
        if not isinstance(record, TaskRecord):
            raise TypeError(f"not a TaskRecord, as from inbox.record(), but a {type(record).__name__}")
        if not self._shows(record):
            raise ValueError("this inbox is for other calls; take the record from its records()")

    # ── opening and closing ───────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        """Open the existing journal. Nothing is made.

        Without the right to write it, the inbox shows the journal, and :meth:`answer`, :meth:`cancel`,
        :meth:`acknowledge` and :meth:`prune` raise a :class:`JournalError`.

        Raises:
            JournalError: There is no journal, or it cannot be used; the message says why and what to do.
            TasksClientError: The inbox is open already.
        """
        if self._store is not None:
            raise TasksClientError("This inbox is open already. Make another one.")
        # A CallStore takes a lease once it owns something. That of an inbox never does.
        self._store = CallStore(self._journal, PollPolicy(), self._environment)
        self._store.owning.enter_loop()
        try:
            await self._journal.open_existing()
        except BaseException:
            self._store = None
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the journal."""
        store, self._store = self._opened(), None
        for news in self._iterated:
            news.wake()
        await run_to_its_end(self._close, store)

    async def _close(self, store: CallStore) -> None:
        try:
            await store.close()
        finally:
            await self._journal.aclose()

    def _opened(self) -> CallStore:
        if self._store is None:
            raise TasksClientError("The inbox is not open. Use: async with Inbox(...) as inbox")
        return self._store
