"""The call that an idempotency key stands for: a new one, or the one that there is already."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal, TypeAlias

import anyio

from ..aio.uncut import run_to_its_end
from ..errors import IdempotencyConflictError, JournalError, OutcomeUnknownError
from ..machine.events import CallAgain, CallLost, CallRefused
from ..machine.record import TaskRecord
from ..machine.states import Calling, Gathering, OutcomeUnknown, State
from ..protocol.text import digest
from ..sessions.base import ToolCall
from .call_store import CallStore
from .environment import Environment
from .live_call import LiveCall, OvertakenError
from .record_maker import RecordMaker, check_record_id

__all__ = ["Idempotency", "OnUnknown", "check_repeatable"]

OnUnknown: TypeAlias = Literal["raise", "resend"]


class Idempotency:
    """Begins calls. Under a key the intent is journaled before anything is sent."""

    def __init__(self, store: CallStore, maker: RecordMaker, environment: Environment) -> None:
        self._store = store
        self._maker = maker
        self._clock = environment.clock

    async def begin(
        self, tool_call: ToolCall, key: str | None, on_unknown: OnUnknown, record_id: str | None = None
    ) -> LiveCall:
        """The live call of a tool call: a new one, or the one that its key stands for.

        ``record_id`` is that of a new one; ``None`` draws one.

        Raises:
            IdempotencyConflictError: The key belongs to another tool or other arguments.
            OutcomeUnknownError: The key's earlier call was sent and its reply was lost.
            OvertakenError: The key's call was taken back just then; begin again.
            JournalError: The intent could not be journaled.
            ValueError: ``key``, ``on_unknown``, the label or ``record_id`` makes no sense, or the last is
                another call's.
        """
        if on_unknown not in ("raise", "resend"):
            raise ValueError(f'on_unknown must be "raise" or "resend", got {on_unknown!r}')
        if key is not None and not (isinstance(key, str) and key):
            raise ValueError(
                f"an idempotency key is a text that is not empty, not {key!r}; leave it out to call without"
            )
        if record_id is not None:
            record_id = await self._leave_taken(record_id, key)
        record = self._maker.make(
            tool_call.name,
            self._clock.time(),
            label=tool_call.label,
            record_id=record_id,
            arguments_digest=digest(tool_call.arguments),
            idempotency_key=key,
        )
        # Known here first: a caller that finds the record in the journal must find the live call.
        call = self._store.owning.new_call(record, tool_call)
        if key is None:
            return call
        try:
            standing = await self._store.owning.claim(call)
        except BaseException:
            if call.journaled:  # the caller is gone, and nothing was sent
                await run_to_its_end(self._store.steps.apply, call, CallRefused())
            raise
        if standing.record_id == record.record_id:
            return call
        joined = self._store.registry.live_of(standing)
        try:
            return await run_to_its_end(self._join, joined, standing, tool_call, on_unknown)
        except anyio.get_cancelled_exc_class():
            await run_to_its_end(self._give_up, joined)
            raise

    async def _leave_taken(self, record_id: str, key: str | None) -> str | None:
        """The ID for a new record; ``None`` if the call that the key stands for has it, and is to be joined.

        A second record under one ID would overwrite the task ID of the first.

        Raises:
            ValueError: It is no ID, or another call's.
        """
        check_record_id(record_id)
        found = await self._store.journal.by_id(record_id)
        # Looked at last, so that of two callers the second one finds the call of the first.
        live = self._store.registry.live.get(record_id)
        taken = found if live is None else live.record
        if taken is None:
            return record_id
        if key is None or (taken.scope, taken.idempotency_key) != (self._maker.scope, key):
            raise ValueError(f"the record ID {record_id} is another call's; give each call one of its own")
        return None

    async def _give_up(self, call: LiveCall) -> None:
        """Leave the outcome unknown of a call that was to be sent again, and that no coroutine drives."""
        state = call.record.state
        if isinstance(state, Calling) and state.again and call.next_send is not None and not call.is_driven:
            self._store.steps.drop_send(call)
            with suppress(JournalError):  # it is then unknown when this client has closed
                await self._store.steps.apply(call, CallRefused())
                await self._store.owning.release_unfinished(call)

    async def _join(
        self, call: LiveCall, standing: TaskRecord, tool_call: ToolCall, on_unknown: OnUnknown
    ) -> LiveCall:
        """Join the call that the key already stands for.

        Raises:
            IdempotencyConflictError: It is another tool's, or has other arguments.
        """
        async with self._store.registry.joining:  # one at a time, so that one of them decides
            if standing.tool != tool_call.name or standing.arguments_digest != digest(tool_call.arguments):
                what = f"the tool {standing.tool!r}" if standing.tool != tool_call.name else "other arguments"
                raise IdempotencyConflictError(
                    f"The idempotency key {standing.idempotency_key!r} belongs to a call with {what}. Use "
                    "a key of its own for each different call."
                )
            if call.tool_call is None:
                self._store.steps.give_arguments(call, tool_call)
                if isinstance(call.record.state, Gathering):
                    call.excuse()  # it was parked for want of its arguments
            state, is_driven = call.record.state, call.is_driven
            is_sent_soon = isinstance(state, Calling) and call.next_send is not None
            in_doubt = isinstance(state, Calling | OutcomeUnknown) or _was_lost_before(state)
            unsure = in_doubt and not (is_driven or is_sent_soon)
            if unsure and not call.journaled and not call.uncommitted:
                self._store.owning.learn(call, standing)
            if unsure and not call.uncommitted and await self._store.owning.take(call):
                await self._decide(call, on_unknown)
            return call

    async def _decide(self, call: LiveCall, on_unknown: OnUnknown) -> None:
        """Decide about a call that may have been sent, and whose reply no client has."""
        if isinstance(call.record.state, Calling):
            await self._store.steps.apply(call, CallLost())
        if not (isinstance(call.record.state, OutcomeUnknown) or _was_lost_before(call.record.state)):
            return  # another client has brought it further
        if on_unknown == "raise":
            await self._store.owning.release_unfinished(call)
            raise OutcomeUnknownError(
                f"An earlier call of {call.record.tool!r} under this key may have been sent, and nobody has "
                'its reply, so the tool may have run. Pass on_unknown="resend" only if it may run twice.',
                record=call.record,
            )
        if isinstance(call.record.state, Gathering):
            call.excuse()
            return  # it goes on where it stands
        await self._store.steps.apply(call, CallAgain())
        call.excuse()


def _was_lost_before(state: State) -> bool:
    """Whether the call goes again for one whose reply was lost, as an earlier caller has allowed."""
    return isinstance(state, Gathering) and state.again


def check_repeatable(
    error: OvertakenError | OutcomeUnknownError, call: LiveCall, on_unknown: OnUnknown
) -> None:
    """Raise the error, unless the call may be begun once more.

    It may after an :class:`OvertakenError`. It may after an :class:`OutcomeUnknownError` if this caller
    allows that a call is sent again, and another client had the call meanwhile: that client did not know.
    """
    followed = call.drive is not None and call.drive.followed
    if isinstance(error, OutcomeUnknownError) and (on_unknown != "resend" or not followed):
        raise error
