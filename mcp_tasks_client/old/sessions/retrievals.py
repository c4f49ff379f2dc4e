"""The ``tasks/result`` of 2025-11-25 that wait: for the end of a task, and for its questions before that.

One at a time for each task: a server hands the next question to the one that waits, though nobody hears it.
So none waits while an answer leaves, with which the task goes on. That of a task which nobody observes any
more is heard on for a while, and then taken back while it is still read: one official server loses the
question that it is about to send to what is taken back.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import anyio

from ..errors import SessionError
from ..wire import JSONObject, RequestId
from .failures import Failures
from .pauses import Pauses
from .peer import SILENCE_S, Peer
from .retrieval import Retrieval

__all__ = ["Retrievals"]

_LASTED_S: Final = 1.0
"""Seconds that one has to last for the next one to take its place, but for the first that breaks."""

_PAUSE_S: Final = 5.0
"""Seconds until then, if the last one took the place of another and lasted less. Doubles each time."""

_LONGEST_PAUSE_S: Final = 30.0

_HEARD_S: Final = 0.3
"""Seconds to hear what was said to one before the server knew; more where a snapshot takes longer."""

_HEARD_LATE_S: Final = 5.0
"""The same of a task that is observed: what was said to one may be long on its way."""

_MOST_LATE: Final = 32
"""Of these at once: each has a connection for as long, which not every server ends, of the host's maybe."""

_HEARD_ON_S: Final = 30.0
"""Seconds for which one is heard on when nobody observes its task any more."""

_ALL_HEARD_S: Final = 0.5
"""Seconds for all of them to be taken back, while everything ends."""


