"""The contract of a connection: one MCP session at a 2025-11-25 server, in which either side may ask.

A connection knows how messages travel, and :mod:`.core_session` knows their meaning.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

import anyio

from ...errors import RemoteProtocolError, SessionError
from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply
from ...protocol.text import quote, shorten
from ...questions.context import CallContext
from ..request_errors import RequestErrors
from .shapes import CORE_TASKS_VERSION, HANDSHAKE_VERSIONS, declares_tasks

__all__ = [
    "CREATION_S",
    "GET_STREAM",
    "MOST_WAITING",
    "SILENCE_S",
    "Connection",
    "Hear",
    "OwnRequest",
    "finish_soon",
    "is_answer",
    "new_request_id",
    "offer",
    "read_agreed_version",
]

GET_STREAM: Final = "the GET stream"
"""In place of a method, for the stream that is open for the whole MCP session."""

SILENCE_S: Final = 300.0
"""Seconds without a byte after which a stream that may stay open counts as broken."""

CREATION_S: Final = 5.0
"""Seconds that a question waits for the reply to a ``tools/call`` that may have made the task that asks. The
question may overtake the reply over another connection."""

MOST_WAITING: Final = 100
"""Questions that wait for such a reply, at most."""

_LAST_WORD_S: Final = 1.0
"""Seconds for the reply to a request whose caller goes away."""


def new_request_id() -> str:
    """A JSON-RPC ID that no other request of the MCP session has, of any process."""
    return secrets.token_hex(8)


@dataclass(frozen=True, eq=False, slots=True)
class OwnRequest:
    """A request of the client's. A message of the server on the stream of the reply may be about it."""

    method: str
    params: JSONObject = field(default_factory=dict, repr=False)
    context: CallContext | None = field(default=None, repr=False)
    """The context of the call for whose sake it is sent."""

    task_id: str | None = field(default=None, repr=False)
    """The task that it is about."""

    silence_s: float | None = None
    """Seconds of silence after which the reply is given up, which may take any time in all. ``None`` is the
    connection's time-out, and twice as many seconds in all."""

    request_id: RequestId = field(default_factory=new_request_id)
    """Its JSON-RPC ID, by which another process can cancel it."""


def offer(capabilities: JSONObject, client_info: JSONObject, context: CallContext | None) -> OwnRequest:
    """The request that begins an MCP session."""
    params = {
        "protocolVersion": CORE_TASKS_VERSION,
        "capabilities": capabilities,
        "clientInfo": client_info,
    }
    return OwnRequest("initialize", params, context)


def read_agreed_version(result: JSONObject) -> str:
    """The version in which an MCP session goes on, by the answer to the request that began it.

    Raises:
        RemoteProtocolError: The client has not offered that version.
    """
    agreed = result.get("protocolVersion")
    if not isinstance(agreed, str) or agreed not in HANDSHAKE_VERSIONS:
        raise RemoteProtocolError(
            f"initialize was answered in version {quote(str(agreed))[:20]!r}, which the client has not "
            "offered. Report it to the server's author.",
            not_executed=True,
        )
    return agreed


Hear: TypeAlias = Callable[["Connection", JSONObject, OwnRequest], None]
"""Takes each request and notification of the server, and the request on whose stream it came."""


def is_answer(error: SessionError) -> bool:
    """Whether the server has answered a request by that error, so that it does not go on with the request."""
    return error.code is not None and error.http_status in (None, 200)


async def finish_soon(send: Callable[[], Awaitable[None]]) -> None:
    """Send a message that leaves something behind at the server. A cancelled caller waits a moment for it."""
    scope, ended = anyio.CancelScope(shield=True), anyio.Event()
    failures: list[Exception] = []

    async def run() -> None:
        try:
            with scope:
                await send()
        except Exception as error:
            failures.append(error)
        finally:
            ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            await ended.wait()
        finally:
            scope.deadline = anyio.current_time() + _LAST_WORD_S
    if failures:
        raise failures[0]


