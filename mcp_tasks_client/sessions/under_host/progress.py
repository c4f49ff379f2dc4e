"""Progress of a task for the host, under the token of its request. The numbers only grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...engine.live_call import OnUpdate
from ...protocol import JSONObject, RequestId
from ...protocol.task import Task

__all__ = ["Progress", "ProgressByToken"]

_PROGRESS = "notifications/progress"


class Progress:
    """Tells the host how the task of one call gets on.

    Args:
        token: Of the host's request.
        send: Sends a JSON-RPC notification to the host.
    """

    def __init__(self, token: RequestId, send: Callable[[JSONObject], object]) -> None:
        self._token = token
        self._send = send
        self._said = 0.0

    def tell(self, task: Task) -> None:
        """Tell the status message of a task."""
        if task.status_message is not None:
            self._said += 1  # how much there is to do is not known
            params = {"progressToken": self._token, "progress": self._said, "message": task.status_message}
            self._send({"jsonrpc": "2.0", "method": _PROGRESS, "params": params})

    def note(self, message: JSONObject) -> None:
        """Note what the server has told the host itself."""
        params = message.get("params")
        progress = params.get("progress") if isinstance(params, dict) else None
        if message.get("method") == _PROGRESS and isinstance(progress, int | float):
            self._said = max(self._said, progress)

    def hear(self, message: JSONObject) -> None:
        """Pass on what the server tells before it answers ``tools/call``."""
        if "id" not in message:
            self.note(message)
            self._send(message)


class ProgressByToken:
    """The progress of all calls of a host, where the server's own passes to the host as well.

    Args:
        send: Sends a JSON-RPC notification to the host.
    """

    def __init__(self, send: Callable[[JSONObject], object]) -> None:
        self._send = send
        self._calls: dict[RequestId, Progress] = {}

    @contextmanager
    def of(self, token: object) -> Iterator[Sequence[OnUpdate]]:
        """What is to be told of the task of one call, for as long as that lasts.

        Args:
            token: Of the host's request. Anything but a string or a number is none.
        """
        if not isinstance(token, str | int):
            yield ()
            return
        progress = self._calls[token] = Progress(token, self._send)
        try:
            yield (progress.tell,)
        finally:
            self._calls.pop(token, None)

    def hear(self, method: str, params: JSONObject) -> None:
        """Learn of a notification that passes to the host."""
        token = params.get("progressToken")
        progress = self._calls.get(token) if isinstance(token, str | int) else None
        if progress is not None:
            progress.note({"method": method, "params": params})