class Retrievals:
    """Which ones wait, of one session of ours.

    Args:
        timeout_s: Seconds that it may take to have one wait no more.

    Attributes:
        pauses: When none is to begin.
        failures: What has become of those that broke.
        took_s: Seconds that the latest snapshot took to come; so may what comes of one of these.
    """

    def __init__(self, timeout_s: float) -> None:
        self.took_s = 0.0
        self.pauses = Pauses()
        self.failures = Failures()
        self._timeout_s = timeout_s
        self._now: dict[str, Retrieval] = {}
        self._broken: dict[str, RequestId] = {}
        self._left: dict[tuple[str, Peer], RequestId] = {}
        self._going: dict[str, Retrieval] = {}
        self._unobserved: dict[str, anyio.Event] = {}
        self._retired = False
        self._rested: dict[str, Retrieval] = {}
        self._late: list[Retrieval] = []

    def request_id(self, task_id: str) -> RequestId | None:
        """The ID of the one that waits for a task, or may; ``None`` if there is none."""
        retrieval = self._now.get(task_id)
        return retrieval.waits_under if retrieval is not None else self._broken.get(task_id)

    def reply(self, task_id: str) -> JSONObject | None:
        """What the one that waits for a task has brought, if there is one, and it has."""
        retrieval = self._now.get(task_id)
        return retrieval.reply if retrieval is not None else None

    def is_over(self, task_id: str) -> bool | None:
        """Whether a task is over, as the one tells that waits for it; ``None`` if none does."""
        retrieval = self._now.get(task_id)
        return retrieval.reply is not None if retrieval is not None and retrieval.waits else None

    def stream(self, task_id: str) -> object | None:
        """On which a task's questions come: the same for as long as none can have been lost."""
        retrieval = self._latest(task_id)
        return retrieval.stream if retrieval is not None else None

    def streams(self, task_id: str) -> object | None:
        """The same, with that on which the server speaks by itself; ``None`` if there is no other."""
        retrieval = self._latest(task_id)
        return None if retrieval is None else (retrieval.stream, retrieval.peer.listened)

    def _latest(self, task_id: str) -> Retrieval | None:
        return self._now.get(task_id, self._rested.get(task_id))

    async def alone(self, task_id: str) -> None:
        """Wait until the one for a task is the only one, if there is one."""
        retrieval = self._now.get(task_id)
        if retrieval is not None:
            await retrieval.alone.wait()

    def may_begin(self, task_id: str) -> bool:
        """Whether there is none for a task, which somebody observes, and nobody is to be left alone."""
        taken = task_id in self._now or task_id in self._unobserved
        return not (taken or self._retired or self.pauses.now(task_id))

    def said_to(self, task_id: str) -> None:
        """Note that the server has asked something for a task, which it says to the one that waits."""
        retrieval = self._now.get(task_id)
        if retrieval is not None and retrieval.waits:
            retrieval.said_at = anyio.current_time()
            retrieval.arrived |= task_id not in self._going

    def looked(self, task_id: str, took_s: float = 0.0) -> None:
        """Note a snapshot of a task, and how many seconds it took to come."""
        self.failures.looked(task_id)
        self.took_s = took_s
        self.observed(task_id)

    def expect_end(self, task_id: str) -> None:
        """Have the one for a task not be taken back, as the server ends it just now: it was cancelled."""
        for retrieval in (self._now.get(task_id), self._going.get(task_id)):
            if retrieval is not None:
                retrieval.needless = True

    def hurry(self, task_id: str) -> None:
        """Have the one for a task wait again at once, as the task waits for an answer."""
        retrieval = self._now.get(task_id)
        if retrieval is not None:
            retrieval.wanted.set()

    def begin(self, peer: Peer, task_id: str, before: RequestId | None) -> Retrieval:
        """Make one, to be run.

        Args:
            peer: Whom it is asked of.
            task_id: The task.
            before: The ID of one that may wait for a process which may be gone.
        """
        before = self._broken.pop(task_id, before)
        retrieval = Retrieval(peer, self._left.pop((task_id, peer), before))
        last = self._rested.pop(task_id, None)
        if last is not None and last.peer is peer:
            retrieval.stream = last.stream  # meanwhile what is asked waits at the server
        self._now[task_id] = retrieval
        return retrieval

    async def run(self, task_id: str, retrieval: Retrieval) -> None:
        """Have one wait.

        Raises:
            SessionError: It broke, or the server refused it.
        """
        failure: SessionError | None = None
        try:
            with retrieval.scope:
                try:
                    retrieval.reply = await self._result(task_id, retrieval)
                except anyio.get_cancelled_exc_class():
                    await retrieval.give_up(self.took_s, self._timeout_s)
                    raise
        except SessionError as error:
            failure = error
            if self._now.get(task_id) is retrieval and error.retry_after_s is not None:
                self.pauses.quiet(task_id, error.retry_after_s)
            raise
        finally:
            retrieval.alone.set()
            retrieval.ended.set()
            failed, unheard = retrieval.reply is None, self._unobserved.get(task_id)
            if self._now.get(task_id) is retrieval and (failed or unheard is not None):
                del self._now[task_id]  # the next poll tries again
                if unheard is not None:
                    unheard.set()
                if failed and not retrieval.needless:
                    # Maybe about the waiting alone: what became of the task is asked when it is over.
                    self._broken[task_id] = retrieval.waits_under
                    self.failures.note(task_id, failure)

    async def _result(self, task_id: str, retrieval: Retrieval) -> JSONObject:
        lately, pause_s = False, 0.0
        while True:
            try:
                return await self._waited(task_id, retrieval, pause_s)
            except SessionError as error:
                lasted_s = anyio.current_time() - retrieval.sent_at
                lasted = lasted_s >= min(_LASTED_S, SILENCE_S)
                # What a gateway refuses at once has never waited; what it ends later, such as by 504, has.
                broken = error.http_status in (None, 200) or lasted
                refused = error.code is not None or error.retry_after_s is not None
                wanted = self._now.get(task_id) is retrieval and task_id not in self._unobserved
                once_more = broken and (lasted or not lately) and retrieval.before is None
                if refused or not wanted or not once_more:
                    raise
            # At once: meanwhile the next question would go to the one that nobody hears any more.
            retrieval.renew(unbroken=lasted_s >= SILENCE_S)  # for then it is we who have ended it
            next_s = min(max(_PAUSE_S, 2 * pause_s), _LONGEST_PAUSE_S)
            pause_s = next_s if lately and lasted_s < next_s else 0.0
            lately = True

    async def _waited(self, task_id: str, retrieval: Retrieval, pause_s: float) -> JSONObject:
        peer = retrieval.peer
        if retrieval.before is not None:
            try:
                await peer.take_back(retrieval.before, self._timeout_s)
            except SessionError:
                if not self.failures.unheeded_too_often(task_id):
                    raise
            self.failures.heeded(task_id)
            retrieval.before = None
        retrieval.alone.set()
        retrieval.wanted = anyio.Event()
        with anyio.move_on_after(pause_s):  # what is asked meanwhile waits at the server
            await retrieval.wanted.wait()
        retrieval.goes()
        retrieval.sent_at, retrieval.waits, retrieval.arrived = anyio.current_time(), True, False
        params, request_id = {"taskId": task_id}, retrieval.request_id
        return await peer.request("tasks/result", params, SILENCE_S, task_id=task_id, request_id=request_id)

    def waiting(self, task_id: str) -> Retrieval | None:
        """The one that waits for a task, or is about to."""
        retrieval = self._now.get(task_id)
        return None if retrieval is None or retrieval.ended.is_set() else retrieval

    async def take_back(self, task_id: str, retrieval: Retrieval) -> None:
        """Have one wait no more, whose task is observed, and hear it out.

        It waits on where the server cannot be told: by anything else what is asked next would be lost.
        """
        try:
            await retrieval.has_arrived(self.took_s)
            await retrieval.tell_back(self._timeout_s)
            if self._now.get(task_id) is retrieval:
                del self._now[task_id]
                self._rested[task_id] = self._going[task_id] = retrieval
                self._late = [one for one in (*self._late, retrieval) if not one.ended.is_set()]
                for one in self._late[:-_MOST_LATE]:
                    one.scope.cancel()
                await self._hear_out(task_id, retrieval, _HEARD_LATE_S)
        except SessionError:
            if retrieval.needless:
                self._broken[task_id] = retrieval.waits_under  # the last one, as this one does not begin

    async def told_back(self, task_id: str) -> None:
        """Wait until nobody tells the server that the one for a task waits no more: it ends that next."""
        for retrieval in (self._now.get(task_id), self._going.get(task_id)):
            if retrieval is not None and retrieval.is_told_back:
                with anyio.move_on_after(_ALL_HEARD_S):
                    await retrieval.back.wait()

    def doubt(self, task_id: str) -> None:
        """Let the one for a task end that has not brought what is asked, if it may wait no more."""
        retrieval = self._now.get(task_id)
        if retrieval is not None and retrieval.doubtful:
            self.drop(task_id)

    async def free(self, peer: Peer, task_id: str, before: RequestId | None) -> None:
        """Have one wait no more that nobody hears: it would take the next question along.

        Args:
            peer: Where it waits.
            task_id: The task, which goes on and does not wait for an answer.
            before: What the journal knows of one.
        """
        before = self._broken.get(task_id, before)
        if before is not None and task_id not in self._now:
            self._broken[task_id] = before  # for the journal, until it is done
            with suppress(SessionError):  # the next poll tries again
                await peer.take_back(before, self._timeout_s)
                if self._broken.get(task_id) == before:
                    del self._broken[task_id]

    def answered_in(self, peer: Peer, task_id: str) -> None:
        """Let the one for a task end that waits in another session than the one that knows the task now."""
        retrieval = self._now.get(task_id)
        if retrieval is not None and retrieval.peer is not peer:
            self.drop(task_id)

    def drop(self, task_id: str) -> None:
        """Let the one for a task end, if there is one, and another take its place."""
        retrieval = self._now.pop(task_id, None)
        if retrieval is not None:
            # It may not be taken back there, and the task be found there again.
            self._left[task_id, retrieval.peer] = retrieval.waits_under
            retrieval.end(over=False)

    def observed(self, task_id: str) -> None:
        """Note that somebody observes a task, again or still."""
        self._unobserved.pop(task_id, anyio.Event()).set()

    def leave(self, task_id: str) -> tuple[Retrieval, anyio.Event] | None:
        """Note that nobody observes a task any more. Returns what to :meth:`end`, if any waits for it."""
        self._forget(task_id)
        self.observed(task_id)
        retrieval = self._now.get(task_id, self._going.get(task_id))
        if retrieval is None:
            return None
        if retrieval.ended.is_set():
            self._now.pop(task_id, None)  # what it has brought is asked for again, if it is wanted
            return None
        self._unobserved[task_id] = unheard = anyio.Event()
        return retrieval, unheard

    async def end(self, task_id: str, retrieval: Retrieval, unheard: anyio.Event) -> bool:
        """Have one wait no more, unless somebody observes its task again soon.

        What the server says to it is heard until then, and while it is taken back: the task goes on.

        Args:
            task_id: The task.
            retrieval: The one that waits.
            unheard: Set once it ends, or somebody observes the task; and when this returns.

        Returns:
            Whether nobody observes the task.
        """
        try:
            with anyio.move_on_after(_HEARD_ON_S):
                # One that somebody takes back already is heard out there.
                await (unheard if task_id in self._now else retrieval.ended).wait()
            if not (unheard.is_set() or retrieval.ended.is_set()):
                await self._take_back(task_id, retrieval)
        finally:
            unheard.set()
            is_unobserved = self._unobserved.get(task_id) is unheard
            if is_unobserved:
                del self._unobserved[task_id]
        return is_unobserved

    async def retire(self) -> None:
        """Have none wait any more, nor begin to: as :meth:`end` does, at once and for all of them."""
        self._retired = True
        async with anyio.create_task_group() as tasks:
            tasks.cancel_scope.deadline = anyio.current_time() + _ALL_HEARD_S
            for task_id, retrieval in self._now.items():
                if not retrieval.ended.is_set():
                    tasks.start_soon(self._safely_taken_back, task_id, retrieval)

    async def _safely_taken_back(self, task_id: str, retrieval: Retrieval) -> None:
        with suppress(SessionError):  # whoever goes on with the task tries again
            await self._take_back(task_id, retrieval)

    async def _take_back(self, task_id: str, retrieval: Retrieval) -> None:
        self._now.pop(task_id, None)
        if retrieval.needless:
            return  # the server ends it by itself
        waited, name, retracts = retrieval.waits_under, (task_id, retrieval.peer), retrieval.peer.retracts
        self._going[task_id] = retrieval
        if not retracts:
            self._left[name] = waited  # for the next one there, which may come before it is taken back
        try:
            await retrieval.has_arrived(self.took_s)
            if retracts:
                retrieval.end(over=False)
            elif retrieval.reply is None:
                await retrieval.tell_back(self._timeout_s)
            if self._left.get(name) == waited:
                del self._left[name]
        finally:
            await self._hear_out(task_id, retrieval, min(max(_HEARD_S, self.took_s), self._timeout_s))

    async def _hear_out(self, task_id: str, retrieval: Retrieval, seconds: float) -> None:
        try:
            with anyio.move_on_after(seconds):
                await retrieval.ended.wait()
        finally:
            retrieval.scope.cancel()
            if self._going.get(task_id) is retrieval:
                del self._going[task_id]

    def forget(self, task_id: str) -> None:
        """Let the one for a task end, which is over."""
        self._forget(task_id)
        self.observed(task_id)
        self._broken.pop(task_id, None)
        self._left = {name: one for name, one in self._left.items() if name[0] != task_id}
        going = self._going.get(task_id)
        if going is not None and going.needless:
            going.scope.cancel()
        retrieval = self._now.pop(task_id, None)
        if retrieval is not None:
            retrieval.end(over=True)

    def _forget(self, task_id: str) -> None:
        self.pauses.forget(task_id)
        self.failures.forget(task_id)
        self._rested.pop(task_id, None)
