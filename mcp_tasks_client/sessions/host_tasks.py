"""Core tasks over a session that the host has: what is the same for each generation of its SDK."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from anyio.lowlevel import checkpoint

from ..inputs import Inputs
from ..wire import Created
from .host_peer import HostPeer, Line
from .limits import Limits
from .peer import Told
from .shapes_2025_11_25 import Memo
from .tasks_2025_11_25 import CoreTasksSession, Preference

__all__ = ["HostTasksSession"]

# Limits that the host's session has itself.
_RESPONSE_BYTES: Final = 64 * 1024 * 1024
_CALL_READ_TIMEOUT_S: Final = 300.0


class HostTasksSession(CoreTasksSession):
    """A server of 2025-11-25, reached through the host's session.

    Args:
        line: That session as it is now.
        endpoint: The server's name in the journal.
        inputs: Answers questions.
        tasks_in_flight: Polls under way at once, at most, and as many other ``tasks/*`` requests.
        calls_in_flight: ``tools/call`` requests under way at once, at most.
        task_timeout_s: Seconds after which a request other than ``tools/call`` is given up.
        prefer: Whether to ask for tasks.

    Raises:
        ValueError: ``prefer`` is none of the three words.
    """

    def __init__(
        self,
        line: Callable[[], Line],
        *,
        endpoint: str,
        inputs: Inputs,
        tasks_in_flight: int,
        calls_in_flight: int,
        task_timeout_s: float,
        prefer: Preference,
    ) -> None:
        super().__init__(
            self._host_peer,
            endpoint=endpoint,
            inputs=inputs,
            client_info={},  # the host's, who has introduced itself
            prefer=prefer,
            limits=Limits(
                max_response_bytes=_RESPONSE_BYTES,
                tasks_in_flight=tasks_in_flight,
                calls_in_flight=calls_in_flight,
                task_timeout_s=task_timeout_s,
                call_read_timeout_s=_CALL_READ_TIMEOUT_S,
            ),
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
