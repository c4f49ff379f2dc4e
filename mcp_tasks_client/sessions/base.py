"""The contract of a session: the requests that one endpoint can be sent, and its tools.

A session knows the wire and nothing of time: it neither polls nor repeats a request. It remembers no
task, unless the version has questions that come by themselves. The versions of the protocol, and the ways
of reaching a server, differ only behind it.

Every request raises :class:`SessionError` or a subclass. A value without a form on the wire is a
:class:`ValueError` or :class:`TypeError`. Of the former:

- ``retryable`` says whether the same request may succeed later (a time-out, a 5xx, a 429);
- ``not_executed`` says that the server surely did nothing with the request, so that a
  ``tools/call`` can be forgotten instead of being remembered as of unknown outcome;
- ``code``, ``remote_message`` and ``data`` are set where the server answered a JSON-RPC error.

A *context* is a value of the caller of a tool, such as the request of a host. It comes with each request that
is made for the sake of a call, down to the transport. It is opaque to the engine and to every session, and is
never journaled: only the way in that makes calls with a context, and gives the session its transport, can
read it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from mcp_types import Tool

from ..errors import RemoteProtocolError, SessionError
from ..protocol import JSONObject
from ..protocol.replies import CallReply
from ..protocol.task import Task
from ..questions.context import CallContext

__all__ = [
    "GATEWAY_STATUSES",
    "INVALID_PARAMS",
    "OTHER_VERSION",
    "REFUSED_CODES",
    "BeforeSend",
    "Limits",
    "ObservedTasks",
    "Session",
    "Snapshot",
    "TaskRef",
    "ToolCall",
    "latest_context",
    "made_in_another",
]

BeforeSend: TypeAlias = Callable[[], Awaitable[None]]

INVALID_PARAMS: Final = -32602
"""To ``tasks/*``: the server does not know the task."""

REFUSED_CODES: Final = frozenset({-32700, -32600, -32601, -32602, -32020, -32021, -32022, -32003})
"""JSON-RPC errors that refuse a request before it runs: parse error, invalid request, unknown
method, invalid params, header mismatch, missing capability (now and formerly), unknown version."""

GATEWAY_STATUSES: Final = frozenset({502, 503, 504})
"""HTTP statuses of gateways before a server. A body that comes with one need not be the server's."""

OTHER_VERSION: Final = "another version: "
"""Begins the ``session_data`` of a session of another version, which must not reach a server as
``requestState``: it may hold credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one session.

    Raises:
        ValueError: A bound is not positive.
    """

    max_response_bytes: int = 64 * 1024 * 1024
    """Bytes of one reply, decompressed, at most."""

    tasks_in_flight: int = 16
    """Polls under way at once, at most, and as many other ``tasks/*`` requests."""

    calls_in_flight: int = 64
    """``tools/call`` requests under way at once, at most."""

    task_timeout_s: float = 30.0
    """Seconds of silence after which a ``tasks/*`` request is given up; twice as many in all."""

    call_read_timeout_s: float = 300.0
    """Seconds of silence after which a ``tools/call`` is given up."""

    def __post_init__(self) -> None:
        for name in ("max_response_bytes", "tasks_in_flight", "calls_in_flight"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("task_timeout_s", "call_read_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0 seconds, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One ``tools/call``, in its first round or a later one."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    meta: Mapping[str, Any] | None = None
    input_responses: Mapping[str, JSONObject] = field(default_factory=dict, repr=False)
    request_state: str | None = None
    hear: Callable[[JSONObject], None] | None = field(default=None, repr=False, compare=False)
    """Told of each notification that comes before the reply, where the session can hear any."""

    context: CallContext | None = field(default=None, repr=False, compare=False)
    """The caller's context; a session passes it to its transport and reads nothing of it."""

    label: str | None = field(default=None, compare=False)
    """A short text for people, which is not sent."""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task, as a session is asked for it."""

    task_id: str = field(repr=False)
    session_data: str | None = field(default=None, repr=False)
    """The session's own data, from the last :class:`Snapshot` or ``Created``. Opaque to others."""

    context: CallContext | None = field(default=None, repr=False, compare=False)
    """The context of the newest caller that waits; a session passes it to its transport unread."""

    before_send: BeforeSend | None = field(default=None, repr=False, compare=False)
    """To be awaited right before the request may reach the server, after a wait for its turn. Its exceptions
    are passed on. ``None`` is nothing."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A task as the server has just described it."""

    task: Task
    session_data: str | None = field(default=None, repr=False)
    """Kept with the record, and given back in :class:`TaskRef`. ``None`` keeps the last one."""


class ObservedTasks(Protocol):
    """The tasks that are observed at an endpoint, as :meth:`Session.run` sees them."""

    def refs(self) -> Mapping[str, TaskRef]:
        """The tasks that are observed now, by their IDs."""

    async def changed(self) -> None:
        """Return when a task was added since this was last awaited, or since :meth:`Session.run` began."""

    def deliver(self, snapshot: Snapshot) -> None:
        """Take a snapshot that came unasked: late, twice, out of order, or of a task of others."""


class Session(ABC):
    """One endpoint, reached in one way."""

    endpoint: str
    """The server's name in the journal, the same in every process and free of secrets."""

    limits: Limits
    """The bounds that the session keeps."""

    @property
    def ephemeral(self) -> bool:
        """Whether the server's tasks end with its process, which ends with the session."""
        return False

    @abstractmethod
    async def tool(
        self, name: str, *, fresh: bool = False, context: CallContext | None = None
    ) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none of that name.

        Args:
            name: The tool.
            fresh: Fetch the list again. Without it an earlier list is good enough, and is there at once.
            context: Of the call for whose sake the tool is looked up.
        """

    async def may_make_task(self, name: str, *, context: CallContext | None = None) -> bool:
        """Whether a call of a tool may become a task. The default leaves that to the reply.

        Raises:
            SessionError: The server could not be asked; ``not_executed``.
        """
        return True

    @abstractmethod
    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        """Send ``tools/call`` once. Never repeats it.

        Args:
            call: The tool and its arguments.
            before_send: Must be awaited right before the request may reach the server, after all that
                has to be asked or waited for first: until then a caller that goes away takes the
                call back, from then on the tool may have run. Its exceptions are passed on.
        """

    @abstractmethod
    async def get(self, ref: TaskRef) -> Snapshot:
        """Send ``tasks/get`` once."""

    @abstractmethod
    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> str | Snapshot | None:
        """Send ``tasks/update`` once. Returns when the server has acknowledged the answers.

        Returns:
            The ``session_data`` of the task from now on, which is journaled with the acknowledgement; the
            end of the task, if the server has told that as well; or ``None``.
        """

    @abstractmethod
    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once."""

    def forget(self, task_id: str) -> None:  # noqa: B027  # most servers are told nothing
        """Note that the end of a task is journaled, so that no caller needs the server for it."""

    async def ask(
        self, method: str, params: JSONObject, *, context: CallContext | None = None, patient: bool = False
    ) -> JSONObject:
        """Send a request that concerns neither a call nor a task once, and return its result as it came.

        ``server/discover`` is that of 2026-07-28: a session of another version translates. Everything else
        passes as it is. The default sends nothing.

        Args:
            method: Of the version that the server speaks.
            params: Entries in their ``_meta`` are sent besides our own, which they cannot replace.
            context: Of the call for whose sake it is sent.
            patient: Whether the reply may take as long as that to a ``tools/call``, as where the host asks.
        """
        raise SessionError(f"{method} was not sent: {self!r} does not pass it on.", not_executed=True)

    async def run(self, observed: ObservedTasks) -> None:  # noqa: B027  # many servers tell nothing unasked
        """Deliver the server's unasked messages about tasks, for as long as there are any.

        Runs while a client is open, or, where a host's own client is used, while calls are driven; then it is
        cancelled. Polls never depend on it. Returning means that nothing more comes unasked. The default
        returns at once.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the session's own connections. Further requests are refused."""


def latest_context(refs: Mapping[str, TaskRef]) -> CallContext | None:
    """The context of a request that concerns no single call: that of the newest of the observed tasks."""
    found = list(refs.values())
    return found[-1].context if found else None


def made_in_another(version: str, remedy: str) -> RemoteProtocolError:
    """The error for a task of another version than the server's. It parks the call, which can be resumed."""
    return RemoteProtocolError(
        f"The server is spoken to in MCP {version}, and the task was made in another version. {remedy}",
        not_executed=True,
    )
