"""The MCP sessions at one server: the one that new calls are made in, and earlier ones that have tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...errors import ConnectionLostError, CredentialRefusedError, RemoteProtocolError, SessionError
from ...protocol import JSONObject
from ...questions.context import CallContext
from ..shared import Shared
from .connection import Connection, finish_soon
from .shapes import CORE_TASKS_VERSION

__all__ = ["McpSessions"]


class McpSessions:
    """Begins MCP sessions, and goes back to those of other processes.

    ``connect`` makes a connection: of the MCP session with that ID, or of a new one. ``begun`` is called when
    a new session has begun.

    Attributes:
        current: The session that new calls are made in; ``None`` before the first.
    """

    def __init__(
        self,
        connect: Callable[[str | None], Connection],
        capabilities: JSONObject,
        client_info: JSONObject,
        begun: Callable[[], None],
    ) -> None:
        self.current: Connection | None = None
        self._connect = connect
        self._capabilities = capabilities
        self._client_info = client_info
        self._begun = begun
        self._earlier: dict[str, Connection] = {}
        self._beginning = Shared(lambda context: finish_soon(partial(self._begin, context)))

    async def begin(self, context: CallContext | None) -> Connection:
        """The current session, begun if there is none or the server has ended it.

        Callers that wait for the same beginning share its failure. A caller that goes away leaves the
        beginning a moment to end. After that it is cut, and leaves an unused session at the server.

        Raises:
            SessionError: The server cannot be reached, or does not speak this generation.
        """
        while self.current is None or self.current.lost:
            await self._beginning.run(context)
        return self.current

    async def of_task(
        self, session_id: str | None, context: CallContext | None, *, cancellable: bool = True
    ) -> Connection:
        """The session that a task was made in; the current one if nothing names it, or it is lost.

        Args:
            session_id: Its ID, which another process may have noted.
            context: Of the call whose task it is.
            cancellable: Whether the server declared ``tasks.cancel`` to that process.

        Raises:
            SessionError: The current session was needed, and could not be begun.
        """
        if session_id is None or (self.current is not None and self.current.session_id == session_id):
            return await self.begin(context)
        self._earlier = {name: one for name, one in self._earlier.items() if not one.lost}
        connection = self._earlier.get(session_id)
        if connection is None:
            connection = self._earlier[session_id] = self._connect(session_id)
            connection.cancels_tasks = cancellable
            connection.context = context
        return connection

    async def end(self) -> None:
        """End the current session, in which no call or task may live.

        Raises:
            SessionError: The server does not end it.
        """
        if self.current is not None and not self.current.lost:
            await self.current.end()

    async def _begin(self, context: CallContext | None) -> None:
        if self.current is not None and not self.current.lost:
            return  # begun for a caller that has gone away
        connection = self._connect(None)
        connection.context = context
        try:
            await connection.initialize(self._capabilities, self._client_info)
        except SessionError as error:
            # None of these tells which version the server speaks.
            if error.retryable or isinstance(error, CredentialRefusedError | ConnectionLostError):
                raise
            raise RemoteProtocolError(
                f"The server does not speak MCP {CORE_TASKS_VERSION}: {error} If it was upgraded since, a "
                "task that was made in that version is out of reach, and only new calls can be made.",
                http_status=error.http_status,
            ) from error
        self.current = connection
        self._begun()
