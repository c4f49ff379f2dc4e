"""A step of a call, and the actions that follow from it: requests, questions, and news for callers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import assert_never

import anyio

from ..aio.host_code import was_cancelled_from_inside
from ..errors import DrivenElsewhereError, InputUnansweredError, JournalError, SessionError, TasksClientError
from ..machine import actions as act
from ..machine import events as ev
from ..machine.pacing import quiet_left
from ..machine.states import Observing
from ..policy import PollPolicy
from ..protocol import JSONObject
from ..protocol.replies import is_url_key
from ..protocol.task import Task
from ..protocol.text import quote
from ..questions.question import asked_under
from .audience import OnUpdate
from .environment import Environment
from .live_call import LiveCall
from .requests import Requests
from .steps import Steps

__all__ = ["Performer", "without_sends"]

logger = logging.getLogger("mcp_tasks_client")


class Performer:
    """Takes the steps of the calls of one endpoint, and does the actions that follow.

    A step is the same three things each time: :meth:`Steps.apply` advances the machine by one event and
    commits; the actions are done, in order; the callers that wait are told.
    """

    def __init__(
        self, steps: Steps, requests: Requests, policy: PollPolicy, environment: Environment
    ) -> None:
        self._steps = steps
        self._requests = requests
        self._clock = environment.clock
        self._cancel_timeout_s = policy.cancel_timeout_s

    async def step(self, call: LiveCall, event: ev.Event) -> None:
        """Take one step: commit it, then do the actions that follow."""
        await self.perform(call, await self._steps.apply(call, event))

    async def answer(self, call: LiveCall, key: str, answer: JSONObject) -> None:
        """Take an answer that no callback has given."""
        asked = asked_under(call.record, key)
        refusals = 0 if asked is None else asked.refusals
        await self.take_answer(call, self._requests.take_answer(key, answer, refusals))

    async def take_answer(self, call: LiveCall, event: ev.AnswerReady) -> None:
        """Take the step of an answer. The question is withdrawn from the host first, if it is there."""
        actions = await self._steps.apply(call, event)
        call.withdraw(event.key)  # before the answer is sent, which may take its time
        await self.perform(call, actions)

    async def perform(self, call: LiveCall, actions: tuple[act.Action, ...]) -> None:
        """Do the actions that the machine has named, in order."""
        for action in actions:
            match action:
                case act.Wake(after_s):
                    call.set_due(self._clock.monotonic() + after_s)
                case act.Poll():
                    await self._poll(call)
                case act.Ask():
                    call.put_aside(action)
                case act.StopAsking():
                    call.stop_asking()
                case act.SendCall():  # by the driver, once it is due
                    call.set_due(self._clock.monotonic() + action.after_s)
                case act.SendAnswers(answers):
                    await self._update(call, answers)
                case act.SendCancel():
                    await self.cancel_and_log(call)
                case act.Publish(task):
                    # Listeners come before the callers that wait, which may be gone then.
                    for listener in call.audience.listeners:
                        await _tell(listener, task)
                    call.audience.publish()
                case act.Report(said, is_violation):
                    words = "The server broke the protocol for %r: %s" if is_violation else "%r %s"
                    logger.warning(words, call.record, quote(said, call.record.task_id))
                case act.Finish():
                    if call.task_id is not None:
                        self._requests.session.forget(call.task_id)
                    call.ring()
                    call.audience.publish()
                case act.Park(reason):
                    call.park(_unanswered(call, reason) if isinstance(reason, act.Unanswered) else reason)
                case act.Save() | act.Forget():
                    raise AssertionError("the store has done this")
                case _:
                    assert_never(action)

    async def _poll(self, call: LiveCall) -> None:
        state = call.record.state
        if call.over or not isinstance(state, Observing) or quiet_left(state, self._clock.time()) > 0:
            return  # the request of a moment ago was answered by the end, or by a Retry-After
        try:
            event, error = await self._requests.get(call)
        except anyio.get_cancelled_exc_class():
            # Cut off. The server may see the poll only now, and the next one keeps its distance from it.
            with suppress(DrivenElsewhereError):
                await self._steps.apply(call, self._requests.cut_poll())
            raise
        await self.step(call, event)
        call.audience.count_poll(error)

    async def _update(self, call: LiveCall, answers: Mapping[str, JSONObject]) -> None:
        if isinstance(call.record.state, Observing):
            for event in await self._requests.update(call, answers):
                await self.step(call, event)

    async def cancel(self, call: LiveCall) -> None:
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
                await self.step(call, event)
            except JournalError as failed:
                call.park(failed)  # the server may have asked to be left alone
                raise
        if error is not None:
            raise error

    async def cancel_and_log(self, call: LiveCall) -> None:
        """Send ``tasks/cancel`` where no caller waits for it, even if the call is being stopped.

        A failure is logged, and the polls send the wish again.
        """
        try:
            with anyio.move_on_after(self._cancel_timeout_s, shield=True) as scope:
                await self.cancel(call)
            if scope.cancelled_caught and call.ours:
                await self.step(call, self._requests.fail_cancel())
        except TasksClientError as error:
            goes_again = isinstance(error, SessionError) and error.retryable  # with each poll
            level = logging.DEBUG if goes_again else logging.WARNING
            logger.log(level, "tasks/cancel for %r did not get through: %s", call.record, error)


def without_sends(actions: tuple[act.Action, ...]) -> tuple[act.Action, ...]:
    """The actions to do before a call is resumed. Resuming it sends answers and cancellations."""
    return tuple(action for action in actions if not isinstance(action, act.SendAnswers | act.SendCancel))


async def _tell(listener: OnUpdate, task: Task) -> None:
    try:
        told = listener(task)
        if inspect.isawaitable(told):
            await told
    except anyio.get_cancelled_exc_class():
        if not was_cancelled_from_inside():
            raise
        logger.warning("on_update was cancelled; the call goes on")
    except Exception:
        logger.exception("on_update raised; the call goes on")


def _unanswered(call: LiveCall, reason: act.Unanswered) -> Exception:
    """The error of a question without an answer. Its ``questions`` are added where it is told."""
    if call.record.task_id is not None:
        then = "The task waits for it and can be resumed."
    elif any(map(is_url_key, reason.keys)):
        then = "Nothing was called. Repeat the call, under its key if it has one."
    elif call.record.idempotency_key is not None:
        then = "Repeat the call under its key; what was answered is kept."
    else:
        then = "Await the handle's result to be asked again, or make a new call."
    why = quote(reason.why, call.record.task_id)
    error = InputUnansweredError(
        f"The server's question got no answer: {why}. {then}", keys=reason.keys, declined=reason.declined
    )
    error.__cause__ = reason.cause
    return error
