"""Instructions of others in the journal for the calls that are driven here: answers, and wishes to cancel.

The journal is listened to while any call is driven. It rings for the driver of the call, which reads the
instructions. :class:`Prompts` reads them before each form, since the driver may wait for a reply.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress

from ..aio.clock import Clock
from ..aio.uncut import weakly_in_loop
from ..journal.base import Instruction
from ..machine.events import AnswerReady, CancelRequested
from ..machine.record import TaskRecord
from ..questions.question import CANCEL, find_instructed
from .call_store import CallStore
from .live_call import LiveCall

__all__ = ["Instructions"]


class Instructions:
    """The instructions for the calls of one endpoint."""

    def __init__(self, store: CallStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._driven: dict[str, LiveCall] = {}
        self._stop: Callable[[], object] = lambda: None

    def join(self, call: LiveCall) -> None:
        """Ring for a call whenever something is left for it, until :meth:`leave`.

        Raises:
            JournalError: The journal is not open.
        """
        if not self._driven:
            # A client that is dropped takes its listener along.
            self._stop = finalizer = weakref.finalize(
                self, self._store.journal.listen(weakly_in_loop(self._ring))
            )
            finalizer.atexit = False
        self._driven[call.record.record_id] = call

    async def follow(self, call: LiveCall) -> None:
        """Ring for a call that another client drives when it ends, until :meth:`leave`.

        Raises:
            JournalError: The journal could not be written.
        """
        self.join(call)
        await self._store.journal.follow(call.record.record_id)

    def leave(self, call: LiveCall) -> None:
        """Ring for a call no longer."""
        if self._driven.pop(call.record.record_id, None) is not None and not self._driven:
            self._stop()

    def _ring(self, record_ids: Collection[str]) -> None:
        for record_id in record_ids:
            if record_id in self._driven:
                self._driven[record_id].instruct()

    async def read(self, call: LiveCall) -> list[AnswerReady | CancelRequested]:
        """The instructions that were left for a call until now, as events. A pointless one is forgotten.

        Raises:
            JournalError: The journal could not be read or written.
            DrivenElsewhereError: Another client has taken the record.
        """
        call.instructed = False
        events = list[AnswerReady | CancelRequested]()
        for instruction in await self._store.journal.instructions(call.record.record_id):
            event = _read(call.record, instruction, self._clock.time())
            if event is None:
                await self._store.forget_instruction(call, instruction)
            else:
                events.append(event)
        return events


def _read(record: TaskRecord, instruction: Instruction, now: float) -> AnswerReady | CancelRequested | None:
    if instruction.name == CANCEL:
        return CancelRequested(now=now, by_instruction=True)
    asked = find_instructed(record, instruction.name)
    if asked is not None:
        with suppress(ValueError):
            answer = json.loads(instruction.body)
            if isinstance(answer, dict):
                return AnswerReady(key=asked.key, answer=answer, now=now, refusals=asked.refusals)
    return None
