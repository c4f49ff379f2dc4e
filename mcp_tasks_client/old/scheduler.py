"""All calls at one endpoint: what is under way for them, and how long.

A task that waits for its next poll is a heap entry and a record, not a coroutine. Coroutines
exist for what is really under way: a request, a question before a person. They belong to their
drive and end with it, and all of them end with the scheduler.

A drive runs while it is *held*: by callers that wait for it, and by the client for the handles
it gave out. When the last hold goes, it stops at once (nothing is polled, no prompt stays) and
its record says that nobody drives it. Only a ``tools/call`` under way is left a moment to
finish, so that a task ID on its way is still journaled.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from .afterwards import Afterwards
from .calls import lost, needs_its_call
from .drive import NEVER, Drive, OvertakenError
from .driver import Driver
from .errors import (
    ConnectionLostError,
    DrivenElsewhereError,
    JournalError,
    OutcomeUnknownError,
    TasksClientError,
)
from .events import CallLost, SendAnswers
from .performer import Performer
from .states import Calling, Gathering, Observing, OutcomeUnknown

_FIRST_LOOK_S: Final = 0.15
_LONGEST_LOOK_S: Final = 5.0
"""Seconds between looks at a call that another client drives: half as many again each time."""

_LEAVING_S: Final = 1.0
"""Seconds for the server to know that nobody waits for what it has to say, while everything ends."""

_LAST_WORD_S: Final = 0.1
"""Seconds for which others may not take what was let go of, while something waits for the server's word."""

T = TypeVar("T")


class Hold:
    """A reason to go on driving, for as long as the block lasts."""

    # No generator, and no method of somebody's: each call that waits is in such a block.
    __slots__ = ("_drive", "_scheduler")

    def __init__(self, drive: Drive, scheduler: Scheduler) -> None:
        self._drive = drive
        self._scheduler = scheduler

    def __enter__(self) -> None:
        self._drive.held += 1

    def __exit__(self, *raised: object) -> None:
        self._drive.held -= 1
        if not self._drive.held:
            self._scheduler._let_go(self._drive)


