"""Calls driven in their callers' own tasks: the drop-in way. Nothing runs but the calls themselves."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio
from mcp_types import CallToolResult

from ..callbacks import Inputs
from ..errors import (
    InputUnansweredError,
    JournalError,
    OutcomeUnknownError,
    TasksClientError,
    WaitTimeoutError,
)
from ..journal.base import Journal
from ..journal.guarded import GuardedJournal
from ..machine.events import TaskCreated
from ..machine.record import Scope
from ..policy import PollPolicy
from ..protocol import JSONObject
from ..protocol.text import digest
from ..sessions.base import Session, Snapshot, ToolCall
from ..uncut import run_to_its_end
from .call_store import CallStore
from .cancellation import OnAbandon, check_on_abandon
from .environment import Environment
from .idempotency import Idempotency, OnUnknown, check_repeatable
from .listening import Listening
from .live_call import HandleOf, LiveCall, OnUpdate, OvertakenError, driven_elsewhere
from .outcome import read_outcome
from .recovery import begin_with_task
from .requests import Requests
from .runner import Runner

__all__ = ["InlineEngine"]

logger = logging.getLogger("mcp_tasks_client")


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
        self._idempotency: dict[Scope, Idempotency] = {}

    def make_runner(self, session: Session, inputs: Inputs, *, listens: bool = False) -> Runner:
        """What drives the calls over one connection. Made once for each, since thousands of calls share it.

        Args:
            session: Where requests go.
            inputs: Who answers questions.
            listens: Whether ``session.run`` has to run while there are calls.
        """
        requests = Requests(session, inputs, self._environment)
        runner = Runner(self._use_store(), requests, self._policy, self._environment, inline=True)
        if listens:
            runner.around = Listening(runner, requests).joined
        return runner

    def _use_store(self) -> CallStore:
        if self._store is None:  # not before there is a task: an extension is made long before it is used
            self._store = CallStore(self._journal, self._policy, self._environment)
        return self._store

    # ── calls from their beginning ────────────────────────────────────────────────────────────

    async def call(
        self,
        tool_call: ToolCall,
        *,
        runner: Runner,
        scope: Scope,
        key: str | None = None,
        on_unknown: OnUnknown = "raise",
        record_id: str | None = None,
        answers: Mapping[str, JSONObject] | None = None,
        listeners: Sequence[OnUpdate] = (),
    ) -> LiveCall:
        """Make a call, or go on with one, and see it through to its end or to a question without an answer.

        The journal stays open until the caller has said, by :meth:`deliver` or :meth:`drop`, what became of
        the call that this returns.

        Args:
            tool_call: What to call.
            runner: Drives the calls over the connection.
            scope: Under which the journal keeps the call.
            key: Its idempotency key.
            on_unknown: Under a key, what to do about an earlier call whose reply was lost.
            record_id: Of the call to go on with; ``None`` makes a call.
            answers: The host's answers to its questions, by key. First answers stay.
            listeners: Told of each changed snapshot.

        Returns:
            The call, finished; or parked, its ``error`` then being an :class:`InputUnansweredError`.

        Raises:
            TasksClientError: As :meth:`TasksClient.call_tool`, where there is no end.
        """
        with anyio.CancelScope(shield=True):
            await self._journal.open()
        try:
            store = runner.store
            await store.commit_left()
            while True:
                if record_id is None:
                    call = await self._begin(store, scope, tool_call, key, on_unknown)
                else:
                    call = await self._find(store, scope, tool_call, record_id)
                try:
                    with call.telling(listeners):
                        await self._see(call, runner, answers or {})
                except (OvertakenError, OutcomeUnknownError) as error:
                    check_repeatable(error, call, on_unknown)
                else:
                    return call
        except BaseException:
            self._journal.aclose_soon()
            raise

    def deliver(self, call: LiveCall) -> None:
        """Note that the host has what :meth:`call` returned."""
        self._use_store().deliver(call)
        self._journal.aclose_soon()

    async def drop(self, call: LiveCall, *, to_process: bool = False) -> None:
        """Note that the host never got what :meth:`call` returned. ``resume()`` gives it out.

        Not cancellable.

        Args:
            call: Which.
            to_process: Whether only clients of this process get it, until :meth:`aclose`.
        """
        try:
            if not call.waiters:
                await self._use_store().release(call, to_process=to_process)
        finally:
            self._journal.aclose_soon()

    async def aclose(self) -> None:
        """Own nothing any more, once all calls have ended, and commit what could not be committed before.

        What the journal refuses is logged.
        """
        if self._store is None:
            return
        try:
            with anyio.CancelScope(shield=True):
                await self._journal.open()
                try:
                    await self._store.close()
                finally:
                    await self._journal.aclose()
        except JournalError as error:  # all that it was asked to write, it has said that it has
            logger.error("The journal could not be told that its client has closed: %s", error)

    async def _begin(
        self, store: CallStore, scope: Scope, tool_call: ToolCall, key: str | None, on_unknown: OnUnknown
    ) -> LiveCall:
        idempotency = self._idempotency.get(scope)
        if idempotency is None:
            idempotency = self._idempotency[scope] = Idempotency(store, scope, self._environment)
        while True:
            with suppress(OvertakenError):  # what the key stood for was taken back just then
                return await idempotency.begin(tool_call, key, on_unknown)

    async def _find(self, store: CallStore, scope: Scope, tool_call: ToolCall, record_id: str) -> LiveCall:
        with store.remembering():
            record = await self._journal.by_id(record_id)
            call = None if record is None else store.adopt(record)
        if call is None or call.record.scope != scope or call.record.tool != tool_call.name:
            raise TasksClientError(
                "There is no such call any more: its outcome was delivered, or it is in another journal. "
                "Make a new call."
            )
        if call.record.arguments_digest not in (None, digest(tool_call.arguments)):
            raise TasksClientError("The answers belong to a call with other arguments. Repeat those.")
        if call.tool_call is None:
            call.tool_call = tool_call
        return call

    async def _see(self, call: LiveCall, runner: Runner, answers: Mapping[str, JSONObject]) -> None:
        """Drive a call, or look on while another caller of this process does."""
        store = runner.store
        call.waiters += 1
        try:
            await self._take_answers(call, runner, answers)
            while not call.record.finished:
                if call.driver is None:
                    call.error = None
                    await self._drive(call, runner, None)
                    continue
                await call.change()
                if call.error is not None:
                    raise copy.copy(call.error) from call.error.__cause__
            call.error = None  # what an earlier caller was told, if the reply was committed after that
            if store.begin_hourly_prune():
                await store.prune_old()
        except InputUnansweredError:
            if call.error is None:
                raise
        except TasksClientError as error:
            self._note_error(error, call, store)
            raise
        except anyio.get_cancelled_exc_class():
            if call.waiters == 1:
                await self._let_go(call, store)
            raise
        finally:
            call.waiters -= 1

    async def _take_answers(self, call: LiveCall, runner: Runner, answers: Mapping[str, JSONObject]) -> None:
        asked = {q.key for q in getattr(call.record.state, "questions", ()) if q.unanswered}
        given = {key: answer for key, answer in answers.items() if key in asked}
        if given and not await runner.store.take(call):
            raise driven_elsewhere(call)
        for key, answer in given.items():
            await runner.answer(call, key, answer)

    # ── calls that somebody else has made ─────────────────────────────────────────────────────

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
        environment, store = self._environment, runner.store
        now, jitter = environment.clock.time(), environment.jitter()
        first = TaskCreated(task=created.task, session_data=created.session_data, now=now, jitter=jitter)
        call = begin_with_task(store, scope, tool, first)
        call.listeners = tuple(listeners)
        try:
            await self._open(call, store)
            try:
                await store.commit_left()
                await self._drive(call, runner, timeout)
                if store.begin_hourly_prune():
                    await store.prune_old()
                return await self._deliver(call, runner)
            except InputUnansweredError:
                await store.release_unfinished(call)
                raise
            except anyio.get_cancelled_exc_class():
                await self._let_go(call, store)
                raise
            finally:
                self._journal.aclose_soon()
        except TasksClientError as error:
            self._note_error(error, call, store)
            raise

    async def _let_go(self, call: LiveCall, store: CallStore) -> None:
        store.keep_uncommitted(call)  # its task may not be in the journal yet
        await store.release(call)

    def _note_error(self, error: TasksClientError, call: LiveCall, store: CallStore) -> None:
        error.handle = self._handle_of(call)
        store.keep_uncommitted(call)

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
                async with runner.around():
                    await runner.drive(call)
        except anyio.get_cancelled_exc_class():
            await self._abandon(call, runner)
            raise
        finally:
            call.driver = None
            call.publish()  # whoever looks on has to drive the call now
        if call.error is not None:
            raise call.error
        if not call.record.finished:
            await self._abandon(call, runner)
            raise WaitTimeoutError(
                f"No outcome of {call.record.tool!r} within {timeout} seconds. Unless it was cancelled, the "
                "task goes on: TasksClient(client).resume() takes it up."
            )

    async def _abandon(self, call: LiveCall, runner: Runner) -> None:
        if self._on_abandon == "cancel" and call.waiters <= 1:
            await run_to_its_end(runner.cancellation.cancel_abandoned, call)
