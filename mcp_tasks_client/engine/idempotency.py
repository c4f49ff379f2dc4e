"""The call that an idempotency key stands for: a new one, or the one that there is already."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Literal, TypeAlias

import anyio

from ..errors import IdempotencyConflictError, JournalError, OutcomeUnknownError
from ..journal.record import Scope, TaskRecord
from ..machine.actions import SendCall
from ..machine.events import CallAgain, CallLost, CallRefused
from ..machine.states import Calling, Gathering, OutcomeUnknown
from ..protocol.text import digest
from ..sessions.base import ToolCall
from ..uncut import run_to_its_end
from .call_store import CallStore
from .environment import Environment
from .live_call import LiveCall, overtaken

__all__ = ["Idempotency", "OnUnknown"]

OnUnknown: TypeAlias = Literal["raise", "resend"]


class Idempotency:
    """Begins calls. Under a key the intent is journaled before anything is sent.

    Args:
        store: Claims keys.
        scope: Whose keys they are.
        environment: Stamps records.
    """

    def __init__(self, store: CallStore, scope: Scope, environment: Environment) -> None:
        self._store = store
        self._scope = scope
        self._clock = environment.clock
        self._joining = anyio.Lock()

    async def begin(self, call: ToolCall, key: str | None, on_unknown: OnUnknown) -> LiveCall:
        """The live call of a tool call: a new one, or the one that its key stands for.

        Raises:
            IdempotencyConflictError: The key belongs to another tool or other arguments.
            OutcomeUnknownError: The key's earlier call was sent and its reply was lost.
            OvertakenError: What the key stood for was taken back just then; begin again.
            JournalError: The intent could not be journaled.
            ValueError: ``key`` or ``on_unknown`` makes no sense.
        """
        if on_unknown not in ("raise", "resend"):
            raise ValueError(f'on_unknown must be "raise" or "resend", got {on_unknown!r}')
        if key == "":
            raise ValueError("an idempotency key cannot be empty; leave it out to call without one")
        now = self._clock.time()
        record = TaskRecord(
            record_id=secrets.token_hex(16),
            scope=self._scope,
            tool=call.name,
            arguments_digest=digest(call.arguments),
            idempotency_key=key,
            state=Calling(),
            created_at=now,
            updated_at=now,
        )
        live = LiveCall(record, self._store.new_ownership(), call)
        live.next_send = SendCall()
        # Added first: whoever finds the record in the journal must find the live call here.
        self._store.add(live)
        if key is None:
            return live
        try:
            standing = await self._store.claim(live)
        except BaseException:
            if live.journaled:  # the caller is gone, and nothing was sent
                await self._store.take_back(live)
            raise
        if standing.record_id == record.record_id:
            return live
        joined = self._store.adopt(standing)
        try:
            return await run_to_its_end(self._join, joined, standing, call, on_unknown)
        except anyio.get_cancelled_exc_class():
            await run_to_its_end(self._give_up, joined)
            raise

    async def _give_up(self, live: LiveCall) -> None:
        """Leave the outcome unknown of a call that was to be sent again, and that nobody drives."""
        state = live.record.state
        if isinstance(state, Calling) and state.again and live.next_send is not None and live.driver is None:
            live.next_send = None
            with suppress(JournalError):  # it is then unknown when this client has closed
                await self._store.apply(live, CallRefused())
                await self._store.release(live)

    async def _join(
        self, live: LiveCall, standing: TaskRecord, call: ToolCall, on_unknown: OnUnknown
    ) -> LiveCall:
        """Join the call that the key already stands for; one at a time, so that one of them decides."""
        async with self._joining:
            return await self._join_alone(live, standing, call, on_unknown)

    async def _join_alone(
        self, live: LiveCall, standing: TaskRecord, call: ToolCall, on_unknown: OnUnknown
    ) -> LiveCall:
        if standing.tool != call.name or standing.arguments_digest != digest(call.arguments):
            what = f"the tool {standing.tool!r}" if standing.tool != call.name else "other arguments"
            raise IdempotencyConflictError(
                f"The idempotency key {standing.idempotency_key!r} belongs to a call with {what}. Use a key "
                "of its own for each different call."
            )
        if live.tool_call is None:
            live.tool_call = call
            if isinstance(live.record.state, Gathering):
                live.error = None  # its arguments are what it was parked for
        is_sending = live.next_send is not None or live.attempt is not None or live.driver is not None
        unsure = isinstance(live.record.state, Calling | OutcomeUnknown) and not is_sending
        if unsure and not live.journaled and not live.uncommitted:
            raise overtaken(live)  # it was refused or taken back just then
        if unsure and not live.uncommitted and await self._store.take(live):
            await self._decide(live, on_unknown)
        return live

    async def _decide(self, live: LiveCall, on_unknown: OnUnknown) -> None:
        """Decide about a call that may have been sent, and whose reply nobody has."""
        if isinstance(live.record.state, Calling):
            await self._store.apply(live, CallLost())
        if not isinstance(live.record.state, OutcomeUnknown):
            return  # another client has brought it further
        if on_unknown == "raise":
            await self._store.release(live)
            raise OutcomeUnknownError(
                f"An earlier call of {live.record.tool!r} under this key may have been sent, and nobody has "
                'its reply, so the tool may have run. Pass on_unknown="resend" only if it may run twice.',
                record=live.record,
            )
        (send,) = await self._store.apply(live, CallAgain())
        assert isinstance(send, SendCall)
        live.error, live.next_send = None, send
