"""A session that the host has, as somebody can use it besides the host."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Final, Generic, TypeVar

from anyio.lowlevel import checkpoint
from mcp_types import CreateMessageResult, CreateMessageResultWithTools, ElicitResult, ListRootsResult
from pydantic import TypeAdapter

from ..errors import ConnectionLostError
from ..wire import JSONObject, RequestId, RpcError
from .faults import Faults
from .switchboard import Switchboard

__all__ = ["ANSWERS", "Line", "SessionLine"]

SessionT = TypeVar("SessionT")

ANSWERS: Final[Mapping[str, TypeAdapter[Any]]] = {
    "elicitation/create": TypeAdapter(ElicitResult),
    "sampling/createMessage": TypeAdapter(CreateMessageResult | CreateMessageResultWithTools),
    "roots/list": TypeAdapter(ListRootsResult),
}
"""What a host's session may answer, by what it was asked."""


class Line(ABC):
    """A host's session as it is now.

    Attributes:
        board: Where its questions go.
    """

    board: Switchboard

    @property
    @abstractmethod
    def is_up(self) -> bool:
        """Whether the host still uses this session, and no other."""

    @property
    @abstractmethod
    def introduction(self) -> JSONObject:
        """What the server said of itself in the handshake."""

    def new_request_id(self) -> RequestId | None:
        """An ID that a request can be given; ``None`` where the host's session numbers them itself."""
        return None

    @abstractmethod
    async def send(
        self,
        method: str,
        params: JSONObject,
        timeout_s: float | None,
        faults: Faults,
        request_id: RequestId | None = None,
    ) -> JSONObject:
        """Send a request, and return its result.

        Args:
            method: JSON-RPC method.
            params: Its params.
            timeout_s: Seconds after which it is given up; ``None`` leaves that to the host's session.
            faults: Names its failures.
            request_id: By which it can be taken back, where that can be.

        Raises:
            SessionError: No result.
        """

    async def take_back(self, request_id: RequestId) -> None:
        """Tell the server that nobody waits for the reply to a request that was sent under this ID.

        It does nothing where the host's session tells of no break, and numbers its requests itself.
        """
        await checkpoint()

    @abstractmethod
    async def say_again(self, request_id: RequestId, answer: JSONObject | RpcError) -> None:
        """Answer a request that the host's session has given an answer of ours to, as it may be lost."""


class SessionLine(Line, Generic[SessionT]):
    """A session of the SDK's, whichever generation.

    Args:
        current: That session. What it raises says why there is none.
        boards: The switchboards of the sessions that there are.
        plug: Puts a switchboard before a session's callbacks; returns what takes it away again. Holds on
            to neither.

    Attributes:
        session: The session.

    Raises:
        ConnectionLostError: There is none.
    """

    def __init__(
        self,
        current: Callable[[], SessionT],
        boards: MutableMapping[SessionT, Switchboard],
        plug: Callable[[weakref.ref[SessionT], Switchboard], Callable[[], None]],
    ) -> None:
        self._current = current
        try:
            self.session = current()
        except RuntimeError as error:
            raise ConnectionLostError(
                "The host's client is not connected. Connect it again; then repeat the call, or resume() "
                "what is unfinished.",
                not_executed=True,
            ) from error
        found = boards.get(self.session)
        if found is None:
            found = boards[self.session] = Switchboard(partial(plug, weakref.ref(self.session)))
        self.board = found

    @property
    def is_up(self) -> bool:
        """Whether the host still uses this session, and no other."""
        try:
            return self._current() is self.session
        except RuntimeError:
            return True  # and closed, as the next request says
