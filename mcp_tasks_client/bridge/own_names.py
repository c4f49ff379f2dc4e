"""The names of the bridge's own tools, none of which is one of the server's."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import anyio
from mcp_types import METHOD_NOT_FOUND

import mcp_tasks_client as tasks

__all__ = ["OwnNames"]

_MOST_PAGES: Final = 100

_NAMES_S: Final = 5.0
"""Seconds for which a call waits for the names of the server's tools. No progress is told meanwhile."""

_PREFIX: Final = "mcp_tasks_"


class OwnNames:
    """The names of the tools that a host sees beside those of the server.

    Args:
        client: Of the server.

    Attributes:
        prefix: Of each name. It is empty until a name is found to be the server's.
    """

    def __init__(self, client: tasks.TasksClient) -> None:
        self.prefix = ""
        self._client = client
        self._is_chosen = False

    @property
    def result_tool(self) -> str:
        """The tool that waits for a result."""
        return f"{self.prefix}task_result"

    @property
    def list_tool(self) -> str:
        """The tool that lists the calls."""
        return f"{self.prefix}task_list"

    @property
    def cancel_tool(self) -> str:
        """The tool that cancels a call."""
        return f"{self.prefix}task_cancel"

    def __contains__(self, tool: str) -> bool:
        return tool in (self.result_tool, self.list_tool, self.cancel_tool)

    async def choose(self) -> None:
        """See that none of the names is one of the server's. They stay as they are while it is away."""
        if self._is_chosen:
            return
        # Results that are here are handed out also while the server is away.
        with suppress(tasks.SessionError, TimeoutError), anyio.fail_after(_NAMES_S):
            taken = await self._find_taken()
            self.prefix = ""
            while not taken.isdisjoint((self.result_tool, self.list_tool, self.cancel_tool)):
                self.prefix += _PREFIX
            self._is_chosen = True

    def choose_anew(self) -> None:
        """Have the names chosen again before they are used next: the server's list has changed."""
        self._is_chosen = False

    async def _find_taken(self) -> set[str]:
        names: set[str] = set()
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            try:
                page = await self._client.request("tools/list", {} if cursor is None else {"cursor": cursor})
            except tasks.SessionError as error:
                if error.code == METHOD_NOT_FOUND:
                    return names
                raise
            names |= {str(one.get("name")) for one in page.get("tools") or () if isinstance(one, dict)}
            before, cursor = cursor, page.get("nextCursor")
            if cursor is None or cursor == before:
                break
        return names
