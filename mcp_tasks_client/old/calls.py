"""The life of one ``tools/call``: sent at most once, whatever becomes of its caller.

A caller that goes away before the request has left takes the call back, and nothing of it stays.
After that the reply is waited for a little longer, since it may hold a task ID; without one the
outcome is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from .clock import being_stopped
from .drive import CallUnderWay, Drive, driven_elsewhere, overtaken
from .driver import Driver
from .errors import InputUnansweredError, OutcomeUnknownError, SessionError, TasksClientError
from .events import Action, CallBegun, CallLost, CallRefused, Event, SendCall
from .states import Calling, Gathering, OutcomeUnknown

logger = logging.getLogger("mcp_tasks_client")


class Calls:
    """Sends the calls of one endpoint.

    Args:
        driver: Takes the steps.
        perform: Does what a step says is to be done.
        park: Stops a drive, for a reason.
        leave: Lets others go on with a call that nobody drives any more.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        perform: Callable[[Drive, tuple[Action, ...]], Awaitable[None]],
        park: Callable[[Drive, Exception], None],
        leave: Callable[[Drive], None],
    ) -> None:
        self._driver = driver
        self._commits = driver.commits
        self._perform = perform
        self._park = park
        self._leave = leave

    async def run(self, drive: Drive, send: SendCall, calling: CallUnderWay) -> None:
        """See one ``tools/call`` through to its reply, to its loss, or to nobody wanting it."""
        try:
            while await self._wanted(drive, send):
                if isinstance(drive.record.state, Gathering):
                    await self._commits.feed(drive, CallBegun())
                reply = await self._reply(drive, send, calling)
                if reply is not None:
                    await self._answered(drive, *reply)
                    return
                # Cut before it left. Whoever waits again by now wants one that is not.
                calling = self._replaced(drive, calling)
        except Exception:
            # A round that was not begun begins anew with its answers, by whoever owns it then.
            if not calling.has_left and isinstance(drive.record.state, Calling):
                drive.pending = send  # for when what failed is mended
            raise
        finally:
            # Until here, whoever takes the drive up again finds a call under way.
            if drive.calling is calling:
                drive.calling = None
            if not drive.running and drive.calling is None:
                self._leave(drive)

    async def _reply(
        self, drive: Drive, send: SendCall, calling: CallUnderWay
    ) -> tuple[Event, Exception | None] | None:
        """The reply, or its loss; ``None`` if the request has not left."""
        with calling.scope:
            if send.after_s:
                await self._driver.clock.wait(anyio.Event(), send.after_s)
            try:
                if drive.record.idempotency_key is not None:
                    await self._driver.note_call(drive)
                event, error = await self._driver.call(drive, send, calling.leaving)
                if isinstance(event, CallRefused) and not calling.has_left:
                    event = CallRefused()  # what was refused was to list the tools
                return event, error
            except anyio.get_cancelled_exc_class():
                if being_stopped():
                    raise  # it is we who are being stopped
                # Something that the session awaited was cancelled; that ends this call, and nothing else.
                error = SessionError(f"tools/call for {drive.record.tool!r} was cancelled from inside.")
                return (CallLost() if calling.has_left else CallRefused()), error
            except SessionError as error:
                return (CallLost() if calling.has_left else CallRefused()), error
        return (CallLost(), None) if calling.has_left else None

    def _replaced(self, drive: Drive, calling: CallUnderWay) -> CallUnderWay:
        fresh = CallUnderWay()
        if drive.calling is calling:
            drive.calling = fresh
        return fresh

    async def _wanted(self, drive: Drive, send: SendCall) -> bool:
        """Whether anybody waits for a call that is about to be sent. If not, it is taken back."""
        if not drive.running:
            if isinstance(drive.record.state, Calling):
                await self._commits.feed(drive, CallRefused())
            if isinstance(drive.record.state, Gathering):
                return drive.running  # its answers are kept, and the round can begin later
            if isinstance(drive.record.state, OutcomeUnknown):
                self._park(drive, lost(drive, None))  # to be sent again, that has to be allowed again
                return False
            drive.abandoned = True
            if not drive.running:
                drive.pending = send  # for a handle that is awaited after all
                return False
        if drive.abandoned:
            # Taken back, and then wanted after all by somebody else with the same key.
            await self._commits.claim(drive)
            if not drive.owned:
                self._park(drive, overtaken(drive))
                return False
            drive.abandoned = False  # only now: without its intent it must not leave
        if not drive.owned:
            self._park(drive, driven_elsewhere(drive))  # or somebody else would send it as well
            return False
        return True

    async def _answered(self, drive: Drive, event: Event, error: Exception | None) -> None:
        """Do what the reply to ``tools/call`` means, or its absence."""
        actions = await self._commits.feed(drive, event)
        match event:
            case CallRefused():
                self._park(drive, error or lost(drive, None))
            case CallLost():
                found = await self._driver.find(drive)
                if found is None:
                    self._park(drive, lost(drive, error))
                else:
                    await self._perform(drive, await self._commits.feed(drive, found))
            case _:
                await self._perform(drive, actions)


def needs_its_call(drive: Drive) -> InputUnansweredError:
    """What to tell about a call that cannot go on here, since its arguments are not known here."""
    state = drive.record.state
    questions = state.questions if isinstance(state, Gathering) else ()
    keys = tuple(q.key for q in questions if q.stage in ("open", "asking"))
    return InputUnansweredError(
        f"The server asked before it began {drive.record.tool!r}, and the arguments are not in the journal. "
        "Repeat the call with its arguments and its idempotency key; what was answered is kept.",
        keys=keys,
    )


def lost(drive: Drive, cause: Exception | None) -> Exception:
    """What to tell about a ``tools/call`` whose reply never came."""
    record = drive.record
    if record.idempotency_key is not None:
        error: Exception = OutcomeUnknownError(
            f"The reply to tools/call for {record.tool!r} was lost, so the tool may have run. "
            'Call again with on_unknown="resend" only if it may run twice.',
            record=record,
        )
        error.__cause__ = cause
        return error
    logger.warning(
        "The reply to tools/call for %r was lost. The tool may have run; without an idempotency key "
        "nothing is journaled before the reply, so there is nothing to resume.",
        record.tool,
    )
    return cause or TasksClientError(
        f"The call of {record.tool!r} was abandoned and its reply was lost; the tool may have run."
    )
