"""That nothing waits at a server of 2025-11-25 while its task works: it would be given the next question."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from copy import copy
from typing import Final

import anyio

from .asked import Asked
from .background import Background
from .hints import Hints
from .peer import Peer
from .retrieval import Retrieval
from .retrievals import Retrievals

__all__ = ["Resting"]

_BACK_IN_S: Final = 2.0
"""Seconds for what waits to be taken back, before an answer leaves nevertheless."""


class Resting:
    """For one session of ours.

    Args:
        asked: What is open for each task.
        retrievals: What waits for each.
        background: In which it is taken back.
        hints: Tell what another process would need to know.
    """

    def __init__(
        self, asked: Mapping[str, Asked[Peer]], retrievals: Retrievals, background: Background, hints: Hints
    ) -> None:
        self._asked = asked
        self._retrievals = retrievals
        self._background = background
        self._hints = hints

    @asynccontextmanager
    async def before_answer(self, peer: Peer, task_id: str) -> AsyncIterator[None]:
        """Have nothing wait while an answer leaves, with which the task goes on.

        What waits would be given the next question, even if this process were killed meanwhile. Where a task
        asks several at once, it is needed: a server may say that it works as soon as one has its answer. And
        where the server cannot be told that it waits no more, it waits on.
        """
        retrieval = await self._needless(task_id)
        refused = retrieval.refusal if retrieval is not None else None
        with self._retrievals.pauses.answering(task_id):
            if retrieval is not None:
                retrieval.back = anyio.Event()  # it may have been tried before an earlier answer, in vain
                self._background.begin(self._retrievals.take_back, task_id, retrieval)
                with anyio.move_on_after(_BACK_IN_S):
                    await retrieval.back.wait()
                if refused is None and retrieval.refusal is not None:
                    raise copy(retrieval.refusal)  # the answer is put off, once
                self._hints.tell_memo(peer, task_id)
            yield

    async def _needless(self, task_id: str) -> Retrieval | None:
        asked, retrieval = self._asked.get(task_id), self._retrievals.waiting(task_id)
        if asked is None or retrieval is None or asked.several or retrieval.needless:
            return None
        await retrieval.brings_others()
        return None if asked.several or self._retrievals.waiting(task_id) is not retrieval else retrieval
