"""``tasks/list`` of 2025-11-25: all that a server lists for a session, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from ..errors import RemoteProtocolError
from ..wire import JSONObject, MalformedError
from .peer import Peer
from .shapes_2025_11_25 import snapshot

__all__ = ["listed_tasks"]

_MOST_PAGES: Final = 1000


async def listed_tasks(peer: Peer, timeout_s: float) -> list[JSONObject]:
    """The tasks of a session. What is none is left out.

    Args:
        peer: The session.
        timeout_s: Seconds of silence after which a page is given up.

    Raises:
        SessionError: A page could not be had, or there is no last one.
    """
    found: list[JSONObject] = []
    params: JSONObject = {}
    seen: set[str] = set()
    for _ in range(_MOST_PAGES):
        page = await peer.request("tasks/list", params, timeout_s)
        found += _tasks_of(page)
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return found
        if cursor in seen:
            break
        seen.add(cursor)
        params = {"cursor": cursor}
    raise RemoteProtocolError(
        f"The server's list of tasks does not end: after {len(seen)} pages it goes on or starts again."
    )


def _tasks_of(page: JSONObject) -> Iterator[JSONObject]:
    tasks = page.get("tasks")
    for raw in tasks if isinstance(tasks, list) else ():
        with suppress(MalformedError):
            yield snapshot(raw)
