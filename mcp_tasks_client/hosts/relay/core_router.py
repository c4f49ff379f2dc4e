"""Decides which messages between a host's session and a 2025-11-25 server belong to tasks of ours.

The host may have tasks of its own in the same session, which it follows by itself. A task is ours if a
``tools/call`` of ours was answered with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from ...aio.clock import Clock
from ...protocol import JSONObject
from ...protocol.replies import Reply
from ...questions.callbacks import InputContext, Inputs
from ...questions.kinds import is_declared
from ...sessions.v2025.connection import CREATION_S, MOST_WAITING
from ...sessions.v2025.shapes import CORE_TASKS_VERSION, read_related_task
from .relay import Interceptor, Passage

__all__ = ["TaskRouter"]

logger = logging.getLogger("mcp_tasks_client")

_MAX_TASKS: Final = 10_000
"""Tasks of ours that are remembered, at most; cancelled ones as well, because they may still ask."""


class TaskRouter(Interceptor):
    """Takes the calls of the host that may become tasks, and the questions of these tasks.

    Args:
        inputs: Answers the questions that the host's session does not declare.
        clock: Times the wait of a question for the creation of its task.

    Attributes:
        introduction: The server's answer to ``initialize``; ``None`` before that, and in a session
            that was not negotiated at 2025-11-25, in which everything passes.
        hear: Called with each question of a task of ours, and each notification.
    """

    def __init__(self, inputs: Inputs, clock: Clock) -> None:
        self.introduction: JSONObject | None = None
        self.hear: Callable[[JSONObject], None] | None = None
        self._inputs = inputs
        self._clock = clock
        self._ours: frozenset[str] = frozenset()
        self._tasks: dict[str, None] = {}
        self._creating = 0
        self._waiting = 0
        self._created = anyio.Event()

    # ── the handshake ─────────────────────────────────────────────────────────────────────────

    def initialize(self, params: JSONObject) -> JSONObject:
        """Declare the kinds of questions that we can answer besides those of the host's session."""
        theirs, ours = params.get("capabilities") or {}, self._inputs.capabilities
        self._ours = frozenset(ours) - frozenset(theirs)
        return {**params, "capabilities": {**ours, **theirs}}

    def initialized(self, result: JSONObject) -> None:
        """Keep the server's introduction, if it speaks 2025-11-25."""
        if result.get("protocolVersion") == CORE_TASKS_VERSION:
            self.introduction = result
        else:
            logger.info("The host's session is not at %s, so that its calls pass", CORE_TASKS_VERSION)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def creating(self) -> Iterator[None]:
        """Surrounds a ``tools/call`` of ours that may create a task."""
        self._creating += 1
        try:
            yield
        finally:
            self._creating -= 1
            self._created.set()
            self._created = anyio.Event()

    def add(self, task_id: str) -> None:
        """Note that a task is ours."""
        self._tasks[task_id] = None
        if len(self._tasks) > _MAX_TASKS:
            del self._tasks[next(iter(self._tasks))]

    # ── messages of the server ────────────────────────────────────────────────────────────────

    def takes_request(self, request: JSONObject) -> bool:
        """Whether a request may be a question of a task of ours, or is answered in the host's place."""
        params = request.get("params") or {}
        if "task" in params:
            return False  # a task that the host is to run
        related = read_related_task(params)
        may_wait = self._creating > 0 and self._waiting < MOST_WAITING
        may_be_ours = related is not None and (related in self._tasks or may_wait)
        return may_be_ours or self._answers(request)

    async def serve_request(self, request: JSONObject) -> Reply | Passage:
        """Keep a question of a task of ours; answer another in the host's place, or leave it to the host."""
        related = read_related_task(request.get("params") or {})
        if related is not None and self.hear is not None and await self._is_ours(related):
            self.hear(request)
            return "kept"
        if self._answers(request):
            context = InputContext(tool=None, key=str(request["id"]), task=None)
            return await self._inputs.reply(context, request)
        return "to host"

    def takes_notification(self, method: str, params: JSONObject) -> bool:
        """Hear a notification. Returns whether it is of a task of ours, unknown to the host's session."""
        if self.hear is not None:
            self.hear({"method": method, "params": params})
        return method == "notifications/tasks/status" and params.get("taskId") in self._tasks

    def _answers(self, request: JSONObject) -> bool:
        return is_declared(request["method"], self._ours)

    async def _is_ours(self, task_id: str) -> bool:
        """Whether a task is ours, once the calls that may have created it are answered.

        A server may ask before it has said that there is a task.
        """
        deadline = self._clock.monotonic() + CREATION_S
        self._waiting += 1
        try:
            while task_id not in self._tasks:
                left_s = deadline - self._clock.monotonic()
                if not self._creating or left_s <= 0:
                    return False
                await self._clock.wait(self._created, left_s)
            return True
        finally:
            self._waiting -= 1
