"""A call in hand: known so far, waited for by requests of the host, and asked about.

A call outlives the request of the host that has begun it. It is *in hand* from its beginning until its
outcome was received, or is in the journal for a later request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import anyio

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import redact

from .host_request import HostRefusedError, HostRequest, Prompt

__all__ = ["Call", "InHand"]


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
        requests: Of the host, which wait for it, and those whose reply, with the end, has not left yet.
        is_promised: Whether the host was told that the work goes on. Such a call is not cancelled if the host
            gives up. True of each call that an earlier process has begun.
        is_delivered: Whether the end has left for the host.
        prompts: The questions that the host is to be asked.
        for_persons: The questions that the host cannot be asked, by their IDs; see :meth:`forget_answered`.
        told: The IDs of those of which the model was told.
        answers: Answers that the host has brought by a repeated request, by the ID of the question.
        progress: The latest progress that the server has told, and its total.
        message: The server's message with that progress, and the status message of the task as it was then.
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
        self.message: tuple[str, str | None] | None = None
        self.scope = anyio.CancelScope()
        self._changed = anyio.Event()

    @property
    def status_message(self) -> str | None:
        """The latest words of the server about the work, without the task's ID."""
        status = self._task_says
        said, before = self.message or (None, None)
        if not said or status != before:
            said = status
        return None if said is None else redact(said, self.task_id)

    @property
    def _task_says(self) -> str | None:
        task = None if self.handle is None else self.handle.task
        return None if task is None else task.status_message

    @property
    def task_id(self) -> str | None:
        """The task's ID, which is never shown."""
        return None if self.handle is None else self.handle.task_id

    @property
    def has_task(self) -> bool:
        """True if the server has made a task of the call."""
        return self.task_id is not None

    @property
    def unanswered(self) -> list[Prompt]:
        """The questions that the host is to be asked, and has not answered."""
        return [one for one in self.prompts.values() if one.question_id not in self.answers]

    def is_equal(self, tool: str | None, digest: str | None) -> bool:
        """True if a call of that tool, with arguments of that digest, is a repetition of this one."""
        return (tool, digest) == (self.tool, self.digest)

    async def forget_answered(self) -> None:
        """Forget the questions that the host cannot be asked, and that have an answer from elsewhere."""
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

    def take_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Take what the server tells of the progress."""
        self.progress = progress, total
        self.message = None if message is None else (message, self._task_says)
        self.note_change()

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
                able = [one for one in self.requests if one.host.can_be_asked(prompt)]
                if self.requests and not able:
                    raise HostRefusedError("no host that waits for the call understands the question")
                asked = next((one for one in able if not one.host.is_current), None)
                if asked is None:
                    await self.wait_for_change()
                    continue
                try:
                    return await asked.ask(prompt)
                except HostRefusedError:
                    if asked in self.requests:
                        raise
        finally:
            del self.prompts[prompt.question_id]
            self.note_change()


class InHand:
    """The calls that a process has in hand for one host, in the order of their beginnings.

    No two are of one record: a call under a key is found by the key, also before its record is known.
    """

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls.values())

    def add(self, call: Call) -> None:
        """Have a call in hand."""
        self._calls[call.reference] = call

    def drop(self, call: Call) -> None:
        """Have it no longer."""
        self._calls.pop(call.reference, None)

    def rename(self, call: Call, record_id: str) -> None:
        """Give a call the ID of its record, which another process has made under the same key."""
        self.drop(call)
        call.reference = record_id
        self.add(call)

    def by_id(self, record_id: str) -> Call | None:
        """The call whose record has this ID."""
        return self._calls.get(record_id)

    def of_record(self, record: tasks.TaskRecord) -> Call | None:
        """The call of a record."""
        call = self.by_id(record.record_id)
        if call is not None or record.idempotency_key is None:
            return call
        return self.under_key(record.idempotency_key, record.tool, record.arguments_digest)

    def under_key(self, key: str, tool: str | None, digest: str | None) -> Call | None:
        """The call of a tool that was made under a key, with arguments of that digest."""
        return next((one for one in self if one.key == key and one.is_equal(tool, digest)), None)

    def asked_about(self, context: tasks.InputContext) -> Call | None:
        """The call that a question of the server belongs to."""
        if context.reference is None:  # a server of 2025-11-25 asks in the middle of a plain call
            return next((one for one in reversed(self._calls.values()) if one.handle is None), None)
        call, key = self.by_id(context.reference["record_id"]), context.idempotency_key
        if call is not None or key is None:
            return call
        return next((one for one in self if (one.key, one.tool) == (key, context.tool)), None)
