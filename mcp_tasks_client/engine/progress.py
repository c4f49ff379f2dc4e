"""Progress of a task for the host: to a callback of its own, or under the token of its request."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from ..protocol import JSONObject, RequestId
from ..protocol.replies import id_in
from ..protocol.task import Task
from .audience import OnUpdate

__all__ = ["Progress", "ProgressByToken", "ProgressCallback", "tell_progress"]

ProgressCallback: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Takes progress, total and message, as the SDK's does. It may be a plain function."""

_PROGRESS: Final = "notifications/progress"

_LARGEST: Final = 2.0**53
"""Above this, a number and the next one may be the same to the host."""


def tell_progress(progress: ProgressCallback) -> OnUpdate:
    """Tell a progress callback the status messages of a task."""
    told, last = 0, None

    def tell(task: Task) -> Awaitable[None] | None:
        nonlocal told, last
        if task.status_message in (None, last):
            return None
        told += 1  # progress must increase, and how much there is to do is not known
        last = task.status_message
        return progress(told, None, last)

    return tell


class Progress:
    """Tells the host how the task of one call gets on, under the token of the host's request.

    The numbers grow. A server that counts itself takes over with its first number, which may be below ours.
    """

    def __init__(self, token: RequestId, send: Callable[[JSONObject], object]) -> None:
        self._token = token
        self._send = send
        self._said = 0.0
        self._message: str | None = None
        self._server_counts = False

    def tell(self, task: Task) -> None:
        """Tell the status message of a task, if it is a new one."""
        if task.status_message in (None, self._message):
            return
        self._message = task.status_message
        # How much there is to do is not known. Where the server counts, its next number has to be greater.
        self._said = math.nextafter(self._said, math.inf) if self._server_counts else self._said + 1
        params = {"progressToken": self._token, "progress": self._said, "message": task.status_message}
        self._send({"jsonrpc": "2.0", "method": _PROGRESS, "params": params})

    def note(self, params: Any) -> None:
        """Note the progress, if there is any, in a notification that the host has got itself."""
        progress = params.get("progress") if isinstance(params, dict) else None
        if isinstance(progress, int | float) and not isinstance(progress, bool) and abs(progress) <= _LARGEST:
            self._said, self._server_counts = float(progress), True

    def hear(self, message: JSONObject) -> None:
        """Pass on a notification that the server sends before it answers ``tools/call``."""
        if "id" not in message:
            self.note(message.get("params"))
            self._send(message)


class ProgressByToken:
    """The progress of all calls of a host, where the server's own passes to the host as well."""

    def __init__(self, send: Callable[[JSONObject], object]) -> None:
        self._send = send
        self._calls: dict[RequestId, Progress] = {}

    @contextmanager
    def telling(self, token: RequestId | None) -> Iterator[Sequence[OnUpdate]]:
        """Give the listeners to the snapshots of one call, for the length of the block.

        None listens if the ``token`` is ``None``: the host wants no progress.
        """
        if token is None:
            yield ()
            return
        progress = self._calls[token] = Progress(token, self._send)
        try:
            yield (progress.tell,)
        finally:
            if self._calls.get(token) is progress:  # a host may use a token twice
                del self._calls[token]

    def hear(self, params: JSONObject) -> None:
        """Learn of a notification that passes to the host."""
        if id_in(params, "progressToken") in self._calls:
            self._calls[params["progressToken"]].note(params)
