"""What a server of 2025-11-25 says by itself: questions, on whichever stream, and how its tasks are.

It asks in requests of its own, which belong to a task or to a call that is none. Those of a task are put
where its next snapshot finds them; the others are answered here.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio

from ..errors import SessionError
from ..inputs import Inputs
from ..parties import Adopt
from ..receiver import Receiver
from ..wire import JSONObject, RequestId, digest, shorten
from .asked import Asked
from .background import Background
from .hints import Hints
from .known_ids import KnownIds
from .peer import Peer
from .plain import QUESTIONS, PlainQuestions
from .progress import Progress
from .resting import Resting
from .retrieval import Retrieval
from .retrievals import Retrievals
from .server_streams import ServerStreams
from .shapes_2025_11_25 import ended, lasting, related_task, request_id_of, snapshot
from .switchboard import GIVEN_AWAY

__all__ = ["Hearing"]

logger = logging.getLogger("mcp_tasks_client")

_QUESTION_S: Final = 1.0
_LONGEST_QUESTION_S: Final = 10.0
"""Seconds for a question to come, once it has been asked for; more where the server is far away."""

_SILENCES: Final = 5
"""Looks in a row at which a server waits for an answer to nothing, before that is told."""

_BACK_S: Final = 30.0
"""Seconds between two looks in a session that is gone, at least."""

_SILENT: Final = (
    "The server waits for an answer in the task %s, and has asked nothing that was heard: it may have asked "
    "over a connection that broke. Cancel the task if it does not go on."
)
_WANTED: Final = frozenset({"completed", "failed", "input_required"})
_MOST_STRANGERS: Final = 1000
"""Tasks of which nothing is known but that something is asked for them, at most."""


class Hearing:
    """Hears what servers say, for one session of ours.

    Args:
        inputs: Answers what is asked for a call that is no task.
        timeout_s: Seconds that an answer may take to be taken.
        tools_changed: Called when a server says that its list of tools has changed.
        receiver: Runs what a server wants as a task; ``None`` if nobody does.

    Attributes:
        hints: Tell what was said.
        background: What is done meanwhile.
        progress: What was said of how far the tasks are.
        streams: Those on which servers speak by themselves.
        retrievals: The ``tasks/result`` that wait for them.
        ids: What has come under which.
    """

    def __init__(
        self,
        inputs: Inputs,
        timeout_s: float,
        tools_changed: Callable[[], None],
        receiver: Receiver | None = None,
    ) -> None:
        self.progress = Progress()
        self.retrievals = Retrievals(timeout_s)
        self.ids = KnownIds()
        self._timeout_s = timeout_s
        self._tools_changed = tools_changed
        self._receiver = receiver
        self.background = Background()
        self.streams = ServerStreams(self.background)
        self._asked: defaultdict[str, Asked[Peer]] = defaultdict(Asked)
        self.hints = Hints(self._asked, self.retrievals, self.progress)
        self._resting = Resting(self._asked, self.retrievals, self.background, self.hints)
        self._given_up: set[str] = set()
        self._early: dict[str, None] = {}
        self._plain = PlainQuestions(inputs, timeout_s)

    async def run(self, adopt: Adopt | None = None) -> None:
        """Keep the streams open on which servers speak. Never returns.

        Args:
            adopt: Gives the peer of a session that there was before; needed for what is run for servers.
        """
        if self._receiver is None or adopt is None:
            await self.background.run()
        else:
            await self.background.run(self._receiver.run, adopt, self.streams.attend)

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    def seen(self, task_id: str) -> JSONObject:
        """The latest snapshot of a task that goes on; empty if there was none."""
        return self.hints.seen.get(task_id, {})

    def expects(self, peer: Peer, task_id: str, task: JSONObject) -> None:
        """Note the first snapshot of a task that goes on, before it is known what it asks."""
        if task_id not in self.hints.seen:
            self.hints.saw(peer, task_id, {**task, "taskId": task_id})

    def saw(self, peer: Peer, task: JSONObject) -> None:
        """Note a snapshot of a task that goes on."""
        self.hints.saw(peer, task["taskId"], task)
        if task["taskId"] in self._asked:
            self._asked[task["taskId"]].seen.set()
        self.streams.attend(peer)
        self._hear_early(peer, task["taskId"])

    def forget(self, task_id: str) -> None:
        """Forget a task: it is over."""
        self.hints.forget(task_id)
        self._close(task_id)
        self.retrievals.forget(task_id)
        self._given_up.discard(task_id)
        self._early.pop(task_id, None)
        self.progress.forget(task_id)

    def leave(self, task_id: str) -> anyio.Event | None:
        """Forget a task that nobody observes any more, once nothing is heard of it any more.

        What it asks is kept: the server does not ask it again.

        Returns:
            What is set then; ``None`` if that is now.
        """
        if task_id in self._given_up:
            self.forget(task_id)
            return None
        if task_id in self._asked:
            self._asked[task_id].leave()
        left = self.retrievals.leave(task_id)
        if left is None or not self.background.runs:
            self._unheard(task_id)
            return None
        retrieval, unheard = left
        self.background.begin(self._hear_out, task_id, retrieval, unheard)
        return unheard

    async def _hear_out(self, task_id: str, retrieval: Retrieval, unheard: anyio.Event) -> None:
        if await self.retrievals.end(task_id, retrieval, unheard):
            self._unheard(task_id)

    def _unheard(self, task_id: str) -> None:
        # Not before: what was answered tells a question that is heard from one that was.
        if task_id in self._asked and not self._asked[task_id].leave():
            del self._asked[task_id]
        self.hints.forget(task_id)
        self.progress.forget(task_id)

    def give_up(self, task_id: str) -> None:
        """Answer none of a task's questions any more."""
        self._given_up.add(task_id)
        self._close(task_id)
        if self._receiver is not None:
            self._receiver.give_up(task_id)
        self.retrievals.expect_end(task_id)

    def _close(self, task_id: str) -> None:
        if task_id in self._asked:
            self._asked.pop(task_id).close()

    def given_up(self, task_id: str) -> bool:
        """Whether its questions are not answered any more."""
        return task_id in self._given_up

    def lose(self, peer: Peer) -> None:
        """Put aside what was asked over a session that is gone."""
        for asked in self._asked.values():
            asked.lose(peer)
        self.ids.lose(peer)

    def find(self, peer: Peer) -> None:
        """Have asked again what was asked over a session that is not gone after all."""
        for asked in self._asked.values():
            asked.find(peer)

    def was_asked_in(self, peer: Peer, task_id: str) -> bool:
        """Whether something was asked for a task over a session that is gone, and has no answer."""
        return task_id in self._asked and self._asked[task_id].was_asked_in(peer)

    def look_back(self, task_id: str) -> Peer | None:
        """The session in which a task has asked something that waits, if it is time to look there again."""
        asked, now = self._asked.get(task_id), anyio.current_time()
        waits = self.seen(task_id).get("status") == "input_required"
        if asked is None or asked.open or not waits or now < asked.looked_back_at + _BACK_S:
            return None
        asked.looked_back_at = now
        return asked.put_aside()

    def asked(self, task_id: str) -> Asked[Peer]:
        """What is open for a task."""
        return self._asked[task_id]

    def looking(self, task_id: str) -> Callable[[bool], None]:
        """Begin to look at a task. What this returns is to be told whether it waits for an answer."""
        asked = self._asked.get(task_id) or Asked()
        return partial(asked.looked, asked.all_said())

    def asks(self, task_id: str) -> bool:
        """Whether anything is open for a task."""
        return task_id in self._asked and self._asked[task_id].open

    @asynccontextmanager
    async def at_rest(self, peer: Peer, task_id: str) -> AsyncIterator[None]:
        """Have nothing wait while an answer leaves, as far as possible, and hear then what came meanwhile."""
        try:
            async with self._resting.before_answer(peer, task_id):
                yield
        except SessionError as error:
            if error.retry_after_s is None:
                self._early[task_id] = None  # it may have arrived, and the next poll be a long time off
            raise
        finally:
            self._hear_early(peer, task_id)  # it may have told that it asks the next one

    def _hear_early(self, peer: Peer, task_id: str) -> None:
        """Act upon what was told of a task when that was of no use yet, if it is now."""
        if task_id in self._early and not self.retrievals.pauses.is_answering(task_id):
            del self._early[task_id]
            if task_id in self.hints.seen and task_id not in self._given_up:
                self._retrieve(peer, task_id)

    def works_on(self, peer: Peer, task_id: str) -> None:
        """Have something wait again after a while though a task works: it may ask what it does not tell."""
        if self.retrievals.pauses.has_rested(task_id) and task_id not in self._given_up:
            self.retrievals.doubt(task_id)
            self._retrieve(peer, task_id)

    async def questions(
        self, peer: Peer, task_id: str, before: RequestId | None, since: float = math.inf
    ) -> JSONObject:
        """What the server asks for a task, waited for a moment if it has only begun to.

        Args:
            peer: Whom it is asked of.
            task_id: The task.
            before: The ID of a ``tasks/result`` that waits for a process which may be gone.
            since: When the server was asked how the task is; ``inf`` if it is known how that is now.
        """
        if task_id in self._given_up:
            return {}
        asked = self._asked[task_id]
        if self.retrievals.pauses.is_outdated(task_id, since):
            return asked.questions()
        self._retrieve(peer, task_id, before)
        self.retrievals.hurry(task_id)
        with anyio.move_on_after(self._timeout_s):  # whatever is said next moves the task on
            await self.retrievals.alone(task_id)
        if not asked.questions():
            await self.next_question(task_id)
        questions = asked.questions()
        if not questions:
            self.retrievals.doubt(task_id)  # the next look has another one wait
        works = self._receiver is not None and self._receiver.works_for(task_id)
        asked.silences = 0 if questions or works else asked.silences + 1
        if asked.silences == _SILENCES:
            logger.warning(_SILENT, shorten(task_id))
        return questions

    async def next_question(self, task_id: str) -> None:
        """Wait a moment for a question of a task's."""
        asked = self._asked[task_id]
        asked.news = anyio.Event()
        with anyio.move_on_after(min(max(_QUESTION_S, 2 * self.retrievals.took_s), _LONGEST_QUESTION_S)):
            await asked.news.wait()

    def _retrieve(self, peer: Peer, task_id: str, before: RequestId | None = None) -> None:
        """Have a ``tasks/result`` wait for a task's end, and for its questions before that."""
        if self.background.runs and self.retrievals.may_begin(task_id):
            retrieval = self.retrievals.begin(peer, task_id, before)
            retrieval.goes = partial(self.hints.tell_memo, peer, task_id)
            self.background.begin(self._await_result, task_id, retrieval)
            self.hints.begin_to_insist(self.background, peer, task_id)

    async def _await_result(self, task_id: str, retrieval: Retrieval) -> None:
        try:
            await self.retrievals.run(task_id, retrieval)
        finally:
            if task_id in self._asked:
                self._asked[task_id].news.set()  # there will be no question while nobody is there to get it
        task, reply = self.hints.seen.get(task_id), retrieval.reply
        # Of anything else a poll tells what it means.
        if task is not None and reply is not None and "content" in reply:
            self.hints.tell(ended({**task, "status": "completed"}, reply))

    # ── messages ──────────────────────────────────────────────────────────────────────────────

    def told(self, peer: Peer, message: JSONObject) -> None:
        """Take a request or a notification. What cannot be read is passed over."""
        try:
            self._take(peer, message)
        except (RecursionError, ValueError, TypeError, OverflowError) as error:
            logger.warning("The server said what cannot be read: %s", type(error).__name__)

    def _take(self, peer: Peer, message: JSONObject) -> None:
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        request_id = request_id_of(message)
        task_id = related_task(params)
        if request_id is not None:
            self._given_away(peer, request_id, task_id if method in QUESTIONS else None, message)
        silenced = request_id is not None and method in QUESTIONS and task_id in self._given_up
        if silenced or (self._receiver is not None and self._receiver.told(peer, message)):
            return
        if request_id is not None:
            if method not in QUESTIONS or task_id is None:
                if self.background.runs and self._plain.add(peer, message):
                    self.background.begin(self._plain.answer, peer, message)
            elif self._has_room(task_id):
                asked = self._asked[task_id]
                self.retrievals.said_to(task_id)
                asked.add(peer, request_id, str(method), params, self.retrievals.streams(task_id))
                if peer.lost:
                    asked.lose(peer)  # nobody could answer there, unless it is found again
                    return
                self.hints.tell_memo(peer, task_id, status="input_required")
                self.hints.begin_to_insist(self.background, peer, task_id)
            return
        match method:
            case "notifications/tasks/status":
                self._status(peer, params)
            case "notifications/tools/list_changed":
                self._tools_changed()
            case "notifications/progress":
                told_of = self.progress.take(params, anyio.current_time(), peer.session_id)
                if told_of is not None:
                    self.hints.tell_memo(peer, told_of)
            case str() if method == GIVEN_AWAY:
                for asked in self._asked.values():
                    asked.given_away(peer, params["requestId"])
            case "notifications/cancelled":
                taken_back = request_id_of({"id": params.get("requestId")})
                if taken_back is not None:
                    self.ids.note(peer, taken_back, None, "")
                    self._withdraw(peer, taken_back)
                    for asked in self._asked.values():
                        asked.withdraw(peer, taken_back)

    def _given_away(
        self, peer: Peer, request_id: RequestId, task_id: str | None, message: JSONObject
    ) -> None:
        """Note that a request has come under an ID: what had it before is over, but its own task's."""
        self._withdraw(peer, request_id, message)
        whose = digest(lasting(str(message.get("method")), message.get("params") or {})) if task_id else ""
        self.ids.note(peer, request_id, task_id, whose)
        for other, asked in self._asked.items():
            if other != task_id:
                asked.given_away(peer, request_id)

    def _withdraw(self, peer: Peer, request_id: RequestId, message: JSONObject | None = None) -> None:
        self._plain.withdraw(peer, request_id, message)
        if self._receiver is not None:
            self._receiver.withdraw(peer, request_id, message)

    def _status(self, peer: Peer, params: JSONObject) -> None:
        task = snapshot(params)
        task_id = task.get("taskId")
        if not isinstance(task_id, str):
            return
        wanted = task.get("status") in _WANTED
        if task_id not in self.hints.seen:
            if wanted:  # come before the reply that brings its ID, or somebody else's
                self._early[task_id] = None
                if len(self._early) > _MOST_STRANGERS:
                    del self._early[next(iter(self._early))]
            return
        if task.get("status") == "working":
            self.hints.tell_status(peer, task)
        if not wanted or task_id in self._given_up:
            return
        if self.retrievals.pauses.is_answering(task_id):
            self._early[task_id] = None
        elif not self.retrievals.failures.lately(task_id):  # those that break are left to polls
            self._retrieve(peer, task_id)

    def _has_room(self, task_id: str) -> bool:
        known = task_id in self.hints.seen or task_id in self._asked
        return known or len(self._asked) < len(self.hints.seen) + _MOST_STRANGERS
