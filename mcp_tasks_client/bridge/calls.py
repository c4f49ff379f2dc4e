"""The calls of one host: begun, joined by repetitions, let go.

An equal call joins one that is in hand, once no request waits for that one. So a model that repeats a call,
after its host has given up, makes no second task.

A call that a process has made which has died is joined by its record in the journal. A call of another living
process is left to that process, whose host may wait for it.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import one_line

from .host_request import HostRequest
from .in_hand import Call, InHand

__all__ = ["Calls"]

logger = logging.getLogger("mcp_tasks_client.bridge")

_LINGER_S: Final = 10.0
"""Seconds for which a call goes on that its host has given up, and of which the server has made no task."""

_JOURNAL_S: Final = 300.0
"""Seconds for which a call whose task the journal cannot take is kept in hand."""

_RETRY_S: Final = 3.0

_READ_S: Final = 5.0
"""Seconds for which a request waits until the journal has given a call back, at most."""

_MOST_KEPT: Final = 100
"""Ended calls that are kept for a later request, at most. The journal has more of those that made a task."""

_MOST_LOOKED_AT: Final = 100
"""The newest records that a call is compared with: a repetition comes soon."""

_MOST_TAKEN_UP: Final = 1000
"""Unfinished calls of earlier processes that are taken up at the start, at most."""


class Calls:
    """The calls of one host.

    Args:
        client: Makes the calls.
        inbox: Shows the records of the client's endpoint and principal.
        in_hand: The calls in hand, which this object alone adds and drops.
        application: Of the client. Records of others, or without one, are not this host's.
        group: Runs the calls, for as long as the client is open.
        is_new: Tells of which tools each call is a new one.
    """

    def __init__(
        self,
        client: tasks.TasksClient,
        inbox: tasks.Inbox,
        in_hand: InHand,
        application: str,
        group: TaskGroup,
        is_new: Callable[[str], bool],
    ) -> None:
        self._client = client
        self._inbox = inbox
        self._application = application
        self._group = group
        self._is_new = is_new
        self._in_hand = in_hand
        self._finding = anyio.Lock()

    # ── finding ───────────────────────────────────────────────────────────────────────────────

    async def find_or_begin(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        meta: Mapping[str, Any],
        key: str | None,
        call_id: Any,
    ) -> tuple[Call, bool]:
        """The call that a request of the host stands for, and whether it is an earlier one without a key.

        Args:
            tool: Its name.
            arguments: Its arguments.
            meta: Entries for the ``_meta`` of the request.
            key: An idempotency key of the host's.
            call_id: The ID that the host itself gives to a call; ``None`` if it gives none.

        Raises:
            TasksClientError: The journal could not be read.
            ValueError: The arguments have no JSON form.
        """
        digest = tasks.digest_arguments(arguments)
        async with self._finding:
            if key is None:
                earlier = await self._find(tool, digest, call_id)
            else:
                earlier = self._in_hand.under_key(key, tool, digest)
            if earlier is not None:
                return earlier, key is None
            call = Call(secrets.token_hex(16), tool, digest, key=key, call_id=call_id)
            begin = partial(
                self._client.start_tool,
                tool,
                arguments,
                idempotency_key=key,
                # By this token the server's progress finds the call.
                meta={**meta, "progressToken": call.reference},
                record_id=call.reference,
            )
            self._take_in_hand(call, begin)
            return call, False

    async def _find(self, tool: str, digest: str, call_id: Any) -> Call | None:
        for call in self._in_hand:
            if call.key is not None:
                continue
            is_same = call_id is not None and call.call_id == call_id
            is_free = not (call.requests or call.is_delivered or self._is_new(tool))
            if call.is_equal(tool, digest) and (is_same or is_free):
                return call
        if self._is_new(tool):
            return None
        for record in reversed(await self.records(_MOST_LOOKED_AT)):
            is_equal = (record.tool, record.arguments_digest) == (tool, digest)
            is_in_hand = self._in_hand.of_record(record) is not None
            if not is_equal or is_in_hand or record.idempotency_key is not None:
                continue
            # Another bridge may go on with the call of one that has died, with no request that waits for it.
            if _has_ended(record.origin) or not await self._inbox.is_driven(record):
                return self._attach(record)
        return None

    async def by_reference(self, reference: str) -> Call | None:
        """The call of a reference; ``None`` if there is none for this host.

        The end of a call that has ended is read first, for five seconds at most.

        Raises:
            JournalError: The journal could not be read.
        """
        async with self._finding:
            call = self._in_hand.by_id(reference)
            if call is not None:
                return call
            record = await self._inbox.record(reference)
            if record is None or record.application != self._application:
                return None
            call = self._in_hand.of_record(record)
            if call is not None:
                return call
            call = self._attach(record)
        with anyio.move_on_after(_READ_S):
            while call.end is None and (call.handle is None or record.finished):
                await call.wait_for_change()
        return call

    async def take_up(self) -> None:
        """Go on with the unfinished calls of earlier processes.

        Raises:
            JournalError: The journal could not be read.
        """
        for record in await self.records(_MOST_TAKEN_UP):
            async with self._finding:
                is_here = record.finished or self._in_hand.of_record(record) is not None
                if not is_here and not await self._inbox.is_driven(record):
                    self._attach(record)

    async def records(self, most: int) -> list[tasks.TaskRecord]:
        """The newest calls of this host that are not over, or whose outcome was not received.

        The oldest of them is first.

        Raises:
            JournalError: The journal could not be read.
        """
        found = await self._inbox.records(pending=True, limit=most)
        return [one for one in found if one.application == self._application]

    def without_record(self) -> list[Call]:
        """The calls that the host may ask for, and that are not in the journal."""
        return [
            one
            for one in self._in_hand
            if one.is_promised and not one.is_delivered and not one.has_task and one.key is None
        ]

    def _attach(self, record: tasks.TaskRecord) -> Call:
        key = record.idempotency_key
        call = Call(record.record_id, record.tool or "", record.arguments_digest, key=key)
        call.is_promised = True
        self._take_in_hand(call, partial(self._client.attach, record))
        return call

    # ── the life of a call ────────────────────────────────────────────────────────────────────

    def _take_in_hand(self, call: Call, begin: Callable[[], Awaitable[tasks.TaskHandle]]) -> None:
        self._in_hand.add(call)
        self._group.start_soon(self._see_through, call, begin)

    async def _see_through(self, call: Call, begin: Callable[[], Awaitable[tasks.TaskHandle]]) -> None:
        with call.scope:
            try:
                call.end = await self._see_end(call, begin)
            except Exception as error:
                call.end = error
        if call.end is None:
            call.end = tasks.TasksClientError("The host has given the call up.")
        call.note_change()
        self._settle(call)

    async def _see_end(
        self, call: Call, begin: Callable[[], Awaitable[tasks.TaskHandle]]
    ) -> dict[str, Any] | Exception | None:
        """The end of a call. While the journal cannot be written, a task of the server's is waited for."""
        patient_until = anyio.current_time() + _JOURNAL_S
        while True:
            try:
                call.handle = await begin()
                if call.handle.reference["record_id"] != call.reference:
                    # The key stands for an earlier call.
                    self._in_hand.rename(call, call.handle.reference["record_id"])
                call.note_change()
                end, record = await call.handle.peek(), call.handle.record
                assert record is not None, "this handle is not detached"
                # The result as it came has fields that no model names, at every level.
                return end if isinstance(end, Exception) else record.result
            except tasks.JournalError as error:
                handle = error.handle
                if not isinstance(handle, tasks.TaskHandle) or handle.task_id is None:
                    raise
                if isinstance(error, tasks.CallForgottenError) or anyio.current_time() > patient_until:
                    raise
                logger.warning("A call of %s waits for the journal: %s", one_line(call.tool, 100), error)
                call.handle = handle
                begin = partial(_give, handle)
                await anyio.sleep(_RETRY_S)

    @contextmanager
    def waiting(self, call: Call, request: HostRequest) -> Iterator[None]:
        """Have a request of the host wait for a call as long as the block runs.

        The block ends after :meth:`end_for`, or the host has given the request up.
        """
        call.requests.append(request)
        call.note_change()
        try:
            yield
        finally:
            call.requests.remove(request)
            request.end()
            self._settle(call)

    def end_for(self, call: Call, request: HostRequest) -> dict[str, Any] | Exception | None:
        """The end of a call, which the reply to a waiting request is to bring; ``None`` if it goes on.

        The host is then told so, and may come for the end later, however long the call takes.
        """
        if call.end is None:
            call.is_promised = True
        else:
            self._hand_out(call, request)
        return call.end

    def _settle(self, call: Call) -> None:
        """Have a call without a waiting request linger, be kept for a later one, or be forgotten."""
        if call.requests:
            return
        if call.end is None:
            if not call.is_promised and call.handle is None:
                self._group.start_soon(self._linger, call)
        elif call.is_delivered or call.handle is None or not call.handle.done:
            # There is nothing to hand out. A later request finds a parked call in the journal.
            self._in_hand.drop(call)
        else:
            kept = [one for one in self._in_hand if one.end is not None and not one.requests]
            for one in kept[:-_MOST_KEPT]:
                self._in_hand.drop(one)

    async def _linger(self, call: Call) -> None:
        """Cancel a call without a waiting request, unless the server replies or a request joins in time."""
        with anyio.move_on_after(_LINGER_S) as time:
            while not (call.requests or call.is_promised or call.handle or call.end):
                await call.wait_for_change()
        if time.cancelled_caught:
            call.scope.cancel()

    async def cancel(self, call: Call) -> bool:
        """Have the server cancel a call. One of which it makes no task in some seconds is given up.

        Returns:
            False if the call has ended, so that there is nothing to cancel.

        Raises:
            TasksClientError: The server could not be told.
        """
        with anyio.move_on_after(_LINGER_S):
            while call.handle is None and call.end is None:
                await call.wait_for_change()
        if call.handle is None and call.end is None:
            call.scope.cancel()
        elif call.handle is None or call.handle.done:
            return False
        else:
            await call.handle.cancel()
        return True

    def _hand_out(self, call: Call, request: HostRequest) -> None:
        """Count the end of a call as received once the reply has left. Until then the request still waits."""
        call.requests.append(request)

        def tell(has_left: bool) -> None:
            call.requests.remove(request)
            call.is_delivered = call.is_delivered or has_left
            if has_left:
                self._group.start_soon(self._acknowledge, call)
            else:
                self._settle(call)

        request.reply.when_settled(tell)

    async def _acknowledge(self, call: Call) -> None:
        if call.handle is not None and call.handle.done:
            with suppress(tasks.TasksClientError):  # it comes once more
                await call.handle.acknowledge(keep=True)
        self._settle(call)  # no earlier: what is in hand is not looked up in the journal


def _has_ended(origin: tasks.Origin | None) -> bool:
    """True if a process that made a call has run on this machine, and is seen to have ended."""
    import psutil  # on use: most calls repeat none of an earlier process

    return origin is not None and origin.host == socket.gethostname() and not psutil.pid_exists(origin.pid)


async def _give(handle: tasks.TaskHandle) -> tasks.TaskHandle:
    return handle
