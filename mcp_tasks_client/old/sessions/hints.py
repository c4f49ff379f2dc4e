"""What a server of 2025-11-25 says of its tasks by itself, as snapshots for whoever observes them.

It says no more than what it asks, or how far it is. So each has what was seen of the task last, what is open
for it, and what another process would need to go on with it: the server does not say it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import anyio

from ..wire import JSONObject, MalformedError, Task, read_task
from .asked import Asked
from .background import Background
from .peer import Peer
from .progress import Progress
from .retrievals import Retrievals
from .shapes_2025_11_25 import Memo

__all__ = ["Hints"]

_INSIST_S: Final = 0.3
"""Seconds after which a question is told again for the first time."""

_UNSEEN_S: Final = 30.0
"""Seconds after which a task that nobody knows is not waited for any more."""


class Hints:
    """Tells of tasks, for one session of ours.

    Args:
        asked: What is open for each.
        retrievals: What waits for each.
        progress: How far they are.

    Attributes:
        heard: Told of each snapshot; ``None`` while nobody listens.
        seen: The latest snapshot of each task that goes on, as it was seen.
        insisting: The tasks that are told of again, until that is of no use.
    """

    def __init__(self, asked: Mapping[str, Asked[Peer]], retrievals: Retrievals, progress: Progress) -> None:
        self.heard: Callable[[Task], None] | None = None
        self.seen: dict[str, JSONObject] = {}
        self._seen_in: dict[str, Peer] = {}
        self._asked = asked
        self._retrievals = retrievals
        self._progress = progress
        self.insisting: set[str] = set()

    def saw(self, peer: Peer, task_id: str, task: JSONObject) -> None:
        """Note a snapshot of a task that goes on."""
        self.seen[task_id], self._seen_in[task_id] = task, peer

    def forget(self, task_id: str) -> None:
        """Tell nothing more of a task."""
        self.seen.pop(task_id, None)
        self._seen_in.pop(task_id, None)

    def memo(self, peer: Peer, task_id: str) -> Memo:
        """What another process would need to go on with a task."""
        asked = self._asked.get(task_id) or Asked()
        return Memo(
            session_id=peer.session_id,
            retrieval=self._retrievals.request_id(task_id),
            asked=asked.request_ids(peer),
            answered=asked.concluded,
            progress=self._progress.token_of(task_id),
        )

    def latest(self, task_id: str) -> Task | None:
        """What is to be told of a task that asks something, or is waited for; ``None`` if it is neither."""
        if task_id not in self.seen or not (self._asks(task_id) or self._is_waited_for(task_id)):
            return None
        changed = {"status": "input_required"} if self._asks(task_id) else {}
        return _read(self._with_memo(self._seen_in[task_id], task_id, changed))

    def tell(self, task: JSONObject) -> None:
        """Tell of a task. Of what cannot be read a poll brings what can be."""
        read = _read(task) if self.heard is not None else None
        if read is not None and self.heard is not None:
            self.heard(read)

    def tell_status(self, peer: Peer, task: JSONObject) -> None:
        """Tell what the server says of a task, with what another process would need to go on with it."""
        self.tell({**task, **self._known(peer, task["taskId"])})

    def tell_memo(self, peer: Peer, task_id: str, **changed: object) -> None:
        """Have it be journaled what another process would need to go on with a task."""
        if task_id in self.seen:
            self.tell(self._with_memo(peer, task_id, changed))

    def begin_to_insist(self, background: Background, peer: Peer, task_id: str) -> None:
        """Tell of what waits again until a poll has: whoever observes the task may have just begun to.

        Args:
            background: In which that is done.
            peer: Who has asked.
            task_id: The task.
        """
        if background.runs and task_id not in self.insisting:
            self.insisting.add(task_id)
            background.begin(self._insist, peer, task_id)

    async def _insist(self, peer: Peer, task_id: str) -> None:
        seen, pause_s = self.seen.get(task_id), _INSIST_S
        try:
            await anyio.sleep(pause_s)
            while seen is None or self.seen.get(task_id) is seen:
                seen = self.seen.get(task_id)  # at first its creation, which is no poll
                asks = self._asks(task_id)
                waits = asks or self._is_waited_for(task_id)
                if not waits or (seen is None and pause_s > _UNSEEN_S):
                    return
                self.tell_memo(peer, task_id, **({"status": "input_required"} if asks else {}))
                pause_s *= 2
                await anyio.sleep(pause_s)
        finally:
            self.insisting.discard(task_id)

    def _asks(self, task_id: str) -> bool:
        return task_id in self._asked and self._asked[task_id].open

    def _is_waited_for(self, task_id: str) -> bool:
        return self._retrievals.request_id(task_id) is not None

    def _with_memo(self, peer: Peer, task_id: str, changed: Mapping[str, object]) -> JSONObject:
        task = {**self.seen[task_id], **changed, **self._known(peer, task_id)}
        if task.get("status") == "input_required" and task_id in self._asked:
            task["inputRequests"] = self._asked[task_id].questions()
        elif task.get("status") == "input_required":
            task["inputRequests"] = {}
        return task

    def _known(self, peer: Peer, task_id: str) -> JSONObject:
        progress = self._progress.of(task_id)
        return {"requestState": str(self.memo(peer, task_id)), **({"progress": progress} if progress else {})}


def _read(task: JSONObject) -> Task | None:
    with suppress(MalformedError):
        return read_task(task)
    return None
