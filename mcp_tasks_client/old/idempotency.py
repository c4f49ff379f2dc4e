"""The call that an idempotency key stands for: a new one, or the one that there is already."""

from __future__ import annotations

import secrets
from typing import Literal, TypeAlias

import anyio

from .drive import Drive
from .errors import IdempotencyConflictError, OutcomeUnknownError
from .events import CallAgain, CallLost, SendCall
from .journal.base import Scope, TaskRecord
from .scheduler import Scheduler
from .sessions.base import ToolCall
from .states import Calling, Gathering, OutcomeUnknown
from .wire import digest

__all__ = ["Intents", "OnUnknown"]

OnUnknown: TypeAlias = Literal["raise", "resend"]


class Intents:
    """Begins calls. Under a key the intent is journaled before anything is sent.

    Args:
        scheduler: Where the calls are driven.
        scope: Whose keys they are.
    """

    def __init__(self, scheduler: Scheduler, scope: Scope) -> None:
        self._scheduler = scheduler
        self._scope = scope
        self._clock = scheduler.driver.clock
        self._commits = scheduler.driver.commits
        self._joining = anyio.Lock()

    async def begin(self, call: ToolCall, key: str | None, on_unknown: OnUnknown) -> Drive:
        """The drive of a call: a new one, or the one that its key stands for.

        Raises:
            IdempotencyConflictError: The key belongs to another tool or other arguments.
            OutcomeUnknownError: The key's earlier call was sent and its reply was lost.
            JournalError: The intent could not be journaled.
            ValueError: ``key`` or ``on_unknown`` makes no sense.
        """
        if on_unknown not in ("raise", "resend"):
            raise ValueError(f'on_unknown must be "raise" or "resend", got {on_unknown!r}')
        if key == "":
            raise ValueError("an idempotency key cannot be empty; leave it out to call without one")
        scheduler = self._scheduler
        scheduler.check_open()
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
            owner=self._commits.owner,
        )
        drive = Drive(record, call, ours=True)
        drive.pending = SendCall()
        # Registered first: whoever finds the record in the journal must find the drive here.
        scheduler.register(drive)
        if key is None:
            return drive
        with scheduler.lookup():
            try:
                standing = await scheduler.to_its_end(self._claim, drive)
            except BaseException:
                scheduler.afterwards.forget(drive)
                raise
            if standing.record_id == record.record_id:
                return drive
            return await self._join(standing, call, on_unknown)

    async def _claim(self, drive: Drive) -> TaskRecord:
        """Journal the intent to call, or find the call that the key stands for."""
        standing = await self._commits.claim(drive)
        if drive.abandoned and not drive.held and standing.record_id == drive.record.record_id:
            await self._commits.take_back(drive)
        return standing

    async def _join(self, standing: TaskRecord, call: ToolCall, on_unknown: OnUnknown) -> Drive:
        """Take up the call that a key already stands for; one at a time."""
        joined: list[Drive] = []
        gone = False

        async def join() -> Drive:
            async with self._joining:
                joined.append(await self._joined(standing, call, on_unknown))
            if gone:
                self._scheduler.afterwards.forget(joined[0])
            return joined[0]

        try:
            return await self._scheduler.to_its_end(join)
        except BaseException:
            gone = True
            for drive in joined:
                self._scheduler.afterwards.forget(drive)
            raise

    async def _joined(self, standing: TaskRecord, call: ToolCall, on_unknown: OnUnknown) -> Drive:
        if standing.tool != call.name or standing.arguments_digest != digest(call.arguments):
            what = f"the tool {standing.tool!r}" if standing.tool != call.name else "other arguments"
            raise IdempotencyConflictError(
                f"The idempotency key {standing.idempotency_key!r} belongs to a call with {what}. Use a key "
                "of its own for each different call."
            )
        drive = self._scheduler.register(Drive(standing))
        if drive.call is None:
            drive.call = call
            if isinstance(drive.record.state, Gathering):
                drive.error = None  # its arguments are what it was parked for
        unsure = isinstance(drive.record.state, Calling | OutcomeUnknown) and not drive.sending
        if not unsure or drive.following or not await self._commits.take(drive):
            return drive
        match drive.record.state:
            case Calling() if not drive.inherited:
                # Refused, or abandoned before it was sent, or there would be a drive that is sending. Its
                # intent was taken back, and the key may be somebody else's by now.
                other = await self._commits.claim(drive)
                if other.record_id != drive.record.record_id:
                    return await self._joined(other, call, on_unknown)
                if not drive.owned:
                    return drive  # somebody has just taken it
                self._begin_anew(drive, SendCall())
            case Calling() | OutcomeUnknown():
                await self._lost(drive, on_unknown)
        return drive

    async def _lost(self, drive: Drive, on_unknown: OnUnknown) -> None:
        """Its call may have been sent, and nobody has the reply."""
        if isinstance(drive.record.state, Calling):
            await self._commits.feed(drive, CallLost())
        found = await self._scheduler.driver.find(drive)
        if found is not None:
            await self._commits.feed(drive, found)  # what there is to do about it, its being taken up says
            return
        if on_unknown == "raise":
            await self._commits.release(drive)
            raise OutcomeUnknownError(
                f"An earlier call of {drive.record.tool!r} under this key may have been sent, and nobody has "
                'its reply, so the tool may have run. Pass on_unknown="resend" only if it may run twice.',
                record=drive.record,
            )
        (send,) = await self._commits.feed(drive, CallAgain())
        assert isinstance(send, SendCall)
        self._begin_anew(drive, send)

    def _begin_anew(self, drive: Drive, send: SendCall) -> None:
        drive.error, drive.pending, drive.followed = None, send, False