class Connection(ABC):
    """One MCP session.

    A *context* is that of the call for whose sake something is sent, as in :mod:`..sessions.base`.

    Args:
        session_id: Its ID; ``None`` if it has none, or not yet.
        timeout_s: Seconds for an answer or a notification, and of silence for most requests.

    Attributes:
        session_id: As given, or as the server named it; ``None`` if the server has no sessions.
        introduction: The server's words about itself in the handshake; empty before that.
        cancels_tasks: Whether the server declares ``tasks.cancel``.
        makes_tasks: Whether the server declares ``tasks.requests.tools.call``.
        lost: Whether the server has denied the session to the latest request, so that another one is begun.
        acknowledges: Whether :meth:`answer` returns only when the server has the answer.
        reaches_others: Whether a task of another MCP session can be continued there.
        calls: The ``tools/call`` that are under way, in the order of their beginning.
        call_ended: Set when one of them ends. Another event each time.
        context: The context of the call for whose sake the session was begun, or gone back to.
        listening: Set while no call has to wait: the server can be heard outside of replies, or it never will
            be, or a call has waited for that in vain. Another event each time that the stream ends.
    """

    acknowledges: ClassVar[bool] = True
    reaches_others: ClassVar[bool] = True
    server = "the server"
    """Its name, for the log."""

    def __init__(self, session_id: str | None, timeout_s: float) -> None:
        self.session_id = session_id
        self.introduction: JSONObject = {}
        self.cancels_tasks = True
        self.makes_tasks = False
        self.lost = False
        self.calls: list[OwnRequest] = []
        self.call_ended = anyio.Event()
        self.context: CallContext | None = None
        self.listening = anyio.Event()
        self._timeout_s = timeout_s
        self._own_name = new_request_id()

    def __repr__(self) -> str:
        name = shorten(self.session_id) if self.session_id else "without a session ID"
        return f"<{type(self).__name__} {name}>"

    @contextmanager
    def calling(self, own: OwnRequest) -> Iterator[None]:
        """Surrounds a ``tools/call`` that is under way."""
        self.calls.append(own)
        try:
            yield
        finally:
            self.calls.remove(own)
            self.call_ended.set()
            self.call_ended = anyio.Event()

    @property
    def name(self) -> str:
        """The session ID, or a name of ours if the server gives none."""
        return self.session_id or self._own_name

    def errors_of(self, own: OwnRequest) -> RequestErrors:
        """Makes the errors of a request. A session ID is a credential like a task ID."""
        return RequestErrors(
            own.method, own.task_id, (self.session_id,) if self.session_id else (), self.server
        )

    async def initialize(self, capabilities: JSONObject, client_info: JSONObject) -> None:
        """Begin the session.

        Raises:
            SessionError: The server does not speak this generation, or could not be reached.
        """
        self.introduction = await self._shake_hands(capabilities, client_info)
        self.cancels_tasks = declares_tasks(self.introduction, "cancel")
        self.makes_tasks = declares_tasks(self.introduction, "requests", "tools", "call")

    @abstractmethod
    async def _shake_hands(self, capabilities: JSONObject, client_info: JSONObject) -> JSONObject:
        """The server's answer to ``initialize``."""

    @abstractmethod
    async def request(self, own: OwnRequest) -> JSONObject:
        """The result of a request, which is sent at most once.

        Raises:
            SessionError: No result. ``not_executed`` is set only if the server has not acted on the request.
        """

    @abstractmethod
    async def answer(
        self, request_id: RequestId, reply: Reply, context: CallContext | None, task_id: str | None
    ) -> None:
        """Answer a request of the server's.

        Raises:
            SessionError: The answer may not have arrived.
        """

    @abstractmethod
    async def notify(self, method: str, params: JSONObject, context: CallContext | None) -> None:
        """Send a notification.

        Raises:
            SessionError: The notification may not have arrived.
        """

    async def end(self) -> None:  # noqa: B027  # the host's session is the host's
        """End the session at the server, if it was begun here.

        Raises:
            SessionError: The server does not end it.
        """

    @abstractmethod
    async def listen(self, context: Callable[[], CallContext | None]) -> None:
        """Hear the messages that the server sends outside of replies. Returns when that way has ended.

        Args:
            context: Gives the context of a call for whose sake the connection listens now.
        """
