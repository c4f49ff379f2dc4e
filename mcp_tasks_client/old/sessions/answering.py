"""What is said to a server of 2025-11-25 that asks on behalf of its tasks, until it has arrived.

Where a connection tells nothing of what becomes of an answer, the task does: it waits no more. An answer
without that effect is said again, under the same ID, ever more rarely: a server that has it passes over the
second one. It is not said where another question has the ID by now, since one official server gives its IDs
away again: unless they are numbers, no answer is, once the stream has ended on which that question would have
come.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Final
from weakref import WeakValueDictionary

import anyio

from ..errors import ConnectionLostError, SessionError
from ..wire import JSONObject, RequestId
from .asked import Asked
from .base import INVALID_PARAMS, TaskRef
from .hearing import Hearing
from .peer import Peer
from .peers import Peers
from .said import Said
from .shapes_2025_11_25 import Memo, marked

__all__ = ["Answering"]

logger = logging.getLogger("mcp_tasks_client")

_AGAIN_S: Final = 5.0
"""Seconds that an answer has to show an effect, before it is said again; twice as many the next time."""

_POLL_S: Final = 30.0
"""Seconds for a poll to tell how a task is that another process had; then it is waited for its end."""

_LAST_WORD_S: Final = 1.0
"""Seconds for an answer to arrive that is on its way, when nobody waits for that any more."""

_KEPT: Final = "The answer is kept until the server asks for it again, as it does not just now."

_TAKEN_BACK: Final = "The question was taken back meanwhile."

_LOOKS: Final = 2
"""Snapshots that have to show none meanwhile: the first may be from before it was read."""


class Answering:
    """Answers what a server asks for its tasks.

    Args:
        hearing: Has the questions.
        peers: Has the sessions.
        timeout_s: Seconds that an answer may take to be taken.
    """

    def __init__(self, hearing: Hearing, peers: Peers, timeout_s: float) -> None:
        self._hearing = hearing
        self._peers = peers
        self._timeout_s = timeout_s
        self._turns: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()

    def recall(self, peer: Peer, ref: TaskRef) -> None:
        """Note what the journal knows of a task's questions: what was asked of us before, or of who was."""
        if not ref.questions or self._hearing.given_up(ref.task_id):
            return
        asked, memo = self._hearing.asked(ref.task_id), Memo.read(ref.request_state)
        acknowledged = [one.key for one in ref.questions if one.stage == "acknowledged"]
        if acknowledged:
            self._hearing.retrievals.pauses.was_answered(ref.task_id)
        asked.learn(acknowledged, memo.answered)
        for one in ref.questions:
            if one.request is not None and one.key in memo.asked and memo.session_id == peer.session_id:
                ids = [
                    request_id
                    for request_id in memo.asked[one.key]
                    if self._hearing.ids.may_be(peer, request_id, ref.task_id, one.request)
                ]
                asked.restore(peer, one.key, ids, one.request, answered=not one.unanswered)

    async def attend(self, ref: TaskRef, slots: anyio.Semaphore) -> None:
        """Take back what waits for a process that may be gone, before a poll is due.

        What the server says then waits there until somebody observes the task, and journals it.

        Args:
            ref: The task.
            slots: For so many requests at once.

        Raises:
            SessionError: It could not be taken back.
        """
        memo, retrievals = Memo.read(ref.request_state), self._hearing.retrievals
        retrievals.observed(ref.task_id)
        if memo.session_id is None or memo.retrieval is None or self._hearing.given_up(ref.task_id):
            return
        async with slots:
            peer = self._peers.adopt(memo.session_id)
            if not peer.lost:
                await retrievals.free(peer, ref.task_id, memo.retrieval)

    async def questions(self, peer: Peer, ref: TaskRef, since: float = math.inf) -> JSONObject:
        """What the server asks for a task, over this connection or one of the process before."""
        memo = Memo.read(ref.request_state)
        before = memo.retrieval if memo.session_id == peer.session_id else None
        return await self._hearing.questions(peer, ref.task_id, before, since)

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        """Answer what the server has asked for a task, and return when it has that, as far as can be known.

        Raises:
            SessionError: Not all of it was answered. ``retryable`` if the server did not ask just now.
        """
        if self._hearing.given_up(ref.task_id):
            raise SessionError("The task was cancelled; its questions are not answered.", code=INVALID_PARAMS)
        asked = self._hearing.asked(ref.task_id)
        unsure: dict[str, Said[Peer]] = {}
        for key, answer in answers.items():
            # One at a time: by the second the server may have another question under the ID.
            async with self._turns.setdefault((ref.task_id, key), anyio.Lock()):
                said = asked.said(key)
                if not asked.was_answered(key):
                    said = await self._answer(ref, asked, key, marked(answer, ref.task_id))
            if said is not None:
                unsure[key] = said
        for key, said in unsure.items():
            await self._has_effect(ref, asked, said, marked(answers[key], ref.task_id))

    async def _answer(
        self, ref: TaskRef, asked: Asked[Peer], key: str, answer: JSONObject
    ) -> Said[Peer] | None:
        """Send an answer. Returns it, if it is not known to have arrived."""
        unknown = not asked.waiting(key) and not self._hearing.seen(ref.task_id)
        # Asked of a process that may be gone, and that may have answered. If it is over, nobody is told.
        if unknown and await self._is_over(ref, asked):
            return None
        requests = asked.waiting(key)
        if not requests:
            raise ConnectionLostError(_KEPT, retryable=True)
        if all(peer.acknowledges for peer, _ in requests):
            # One that is said again may have arrived, so that the server asks what only comes to who waits.
            again = any(one.left_during is not None for one in asked.behind(key))
            rest = nullcontext() if again else self._hearing.at_rest(requests[0][0], ref.task_id)
            async with rest:
                requests = asked.waiting(key)  # the server may have taken one back meanwhile
                if not requests:
                    raise ConnectionLostError(_TAKEN_BACK, retryable=True)
                behind = asked.leaves(key, self._hearing.retrievals.streams(ref.task_id))

                async def tell() -> None:
                    await self._tell(ref, asked, requests, answer)
                    asked.answered(key, behind)

                await _to_its_end(tell)
            return None
        said = asked.says(key, requests)
        try:
            await self._tell(ref, asked, requests, answer)
        except BaseException:
            asked.unsaid(said)
            raise
        return said

    async def _is_over(self, ref: TaskRef, asked: Asked[Peer]) -> bool:
        """Whether a task is over of which this process has seen nothing, and what it asks, if it is not.

        Raises:
            SessionError: That cannot be known just now.
        """
        with anyio.move_on_after(_POLL_S) as polled:
            await asked.seen.wait()
        if asked.over:
            return True
        if polled.cancelled_caught:
            # No poll is due yet, and none is made: a request that waits for the end tells as much.
            peer = await self._peers.of(Memo.read(ref.request_state).session_id)
            self.recall(peer, ref)
            await self.questions(peer, ref)
        # What it was given to may have another question by now, which comes as soon as somebody waits.
        await self._hearing.next_question(ref.task_id)
        ended = self._hearing.retrievals.is_over(ref.task_id)
        if ended is None and polled.cancelled_caught and not asked.over:
            if self._hearing.retrievals.failures.is_unknown(ref.task_id):
                # Only a poll finds it in another session, or says that it is lost.
                await self._peers.ask("tasks/get", ref)
            raise ConnectionLostError(_KEPT, retryable=True)
        return asked.over or bool(ended)

    async def _tell(
        self,
        ref: TaskRef,
        asked: Asked[Peer],
        requests: Sequence[tuple[Peer, RequestId]],
        answer: JSONObject,
    ) -> None:
        told, failed = False, list[SessionError]()
        for peer, request_id in requests:
            if self._hearing.given_up(ref.task_id):
                return  # cancelled meanwhile
            try:
                await peer.answer(request_id, answer, self._timeout_s, ref.task_id)
                told = True
            except SessionError as error:
                if not peer.lost:
                    raise
                failed.append(error)  # of another session it may be the task by now
                continue
            if asked.was_withdrawn(peer, request_id):
                raise ConnectionLostError(_TAKEN_BACK, retryable=True)
        if failed and not told:
            raise failed[0]

    async def _has_effect(
        self, ref: TaskRef, asked: Asked[Peer], said: Said[Peer], answer: JSONObject
    ) -> None:
        """Return when an answer has arrived, or is of no use any more.

        Raises:
            SessionError: It was not for what the server wants to know now.
        """
        stream = self._hearing.retrievals.stream(ref.task_id)
        # Whoever counts its requests gives no ID away again.
        counted = all(isinstance(request_id, int) for _, request_id in said.requests)
        pause_s, since = _AGAIN_S, anyio.current_time()
        while said.arrived is None:
            await said.news.wait()
            stream = stream or self._hearing.retrievals.stream(ref.task_id)
            if said.arrived is None and said.looks >= _LOOKS and anyio.current_time() - since >= pause_s:
                now = self._hearing.retrievals.stream(ref.task_id)
                if counted or (stream is not None and stream is now):
                    logger.info("An answer has shown no effect for %.0f s, and is said again.", pause_s)
                    await self._tell(ref, asked, said.requests, answer)
                said.looks, pause_s, since = 0, 2 * pause_s, anyio.current_time()
        if not said.arrived:
            raise ConnectionLostError(_TAKEN_BACK, retryable=True)


async def _to_its_end(send: Callable[[], Awaitable[None]]) -> None:
    """Send something, and do not stop half-way at once: who stops would have to say it again in any case."""
    failed, over, scope = list[Exception](), anyio.Event(), anyio.CancelScope(shield=True)

    async def run() -> None:
        with scope:
            try:
                await send()
            except Exception as error:
                failed.append(error)
        over.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            await over.wait()
        finally:
            scope.deadline = anyio.current_time() + _LAST_WORD_S
    if failed:
        raise failed[0]
