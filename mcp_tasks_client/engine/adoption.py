"""Calls that nobody drives any more, taken up for as long as somebody iterates: ``resume()`` without an end.

Nothing runs between two steps of the iteration. Within one, the journal is looked at: at first, and twice in
the time of a lease; when an instruction is left for a call that is not driven here; when a call makes room.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeAlias, TypeVar

import anyio

from ..errors import InputUnansweredError, TasksClientError
from ..machine.record import TaskRecord
from ..uncut import caller_of_loop, run_to_its_end
from .endpoint import Endpoint
from .environment import LEASE_S
from .live_call import LiveCall, Theirs
from .signal import Signal, make_signal

__all__ = ["Adoption"]

HandleT = TypeVar("HandleT")

_Asked: TypeAlias = tuple[str, frozenset[str]]
"""What a parked call waits for: its status, and the keys of the questions without an answer."""


class Adoption(AsyncIterator[HandleT], Generic[HandleT]):
    """Takes up calls of one endpoint, and gives a handle of each. Several tasks may iterate over one.

    Args:
        endpoint: Whose calls.
        limit: How many calls that were taken up here may be unfinished at once; ``None`` is no limit.
        make: Makes a handle.
    """

    def __init__(self, endpoint: Endpoint, limit: int | None, make: Callable[[LiveCall], HandleT]) -> None:
        self._endpoint = endpoint
        self._engine = endpoint.engine
        self._clock = endpoint.engine.environment.clock
        # A lease may be longer than anybody wants to wait for what was released.
        self._pause_s = min(endpoint.engine.environment.lease_s, LEASE_S) / 2
        self._limit = limit
        self._make = make
        self._turn = anyio.Lock()
        self._alarm: Signal | None = None
        self._found: deque[HandleT] = deque()
        self._look_at = -math.inf
        self._has_room = False
        self._told: set[str] = set()
        # By record_id: what was taken up, until it has ended, parks, or is given up.
        self._driven: dict[str, LiveCall] = {}
        self._ended: set[str] = set()
        self._parked: dict[str, _Asked | None] = {}  # None: for another reason than a question
        self._known: dict[str, set[str]] = {}  # the names of the instructions for which it was looked at

    async def __anext__(self) -> HandleT:
        """Return the next handle, once there is one.

        Raises:
            JournalError: The journal could not be read or written. Iterating may go on.
        """
        async with self._turn:
            if self._engine.closed:
                raise StopAsyncIteration
            with self._listening():
                while not self._found:
                    self._alarm = make_signal()
                    try:
                        await run_to_its_end(self._look)
                    except TasksClientError:
                        if not self._engine.closed:
                            raise
                    if self._engine.closed:
                        raise StopAsyncIteration
                    if not self._found:
                        await self._clock.wait(self._alarm, self._look_at - self._clock.monotonic())
            return self._found.popleft()

    # ── being woken ───────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _listening(self) -> Iterator[None]:
        call_soon = caller_of_loop()

        def hear(record_ids: Collection[str]) -> None:
            with suppress(RuntimeError):  # the event loop has ended
                call_soon(self._hear, frozenset(record_ids))

        stop = self._engine.journal.listen(hear)
        self._engine.bells.add(self._note_rest)
        try:
            yield
        finally:
            self._engine.bells.discard(self._note_rest)
            stop()

    def _hear(self, record_ids: Collection[str]) -> None:
        here = {one: self._engine.store.live.get(one) for one in record_ids}
        told = {one for one, call in here.items() if call is None or not call.wanted}
        if told - self._told:
            self._told |= told
            self._wake()

    def _note_rest(self, call: LiveCall | None) -> None:
        if call is None:
            self._wake()
        elif call.record.record_id in self._driven and (self._limit is not None or call.error is not None):
            self._has_room = self._has_room or self._limit is not None
            self._wake()

    def _wake(self) -> None:
        if self._alarm is not None:
            self._alarm.set()

    # ── looking ───────────────────────────────────────────────────────────────────────────────

    async def _look(self) -> None:
        """Take up what is free, if it is time or something is new."""
        is_time = self._clock.monotonic() >= self._look_at
        if is_time:
            self._look_at = self._clock.monotonic() + self._pause_s
        self._sort_out(is_time)
        is_new = is_time or self._has_room
        told, self._told, self._has_room = self._told, set(), False
        for record_id in told:
            is_new = await self._is_new(record_id) or is_new
        room = None
        if self._limit is not None:
            room = self._limit - sum(not isinstance(call.ownership, Theirs) for call in self._driven.values())
        if not is_new or (room is not None and room <= 0):
            return
        resting = await self._resting()
        free = await self._endpoint.take_free(room, resting)
        self._ended &= {call.record.record_id for call in free}
        passed_over = self._ended | self._driven.keys() | resting
        new = [
            call
            for call in free
            if not (call.wanted or call.looked_after or call.record.record_id in passed_over)
        ]
        for call in new:
            self._parked.pop(call.record.record_id, None)
            self._driven[call.record.record_id] = call
            self._found.append(self._make(call))
            self._has_room = self._has_room or call.record.finished  # which takes none
        await self._endpoint.take_up(new)

    def _sort_out(self, is_time: bool) -> None:
        """Note what has become of the calls that were taken up."""
        if is_time:  # what does not wait for an answer is tried again
            self._parked = {one: asked for one, asked in self._parked.items() if asked is not None}
            ours = self._parked.keys() | self._driven.keys()
            self._known = {one: names for one, names in self._known.items() if one in ours}
        for record_id, call in list(self._driven.items()):
            if call.record.finished:
                self._ended.add(record_id)
            elif call.error is not None and call.driver is None:
                is_asked = isinstance(call.error, InputUnansweredError)
                self._parked[record_id] = _asked(call.record) if is_asked else None
                self._told.add(record_id)  # the answer may have come before it was noted
            elif call.wanted or call.driver is not None:
                continue
            del self._driven[record_id]

    async def _is_new(self, record_id: str) -> bool:
        """Whether there is an instruction for a call that it was not looked at for before."""
        names = {one.name for one in await self._engine.journal.instructions(record_id)}
        known = self._known.get(record_id, set())
        self._known[record_id] = known | names
        if names <= known:
            return False
        self._parked.pop(record_id, None)
        return True

    async def _resting(self) -> set[str]:
        """The calls that parked here, and stand as they did then."""
        resting = set()
        for record_id, asked in list(self._parked.items()):
            record = await self._engine.journal.by_id(record_id)
            if record is None or not record.pending:
                del self._parked[record_id]
            elif record.owner is None and asked not in (None, _asked(record)):
                del self._parked[record_id]  # others have gone on with it, and let go
            elif record.owner is None or asked is None:
                resting.add(record_id)
        return resting


def _asked(record: TaskRecord) -> _Asked:
    questions = getattr(record.state, "questions", ())
    return record.status, frozenset(question.key for question in questions if question.unanswered)
