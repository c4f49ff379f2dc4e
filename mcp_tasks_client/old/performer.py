"""What the machine's actions come to: requests, questions, alarms.

Each belongs to its drive and ends with it; what fails parks it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, assert_never

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from .afterwards import Afterwards
from .calls import Calls
from .cancels import Cancels
from .clock import being_stopped
from .drive import NEVER, CallUnderWay, Drive
from .driver import Driver
from .errors import InputUnansweredError, SessionError, TasksClientError
from .events import (
    Action,
    AnswerReady,
    AnswerUnavailable,
    Ask,
    Event,
    Finish,
    Forget,
    Park,
    Poll,
    Publish,
    Report,
    Save,
    SendAnswers,
    SendCall,
    SendCancel,
    StopAsking,
    Unanswered,
    UpdateRejected,
    Wake,
)
from .hearsay import Hearsay
from .line import Line
from .listener import Listener
from .prompts import Prompts, Queue
from .states import Gathering, Observing
from .turns import Turns
from .wire import Task, redact

logger = logging.getLogger("mcp_tasks_client")

_LAST_UPDATE_S: Final = 5.0
"""Seconds for the server to get an answer, before the drive parks for another one that there is not."""

_MOST_TOLD: Final = 8
"""Snapshots of one task that wait to be heard; whatever comes beyond is left to a poll."""


class Performer:
    """Acts for the drives of one endpoint.

    Args:
        driver: Takes the steps.
        tasks: Where coroutines run.
        park: Stops a drive, for a reason.
        let_go: Stops a drive that has ended.
        leave: Lets others go on with what was stopped before, while its call was under way.
        afterwards: Writes what is heard of a call that nobody here drives, and lets others take it.

    Attributes:
        turns: When whose poll is due.
        listener: What the server has agreed to tell.
        hearsay: What it says by itself besides that.
        cancels: Tells the server what is to be cancelled.
    """

    def __init__(
        self,
        driver: Driver,
        tasks: TaskGroup,
        *,
        park: Callable[[Drive, Exception], None],
        let_go: Callable[[Drive], None],
        leave: Callable[[Drive], None],
        afterwards: Afterwards,
    ) -> None:
        self.listener = Listener(driver, told=self._told, hasten=self.hasten)
        self.hearsay = Hearsay(driver.session, told=self._told)
        self.cancels = Cancels(driver, tasks, perform=self.perform, park=park, release=afterwards.release)
        self._calls = Calls(driver, perform=self.perform, park=park, leave=leave)
        self._line = Line(driver.session.calls_in_flight, tasks, self._call)
        self.turns = Turns(
            driver.clock,
            driver.policy.polls_in_flight,
            tasks,
            self._poll,
            pressed=lambda: self._line.waits,
        )
        self._driver = driver
        self._commits = driver.commits
        self._tasks = tasks
        self._park = park
        self._let_go = let_go
        self._afterwards = afterwards

    async def _call(self, drive: Drive, send: SendCall, calling: CallUnderWay) -> None:
        # In no scope of the drive's: what may be cut short of a call has one of its own.
        await self._parked_by(drive, self._calls.run, (send, calling))
        if observed(drive):
            drive.call = None  # it is not made again, and its arguments may be large

    async def _poll(self, drive: Drive, scope: anyio.CancelScope) -> bool:
        return await self._belonging(scope, drive, self._tick, ())

    async def _tick(self, drive: Drive) -> None:
        if observed(drive):
            await self.perform(drive, await self._commits.feed(drive, self._driver.tick(drive)))

    async def perform(self, drive: Drive, actions: tuple[Action, ...]) -> None:
        """Do what a step says is to be done, in order."""
        for action in actions:
            match action:
                case Wake(after_s):
                    drive.expected = self._driver.clock.monotonic() + after_s
                    self.hearsay.add(drive)
                    self.listener.add(drive, after_s)
                    drive.waited_s = self.listener.patience(drive, after_s)
                    self.turns.wake(drive, drive.waited_s)
                case Poll():
                    if len(actions) > 1:
                        await anyio.lowlevel.checkpoint()  # an answer, or a cancellation, leaves before it
                    await self._look(drive)
                case Ask():
                    drive.prompts = drive.prompts or Prompts()
                    drive.prompts.add(action)
                    self._prompt(drive)
                case StopAsking():
                    drive.stop_asking()
                case SendCall():
                    self.send_call(drive, action)
                case SendAnswers():
                    self.spawn(drive, self._update, action)
                case SendCancel():
                    self.spawn(drive, self.cancels.again)
                case Publish():
                    drive.pulse()
                    self._prompt(drive)
                case Report(violation):
                    said = redact(violation, drive.record.task_id)
                    logger.warning("The server broke the protocol for %r: %s", drive.record, said)
                case Finish():
                    self._let_go(drive)
                case Park(reason):
                    self._park(drive, _unanswered(drive, reason))
                case Save() | Forget():
                    raise AssertionError("the driver has done this")
                case _:
                    assert_never(action)

    async def _look(self, drive: Drive) -> None:
        told = self.listener.tells(drive)
        drive.polled_at = self._driver.clock.monotonic()
        try:
            event = await self._driver.poll(drive)
        except anyio.get_cancelled_exc_class():
            self.poll_is_cut(drive)
            raise
        actions = await self._commits.feed(drive, event)
        if told and any(isinstance(action, Publish | Finish) for action in actions):
            self.listener.doubt(drive)
        await self.perform(drive, actions)
        drive.polled()

    def poll_is_cut(self, drive: Drive) -> bool:
        """Note that nobody waits for the reply to the poll of a drive. Returns whether it is noted."""
        is_over = not isinstance(drive.record.state, Observing)
        return is_over or self._commits.note(drive, self._driver.poll_cut())

    def _told(self, drive: Drive, task: Task) -> None:
        if not drive.running:
            return self._told_of_one_at_rest(drive, task)
        if drive.polling:
            drive.polled_at = NEVER  # its reply may be older than this, and must not be the last for long
        if drive.told is None:
            drive.told = [task]
            self.spawn(drive, self._hear)
        elif drive.told and drive.told[-1].status == "working" and not task.older_than(drive.told[-1]):
            drive.told[-1] = task  # of mere progress the last is enough
        elif len(drive.told) < _MOST_TOLD:
            drive.told.append(task)
        else:
            self._see_for_itself(drive)
        return None

    def _told_of_one_at_rest(self, drive: Drive, task: Task) -> None:
        """Have it be journaled what the server says, for it does not say it again."""
        state = drive.record.state
        needed = task.terminal or task.input_requests
        if needed and isinstance(state, Observing) and not told_before(state, task):
            self._afterwards.keep(drive, self._driver.notified(drive, task))

    async def _hear(self, drive: Drive) -> None:
        try:
            while drive.told and observed(drive):
                task = drive.told.pop(0)
                actions = await self._commits.feed(drive, self._driver.notified(drive, task))
                await self.perform(drive, actions)
                if not actions and drive.task is not None and not task.same_as(drive.task):
                    self._see_for_itself(drive)  # it cannot be believed as it is
        finally:
            drive.told = None

    def _see_for_itself(self, drive: Drive) -> None:
        """Have it polled for what was told and could not be taken over."""
        drive.polled_at = NEVER  # or what the poll finds would look as if nobody had told of it
        self.hasten(drive)

    def hasten(self, drive: Drive) -> None:
        """Have it polled when the server expects it; the next poll may be planned for much later."""
        if observed(drive) and not drive.polling and drive.expected < math.inf:
            self.turns.wake(drive, max(0.0, drive.expected - self._driver.clock.monotonic()))

    def spawn(self, drive: Drive, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Begin something that belongs to a drive."""
        self._tasks.start_soon(self._guard, drive, work, args)

    async def _guard(
        self, drive: Drive, work: Callable[..., Awaitable[None]], args: tuple[object, ...]
    ) -> None:
        """Run something of a drive's: it ends with the drive, and its failure parks the drive."""
        with anyio.CancelScope() as scope:
            await self._belonging(scope, drive, work, args)

    async def _belonging(
        self,
        scope: anyio.CancelScope,
        drive: Drive,
        work: Callable[..., Awaitable[None]],
        args: tuple[object, ...],
    ) -> bool:
        """Run something in a scope that the drive cancels when it ends.

        Returns:
            Whether the coroutine can be used for something else: it was not cancelled from inside.
        """
        drive.scopes = (*drive.scopes, scope)
        try:
            return await self._parked_by(drive, work, args)
        finally:
            drive.scopes = tuple(one for one in drive.scopes if one is not scope)

    async def _parked_by(
        self, drive: Drive, work: Callable[..., Awaitable[None]], args: tuple[object, ...]
    ) -> bool:
        try:
            await work(drive, *args)
        except anyio.get_cancelled_exc_class():
            if being_stopped():
                raise
            self._park(drive, TasksClientError("A request was cancelled from inside; resume the task."))
            return False
        except Exception as error:
            self._park(drive, error)
        return True

    def _prompt(self, drive: Drive) -> None:
        """Have the host asked, and by something that the server waits for, if it waits for anything.

        A prompt that nobody waits for stays up while there is no other: it may be wanted again.
        """
        prompts = drive.prompts
        if prompts is None:
            return
        for queue in prompts.queues:
            if queue.outdated(drive.is_open):
                up = next(iter(queue.asks.values()))
                if self._driver.inputs.can_withdraw(up.request):
                    queue.withdraw()
            if queue.asks and queue.scope is None and drive.running:
                queue.scope = anyio.CancelScope()
                self.spawn(drive, self._ask, prompts, queue, queue.scope)

    async def _ask(self, drive: Drive, prompts: Prompts, queue: Queue, scope: anyio.CancelScope) -> None:
        """Ask what there is to ask, one question after the other, until told to stop."""
        with scope:
            while queue.asks and queue.scope is scope and not prompts.are_held():
                ask = next(iter(queue.asks.values()))
                if not drive.is_open(ask.key):
                    # Answered by an earlier run, or withdrawn by the server, which may ask it again.
                    del queue.asks[ask.key]
                    await self._commits.feed(drive, AnswerUnavailable(key=ask.key, why="withdrawn"))
                elif not await self._put(drive, prompts, queue, ask, scope):
                    return
        if queue.scope is scope:
            queue.scope = None

    async def _put(
        self, drive: Drive, prompts: Prompts, queue: Queue, ask: Ask, scope: anyio.CancelScope
    ) -> bool:
        """Put one question to the host. Returns whether it was: it may be withdrawn meanwhile."""
        actions: tuple[Action, ...] = ()
        # No checkpoint between the callback's return and the commit of its answer.
        with queue.at_work():
            event = await self._driver.ask(drive, ask)
            if being_withdrawn() and not said_by_somebody(event):
                return False
            if isinstance(event, AnswerReady):
                actions = await self._commits.feed(drive, event)
                if prompts.are_held():
                    actions = await self._updated(drive, actions)
        has_answer = isinstance(event, AnswerReady)
        if not has_answer:
            # The drive parks for it. Nobody is to lose by that what they are about to say.
            await prompts.others_rest(queue)
            actions = await self._commits.feed(drive, event)
        doubled = queue.scope is not scope and next(iter(queue.asks), None) == ask.key
        queue.asks.pop(ask.key, None)
        if doubled:  # asked anew, because this one took its time to be withdrawn
            queue.withdraw()
            self._prompt(drive)
        await self.perform(drive, actions)
        if not has_answer:
            self._prompt(drive)  # it may not be parked after all
        return True

    async def _updated(self, drive: Drive, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        """Have the server get what is ready before the drive parks. Returns what is left to do."""
        for action in actions:
            if isinstance(action, SendAnswers):
                await self._update(drive, action, _LAST_UPDATE_S)
        return tuple(action for action in actions if not isinstance(action, SendAnswers))

    async def _update(self, drive: Drive, send: SendAnswers, within_s: float = math.inf) -> None:
        if observed(drive):
            event = await self._driver.update(drive, send.answers, within_s=within_s)
            await self.perform(drive, await self._commits.feed(drive, event))
            if isinstance(event, UpdateRejected):
                self.hasten(drive)  # only a poll can tell why

    def send_call(self, drive: Drive, send: SendCall) -> None:
        """Begin a ``tools/call``, or put it in line."""
        drive.calling = CallUnderWay()
        self._line.join(drive, send, drive.calling)


def observed(drive: Drive) -> bool:
    """Whether it is driven and has a task."""
    return drive.running and isinstance(drive.record.state, Observing)


def told_before(state: Observing, task: Task) -> bool:
    """Whether a snapshot says nothing that is not known."""
    return task.same_as(state.task) and task.request_state in (None, state.request_state)


def being_withdrawn() -> bool:
    """Whether who runs this is being cancelled."""
    return anyio.current_effective_deadline() == -math.inf


def said_by_somebody(event: Event) -> bool:
    """Whether it is an answer, and none that a callback makes of being cancelled."""
    return isinstance(event, AnswerReady) and event.answer.get("action") != "cancel"


def gathers(drive: Drive) -> bool:
    """Whether it is driven, and answers questions that come before a task."""
    return drive.running and drive.calling is None and isinstance(drive.record.state, Gathering)


def _unanswered(drive: Drive, reason: Unanswered | SessionError) -> Exception:
    if isinstance(reason, SessionError):
        return reason
    why = redact(reason.why, drive.record.task_id)
    if drive.record.task_id is not None:
        then = "The task waits for it and can be resumed."
    elif drive.record.idempotency_key is not None:
        then = "Repeat the call under its key; what was answered is kept."
    else:
        then = "Await the handle's result to be asked again, or make a new call."
    error = InputUnansweredError(f"The server's question got no answer: {why}. {then}", keys=reason.keys)
    error.__cause__ = reason.cause
    return error
