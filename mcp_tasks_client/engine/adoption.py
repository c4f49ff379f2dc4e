"""Undriven calls, taken up for as long as a host iterates: ``resume()`` without an end.

Nothing runs between two steps of the iteration. Within one, the journal is read: at the start, and then every
half lease, or every 15 s if that is sooner; early when an instruction is left for a call that is not driven
here, and when a call makes room. An early read waits at least four times as long as the read before it took.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

import anyio

from ..aio.signal import Signal, make_signal
from ..aio.uncut import run_to_its_end, weakly_in_loop
from ..errors import DrivenElsewhereError, InputUnansweredError, JournalError, TasksClientError
from ..machine.record import TaskRecord
from ..machine.states import questions_of
from .endpoint import Endpoint
from .environment import LEASE_S, Environment
from .live_call import LiveCall, Theirs

__all__ = ["Adoption", "check_limit", "pause_between_looks"]

HandleT = TypeVar("HandleT")

_EARLY_LOOK_FACTOR: Final = 4
"""An early look comes at least so many times the duration of the look before it after that look."""


_SOON_S: Final = 1.0
"""Seconds after which an outcome is looked for once more that no caller here seems to receive."""


class Adoption(AsyncIterator[HandleT], Generic[HandleT]):
    """Takes up calls of one endpoint, and gives a handle of each. Several tasks may iterate over one.

    ``limit`` is how many calls that were taken up, by this or another adoption of the endpoint, may be
    unfinished at once; ``None`` is no limit. A call that waits for a person does not count.

    Raises:
        ValueError: ``limit`` is less than 1.
    """

    def __init__(self, endpoint: Endpoint, limit: int | None, make: Callable[[LiveCall], HandleT]) -> None:
        check_limit(limit)
        self._endpoint = endpoint
        self._engine = endpoint.engine
        self._clock = endpoint.engine.environment.clock
        self._pause_s = pause_between_looks(endpoint.engine.environment)
        self._limit = limit
        self._make = make
        self._turn = anyio.Lock()
        self._alarm: Signal | None = None
        self._look_at = self._rested_at = -math.inf
        self._looks_early = False  # whether to look before it is time
        self._found: deque[tuple[LiveCall, HandleT]] = deque()
        # By record_id: calls that were taken up here, and are not to be taken up once more yet.
        self._taken: dict[str, LiveCall] = {}
        self._told: set[str] = set()  # records of others that have instructions, until it is time

    async def __anext__(self) -> HandleT:
        """Return the next handle, once there is one.

        Raises:
            JournalError: The journal could not be read or written. Iterating may go on.
        """
        async with self._turn:
            if self._engine.closed:
                raise StopAsyncIteration
            with self._listening():
                while not await self._has_found():
                    if self._engine.closed:
                        raise StopAsyncIteration
                    self._alarm = make_signal()
                    try:
                        await run_to_its_end(self._look)
                    except TasksClientError:
                        if not self._engine.closed:
                            raise
                    if self._engine.closed:
                        raise StopAsyncIteration
                    if not self._found:
                        until = min(self._look_at, self._rested_at if self._looks_early else math.inf)
                        await self._clock.wait(self._alarm, until - self._clock.monotonic())
            return self._found.popleft()[1]

    async def _has_found(self) -> bool:
        """True if a handle is left to give. One whose call another process has taken since is dropped."""
        while self._found:
            try:
                await self._engine.store.owning.confirm(self._found[0][0])
                return True
            except DrivenElsewhereError:
                self._found.popleft()
            except JournalError:
                self._found.popleft()  # it comes again
                raise
        return False

    # ── being woken ───────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _listening(self) -> Iterator[None]:
        stop = self._engine.journal.listen(weakly_in_loop(self._hear))
        self._engine.store.registry.bells.add(self._note_rest)
        try:
            yield
        finally:
            self._engine.store.registry.bells.discard(self._note_rest)
            stop()

    def _hear(self, record_ids: Collection[str]) -> None:
        for record_id in record_ids:
            call = self._engine.store.registry.live.get(record_id)
            if call is None and record_id not in self._told:
                self._told.add(record_id)
                self._wake()
            elif call is not None and not call.instructed:
                call.announce_instructions()
                if not call.wanted:
                    self._wake()

    def _note_rest(self, call: LiveCall | None) -> None:
        if call is None or (call in self._endpoint.adopted and (self._limit is not None or call.instructed)):
            self._wake()
        elif call.record.record_id not in self._taken and _is_left(call):
            # A caller may drop the handle only in a moment.
            self._look_at = min(self._look_at, self._clock.monotonic() + _SOON_S)
            self._wake()

    def _wake(self) -> None:
        self._looks_early = True
        if self._alarm is not None:
            self._alarm.set()

    # ── looking ───────────────────────────────────────────────────────────────────────────────

    async def _look(self) -> None:
        """Take up free calls, if it is time or something is new."""
        began = self._clock.monotonic()
        is_time = began >= self._look_at
        if is_time:
            self._look_at = began + self._pause_s
            self._told.clear()
        if is_time or (self._looks_early and began >= self._rested_at):
            self._looks_early = False
            try:
                await self._take_up(is_time)
            finally:
                ended = self._clock.monotonic()
                self._rested_at = ended + _EARLY_LOOK_FACTOR * (ended - began)

    async def _take_up(self, is_time: bool) -> None:
        answered = [call for call in self._taken.values() if call.instructed and not call.wanted]
        left_alone = await self._left_alone(is_time)
        room = None
        if self._limit is not None:
            room = self._limit - sum(map(_takes_room, self._endpoint.adopted))
        found: Sequence[LiveCall] = []
        if room is not None:  # a person's answer waits for none
            found = [call for call in answered if await self._engine.store.owning.take(call)]
        if room is None or room > 0:
            found = await self._endpoint.take_free(room, left_alone)  # with the calls that are ours
        new = [
            call
            for call in found
            if not (call.wanted or call.looked_after or call.record.record_id in left_alone)
        ]
        for call in new:
            self._taken[call.record.record_id] = call
            self._endpoint.adopted.add(call)
            self._found.append((call, self._make(call)))
        if any(call.over for call in new):
            self._looks_early = True  # there may be more, since these take no room
        await self._endpoint.drive_taken(new)

    async def _left_alone(self, is_time: bool) -> set[str]:
        """The calls, among those that were taken up here, that are left alone in this look."""
        found = await self._engine.journal.asking(self._endpoint.scope)
        asking, resting = {one.record.record_id: one.record for one in found}, set[str]()
        for record_id, call in list(self._taken.items()):
            record = asking.get(record_id)
            if call.wanted or call.is_driven:
                resting.add(record_id)
            elif call.instructed or _may_go_on(call, record, is_time):
                del self._taken[record_id]
            elif record is None or record.owner is None:  # else another client owns it, and may be gone
                resting.add(record_id)
        return resting


def check_limit(limit: int | None) -> None:
    """Refuse a limit that is none.

    Raises:
        ValueError: It is less than 1.
    """
    if limit is not None and not (isinstance(limit, int) and limit >= 1):
        raise ValueError(f"limit must be an integer of at least 1, or None, got {limit!r}")


def pause_between_looks(environment: Environment) -> float:
    """Seconds between two looks for calls without a driver: half a lease."""
    # A lease may be longer than a person waits for a call that was released.
    return min(environment.lease_s, LEASE_S) / 2


def _is_left(call: LiveCall) -> bool:
    """True if a call has ended, and no caller here receives its outcome."""
    return call.record.finished and call.record.delivered_at is None and not call.looked_after


def _takes_room(call: LiveCall) -> bool:
    """True if a call that was taken up counts for the limit."""
    return not (call.over or call.awaits_person or isinstance(call.ownership, Theirs))


def _may_go_on(call: LiveCall, record: TaskRecord | None, is_time: bool) -> bool:
    """Whether a call that rests is to be taken up once more.

    Args:
        call: Parked, for the reason that its error is.
        record: As the journal has it; ``None`` if the call waits for no answer there.
        is_time: Whether it is time to try failed calls again.
    """
    if isinstance(call.error, InputUnansweredError):
        return record is None or _asked(record) != _asked(call.record)  # others have gone on with it
    return is_time


def _asked(record: TaskRecord) -> tuple[str, frozenset[tuple[str, int]]]:
    """The status of a parked call, and its questions without an answer.

    A question that opens again is another one.
    """
    return record.status, frozenset((q.key, q.refusals) for q in questions_of(record.state) if q.unanswered)
