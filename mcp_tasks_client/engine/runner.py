"""The life of a call, told by the coroutine that drives it.

``Runner.drive`` is the whole story. It becomes the owner of the call, takes up what an earlier owner
left, and then goes from state to state until the call is finished, parks, or nobody waits for it:

- ``Calling``: send ``tools/call``, once, and take the step of its reply;
- ``Gathering``: put the server's questions to the host, or wait for a slot; then call again;
- ``Observing``: wait until the next poll is due, poll, and take the step of the snapshot. Questions
  are before the host meanwhile, in a task group that is open only while there are any;
- ``OutcomeUnknown``, ``Finished``: nothing is left to do.

While it waits, it heeds what others leave in the journal for the call: answers, and a wish to cancel.

Each step is the same three things: ``CallStore.apply`` advances the machine by one event and commits;
``Runner.perform`` does what the machine says; the callers that wait are told. An event from the side (an
answer, a pushed snapshot, a cancellation) takes its step where it arrives, and rings if this coroutine has to
look up. The coroutine runs in an event-loop task of the :class:`Engine`.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Final, assert_never

import anyio
import anyio.lowlevel

from ..aio.host_code import was_cancelled_from_inside
from ..aio.uncut import is_being_cancelled, run_to_its_end
from ..errors import (
    DrivenElsewhereError,
    InputUnansweredError,
    JournalError,
    SessionError,
    TasksClientError,
)
from ..journal.row import driven_elsewhere
from ..machine import actions as act
from ..machine import events as ev
from ..machine.pacing import quiet_left
from ..machine.states import Calling, Finished, Gathering, Observing, OutcomeUnknown
from ..policy import PollPolicy, growing_delay
from ..protocol import JSONObject
from ..protocol.replies import is_url_key
from ..protocol.task import Task
from ..protocol.text import quote
from ..questions.question import Question, asked_under
from .call_store import CallStore
from .cancellation import Cancellation
from .environment import Environment
from .instructions import Instructions
from .live_call import LiveCall, OnUpdate, Theirs, overtaken
from .observer import DRIVE, ObservedSteps
from .prompts import Prompts
from .push import Push
from .requests import Requests
from .tool_call import ToolCallAttempt, lost_reply, missing_arguments

__all__ = ["Runner"]

logger = logging.getLogger("mcp_tasks_client")

_FIRST_LOOK_S: Final = 0.15
_LONGEST_LOOK_S: Final = 5.0
_LOOK_GROWTH: Final = 1.5
"""Seconds between looks at a call that another client drives: half as many again each time."""


class Runner:
    """Drives the calls of one endpoint.

    Attributes:
        cancellation: Cancels the calls that are driven here.
        push: Hears the session while calls are driven; ``None`` if nothing is heard.
    """

    def __init__(
        self, store: CallStore, requests: Requests, policy: PollPolicy, environment: Environment
    ) -> None:
        self.store = store
        self._requests = requests
        self._clock = environment.clock
        self._observed = ObservedSteps(environment.observer)
        self.cancellation = Cancellation(
            store, requests, environment.clock, policy.cancel_timeout_s, self.step
        )
        self._instructions = Instructions(store, environment.clock)
        self.push: Push | None = None

    # ── the story ─────────────────────────────────────────────────────────────────────────────

    def drive(self, call: LiveCall) -> Awaitable[None]:
        """Drive a call until it is finished or parked. To stop before that, cancel the coroutine.

        If the driving ends otherwise than by an end of the call, ``call.error`` says why.
        """
        return self._observed(call, DRIVE, self._drive, call)

    async def _drive(self, call: LiveCall) -> None:
        if self.push is not None:
            self.push.join()
        try:
            while not call.over:
                try:
                    await self._own(call)
                    await self._take_up(call)
                    await self._live(call)
                except DrivenElsewhereError:
                    continue  # another client has taken the call: look on until it lets go
        except Exception as error:
            call.park(error)
        except anyio.get_cancelled_exc_class():
            if not was_cancelled_from_inside():
                raise
            # A session may be cancelled by its own host's code. The callers that wait must hear of it.
            call.park(SessionError("A request was cancelled from inside of the session. Resume the task."))
        finally:
            await self.release(call)
            self._instructions.leave(call)
            if self.push is not None:
                await self.push.leave()

    async def release(self, call: LiveCall) -> None:
        """Release a call that this runner no longer drives, so that others may go on with it."""
        if isinstance(call.record.state, Calling) and call.next_send is not None and call.journaled:
            # It was not sent, since its caller has gone: its intent is taken back.
            with suppress(TasksClientError):
                await self.store.apply(call, ev.CallRefused())
        is_asked = isinstance(call.error, InputUnansweredError) and self._requests.inputs.leaves_questions
        await self.store.release_unfinished(call, to_process=is_asked)

    async def _own(self, call: LiveCall) -> None:
        """Become the owner. While another client is, look what becomes of the call, now and when told."""
        looks, is_followed = 0, False
        while not (await self.store.owning.take(call) or call.record.finished):
            call.followed = True
            call.publish()
            if not is_followed:
                await self._instructions.follow(call)
                is_followed = True
            looks += 1
            look_s = growing_delay(_FIRST_LOOK_S, looks, _LONGEST_LOOK_S, _LOOK_GROWTH)
            await call.wait_for_ring(self._clock, look_s)
            call.instructed = False  # what is left for the call is read once it is ours
            call.count_poll()

    async def _take_up(self, call: LiveCall) -> None:
        """Go on from where the record stands: retry what could not be committed, then resume.

        The retry may bring the call somewhere else. ``Resumed`` is for a record that was ``Observing`` or
        ``Gathering`` before, and for a ``Gathering`` with nothing to ask or to send.
        """
        left_off = call.record.state
        while call.uncommitted:
            actions = await self.store.apply_uncommitted(call)
            await self.perform(call, _without_sends(actions))
        state = call.record.state
        was_resting = isinstance(left_off, Observing | Gathering)
        # The loop above may have committed the refusal of a round that could not be committed before. In
        # `Gathering` with nothing to ask or to send, the call is resumed.
        was_refused = isinstance(state, Gathering) and not call.asks and call.next_send is None
        if isinstance(state, Observing | Gathering) and (was_resting or was_refused):
            if isinstance(state, Gathering) and call.tool_call is None:
                raise missing_arguments(call.record)
            self._instructions.join(call)
            await self.catch_up(call)
            call.asks = ()  # what is still open is asked anew
            await self.step(call, self._requests.resume(call))
            call.due_is_exact = True
        elif isinstance(state, Calling) and call.next_send is None:
            if not call.journaled:
                raise overtaken(call)  # it was refused, and nothing of it is kept
            # Another process has sent it and died.
            await self.step(call, ev.CallLost())

    async def _live(self, call: LiveCall) -> None:
        """Go from state to state until there is nothing left to do."""
        while not call.over:
            if call.journaled:
                self._instructions.join(call)
            match call.record.state:
                case Calling():
                    await self._call(call)
                case Gathering():
                    await self._gather(call)
                case Observing():
                    await self._observe(call)
                case OutcomeUnknown():
                    raise lost_reply(call.record, None)
                case Finished():
                    break
                case _ as never:
                    assert_never(never)

    async def _call(self, call: LiveCall) -> None:
        """Send ``tools/call``, and take the step that its reply is, or its loss."""
        send = call.next_send
        assert send is not None, "a call that is not sent is not driven"
        keyed = call.record.idempotency_key is not None
        if keyed and not call.journaled:
            standing = await self.store.owning.claim(call)
            if standing.record_id != call.record.record_id:
                raise overtaken(call)
            if not call.ours:
                raise driven_elsewhere(call.record.tool)
            return  # to where the call stands now, since it may have been cancelled meanwhile
        call.next_send = None
        call.followed = False
        call.attempt = attempt = ToolCallAttempt()
        if is_being_cancelled():
            attempt.cut(0.0)  # its caller has gone
        try:
            event, error = await attempt.send(partial(self._requests.call, call, send))
        except anyio.get_cancelled_exc_class():  # the event loop ends: an attempt is shielded from all else
            if attempt.has_left:
                await run_to_its_end(self.store.apply, call, ev.CallLost())
            else:
                call.next_send = send  # its intent is taken back
            raise
        finally:
            call.attempt = None
        if isinstance(event, ev.CallRefused) and not attempt.has_left:
            call.next_send = send  # for the next caller, or once the fault is mended
        unsent = call.next_send
        await self.step(call, event)
        if isinstance(event, ev.CallLost):
            raise lost_reply(call.record, error)
        if isinstance(event, ev.CallRefused) and call.next_send is unsent and not call.record.finished:
            if error is not None:
                raise error
            # It was taken back, because no caller waited. The next caller has it sent after all.
            await anyio.lowlevel.checkpoint()
            return
        if isinstance(call.record.state, Observing):
            call.tool_call = None  # it is not sent again, and its arguments may be large

    async def _gather(self, call: LiveCall) -> None:
        """Have what the server asks before it begins answered, or wait for a slot; then call again."""
        if call.next_send is None:
            call.due = math.inf
            async with Prompts(call, self._requests, self.store.owning, self.step, self._look) as prompts:
                while isinstance(call.record.state, Gathering) and call.next_send is None and not call.over:
                    asks, call.asks = call.asks, ()
                    prompts.put(asks)
                    await self._wait_until_due(call)
            await anyio.lowlevel.checkpoint_if_cancelled()  # the end of a task group need not be one
        if call.next_send is not None and not call.over:
            send = call.next_send
            while call.next_send is send and not (call.over or await self._wait_until_due(call)):
                pass  # it was rung for something else
            await self.store.settle(call)  # a cancellation may be committed just now
            stands = isinstance(call.record.state, Gathering)  # it may have been cancelled meanwhile
            if stands and call.next_send is send and not call.over:
                await self.step(call, ev.CallBegun())

    async def _observe(self, call: LiveCall) -> None:
        """Poll when it is due, until the task ends. Questions are before the host meanwhile."""
        if self.push is not None:
            self.push.add(call)
        while isinstance(call.record.state, Observing) and not call.over:
            if not call.asks:
                await self._poll_when_due(call)
                continue
            async with Prompts(call, self._requests, self.store.owning, self.step, self._look) as prompts:
                while not call.over and (call.asks or prompts.active):
                    asks, call.asks = call.asks, ()
                    prompts.put(asks)
                    await self._poll_when_due(call)
            self.store.ring(call)  # a question may be left to a person who answers later

    async def _wait_until_due(self, call: LiveCall) -> bool:
        """Wait until a call is due, or rung for. Instructions that others have left are heeded then."""
        if await call.wait_until_due(self._clock):
            return True
        if isinstance(call.ownership, Theirs):
            raise driven_elsewhere(call.record.tool)
        await self._heed(call)
        return False

    async def _poll_when_due(self, call: LiveCall) -> None:
        if await self._wait_until_due(call):
            await self.store.settle(call)  # what is being committed just now may put the poll off
            if call.due <= self._clock.monotonic():
                await self.step(call, self._requests.tick())

    # ── a step, and what follows from it ──────────────────────────────────────────────────────

    async def step(self, call: LiveCall, event: ev.Event) -> None:
        """Take one step: commit what the event means, then do what is to be done."""
        await self.perform(call, await self.store.apply(call, event))

    async def answer(self, call: LiveCall, key: str, answer: JSONObject) -> None:
        """Take an answer that no callback has given."""
        asked = asked_under(call.record, key)
        refusals = 0 if asked is None else asked.refusals
        await self._take_answer(call, self._requests.take_answer(key, answer, refusals))

    async def _take_answer(self, call: LiveCall, event: ev.AnswerReady) -> None:
        actions = await self.store.apply(call, event)
        call.withdraw(event.key)  # before the answer is sent, which may take its time
        await self.perform(call, actions)

    async def catch_up(self, call: LiveCall) -> None:
        """Take what others have left in the journal for a call that is about to be resumed. Nothing is sent.

        Raises:
            JournalError: The journal could not be read or written.
            DrivenElsewhereError: Another client has taken the record.
        """
        for left in await self._instructions.read(call):
            event = replace(left, held=True) if isinstance(left, ev.AnswerReady) else left
            await self.perform(call, _without_sends(await self.store.apply(call, event)))

    async def _look(self, call: LiveCall) -> None:
        """Do what others have left in the journal for a call, also if nobody has told of it yet."""
        if call.journaled and not call.instructed:
            with suppress(JournalError):
                call.instructed = bool(await self.store.journal.instructions(call.record.record_id))
        await self._heed(call)

    async def _heed(self, call: LiveCall) -> None:
        """Do what others have left in the journal for a call."""
        if not call.instructed:
            return
        events = await self._instructions.read(call)
        answers = [event for event in events if isinstance(event, ev.AnswerReady)]
        left_before = list(takewhile(lambda event: isinstance(event, ev.AnswerReady), events))
        if len(left_before) < len(events):
            # Answers that were left before the wish to cancel go first, since their persons were told so. No
            # prompt is withdrawn for them, or the next question would be put.
            for event in left_before:
                await self.step(call, event)
            if await self.cancellation.wish(call, by_instruction=True):
                await self.cancellation.send_and_log(call)
            answers = answers[len(left_before) :]
        # Answers to questions that the host is being asked come last: each lets the next question be asked,
        # whose own answer may be among these.
        answers.sort(key=lambda answer: answer.key in (call.asked or ()))
        for answer in answers:
            await self._take_answer(call, answer)

    async def perform(self, call: LiveCall, actions: tuple[act.Action, ...]) -> None:
        """Do what the machine says is to be done, in order."""
        for action in actions:
            match action:
                case act.Wake(after_s):
                    call.set_due(self._clock.monotonic() + after_s)
                case act.Poll():
                    await self._poll(call)
                case act.Ask():
                    call.asks = (*call.asks, action)
                    call.ring()
                case act.StopAsking():
                    call.stop_asking()
                case act.SendCall():
                    call.next_send = action
                    call.set_due(self._clock.monotonic() + action.after_s)
                case act.SendAnswers(answers):
                    await self._update(call, answers)
                case act.SendCancel():
                    await self.cancellation.send_and_log(call)
                case act.Publish(task):
                    for listener in call.listeners:  # before the callers that wait, which may then be gone
                        await _tell(listener, task)
                    call.publish()
                case act.Report(said, is_violation):
                    words = "The server broke the protocol for %r: %s" if is_violation else "%r %s"
                    logger.warning(words, call.record, quote(said, call.record.task_id))
                case act.Finish():
                    if call.task_id is not None:
                        self._requests.session.forget(call.task_id)
                    call.ring()
                    call.publish()
                case act.Park(reason):
                    call.park(self._park_error(call, reason))
                case act.Save() | act.Forget():
                    raise AssertionError("the store has done this")
                case _:
                    assert_never(action)

    def _park_error(self, call: LiveCall, reason: act.Unanswered | Exception) -> Exception:
        if not isinstance(reason, act.Unanswered):
            return reason
        return _unanswered(call, reason, self._requests.open_questions(call.record))

    async def _poll(self, call: LiveCall) -> None:
        state = call.record.state
        if call.over or not isinstance(state, Observing) or quiet_left(state, self._clock.time()) > 0:
            return  # what was sent a moment ago was answered by the end, or by a Retry-After
        try:
            event, error = await self._requests.get(call)
        except anyio.get_cancelled_exc_class():
            # Cut off. The server may see the poll only now, and the next one keeps its distance from it.
            with suppress(DrivenElsewhereError):
                await self.store.apply(call, self._requests.cut_poll())
            raise
        await self.step(call, event)
        call.count_poll(error)

    async def _update(self, call: LiveCall, answers: Mapping[str, JSONObject]) -> None:
        if isinstance(call.record.state, Observing):
            for event in await self._requests.update(call, answers):
                await self.step(call, event)


def _without_sends(actions: tuple[act.Action, ...]) -> tuple[act.Action, ...]:
    """The actions to do before a call is resumed. Resuming it sends what there is to send."""
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


def _unanswered(call: LiveCall, reason: act.Unanswered, questions: Sequence[Question]) -> Exception:
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
        f"The server's question got no answer: {why}. {then}",
        questions=questions,
        keys=reason.keys,
        declined=reason.declined,
    )
    error.__cause__ = reason.cause
    return error
