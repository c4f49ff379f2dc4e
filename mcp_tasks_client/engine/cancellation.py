"""``tasks/cancel``: journaled as a wish, sent to the server, sent again with the polls if need be.

A cancellation that comes before there is a task is remembered, and sent when there is one. Sending
outlives the caller that asked for it: it goes on in the engine until the client has closed, and then
``PollPolicy.cancel_timeout_s`` longer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import anyio

from ..aio.clock import Clock
from ..errors import DrivenElsewhereError, JournalError, SessionError, TasksClientError
from ..journal.base import Instruction
from ..machine.actions import SendCancel
from ..machine.events import CallRefused, CancelRequested, Event
from ..machine.pacing import quiet_left
from ..machine.states import Calling, Observing
from ..questions.question import CANCEL
from .call_store import CallStore
from .live_call import LiveCall
from .requests import Requests

__all__ = ["Cancellation", "OnAbandon", "check_on_abandon"]

logger = logging.getLogger("mcp_tasks_client")

OnAbandon: TypeAlias = Literal["detach", "cancel"]
"""Whether the task of a call that nobody waits for any more goes on, or is cancelled."""


def check_on_abandon(on_abandon: str) -> None:
    """Refuse a word that ``on_abandon`` cannot be.

    Raises:
        ValueError: It is neither ``"detach"`` nor ``"cancel"``.
    """
    if on_abandon not in ("detach", "cancel"):
        raise ValueError(f'on_abandon must be "detach" or "cancel", got {on_abandon!r}')


class Cancellation:
    """Cancels the tasks of one endpoint.

    ``timeout_s`` are the seconds that may pass for a call that is being stopped. ``step`` takes the step of a
    reply, and does what follows from it.
    """

    def __init__(
        self,
        store: CallStore,
        requests: Requests,
        clock: Clock,
        timeout_s: float,
        step: Callable[[LiveCall, Event], Awaitable[None]],
    ) -> None:
        self._store = store
        self._requests = requests
        self._clock = clock
        self._timeout_s = timeout_s
        self._step = step

    async def wish(self, call: LiveCall, *, by_instruction: bool = False) -> bool:
        """Journal that the host wants the call cancelled, and take back a ``tools/call`` that has not left.

        Where another client drives the call, the journal tells it. ``by_instruction``: the wish was left in
        the journal, and not said here.

        Returns:
            Whether the caller has to call :meth:`send` now.

        Raises:
            SessionError: The server wants to be left alone, and nobody here would send it later.
            JournalError: The wish could not be journaled.
        """
        try:
            return await self._wish(call, by_instruction)
        except DrivenElsewhereError:
            return await self._wish(call, by_instruction)  # it was another's by then, and now that is known

    async def _wish(self, call: LiveCall, by_instruction: bool) -> bool:
        wish = CancelRequested(now=self._clock.time(), by_instruction=by_instruction)
        if call.attempt is not None or call.next_send is not None:
            await self._step(call, wish)
            if call.attempt is not None and not call.attempt.has_left:
                call.attempt.cut(0.0)
            elif call.attempt is None:  # it has not been sent, and will not be
                call.next_send = None
                call.ring()  # the driver may wait for the time to send it
                if isinstance(call.record.state, Calling):
                    await self._step(call, CallRefused())
            return False
        ours = call.record.finished or await self._store.owning.take(call)
        while ours and call.uncommitted:
            await self._store.apply_uncommitted(call)  # there may be a task in it that is to be cancelled
        if call.record.finished:
            return False
        if not ours:
            await self._store.instruct(call, Instruction(CANCEL, "", wish.now))
            return False
        actions = await self._store.apply(call, wish)
        call.stop_asking()
        call.ring()
        call.publish()
        if any(isinstance(action, SendCancel) for action in actions):
            return True
        if call.driver is None or call.over:
            self._refuse_while_quiet(call, "nobody drives the task here. Resuming it cancels it.")
        return False

    async def send(self, call: LiveCall) -> None:
        """Send ``tasks/cancel``, and take the step of the reply.

        Raises:
            SessionError: The server could not be told. The wish is sent again with the polls, unless the
                server refuses ``tasks/cancel`` altogether.
            JournalError: The server's reply could not be journaled.
        """
        if not isinstance(call.record.state, Observing):
            return
        event, error = await self._requests.cancel(call)
        if event is not None and call.ours:
            try:
                await self._step(call, event)
            except JournalError as failed:
                call.park(failed)  # the server may have asked to be left alone
                raise
        if error is not None:
            raise error

    async def send_and_log(self, call: LiveCall) -> None:
        """Send ``tasks/cancel`` where nobody waits for it, even if the call is being stopped.

        A failure is logged, and the polls send the wish again.
        """
        try:
            with anyio.move_on_after(self._timeout_s, shield=True) as scope:
                await self.send(call)
            if scope.cancelled_caught and call.ours:
                await self._step(call, self._requests.fail_cancel())
        except TasksClientError as error:
            goes_again = isinstance(error, SessionError) and error.retryable  # with each poll
            level = logging.DEBUG if goes_again else logging.WARNING
            logger.log(level, "tasks/cancel for %r did not get through: %s", call.record, error)

    async def cancel_abandoned(self, call: LiveCall) -> None:
        """Cancel a call that has lost its last caller. A failure is logged.

        While ``tools/call`` is in flight the wish is noted, and the driver of the call sends it.
        """
        try:
            if await self.wish(call):
                await self.send_and_log(call)
            elif isinstance(call.record.state, Observing) and call.record.state.cancel == "requested":
                logger.warning("The server wants to be left alone. Resuming it cancels it: %r", call.record)
        except TasksClientError as error:
            logger.warning("The abandoned %r could not be cancelled: %s", call.record, error)
        finally:
            if call.driver is None:  # it was released before, and taken once more to be cancelled
                await self._store.release_unfinished(call)

    def _refuse_while_quiet(self, call: LiveCall, and_then: str) -> None:
        state = call.record.state
        silence_s = quiet_left(state, self._clock.time()) if isinstance(state, Observing) else 0.0
        if silence_s:
            raise SessionError(
                f"The server wants to be left alone for {silence_s:.0f} s, and {and_then}",
                retryable=True,
                retry_after_s=silence_s,
            )
