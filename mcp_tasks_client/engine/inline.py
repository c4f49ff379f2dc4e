"""Calls driven in their callers' own tasks: the drop-in way. Nothing runs but the calls themselves."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from mcp_types import CallToolResult

from ..callbacks import Inputs
from ..errors import JournalError, TasksClientError, WaitTimeoutError
from ..journal.base import Journal
from ..journal.guarded import GuardedJournal
from ..journal.record import Scope
from ..machine.events import TaskCreated
from ..policy import PollPolicy
from ..sessions.base import Session, Snapshot
from ..uncut import run_to_its_end
from .call_store import CallStore
from .cancellation import OnAbandon, check_on_abandon
from .environment import Environment
from .live_call import HandleOf, LiveCall, OnUpdate
from .outcome import read_outcome
from .recovery import begin_with_task
from .requests import Requests
from .runner import Runner

__all__ = ["InlineEngine"]


class InlineEngine:
    """Sees tasks through in their callers' own tasks. Nothing of it runs but the calls themselves.

    The journal is open while calls are in flight, and a little longer, so that it is not opened for each.

    Args:
        journal: Where states go first.
        policy: Latency against load.
        on_abandon: What happens to the task of a call that nobody waits for any more.
        handle_of: Makes the handle that errors about a call carry.
        environment: Clock, jitter, process and probe.

    Raises:
        ValueError: ``on_abandon`` is neither word.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        policy: PollPolicy,
        on_abandon: OnAbandon,
        handle_of: HandleOf,
        environment: Environment | None = None,
    ) -> None:
        check_on_abandon(on_abandon)
        self._journal = GuardedJournal(journal)
        self._policy = policy
        self._on_abandon = on_abandon
        self._handle_of = handle_of
        self._environment = environment or Environment()
        self._store: CallStore | None = None
        self._retired: list[CallStore] = []

    def make_runner(self, session: Session, inputs: Inputs) -> Runner:
        """What drives the calls over one connection. Made once for each, since thousands of calls share it.

        Args:
            session: Where requests go.
            inputs: Who answers questions.
        """
        requests = Requests(session, inputs, self._environment)
        return Runner(self._use_store(), requests, self._policy, self._environment)

    def _use_store(self) -> CallStore:
        if self._store is None:  # not before there is a task: an extension is made long before it is used
            self._store = CallStore(self._journal, self._policy, self._environment)
        return self._store

    async def see_through(
        self,
        created: Snapshot,
        tool: str,
        *,
        runner: Runner,
        scope: Scope,
        timeout: float | None = None,
        listeners: Sequence[OnUpdate] = (),
    ) -> CallToolResult:
        """Wait for the result of a task that somebody else's ``tools/call`` was answered with.

        The task is journaled before anything else. The result is not checked against the output schema.

        Args:
            created: The task, as the reply to ``tools/call`` describes it.
            tool: What was called.
            runner: Drives the calls over the connection that the task came from.
            scope: Under which the journal keeps the task.
            timeout: Seconds to wait; ``None`` waits as long as it takes.
            listeners: Told of each changed snapshot.

        Raises:
            TasksClientError: As :meth:`TasksClient.call_tool`; ``.handle`` always names the task.
        """
        environment, store = self._environment, self._use_store()
        now, jitter = environment.clock.time(), environment.jitter()
        first = TaskCreated(task=created.task, session_data=created.session_data, now=now, jitter=jitter)
        runner = runner.over(store)
        call = begin_with_task(store, scope, tool, first)
        call.listeners = tuple(listeners)
        try:
            await self._open(call, store)
            try:
                await self._close_retired()
                await self._drive(call, runner, timeout)
                if store.begin_hourly_prune():
                    await store.prune_old()
                return await self._deliver(call, runner)
            except anyio.get_cancelled_exc_class():
                await store.release(call)
                if call in store.uncommitted:
                    self._retire(store)
                raise
            finally:
                self._journal.aclose_soon()
        except TasksClientError as error:
            error.handle = self._handle_of(call)
            if isinstance(error, JournalError):
                store.keep_uncommitted(call)
                self._retire(store)
            raise

    def _retire(self, store: CallStore) -> None:
        """Leave the records of a store whose commit failed to whoever resumes them.

        Nothing closes an extension. So the next call has a store of its own, and commits what this one could
        not.
        """
        store.retire()
        if store is self._store:
            self._store = None
        if store not in self._retired:
            self._retired.append(store)

    async def _close_retired(self) -> None:
        while self._retired:
            store = self._retired.pop()  # so that no other call closes it as well
            try:
                await store.close()
            finally:
                if store.uncommitted:
                    self._retired.append(store)
            if store.uncommitted:
                return  # the journal still fails: a later call tries again

    async def _open(self, call: LiveCall, store: CallStore) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self._journal.open()
        except anyio.get_cancelled_exc_class():
            # A native Task.cancel(), which no shield stops. The task ID is committed all the same.
            await run_to_its_end(self._commit_only, call, store)
            raise

    async def _commit_only(self, call: LiveCall, store: CallStore) -> None:
        await self._journal.open()
        try:
            await store.apply_uncommitted(call)
            await store.release_unfinished(call)
        finally:
            self._journal.aclose_soon()

    async def _deliver(self, call: LiveCall, runner: Runner) -> CallToolResult:
        """Give the host the outcome, and only then note that the host has it."""
        try:
            result = await read_outcome(call.record, runner.session, None)
        except TasksClientError:
            runner.store.deliver(call)
            raise
        runner.store.deliver(call)
        return result

    async def _drive(self, call: LiveCall, runner: Runner, timeout: float | None) -> None:
        """Drive a call until it is finished.

        Raises:
            WaitTimeoutError: The time is over.
            Exception: What parked the call.
        """
        try:
            with anyio.move_on_after(timeout) as call.driver:
                await runner.drive(call)
        except anyio.get_cancelled_exc_class():
            await self._abandon(call, runner)
            raise
        finally:
            call.driver = None
        if call.error is not None:
            raise call.error
        if not call.record.finished:
            await self._abandon(call, runner)
            raise WaitTimeoutError(
                f"No outcome of {call.record.tool!r} within {timeout} seconds. Unless it was cancelled, the "
                "task goes on: TasksClient(client).resume() takes it up."
            )

    async def _abandon(self, call: LiveCall, runner: Runner) -> None:
        if self._on_abandon == "cancel":
            await run_to_its_end(runner.cancellation.cancel_abandoned, call)
            await runner.store.release_unfinished(call)
