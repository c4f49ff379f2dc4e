"""Core tasks over a session that the host has: what is the same for each generation of its SDK."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anyio.lowlevel import checkpoint

from ..inputs import Inputs
from ..wire import Created
from .host_peer import HostPeer
from .limits import Limits
from .lines import Line
from .peer import Told
from .shapes_2025_11_25 import Memo
from .task_wish import TaskWish
from .tasks_2025_11_25 import CoreTasksSession

__all__ = ["HostTasksSession"]


class HostTasksSession(CoreTasksSession):
    """A server of 2025-11-25, reached through the host's session.

    Args:
        line: That session as it is now.
        endpoint: The server's name in the journal.
        inputs: Answers questions.
        limits: ``None`` are those over a host's session.
        wish: Whether to ask for tasks.
    """

    def __init__(
        self,
        line: Callable[[], Line],
        *,
        endpoint: str,
        inputs: Inputs,
        limits: Limits | None = None,
        wish: TaskWish | None = None,
    ) -> None:
        super().__init__(
            self._host_peer,
            endpoint=endpoint,
            inputs=inputs,
            client_info={},  # the host's, who has introduced itself
            limits=limits or Limits.of_host(),
            wish=wish or TaskWish(),
        )
        self._line = line
        self._taken: list[HostPeer] = []

    async def created_since(self, memo: str | None, since: float) -> Sequence[Created]:
        """The tasks of the host's session that were made since; none, if the call was made in another one.

        Raises:
            SessionError: The list could not be had, or has no end.
        """
        peer = await self.connect()
        if memo is not None and Memo.read(memo).session_id != peer.session_id:
            return ()  # that one has ended, and what this one lists may be anybody's
        return await super().created_since(memo, since)

    async def aclose(self) -> None:
        """Give the host's callbacks back; its session stays as it is."""
        await checkpoint()
        for peer in self._taken:
            peer.leave()

    def _host_peer(self, session_id: str | None, told: Told) -> HostPeer:
        peer = HostPeer(self._line(), told, session_id)
        for one in self._taken:
            if one.lost:
                one.leave()
        self._taken = [*(one for one in self._taken if not one.lost), peer]
        return peer
