"""``tasks/cancel``: journaled as a wish, sent to the server, sent again with the polls if need be.

A cancellation that comes before there is a task is remembered, and sent when there is one. Sending
outlives the caller that asked for it: it goes on in the engine until the client has closed, and then
``PollPolicy.cancel_timeout_s`` longer.
"""

from __future__ import annotations

import logging
from functools import partial

import anyio

from ..aio.host_code import was_cancelled_from_inside
from ..aio.uncut import run_to_its_end
from ..errors import DrivenElsewhereError, SessionError, TasksClientError
from ..journal.base import Instruction
from ..machine.actions import SendCancel
from ..machine.events import CallRefused, CancelRequested
from ..machine.pacing import quiet_left
from ..machine.states import Calling, Observing
from ..questions.question import CANCEL
from .engine import Engine
from .live_call import LiveCall
from .performer import Performer

__all__ = ["Cancellation"]

logger = logging.getLogger("mcp_tasks_client")


class Cancellation:
    """Cancels the tasks of one endpoint."""

    def __init__(self, engine: Engine, performer: Performer) -> None:
        self._engine = engine
        self._store = engine.store
        self._performer = performer
        self._clock = engine.environment.clock

    async def cancel(self, call: LiveCall) -> None:
        """Journal the wish, and send it. Sending goes on though the caller goes away.

        Raises:
            SessionError: The server could not be told. After a failure that may pass, the polls send the wish
                again; after a refusal, only ``resume()`` does.
            JournalError: The wish could not be journaled, and was not sent.
            TasksClientError: The client was closed first.
        """
        sent, failed = anyio.Event(), list[TasksClientError]()

        async def send() -> None:
            try:
                if not await self._engine.outlast(partial(self._performer.cancel, call)):
                    failed.append(_closed_first())
            except TasksClientError as error:
                failed.append(error)
            except anyio.get_cancelled_exc_class():
                if not was_cancelled_from_inside():
                    raise
                failed.append(TasksClientError("tasks/cancel was cancelled from inside of the session."))
            finally:
                await self._release_undriven(call)
                sent.set()

        async def begin() -> bool:
            wished = await self.wish(call)
            if wished and self._engine.closed:
                raise _closed_first()
            if wished:
                self._engine.tasks.start(send)
            return wished

        try:
            # Not cut by a cancellation: a wish that is journaled as being sent is sent by no other client.
            wished = await run_to_its_end(begin)
        except TasksClientError:
            await self._release_undriven(call)  # the client that takes the call up cancels it
            raise
        if not wished:
            await self._release_undriven(call)
            return
        await sent.wait()
        if failed:
            raise failed[0]

    async def _release_undriven(self, call: LiveCall) -> None:
        """Release a call that was taken to be cancelled, unless it is driven here."""
        if not call.is_driven:
            await self._store.owning.release_unfinished(call)

    async def wish(self, call: LiveCall, *, by_instruction: bool = False) -> bool:
        """Journal that the host wants the call cancelled, and take back a ``tools/call`` that has not left.

        Where another client drives the call, the journal tells it. ``by_instruction``: the wish was left in
        the journal, and not said here.

        Returns:
            Whether the caller has to call :meth:`Performer.cancel` now.

        Raises:
            SessionError: The server wants to be left alone, and no driver here would send it later.
            JournalError: The wish could not be journaled.
        """
        try:
            return await self._wish(call, by_instruction)
        except DrivenElsewhereError:
            return await self._wish(call, by_instruction)  # it was another's by then, and now that is known

    async def _wish(self, call: LiveCall, by_instruction: bool) -> bool:
        wish = CancelRequested(now=self._clock.time(), by_instruction=by_instruction)
        if call.attempt is not None or call.next_send is not None:
            await self._performer.step(call, wish)
            if call.attempt is not None and not call.attempt.has_left:
                call.attempt.cut(0.0)
            elif call.attempt is None:  # it has not been sent, and will not be
                self._store.steps.drop_send(call)
                call.ring()  # the driver may wait for the time to send it
                if isinstance(call.record.state, Calling):
                    await self._performer.step(call, CallRefused())
            return False
        ours = call.record.finished or await self._store.owning.take(call)
        while ours and call.uncommitted:
            await self._store.steps.apply_uncommitted(
                call
            )  # there may be a task in it that is to be cancelled
        if call.record.finished:
            return False
        if not ours:
            await self._store.steps.instruct(call, Instruction(CANCEL, "", wish.now))
            return False
        actions = await self._store.steps.apply(call, wish)
        call.stop_asking()
        call.ring()
        call.audience.publish()
        if any(isinstance(action, SendCancel) for action in actions):
            return True
        if not call.is_driven or call.over:
            self._refuse_while_quiet(call, "nobody drives the task here. Resuming it cancels it.")
        return False

    async def cancel_abandoned(self, call: LiveCall) -> None:
        """Cancel a call that has lost its last caller. A failure is logged.

        While ``tools/call`` is in flight the wish is noted, and the driver of the call sends it.
        """
        try:
            if await self.wish(call):
                await self._performer.cancel_and_log(call)
            elif isinstance(call.record.state, Observing) and call.record.state.cancel == "requested":
                logger.warning("The server wants to be left alone. Resuming it cancels it: %r", call.record)
        except TasksClientError as error:
            logger.warning("The abandoned %r could not be cancelled: %s", call.record, error)
        finally:
            await self._release_undriven(call)

    def _refuse_while_quiet(self, call: LiveCall, and_then: str) -> None:
        state = call.record.state
        silence_s = quiet_left(state, self._clock.time()) if isinstance(state, Observing) else 0.0
        if silence_s:
            raise SessionError(
                f"The server wants to be left alone for {silence_s:.0f} s, and {and_then}",
                retryable=True,
                retry_after_s=silence_s,
            )


def _closed_first() -> TasksClientError:
    return TasksClientError("The client was closed first; resuming cancels the task.")
