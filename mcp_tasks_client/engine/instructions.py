"""Instructions of others in the journal for the calls that are driven here: answers, and wishes to cancel.

The journal is listened to while any call is driven. It rings for the driver of the call, which heeds the
instructions. :class:`Prompts` looks for them before each form, since the driver may wait for a reply.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import takewhile

from ..aio.clock import Clock
from ..aio.uncut import weakly_in_loop
from ..errors import JournalError
from ..journal.base import Instruction
from ..machine.events import AnswerReady, CancelRequested
from ..machine.record import TaskRecord
from ..machine.replacing import replace
from ..questions.question import CANCEL, find_instructed
from .call_store import CallStore
from .cancellation import Cancellation
from .live_call import LiveCall
from .performer import Performer, without_sends

__all__ = ["Instructions"]


class Instructions:
    """The instructions for the calls of one endpoint."""

    def __init__(
        self, store: CallStore, performer: Performer, cancellation: Cancellation, clock: Clock
    ) -> None:
        self._store = store
        self._performer = performer
        self._cancellation = cancellation
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
                self._driven[record_id].announce_instructions()

    # ── heeding ───────────────────────────────────────────────────────────────────────────────

    async def catch_up(self, call: LiveCall) -> None:
        """Take the instructions for a call that is about to be resumed. Nothing is sent.

        Raises:
            JournalError: The journal could not be read or written.
            DrivenElsewhereError: Another client has taken the record.
        """
        for left in await self._read(call):
            event = replace(left, held=True) if isinstance(left, AnswerReady) else left
            await self._performer.perform(call, without_sends(await self._store.steps.apply(call, event)))

    async def look(self, call: LiveCall) -> None:
        """Look for instructions in the journal for a call, and heed them.

        Raises:
            TasksClientError: As from :meth:`heed`.
        """
        if call.journaled and not call.instructed:
            with suppress(JournalError):
                if await self._store.journal.instructions(call.record.record_id):
                    call.announce_instructions()
        await self.heed(call)

    async def heed(self, call: LiveCall) -> None:
        """Heed the instructions in the journal for a call, if it is known here that there are any.

        Raises:
            JournalError: The journal could not be read or written.
            DrivenElsewhereError: Another client has taken the record.
            SessionError: The server wants to be left alone, and the call to be cancelled is not driven.
        """
        if not call.instructed:
            return
        events = await self._read(call)
        answers = [event for event in events if isinstance(event, AnswerReady)]
        left_before = list(takewhile(lambda event: isinstance(event, AnswerReady), events))
        if len(left_before) < len(events):
            # Answers that were left before the wish to cancel go first, since their persons were told so. No
            # prompt is withdrawn for them, or the next question would be put.
            for event in left_before:
                await self._performer.step(call, event)
            if await self._cancellation.wish(call, by_instruction=True):
                await self._performer.cancel_and_log(call)
            answers = answers[len(left_before) :]
        # Answers to questions that the host is being asked come last: each lets the next question be asked,
        # whose own answer may be among these.
        asked = call.prompts
        for answer in sorted(answers, key=lambda answer: answer.key in asked):
            await self._performer.take_answer(call, answer)

    async def _read(self, call: LiveCall) -> list[AnswerReady | CancelRequested]:
        """The instructions that were left for a call until now, as events. A pointless one is forgotten."""
        events = list[AnswerReady | CancelRequested]()
        for instruction in await self._store.steps.read_instructions(call):
            event = _read(call.record, instruction, self._clock.time())
            if event is None:
                await self._store.steps.forget_instruction(call, instruction)
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
                return AnswerReady(
                    key=asked.key, answer=answer, now=now, refusals=asked.refusals, by_instruction=True
                )
    return None
