"""The contract of a session: what can be asked of one endpoint, and what its tools look like.

A session knows the wire and nothing of time: it neither polls nor retries a verb nor remembers a
task. The generations of the protocol, and the ways of reaching a server, differ only behind it.

Every verb raises :class:`SessionError` or a subclass, and nothing else of its own:

- ``retryable`` says whether the same request may succeed later (a time-out, a 5xx, a 429);
- ``not_executed`` says that the server surely did nothing with the request, so that a
  ``tools/call`` can be forgotten instead of being remembered as of unknown outcome;
- ``code``, ``remote_message`` and ``data`` are set where the server answered a JSON-RPC error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from mcp_types import Tool

from ..states import Question
from ..wire import PROTOCOL_VERSION, CallReply, Created, JSONObject, Task

__all__ = ["GATEWAY_STATUSES", "INVALID_PARAMS", "REFUSED_CODES", "Leaving", "Session", "TaskRef", "ToolCall"]

Leaving: TypeAlias = Callable[[], Awaitable[None]]

INVALID_PARAMS: Final = -32602
"""To ``tasks/*``: the server does not know the task."""

REFUSED_CODES: Final = frozenset({-32700, -32600, -32601, -32602, -32020, -32021, -32022, -32003})
"""JSON-RPC errors that refuse a request before it runs: parse error, invalid request, unknown
method, invalid params, header mismatch, missing capability (now and formerly), unknown version."""


GATEWAY_STATUSES: Final = frozenset({502, 503, 504})
"""HTTP statuses of what stands before a server. Whatever else they come with, it need not be the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One ``tools/call``, in its first round or a later one."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    meta: Mapping[str, Any] | None = None
    input_responses: Mapping[str, JSONObject] = field(default_factory=dict, repr=False)
    request_state: str | None = None
    memo: str | None = field(default=None, repr=False)
    """What :meth:`Session.before_call` said, if it was asked."""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """What the server needs to find a task again."""

    task_id: str = field(repr=False)
    request_state: str | None = field(default=None, repr=False)
    generation: str = PROTOCOL_VERSION
    """The protocol version whose task it is; empty if that is not known."""

    questions: tuple[Question, ...] = field(default=(), repr=False)
    """What it has asked so far."""


class Session(ABC):
    """One endpoint, reached in one way."""

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """The server's name in the journal: the same in every process, and free of secrets."""

    @property
    def ephemeral(self) -> bool:
        """Whether the server's tasks end with its process, which ends with the session."""
        return False

    @property
    def calls_in_flight(self) -> int | None:
        """How many ``tools/call`` it sends at once, at most; ``None`` for any number."""
        return None

    @abstractmethod
    async def tool(self, name: str) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none of that name."""

    def listed(self, name: str) -> Tool | None:
        """The same, where it is known without asking the server."""
        return None

    def forget_tools(self) -> None:  # noqa: B027  # not every session keeps a list
        """Take what the server has listed for out of date."""

    @abstractmethod
    async def call(self, call: ToolCall, leaving: Leaving) -> CallReply:
        """Send ``tools/call`` once. Never repeats it, whatever happens.

        Args:
            call: What to call.
            leaving: Must be awaited right before the request may reach the server, after all that
                has to be asked or waited for first: until then a caller that goes away takes the
                call back, from then on the tool may have run.
        """

    async def before_call(self) -> str | None:
        """Where to look for a task whose ID is lost with the reply; ``None`` where there is no such place.

        Raises:
            SessionError: The server could not be reached. ``not_executed``.
        """
        return None

    async def created_since(self, memo: str | None, since: float) -> Sequence[Created]:
        """The tasks that may have come of a call, by what the server lists.

        Args:
            memo: What :meth:`before_call` said; ``None`` for all that it lists for us.
            since: When the call was made: wall clock, in seconds since the epoch.

        Raises:
            SessionError: The server could not be asked.
        """
        return ()

    @abstractmethod
    async def get(self, ref: TaskRef) -> Task:
        """Send ``tasks/get`` once."""

    @abstractmethod
    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        """Send ``tasks/update`` once.

        Returns when the server has the answers. Where only a snapshot can tell, somebody has to
        :meth:`get` one meanwhile.
        """

    def takes_each_answer(self, ref: TaskRef) -> bool:
        """Whether the server takes an answer to one of several questions of a task that it has just told of.

        It may not wait until there are all of them then.
        """
        return False

    @abstractmethod
    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once."""

    async def listen(
        self, task_ids: Sequence[str], agreed: Callable[[frozenset[str]], None], heard: Callable[[Task], None]
    ) -> None:
        """Have the server tell of tasks, for as long as it does. Returns when it has ended that in order.

        Both callbacks run in the caller's own task. What is told comes in whichever order, more than once,
        late, or about others' tasks, and may lack what a poll would bring. A session that cannot listen
        agrees to nothing and returns at once. To stop, cancel it.

        Args:
            task_ids: Whose changes to tell.
            agreed: Called once, with those of them that the server has agreed to tell of; maybe none.
            heard: Called with each snapshot that comes.

        Raises:
            SessionError: Refused, broken, or silent for too long.
        """
        agreed(frozenset())

    def may_agree(self, ref: TaskRef) -> bool:
        """Whether the server may agree to tell of a task, so that it is of use to :meth:`listen`."""
        return True

    def told(self, task_id: str) -> Task | None:
        """What the server has said of a task by itself since the last snapshot; ``None`` if that is nothing.

        For whoever begins to observe it, or stops: it may have been said to nobody.
        """
        return None

    def attend(self, ref: TaskRef, *, inherited: bool) -> None:  # noqa: B027  # not at every server anything waits
        """Begin to take back what waits for a task that somebody has observed before, and nobody hears.

        Before a snapshot is due: what the server says to it is lost. Whatever fails is left to that.

        Args:
            ref: The task.
            inherited: Whether another client has observed it since this one did. It has taken back what
                waited for this one, and not every server says so.
        """

    def let_go(self, task_id: str) -> anyio.Event | None:
        """Keep nothing of a task that nobody observes any more. It may be taken up again.

        Returns:
            What is set once nothing more is told of it; ``None`` if nothing is from here on.
        """
        return None

    async def retire(self) -> None:
        """Have nothing wait at the server any more, as all tasks are let go of. What it says is told."""
        await checkpoint()

    async def watch(self, heard: Callable[[Task], None]) -> None:
        """Return when nothing can be sent any more. Never, where the next request is what tells.

        Runs for as long as the session is in use, so that a session which does anything besides its
        requests does it here.

        Args:
            heard: Called with each snapshot that the server tells of by itself without having agreed to:
                it may be of anybody's task, and polls keep their pace.
        """
        await anyio.sleep_forever()

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of whatever the session itself opened."""
