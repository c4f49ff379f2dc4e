"""The calls that this process has in hand for one host: begun, joined by repetitions, let go.

A call outlives the request of the host that has begun it. It is *in hand* from its beginning until its
outcome was received, or is in the journal for a later request. An equal call joins it once nobody waits for
it. So a model that repeats a call, after its host has given up, makes no second task.

A call that a process has made which has died is joined by its record in the journal. A call of another living
process is left to that process, whose host may wait for it.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import one_line, redact

from .host_request import HostRefusedError, HostRequest

__all__ = ["Call", "Calls", "Prompt"]

logger = logging.getLogger("mcp_tasks_client.bridge")

_LINGER_S: Final = 10.0
"""Seconds for which a call goes on that its host has given up, and of which the server has made no task."""

_JOURNAL_S: Final = 300.0
"""Seconds for which a call whose task the journal cannot take is kept in hand."""

_RETRY_S: Final = 3.0

_MOST_KEPT: Final = 100
"""Ended calls that are kept for a later request, at most. The journal has more of those that made a task."""

_MOST_LOOKED_AT: Final = 100
"""The newest records that a call is compared with: a repetition comes soon."""

_MOST_TAKEN_UP: Final = 1000
"""Unfinished calls of earlier processes that are taken up at the start, at most."""


@dataclass(eq=False, slots=True)
class Prompt:
    """A question that a host is to be asked."""

    question_id: str
    method: str
    params: Any


class Call:
    """One call in hand.

    Attributes:
        reference: The ID of its record.
        tool: The name of its tool.
        digest: Of its arguments, by which a repetition is found; ``None`` if the record has none.
        key: The idempotency key that the host gave; ``None`` if it gave none.
        call_id: The ID that the host itself gave to the call; ``None`` if it gave none.
        handle: Of the call; ``None`` until the server has answered with a task or a result.
        end: Its result as it came, or the error in which it ended or parked; ``None`` while it goes on.
        requests: Of the host, which wait for it.
        is_promised: Whether the host was told that the work goes on. Such a call is not cancelled if the host
            gives up. True of each call that an earlier process has begun.
        is_delivered: Whether the end has left for the host.
        prompts: The questions that the host is to be asked.
        for_persons: The questions that the host cannot be asked, by their IDs; see :meth:`forget_answered`.
        told: The IDs of those of which the model was told.
        answers: Answers that the host has brought by a repeated request, by the ID of the question.
        progress: The latest progress that the server has told, and its total.
        message: The latest message of the server about the progress.
        scope: Around the work. Cancelled to give the call up.
    """

    def __init__(
        self, reference: str, tool: str, digest: str | None, *, key: str | None = None, call_id: Any = None
    ) -> None:
        self.reference = reference
        self.tool = tool
        self.digest = digest
        self.key = key
        self.call_id = call_id
        self.handle: tasks.TaskHandle | None = None
        self.end: dict[str, Any] | Exception | None = None
        self.requests: list[HostRequest] = []
        self.is_promised = False
        self.is_delivered = False
        self.prompts: dict[str, Prompt] = {}
        self.for_persons: dict[str, tasks.Question] = {}
        self.told: set[str] = set()
        self.answers: dict[str, dict[str, Any]] = {}
        self.progress: tuple[float, float | None] | None = None
        self.message: str | None = None
        self.scope = anyio.CancelScope()
        self._changed = anyio.Event()

    @property
    def status_message(self) -> str | None:
        """The latest words of the server about the work, without the task's ID."""
        task = None if self.handle is None else self.handle.task
        said = self.message or (None if task is None else task.status_message)
        return None if said is None else redact(said, self.task_id)

    @property
    def task_id(self) -> str | None:
        """The task's ID, which is for nobody to see."""
        return None if self.handle is None else self.handle.task_id

    @property
    def has_record(self) -> bool:
        """True if the journal has the call, so that later processes find it."""
        return self.task_id is not None

    @property
    def unanswered(self) -> list[Prompt]:
        """The questions that the host is to be asked, and has not answered."""
        return [one for one in self.prompts.values() if one.question_id not in self.answers]

    def is_equal(self, tool: str, digest: str) -> bool:
        """True if a call of that tool, with arguments of that digest, is a repetition of this one."""
        return (tool, digest) == (self.tool, self.digest)

    async def forget_answered(self) -> None:
        """Forget the questions that the host cannot be asked, and somebody else has answered."""
        if self.for_persons and self.handle is not None:
            with suppress(tasks.TasksClientError):  # the journal cannot be read: they may still be open
                still_open = {one.question_id for one in await self.handle.questions()}
                for question_id in self.for_persons.keys() - still_open:
                    del self.for_persons[question_id]

    async def wait_for_change(self) -> None:
        """Wait until something about the call changes."""
        await self._changed.wait()

    def note_change(self) -> None:
        """Wake all that wait for a change."""
        self._changed.set()
        self._changed = anyio.Event()

    def take_answers(self, answers: Mapping[str, Any]) -> None:
        """Take the answers that a host has repeated its request with."""
        for question_id, answer in answers.items():
            if isinstance(answer, dict):
                self.answers[question_id] = answer
        self.note_change()

    async def ask_host(self, prompt: Prompt) -> dict[str, Any]:
        """Have the host asked, as a part of a request that waits for the call, now or later.

        Raises:
            HostRefusedError: The host has answered with an error, or does not understand the question.
        """
        self.prompts[prompt.question_id] = prompt
        self.note_change()
        try:
            while True:
                given = self.answers.pop(prompt.question_id, None)
                if given is not None:
                    return given
                able = [one for one in self.requests if one.host.can_be_asked(prompt.method, prompt.params)]
                if self.requests and not able:
                    raise HostRefusedError("no host that waits for the call understands the question")
                asked = next((one for one in able if not one.host.is_current), None)
                if asked is None:
                    await self.wait_for_change()
                    continue
                try:
                    return await asked.ask(prompt.method, prompt.params)
                except HostRefusedError:
                    if asked in self.requests:
                        raise
        finally:
            del self.prompts[prompt.question_id]
            self.note_change()


