"""The common ground of one client's calls, over whichever sessions: an open journal, and event-loop tasks.

A call is driven (by a :class:`Runner`) for as long as a caller waits for it, or the client keeps it for the
handles that it gave out. There are two ways to use an engine:

- *entered*, by :class:`TasksClient`: the journal stays open, and work may go on when its caller has gone,
  until the engine is left;
- *not entered*, by a way in dropped into a host's own client: it drives only calls that a caller waits
  for. The journal is open for as long, and a little longer, so that it is not opened anew for each call.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from types import TracebackType
from typing import Literal, Self, TypeAlias

import anyio

from ..aio.own_task import OwnTasks
from ..aio.uncut import run_to_its_end
from ..errors import JournalError, TasksClientError
from ..journal.base import Journal
from ..journal.guarded import GuardedJournal
from ..policy import PollPolicy
from .call_store import CallStore
from .environment import Environment
from .record_maker import check_application
from .tool_result import OutputSchema, check_output_schema

__all__ = ["Engine", "OnAbandon"]

logger = logging.getLogger("mcp_tasks_client")

OnAbandon: TypeAlias = Literal["detach", "cancel"]
"""A task whose call has lost its last caller goes on, or is cancelled."""


class Engine:
    """Drives calls, and keeps the journal open for them. Knows no session.

    Args:
        journal: Written before anything is done.
        policy: Latency against load.
        on_abandon: What happens to the task of a call that has lost its last caller.
        output_schema: What becomes of a result that does not match its tool's output schema.
        application: Of the calls; ``None`` is everybody's.
        environment: Clock, jitter, process and observer.

    Attributes:
        tasks: The event-loop tasks that this engine has started.

    Raises:
        ValueError: ``on_abandon`` or ``output_schema`` is no word for it, or ``application`` is no name.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        policy: PollPolicy,
        on_abandon: OnAbandon,
        output_schema: OutputSchema = "raise",
        application: str | None = None,
        environment: Environment | None = None,
    ) -> None:
        if on_abandon not in ("detach", "cancel"):
            raise ValueError(f'on_abandon must be "detach" or "cancel", got {on_abandon!r}')
        check_output_schema(output_schema)
        check_application(application)
        self.journal = GuardedJournal(journal)
        self.policy = policy
        self.on_abandon = on_abandon
        self.output_schema = output_schema
        self.application = application
        self.environment = (environment or Environment()).around(self.journal)
        self.tasks = OwnTasks()
        self._entered = False
        self._closed = False
        self._outlasting: set[anyio.CancelScope] = set()

    @cached_property
    def store(self) -> CallStore:
        """The calls and their records. Made on use, since an extension is made long before that."""
        return CallStore(self.journal, self.policy, self.environment)

    @property
    def in_background(self) -> bool:
        """Whether work may go on when its caller has gone."""
        return self._entered

    @property
    def closed(self) -> bool:
        """True once the engine was left, or its event loop was closed under it."""
        return self._closed or (self._entered and self.store.owning.loops.have_closed())

    # ── the journal ───────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def using_journal(self) -> AsyncIterator[None]:
        """Have the journal open for the length of the block.

        Raises:
            JournalError: It cannot be opened.
        """
        await self.open_journal()
        try:
            yield
        finally:
            self.leave_journal()

    async def open_journal(self) -> None:
        """Have the journal open until :meth:`leave_journal`, or until the engine is left if it was entered.

        Events and states that could not be committed before are committed first.

        Raises:
            JournalError: It cannot be opened.
        """
        if self._entered:
            return
        with anyio.CancelScope(shield=True):
            await self.journal.open()
        self.store.owning.enter_loop()
        try:
            await self.store.commit_left()
        except BaseException:
            self.journal.aclose_soon()
            raise

    def leave_journal(self) -> None:
        """Need the journal no longer."""
        if not self._entered:
            self.journal.aclose_soon()

    async def prune_now_and_then(self) -> None:
        """Prune the journal, if it is time."""
        if self.store.owning.lease.begin_prune():
            await self.store.ends.prune_old()

    def check_open(self) -> None:
        """Refuse to begin anything after the end.

        Raises:
            TasksClientError: The client is closed.
        """
        if self.closed:
            raise TasksClientError(
                "The client is closed. Open one again and attach the handle's reference, or resume()."
            )

    # ── work that outlasts its caller ─────────────────────────────────────────────────────────

    async def outlast(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run ``work()`` in the present task until the engine is left, even if the task is cancelled.

        The work is then given ``PollPolicy.cancel_timeout_s``.

        Returns:
            Whether it came to its end in time.
        """
        with anyio.CancelScope(shield=True) as scope:
            self._outlasting.add(scope)
            if self._closed:  # leaving has set the deadlines of all others already
                scope.deadline = anyio.current_time() + self.policy.cancel_timeout_s
            try:
                await work()
            finally:
                self._outlasting.discard(scope)
        return not scope.cancelled_caught

    # ── opening and closing ───────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        """Open the journal, which proves that it can be written.

        Raises:
            JournalError: The journal cannot be used; the message says why and what to do.
        """
        if self._entered:
            raise TasksClientError("A client is opened once. Make another one.")
        try:
            await run_to_its_end(self._enter)
        except BaseException:
            if self.in_background:  # the block is not entered, so that no other code closes the journal
                await run_to_its_end(self.journal.aclose)
            raise
        self.tasks.start(self.prune_now_and_then)
        return self

    async def _enter(self) -> None:
        await self.journal.open()
        self.store.owning.enter_loop()
        self._entered = True

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop driving every call, finish the writing, and close the journal."""
        await self.aclose()

    async def aclose(self) -> None:
        """End the work that runs, release all calls, and retry the commits that failed.

        A refusal of the journal is logged.
        """
        self._closed = True
        if "store" not in self.__dict__ and not self._entered:
            return  # there never was a call
        self.store.registry.ring_bells(None)
        for call in list(self.store.registry.live.values()):
            if call.is_driven or (call.audience.waiters and not call.over):  # whose driver has crashed
                call.park(TasksClientError("The client was closed. A task goes on; resume() it."))
            if call.drive is not None:
                call.drive.stop(self.policy.call_grace_s)
        for scope in self._outlasting:
            scope.deadline = anyio.current_time() + self.policy.cancel_timeout_s
        self.tasks.cancel()
        await run_to_its_end(self._close)

    async def _close(self) -> None:
        await self.tasks.wait()
        try:
            if not self._entered:
                await self.journal.open()
            try:
                await self.store.close()
            finally:
                await self.journal.aclose()
        except JournalError as error:  # nothing is lost: every write that was waited for has returned
            logger.error("The journal could not be closed: %s", error)
