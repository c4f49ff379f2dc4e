"""``tasks/list`` of 2025-11-25: all that a server lists for a session, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from ..errors import RemoteProtocolError
from ..wire import Created, JSONObject, MalformedError, read_task
from .peer import Peer
from .shapes_2025_11_25 import CORE_TASKS_VERSION, Memo, created_before, snapshot

__all__ = ["listed_tasks", "tasks_of_call"]

_MOST_PAGES: Final = 1000
_CLOCKS_DIFFER_S: Final = 60.0
"""Seconds by which a server's clock may be behind ours."""


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


async def tasks_of_call(peer: Peer, memo: Memo | None, since: float, timeout_s: float) -> list[Created]:
    """The tasks that may have come of a call: they bear the time-to-live that it alone asked for.

    Args:
        peer: The session that it was made in.
        memo: What was noted of it; ``None`` for all that the session has.
        since: When it was made at the earliest, in seconds since the epoch.
        timeout_s: Seconds of silence after which a page of the list is given up.

    Raises:
        SessionError: The list could not be had.
    """
    found: list[Created] = []
    for listed in await listed_tasks(peer, timeout_s):
        with suppress(MalformedError):  # none that could be observed
            task = read_task({**listed, "requestState": str(Memo(session_id=peer.session_id))})
            theirs = memo is None or task.ttl_ms == memo.ttl_ms
            if theirs and not created_before(task.created_at, since - _CLOCKS_DIFFER_S):
                found.append(Created(task, generation=CORE_TASKS_VERSION))
    return found


def _tasks_of(page: JSONObject) -> Iterator[JSONObject]:
    tasks = page.get("tasks")
    for raw in tasks if isinstance(tasks, list) else ():
        with suppress(MalformedError):
            yield snapshot(raw)