class Scheduler:
    """Runs the drives of one endpoint.

    Args:
        driver: Takes the steps.
        tasks: Where coroutines run; the scheduler ends with it.
    """

    def __init__(self, driver: Driver, tasks: TaskGroup) -> None:
        self.driver = driver
        self.policy = driver.policy
        self._commits = driver.commits
        self.drives: WeakValueDictionary[str, Drive] = WeakValueDictionary()
        self._tasks = tasks
        self._clock = driver.clock
        self.afterwards = Afterwards(driver.commits, tasks, driver.clock, self.drives)
        self.performer = Performer(
            driver,
            tasks,
            park=self.park,
            let_go=self._let_go,
            leave=self._leave,
            afterwards=self.afterwards,
        )
        self._kept: set[Drive] = set()
        self._lookups = 0
        self._remembered: set[Drive] = set()
        self.closed = False

    async def run(self) -> None:
        """Poll each drive when it is due, for ever."""
        await self.performer.turns.run()

    # ── holding ───────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def hold(self, drive: Drive) -> AsyncIterator[None]:
        """Drive it for as long as the block lasts, and on if others hold it too."""
        with self.held(drive):
            await self.take_up(drive)
            yield

    def held(self, drive: Drive) -> Hold:
        """Hold it without having taken it up, so that being stopped meanwhile is seen within the block."""
        self.check_open()
        return Hold(drive, self)

    async def take_up(self, drive: Drive) -> None:
        """Drive what is held, unless it is driven."""
        # What parked the drive while nobody listened is told first; the next hold starts anew.
        if drive.error is None or drive.error_seen:
            await self._take_up(drive)

    async def keep(self, drive: Drive) -> None:
        """Drive it until it ends, parks, or the scheduler closes."""
        self.check_open()
        if drive not in self._kept and not drive.record.finished:
            self._kept.add(drive)
            drive.held += 1
            await self._take_up(drive)

    def register(self, drive: Drive) -> Drive:
        """The live drive of a record: the one given, unless there is one already."""
        drive = self.drives.setdefault(drive.record.record_id, drive)
        if self._lookups:
            self._remembered.add(drive)
        return drive

    @contextmanager
    def lookup(self) -> Iterator[None]:
        """Keep every drive alive while records are read and matched with drives.

        A record that was read a moment ago may be out of date; its drive never is.
        """
        self._lookups += 1
        self._remembered.update(self.drives.values())
        try:
            yield
        finally:
            self._lookups -= 1
            if not self._lookups:
                self._remembered.clear()

    async def to_its_end(self, work: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run something that must not stop half-way, whatever happens to the caller meanwhile.

        In a task of its own, since asyncio's own ``Task.cancel()`` (a ``wait_for``, an
        ``asyncio.timeout``) goes through every shield. Bounded by what it runs.
        """
        ended = anyio.Event()
        outcome: list[T | Exception] = []

        async def run() -> None:
            with anyio.CancelScope(shield=True):
                try:
                    outcome.append(await work(*args))
                except anyio.get_cancelled_exc_class():
                    # Nobody stops us here, so it came from inside, from a journal's own doings.
                    outcome.append(TasksClientError("A step was cancelled from inside; try it again."))
                except Exception as error:
                    outcome.append(error)
                finally:
                    ended.set()

        self._tasks.start_soon(run)
        await ended.wait()
        if not outcome:  # it was no Exception, and ends everything around it
            raise TasksClientError("The client is coming to an end.")
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def check_open(self) -> None:
        """Refuse to begin anything after the end.

        Raises:
            TasksClientError: The client is closed.
        """
        if self.closed:
            raise TasksClientError(
                "The client is closed. Open one again and attach the handle's reference, or resume()."
            )

    async def _take_up(self, drive: Drive) -> None:
        """Start a drive from wherever its record stands."""
        if drive.record.finished or drive.running or drive.following:
            return
        before, drive.error, drive.running = drive.error, None, True
        drive.polled_at = NEVER  # what the server told meanwhile was not heard
        drive.due = drive.expected = math.inf  # until it is known whose it is, and when it is due
        if drive.pending is not None:
            send, drive.pending = drive.pending, None
            drive.forget_refusals()
            self.performer.send_call(drive, send)
        elif drive.calling is not None:
            drive.calling.keep()
        else:
            await self.to_its_end(self._start, drive, before)

    async def _start(self, drive: Drive, before: Exception | None) -> None:
        try:
            if not await self._commits.take(drive) and not drive.record.finished:
                return self._look_on(drive)
            if drive.record.finished:
                return self._let_go(drive)
            resumed = self.driver.resumed(drive)
            async with drive.saving:
                while drive.unsaved:
                    actions = await self._commits.catch_up(drive)
                    # What there is to send is sent by resuming.
                    actions = tuple(one for one in actions if not isinstance(one, SendAnswers))
                    await self.performer.perform(drive, actions)
            self.afterwards.saved(drive)
            if drive.calling is not None:
                return None  # a round without questions has begun already
            match drive.record.state:
                case Gathering() if drive.call is None:
                    self.park(drive, needs_its_call(drive))
                case Observing() | Gathering():
                    actions = await self._commits.feed(drive, resumed)
                    drive.exact = True
                    await self.performer.perform(drive, actions)
                    self.driver.attend(drive)
                case Calling() if drive.inherited:
                    await self._commits.feed(drive, CallLost())
                    found = await self.driver.find(drive)
                    if found is None:
                        return self.park(drive, lost(drive, None))
                    await self.performer.perform(drive, await self._commits.feed(drive, found))
                case Calling():
                    self.park(drive, before or lost(drive, None))  # refused here
                case OutcomeUnknown():
                    told = isinstance(before, OutcomeUnknownError)
                    self.park(drive, before if before and told else lost(drive, before))
        except DrivenElsewhereError:
            self._look_on(drive)
        except Exception as error:
            self.park(drive, error)  # or it would be held to be driven, and never be polled
        finally:
            if not drive.running and drive.calling is None:
                self.afterwards.release(drive)  # for whoever stopped it meanwhile, it was not ours yet

    def _look_on(self, drive: Drive) -> None:
        drive.running, drive.following = False, drive.held > 0  # or nobody waits any more
        if drive.following:
            drive.followed = True
            self.performer.spawn(drive, self._follow)

    async def _follow(self, drive: Drive) -> None:
        """Look on while another client drives it, and take it up when that has let go, or is gone."""
        look_s = _FIRST_LOOK_S
        try:
            while drive.following:
                await self._clock.wait(anyio.Event(), look_s)
                look_s = min(1.5 * look_s, _LONGEST_LOOK_S)
                before = drive.record
                ours = await self.to_its_end(self._look, drive)
                if drive.record.finished:
                    return self._let_go(drive)
                if ours:
                    drive.following = False
                    return await self._take_up(drive)
                if drive.record != before:
                    drive.pulse()
                drive.polled()
        except (JournalError, OvertakenError) as error:
            self.park(drive, error)

    async def _look(self, drive: Drive) -> bool:
        ours = await self._commits.take(drive)
        if ours and not drive.following:
            self.afterwards.release(drive)  # whoever waited for it has gone meanwhile
        return ours

    def _let_go(self, drive: Drive) -> None:
        """Stop driving: no poll, no prompt. Whoever still waits is told by a pulse or a park."""
        was_running, drive.running, drive.following = drive.running, False, False
        drive.pulse()
        if drive in self._kept:
            self._kept.discard(drive)
            drive.held -= 1
        drive.stop_asking()
        # Now, for what is let go of is written at once; or else after what is being written.
        if drive.polling and not self.performer.poll_is_cut(drive):
            self.afterwards.keep(drive, self.driver.poll_cut())
        if was_running:
            self._note_told(drive)
        # With the end of a call the only one is that of whoever has brought it, and returns anyway.
        if not (drive.record.finished and len(drive.scopes) == 1):
            for scope in drive.scopes:
                scope.cancel()
        if drive.calling is not None:
            drive.calling.cut(self.policy.call_grace_s)
        else:
            self._hand_on(drive)

    def _leave(self, drive: Drive) -> None:
        """Do what is left of letting go, once a call is not under way any more: it may have a task by now."""
        self._note_told(drive)
        self._hand_on(drive)

    def _note_told(self, drive: Drive) -> None:
        told = self.driver.told(drive)
        if told is not None and not self._commits.note(drive, told):
            self.afterwards.keep(drive, told)  # the server does not ask it again

    def _hand_on(self, drive: Drive) -> None:
        unheard = None
        if drive.task_id is not None:
            unheard = self.driver.session.let_go(drive.task_id)  # after whoever waits there has gone
        if unheard is not None:
            self._tasks.start_soon(self._remember, drive, unheard)
        else:
            self.afterwards.release(drive)

    async def _remember(self, drive: Drive, unheard: anyio.Event) -> None:
        """Have a drive be there, which nobody holds, for what the server may still say."""
        # What waits there may just be told something, which is ours to journal.
        await self._clock.wait(anyio.Event(), _LAST_WORD_S)
        if not (drive.running or drive.calling):
            self.afterwards.release(drive)
        await unheard.wait()

    def park(self, drive: Drive, error: Exception) -> None:
        """Stop driving, and tell whoever waits why."""
        if drive.unsaved:
            self.afterwards.remember(drive, error)
        self._let_go(drive)
        drive.park(error)

    # ── what clients and handles use ──────────────────────────────────────────────────────────

    async def wait(self, drive: Drive, until: Callable[[Drive], bool]) -> None:
        """Wait, inside a hold, until the condition is met or the drive is over.

        Raises:
            Exception: What parked the drive; a copy, since several callers may wait for one drive.
        """
        while not until(drive) and not drive.over:
            await drive.change()
        if not drive.record.finished and drive.error is not None:
            drive.error_seen = True
            error = drive.error
            raise copy(error) if isinstance(error, TasksClientError) else error from error.__cause__

    async def cancel(self, drive: Drive) -> None:
        """Tell the server to cancel. Journaled first, so that a crash in between does not lose the wish.

        Raises:
            SessionError: The server could not be told; the next resume says it again.
            JournalError: The wish could not be journaled, and was not sent.
        """
        self.check_open()
        wait = await self.to_its_end(self.performer.cancels.wish, drive)
        if wait is not None:
            await wait()

    def disconnected(self) -> None:
        """Nothing can be sent any more, until the host connects again."""
        for drive in list(self.drives.values()):
            if drive.running or drive.following:
                self.park(
                    drive,
                    ConnectionLostError(
                        "The host's connection is closed. Connect again, and resume() what is unfinished."
                    ),
                )

    async def let_go_of_all(self) -> None:
        """Begin to end: drive nothing any more, and hear what the server says until it knows."""
        self.closed = True
        for drive in list(self.drives.values()):
            self.afterwards.forget(drive)
        for drive in list(self.drives.values()):
            if drive.running or drive.following:
                self.park(drive, TasksClientError("The client was closed. The task goes on; resume() it."))
        with anyio.move_on_after(_LEAVING_S, shield=True):
            await self.driver.session.retire()

    def close(self) -> None:
        """End. Writes finish; a ``tools/call`` under way gets its grace."""
        self.performer.turns.clear()
        for drive in list(self.drives.values()):
            if drive.calling is None:
                self.afterwards.release(drive)  # what could be said to us until now is journaled
        self.afterwards.close()
        self.performer.cancels.close()
        self._tasks.cancel_scope.cancel()