class Calls:
    """The calls of one host.

    Args:
        client: Makes the calls.
        inbox: Shows the records of the client's endpoint and principal.
        application: Of the client. Records of others, or without one, are not this host's.
        group: Runs the calls, for as long as the client is open.
        is_new: Tells of which tools each call is a new one.
    """

    def __init__(
        self,
        client: tasks.TasksClient,
        inbox: tasks.Inbox,
        application: str,
        group: TaskGroup,
        is_new: Callable[[str], bool],
    ) -> None:
        self._client = client
        self._inbox = inbox
        self._application = application
        self._group = group
        self._is_new = is_new
        self._in_hand: dict[str, Call] = {}
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
                under_key = (one for one in self._in_hand.values() if one.key == key)
                earlier = next((one for one in under_key if one.is_equal(tool, digest)), None)
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
        for call in self._in_hand.values():
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
            is_in_hand = record.record_id in self._in_hand
            if not is_equal or is_in_hand or record.idempotency_key is not None:
                continue
            # Another bridge may go on with the call of one that has died. Nobody waits there for its reply.
            if _has_ended(record.origin) or not await self._inbox.is_driven(record):
                return self._attach(record)
        return None

    async def by_reference(self, reference: str) -> Call | None:
        """The call of a reference; ``None`` if there is none for this host.

        Raises:
            JournalError: The journal could not be read.
        """
        async with self._finding:
            call = self._in_hand.get(reference)
            if call is not None:
                return call
            record = await self._inbox.record(reference)
            is_ours = record is not None and record.application == self._application
            return self._attach(record) if record is not None and is_ours else None

    async def take_up(self) -> None:
        """Go on with the unfinished calls of earlier processes.

        Raises:
            JournalError: The journal could not be read.
        """
        for record in await self.records(_MOST_TAKEN_UP):
            async with self._finding:
                is_here = record.finished or record.record_id in self._in_hand
                if not is_here and not await self._inbox.is_driven(record):
                    self._attach(record)

    async def records(self, most: int) -> list[tasks.TaskRecord]:
        """The newest calls of this host that are not over, or whose outcome nobody has received.

        The oldest of them is first.

        Raises:
            JournalError: The journal could not be read.
        """
        found = await self._inbox.records(pending=True, limit=most)
        return [one for one in found if one.application == self._application]

    def of_record(self, record_id: str) -> Call | None:
        """The call in hand of a record."""
        return self._in_hand.get(record_id)

    def newest_unanswered(self) -> Call | None:
        """The newest call in hand to which the server has not replied; ``None`` if there is none."""
        return next((one for one in reversed(self._in_hand.values()) if one.handle is None), None)

    def _attach(self, record: tasks.TaskRecord) -> Call:
        call = Call(record.record_id, record.tool or "", record.arguments_digest)
        call.is_promised = True
        self._take_in_hand(call, partial(self._client.attach, record))
        return call

    # ── the life of a call ────────────────────────────────────────────────────────────────────

    def _take_in_hand(self, call: Call, begin: Callable[[], Awaitable[tasks.TaskHandle]]) -> None:
        self._in_hand[call.reference] = call
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
                    del self._in_hand[call.reference]
                    call.reference = call.handle.reference["record_id"]
                    self._in_hand[call.reference] = call
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
        """Count a request of the host among those that wait for a call."""
        call.requests.append(request)
        call.note_change()
        try:
            yield
        finally:
            call.requests.remove(request)
            request.end()
            self._settle(call)

    def _settle(self, call: Call) -> None:
        """Have a call for which nobody waits linger, be kept for a later request, or be forgotten."""
        if call.requests:
            return
        if call.end is None:
            if not call.is_promised and call.handle is None:
                self._group.start_soon(self._linger, call)
        elif call.is_delivered or call.handle is None or not call.handle.done:
            # There is nothing to hand out. A later request finds a parked call in the journal.
            self._in_hand.pop(call.reference, None)
        else:
            kept = [one for one in self._in_hand.values() if one.end is not None and not one.requests]
            for one in kept[:-_MOST_KEPT]:
                self._in_hand.pop(one.reference, None)

    async def _linger(self, call: Call) -> None:
        """Cancel a call for which nobody waits, unless the server replies or a request joins it in time."""
        with anyio.move_on_after(_LINGER_S) as time:
            while not (call.requests or call.is_promised or call.handle or call.end):
                await call.wait_for_change()
        if time.cancelled_caught:
            call.scope.cancel()

    async def cancel(self, call: Call) -> None:
        """Have the server cancel a call. One of which it makes no task in some seconds is given up.

        Raises:
            TasksClientError: The server could not be told.
        """
        with anyio.move_on_after(_LINGER_S):
            while call.handle is None and call.end is None:
                await call.wait_for_change()
        if call.handle is not None:
            await call.handle.cancel()
        else:
            call.scope.cancel()

    def hand_out(self, call: Call, request: HostRequest) -> None:
        """Have the end of a call delivered once it was written. Until then the request waits for it."""
        call.requests.append(request)

        def tell(is_written: bool) -> None:
            call.requests.remove(request)
            call.is_delivered = call.is_delivered or is_written
            self._settle(call)
            if is_written:
                self._group.start_soon(self._acknowledge, call)

        request.when_replied(tell)

    async def _acknowledge(self, call: Call) -> None:
        if call.handle is not None and call.handle.done:
            with suppress(tasks.TasksClientError):  # it comes once more
                await call.handle.acknowledge(keep=True)


def _has_ended(origin: tasks.Origin | None) -> bool:
    """True if a process that made a call has run on this machine, and is seen to have ended."""
    import psutil  # on use: most calls repeat none of an earlier process

    return origin is not None and origin.host == socket.gethostname() and not psutil.pid_exists(origin.pid)


async def _give(handle: tasks.TaskHandle) -> tasks.TaskHandle:
    return handle
