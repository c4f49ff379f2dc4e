"""What a server is told of the tasks that it has us run, and of which it is told nothing.

A server waits for ever for a reply, and does not ask again. So what is owed to it is journaled with the task
unless it is said in a moment: the reply that tells of the task, before it is said; one to ``tasks/result``
that has to wait; and any that did not arrive at once. A process that finds it so says it, under the ID of the
request, until the server has it or is known to: whoever asks about a task has been told of it, unless it was
in a list that the server has seen. From then on the ID may be another's, for one server gives its IDs away
again.

Of what a server needed for a task of its own that was cancelled nothing is said, be it an error: one server
loses the session by it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

import anyio

from .errors import JournalError
from .journal.base import TaskRecord
from .received import CREATION, RESULT, creation, needed_for, owed, owing, paid, told, was_abandoned
from .serving import Serving
from .sessions.peer import Peer
from .sessions.shapes_2025_11_25 import id_text
from .wire import JSONObject, RequestId, RpcError

__all__ = ["Change", "Telling"]

logger = logging.getLogger("mcp_tasks_client")

Reply: TypeAlias = Callable[[TaskRecord], JSONObject | RpcError]
"""Makes what is said of a task."""

Change: TypeAlias = Callable[[TaskRecord], TaskRecord]

_STREAM_S: Final = 1.0
"""Seconds that the stream of a session may take to open. What a server says to nobody is lost."""

_MOST_GIVEN_UP: Final = 10_000
"""Tasks of the server's that were cancelled, at most: nobody says when it needs nothing for one any more."""


class Telling:
    """Tells of tasks, for as long as one client runs them.

    Args:
        serving: Says it.
        journal: Stores a task with a change.
        in_background: Has something be done by and by.
    """

    def __init__(
        self,
        serving: Serving,
        journal: Callable[[TaskRecord, Change], Awaitable[None]],
        in_background: Callable[..., None],
    ) -> None:
        self._serving = serving
        self._journal = journal
        self._in_background = in_background
        self._given_up: dict[str, None] = {}
        self._listed: set[str] = set()
        self._creations: dict[str, anyio.CancelScope] = {}
        self._ours: defaultdict[str, set[str]] = defaultdict(set)
        """By task: the requests that we have to reply to, or could not."""

        self._waiting: dict[tuple[Peer, str], TaskRecord] = {}
        """What those that go on are about."""

    def give_up(self, task_id: str) -> None:
        """Say nothing more about what the server needs for a task of its own."""
        self._given_up[task_id] = None
        if len(self._given_up) > _MOST_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]

    def has_given_up(self, task_id: str | None) -> bool:
        """Whether nothing is said about what is needed for a task of the server's."""
        return task_id in self._given_up

    def is_over(self, record: TaskRecord) -> bool:
        """Whether nothing is said about a task."""
        return self.has_given_up(needed_for(record))

    async def say(
        self,
        peer: Peer,
        request_id: RequestId,
        record: TaskRecord,
        kind: str,
        reply: Reply,
        tried: Callable[[], None] = lambda: None,
    ) -> bool:
        """Tell of a task, unless it was needed for one that is given up. Returns whether that was said.

        Args:
            peer: Whom.
            request_id: Of what it has asked.
            record: The task.
            kind: What that is, as it is journaled if it has to be.
            reply: Makes what is said.
            tried: Called after each try.
        """
        if was_abandoned(record):
            return False
        name = id_text(request_id)

        def is_ours() -> bool:
            return name in self._ours.get(str(record.task_id), ())

        def failed() -> None:
            if not is_ours():
                self._in_background(self.owe, peer, request_id, record, kind)

        said = await self._serving.say(
            peer,
            request_id,
            reply(record),
            wanted=lambda: not self.is_over(record),
            tried=tried,
            failed=failed,
        )
        self._waiting.pop((peer, name), None)
        if said and is_ours() and kind != RESULT:  # of which it is noted that it was fetched
            self._in_background(self._note, record, partial(paid, request_id=request_id), {name})
        return said

    async def made(
        self,
        peer: Peer,
        request_id: RequestId,
        record: TaskRecord,
        tried: Callable[[], None] = lambda: None,
    ) -> None:
        """Tell that a task was made, until the server knows it. It looks at once, and is to be heard."""
        self.take_over(peer, request_id, record)
        with anyio.CancelScope() as self._creations[str(record.task_id)]:
            with anyio.move_on_after(_STREAM_S):
                await peer.listening.wait()
            await self.say(peer, request_id, record, CREATION, creation, tried)

    async def knows(self, record: TaskRecord) -> None:
        """Note that the server knows of a task, as it asks about it. Nothing is said under that ID then."""
        names = {id_text(request_id) for request_id, kind in owed(record) if kind == CREATION}
        if names and record.task_id not in self._listed:
            saying = self._creations.get(str(record.task_id))
            if saying is not None:
                saying.cancel()
            await self._note(record, told, names)

    def listed(self, records: Iterable[TaskRecord]) -> None:
        """Note that the server sees these in a list. That it asks about one of them tells nothing then."""
        untold = (one for one in records if any(kind == CREATION for _, kind in owed(one)))
        self._listed.update(str(one.task_id) for one in untold)

    def forget(self, record: TaskRecord) -> None:
        """Forget a task: its end was fetched, or its time is over."""
        self._listed.discard(str(record.task_id))
        self._ours.pop(str(record.task_id), None)
        self._creations.pop(str(record.task_id), None)
        waiting = self._waiting.items()
        self._waiting = {name: one for name, one in waiting if one.task_id != record.task_id}

    # ── what is owed ──────────────────────────────────────────────────────────────────────────

    async def owe(self, peer: Peer, request_id: RequestId, record: TaskRecord, kind: str) -> None:
        """Journal that the server waits for a reply."""
        self.take_over(peer, request_id, record)
        await self._note(record, partial(owing, request_id=request_id, kind=kind), set())

    def take_over(self, peer: Peer, request_id: RequestId, record: TaskRecord) -> None:
        """Note that a reply is owed by us from here on."""
        self._ours[str(record.task_id)].add(id_text(request_id))
        self._waiting[peer, id_text(request_id)] = record

    def withdraw(self, peer: Peer, request_id: RequestId) -> None:
        """Have nothing be owed any more to a request that the server has taken back."""
        record = self._waiting.pop((peer, id_text(request_id)), None)
        if record is not None:
            names = {id_text(request_id)}
            self._in_background(self._note, record, partial(paid, request_id=request_id), names)

    def owed_by_others(self, record: TaskRecord) -> list[tuple[RequestId, str]]:
        """What a process owes that is gone: IDs of requests, and their kinds."""
        ours = self._ours.get(str(record.task_id), set())
        return [(request_id, kind) for request_id, kind in owed(record) if id_text(request_id) not in ours]

    async def _note(self, record: TaskRecord, change: Change, names: set[str]) -> None:
        try:
            await self._journal(record, change)
        except JournalError as error:
            # The next process says something once more, or not at all.
            logger.info("What the server waits for is not journaled of %r: %s", record, error)
        else:
            self._ours.get(str(record.task_id), set()).difference_update(names)
