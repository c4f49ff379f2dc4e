"""The process of a server that runs now: started when it is needed, and again after it has ended."""

from __future__ import annotations

from collections.abc import Callable

from ...aio.loops import Loops
from ...aio.own_task import OwnTasks
from ...aio.uncut import run_to_its_end
from ...protocol import JSONObject
from ..request_errors import RequestErrors
from .pipe import Pipe
from .stdio_server import StdioServer

__all__ = ["CurrentProcess"]


class CurrentProcess:
    """At most one process at a time. No event loop is needed to make this.

    Args:
        server: How it is started.
        endpoint: The server's name in the journal.
        max_bytes: Bytes of one message of the server, at most.
        hear: Called with each request and notification of a process, unless a session of an older version
            has put its own function in the place of this one (``Pipe.hear``).
    """

    def __init__(
        self, server: StdioServer, endpoint: str, max_bytes: int, hear: Callable[[JSONObject], None]
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._max_bytes = max_bytes
        self._hear = hear
        self._tasks = OwnTasks()
        self._loops = Loops()
        self._pipe: Pipe | None = None
        self._closed = False

    async def pipe(self, method: str) -> Pipe:
        """The process that runs, for a request. One that is ending is waited for, since it may hold a lock.

        Raises:
            ConnectionLostError: This is closed; ``not_executed``.
        """
        while True:
            if self._closed:
                raise RequestErrors(method).closed("session", sent=False)
            if self._pipe is None:
                self._loops.note_running()
                self._pipe = Pipe(self._server, self._endpoint, self._max_bytes)
                self._pipe.hear = self._hear
                self._tasks.start(self._pipe.run)
            pipe = self._pipe
            if not pipe.is_over:
                return pipe
            await pipe.wait()
            if self._pipe is pipe:
                self._pipe = None

    async def aclose(self) -> None:
        """End the process, even if the caller is cancelled meanwhile. It takes two seconds at most."""
        self._closed = True
        if self._pipe is not None and not self._loops.have_closed():
            self._pipe.stop()
            await run_to_its_end(self._tasks.wait)
