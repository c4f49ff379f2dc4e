"""What has come under which ID: servers give theirs away again, some of them at once."""

from __future__ import annotations

from typing import Final

from ..wire import JSONObject, RequestId, digest
from .peer import Peer
from .shapes_2025_11_25 import id_text

__all__ = ["KnownIds"]

_MOST: Final = 10_000


class KnownIds:
    """The latest request of each ID."""

    def __init__(self) -> None:
        self._requests: dict[tuple[Peer, str], tuple[str | None, str]] = {}

    def note(self, peer: Peer, request_id: RequestId, task_id: str | None, question: str) -> None:
        """Note a request.

        Args:
            peer: Where it has come.
            request_id: Its ID.
            task_id: Whose question it is; ``None`` if nobody's.
            question: Its digest.
        """
        name = peer, id_text(request_id)
        self._requests.pop(name, None)
        self._requests[name] = task_id, question
        if len(self._requests) > _MOST:
            del self._requests[next(iter(self._requests))]

    def may_be(self, peer: Peer, request_id: RequestId, task_id: str, question: JSONObject) -> bool:
        """Whether an ID may still be that of a question from before, as nothing else has come under it."""
        known = self._requests.get((peer, id_text(request_id)))
        return known is None or known == (task_id, digest(question))

    def lose(self, peer: Peer) -> None:
        """Forget a session that is gone."""
        self._requests = {name: one for name, one in self._requests.items() if name[0] is not peer}
