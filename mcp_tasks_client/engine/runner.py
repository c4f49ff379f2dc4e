"""The life of a call, told by the coroutine that drives it.

``Runner._drive`` is the story of one driving; ``begin`` and ``_note_end`` say when one begins. The driver
becomes the owner of the call, takes up the work that an earlier owner left, and then goes from state to state
until the call is finished, parks, or no caller waits for it:

- ``Calling``: send ``tools/call``, once, and take the step of its reply;
- ``Gathering``: put the server's questions to the host, or wait for a slot; then call again;
- ``Observing``: wait until the next poll is due, poll, and take the step of the snapshot. Questions
  are before the host meanwhile, in a task group that is open only while there are any;
- ``OutcomeUnknown``, ``Finished``: nothing is left to do.

While it waits, it heeds the instructions of others in the journal: answers, and a wish to cancel.

An event from the side (an answer, a pushed snapshot, a cancellation) takes its step where it arrives, and
rings if this coroutine has to look up. The coroutine runs in an event-loop task of the :class:`Engine`. A
:class:`Drive` holds all that begins with one driving.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from typing import Final, assert_never

import anyio
import anyio.lowlevel

from ..aio.host_code import was_cancelled_from_inside
from ..aio.uncut import is_being_cancelled, run_to_its_end
from ..errors import (
    DrivenElsewhereError,
    InputUnansweredError,
    JournalError,
    TasksClientError,
)
from ..journal.row import driven_elsewhere
from ..machine import events as ev
from ..machine.states import Calling, Finished, Gathering, Observing, OutcomeUnknown
from ..policy import growing_delay
from .answering import Answering
from .drive import Drive
from .engine import Engine
from .instructions import Instructions
from .live_call import LiveCall, Theirs, overtaken
from .observer import DRIVE, ObservedSteps
from .performer import Performer, without_sends
from .prompts import Prompts
from .push import Push
from .requests import Requests, cut_from_inside
from .tool_call import ToolCallAttempt, lost_reply, missing_arguments

__all__ = ["Runner"]

_FIRST_LOOK_S: Final = 0.15
_LONGEST_LOOK_S: Final = 5.0
_LOOK_GROWTH: Final = 1.5
"""Seconds between looks at a call that another client drives: half as many again each time."""


class Runner:
    """Drives the calls of one endpoint.

    Attributes:
        push: Hears the session while calls are driven; ``None`` if nothing is heard.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Requests,
        performer: Performer,
        instructions: Instructions,
        answering: Answering,
        push: Push | None,
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._steps = engine.store.steps
        self._requests = requests
        self._performer = performer
        self._instructions = instructions
        self._answering = answering
        self.push = push
        self._clock = engine.environment.clock
        self._observed = ObservedSteps(engine.environment.observer)

    # ── when a call is driven ─────────────────────────────────────────────────────────────────

    def begin(self, call: LiveCall) -> None:
        """See to it that a call is driven: here, unless another runner of the engine drives it already.

        A call that has parked is driven anew once a caller was told why.
        """
        before = call.drive
        if not call.drivable:
            return
        if before is not None and before.error is None:
            if before.attempt is not None:
                before.attempt.wait_on()
            return
        call.drive = Drive()
        if before is None or before.scope is None:
            self._start(call, call.drive)
        else:
            # It is still leaving. At its end each caller that waits begins anew, by its own runner.
            before.scope.cancel()

    def keep_driving(self, call: LiveCall) -> None:
        """Have a call driven on for the handles of it, though no caller waits, until it ends or parks."""
        call.audience.in_background = call.drivable

    def _start(self, call: LiveCall, drive: Drive) -> None:
        run, note_end = partial(self._run, call, drive), partial(self._note_end, call, drive)
        drive.scope = self._engine.tasks.start(run, note_end)
        self._store.registry.note_driver(call)

    def stop(self, call: LiveCall) -> None:
        """Stop driving a call that no caller waits for: no poll, no prompt. It is released."""
        if call.drive is not None:
            call.drive.stop(self._engine.policy.call_grace_s)

    async def wait_for_stop(self, call: LiveCall) -> None:
        """Return when no coroutine drives a call, or a caller wants it again."""
        while call.is_driven and not call.wanted:
            await call.audience.change()
        has_tried = call in self._store.registry.unsaved and not call.uncommitted  # the journal is away
        if not (call.wanted or call.over or has_tried) and call.ours:
            # The event loop ended before the driver began, which would have committed and released the call.
            async with self._engine.using_journal():
                await self._release(call)

    async def _run(self, call: LiveCall, drive: Drive) -> None:
        try:
            with anyio.CancelScope(shield=True):  # a task ID is committed, though its caller has gone
                await self._engine.open_journal()
            try:
                await self._observed(call, DRIVE, self._drive, call, drive)
                with anyio.CancelScope(shield=True):  # the caller may have gone
                    await self._engine.prune_now_and_then()
            finally:
                self._engine.leave_journal()
        except JournalError as error:
            _park(call, drive, error)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # of the host's own code: SystemExit, for one
            crash = TasksClientError(
                f"{error!r} was raised while the call was driven. Mend that; resume() it."
            )
            crash.__cause__ = error
            _park(call, drive, crash)
            raise
        finally:
            self._note_end(call, drive)

    def _note_end(self, call: LiveCall, drive: Drive, _: object = None) -> None:
        scope, drive.scope = drive.scope, None
        if scope is None:
            return  # noted before
        successor = None if call.drive is drive else call.drive  # a caller came while this one was leaving
        if (successor or drive).error is None:
            call.drive = None
        self._store.registry.note_driver(call)
        call.audience.publish()
        self._store.registry.ring_bells(call)
        if call.over or self._engine.closed:
            call.audience.in_background = False
        elif call.audience.in_background and (successor is not None or scope.cancel_called):
            self.begin(call)  # it was stopped, and is wanted for its handles

    # ── the story ─────────────────────────────────────────────────────────────────────────────

    async def _drive(self, call: LiveCall, drive: Drive) -> None:
        """Drive a call until it is finished or parked. If it is parked, ``drive.error`` says why."""
        if self.push is not None:
            self.push.join()
        try:
            while not _is_over(call, drive):
                try:
                    await self._own(call, drive)
                    await self._take_up(call, drive)
                    await self._live(call, drive)
                except DrivenElsewhereError:
                    continue  # another client has taken the call: look on until it lets go
        except Exception as error:
            _park(call, drive, error)
        except anyio.get_cancelled_exc_class():
            if not was_cancelled_from_inside():
                raise
            _park(call, drive, cut_from_inside())  # the callers that wait must hear of it
        finally:
            await self._release(call)
            self._instructions.leave(call)
            if self.push is not None:
                await self.push.leave()

    async def _release(self, call: LiveCall) -> None:
        """Release a call that this runner no longer drives, so that other clients may go on with it."""
        if isinstance(call.record.state, Calling) and call.next_send is not None and call.journaled:
            # It was not sent, since its caller has gone: its intent is taken back.
            with suppress(TasksClientError):
                await self._steps.apply(call, ev.CallRefused())
        is_asked = isinstance(call.error, InputUnansweredError) and self._requests.inputs.leaves_questions
        await self._store.owning.release_unfinished(call, to_process=is_asked)

    async def _own(self, call: LiveCall, drive: Drive) -> None:
        """Become the owner. While another client is, look at the record now and then, and when told."""
        looks, is_followed = 0, False
        while not (await self._store.owning.take(call) or call.record.finished):
            drive.followed = True
            call.audience.publish()
            if not is_followed:
                await self._instructions.follow(call)
                is_followed = True
            looks += 1
            look_s = growing_delay(_FIRST_LOOK_S, looks, _LONGEST_LOOK_S, _LOOK_GROWTH)
            if not call.notice_instructions():  # instructions for the call are read once it is ours
                await drive.wait_for_ring(self._clock, look_s)
            call.notice_instructions()
            call.audience.count_poll()

    async def _take_up(self, call: LiveCall, drive: Drive) -> None:
        """Go on from where the record stands: retry the events that could not be committed, then resume.

        The retry may bring the call somewhere else. ``Resumed`` is for a record that was ``Observing`` or
        ``Gathering`` before, and for a ``Gathering`` with nothing to ask or to send.
        """
        left_off = call.record.state
        while call.uncommitted:
            actions = await self._steps.apply_uncommitted(call)
            await self._performer.perform(call, without_sends(actions))
        state = call.record.state
        was_resting = isinstance(left_off, Observing | Gathering)
        # The loop above may have committed the refusal of a round that could not be committed before. In
        # `Gathering` with nothing to ask or to send, the call is resumed.
        was_refused = isinstance(state, Gathering) and not drive.asks and call.next_send is None
        if isinstance(state, Observing | Gathering) and (was_resting or was_refused):
            if isinstance(state, Gathering) and call.tool_call is None:
                raise missing_arguments(call.record)
            self._instructions.join(call)
            await self._instructions.catch_up(call)
            drive.asks = ()  # the open questions are asked anew
            await self._performer.step(call, self._requests.resume(call))
        elif isinstance(state, Calling) and call.next_send is None:
            if not call.journaled:
                raise overtaken(call)  # it was refused, and nothing of it is kept
            # Another process has sent it and died.
            await self._performer.step(call, ev.CallLost())

    async def _live(self, call: LiveCall, drive: Drive) -> None:
        """Go from state to state until there is nothing left to do."""
        while not _is_over(call, drive):
            if call.journaled:
                self._instructions.join(call)
            match call.record.state:
                case Calling():
                    await self._call(call, drive)
                case Gathering():
                    await self._gather(call, drive)
                case Observing():
                    await self._observe(call, drive)
                case OutcomeUnknown():
                    raise lost_reply(call.record, None)
                case Finished():
                    break
                case _ as never:
                    assert_never(never)

    async def _call(self, call: LiveCall, drive: Drive) -> None:
        """Send ``tools/call``, and take the step that its reply is, or its loss."""
        keyed = call.record.idempotency_key is not None
        if keyed and not call.journaled:
            standing = await self._store.owning.claim(call)
            if standing.record_id != call.record.record_id:
                raise overtaken(call)
            if not call.ours:
                raise driven_elsewhere(call.record.tool)
            return  # to where the call stands now, since it may have been cancelled meanwhile
        send = self._steps.take_send(call)
        drive.followed = False
        drive.attempt = attempt = ToolCallAttempt()
        if is_being_cancelled():
            attempt.cut(0.0)  # its caller has gone
        try:
            event, error = await attempt.send(partial(self._requests.call, call, send))
        except anyio.get_cancelled_exc_class():  # the event loop ends: an attempt is shielded from all else
            if attempt.has_left:
                await run_to_its_end(self._steps.apply, call, ev.CallLost())
            else:
                self._steps.put_back(call, send)  # its intent is taken back
            raise
        finally:
            drive.attempt = None
        if isinstance(event, ev.CallRefused) and not attempt.has_left:
            self._steps.put_back(call, send)  # for the next caller, or once the fault is mended
        unsent = call.next_send
        await self._performer.step(call, event)
        if isinstance(event, ev.CallLost):
            raise lost_reply(call.record, error)
        if isinstance(event, ev.CallRefused) and call.next_send is unsent and not call.record.finished:
            if error is not None:
                raise error
            # It was taken back, because no caller waited. The next caller has it sent after all.
            await anyio.lowlevel.checkpoint()

    async def _gather(self, call: LiveCall, drive: Drive) -> None:
        """Have the server's first questions answered, or wait for a slot; then call again."""
        if call.next_send is None:
            drive.due = math.inf
            async with self._prompts(call) as prompts:
                while (
                    isinstance(call.record.state, Gathering)
                    and call.next_send is None
                    and not _is_over(call, drive)
                ):
                    asks, drive.asks = drive.asks, ()
                    prompts.put(asks)
                    await self._wait_until_due(call, drive)
            await anyio.lowlevel.checkpoint_if_cancelled()  # the end of a task group need not be one
        if call.next_send is not None and not _is_over(call, drive):
            send = call.next_send
            while call.next_send is send and not (
                _is_over(call, drive) or await self._wait_until_due(call, drive)
            ):
                pass  # it was rung for something else
            await self._steps.settle(call)  # a cancellation may be committed just now
            stands = isinstance(call.record.state, Gathering)  # it may have been cancelled meanwhile
            if stands and call.next_send is send and not _is_over(call, drive):
                await self._performer.step(call, ev.CallBegun())

    async def _observe(self, call: LiveCall, drive: Drive) -> None:
        """Poll when it is due, until the task ends. Questions are before the host meanwhile."""
        if self.push is not None:
            self.push.add(call)
        while isinstance(call.record.state, Observing) and not _is_over(call, drive):
            if not drive.asks:
                await self._poll_when_due(call, drive)
                continue
            async with self._prompts(call) as prompts:
                while not _is_over(call, drive) and (drive.asks or prompts.active):
                    asks, drive.asks = drive.asks, ()
                    prompts.put(asks)
                    await self._poll_when_due(call, drive)
            self._store.registry.ring_bells(call)  # a question may be left to a person who answers later

    def _prompts(self, call: LiveCall) -> Prompts:
        owning = self._store.owning
        return Prompts(call, self._requests, owning, self._performer, self._instructions, self._answering)

    async def _poll_when_due(self, call: LiveCall, drive: Drive) -> None:
        if await self._wait_until_due(call, drive):
            await self._steps.settle(call)  # the step that is being committed may put the poll off
            if drive.due <= self._clock.monotonic():
                await self._performer.step(call, self._requests.tick())

    async def _wait_until_due(self, call: LiveCall, drive: Drive) -> bool:
        """Wait until a call is due, or rung for. Instructions in the journal are heeded then."""
        if not call.instructed and await drive.wait_until_due(self._clock):
            return True
        if isinstance(call.ownership, Theirs):
            raise driven_elsewhere(call.record.tool)
        await self._instructions.heed(call)
        return False


def _park(call: LiveCall, drive: Drive, error: Exception) -> None:
    """Park a call, unless this driving is parked already and another one may stand in its place."""
    if drive.error is None:
        call.park(error)


def _is_over(call: LiveCall, drive: Drive) -> bool:
    """Whether this driving has nothing left to do."""
    return call.record.finished or drive.error is not None
