"""The tools that a server lists, over all pages of its list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import mcp_tasks_client as tasks

from .exits import CommandError, Exit, as_command_error

if TYPE_CHECKING:
    from mcp_types import Tool

__all__ = ["list_tools"]

_MOST_PAGES: Final = 100


async def list_tools(client: tasks.TasksClient) -> AsyncIterator[Tool]:
    """The tools of a server. No tool is called, so that an error never means that one may have run.

    Raises:
        CommandError: The server could not be asked, or its list does not end.
        CredentialRefusedError: The server refuses the credential.
    """
    cursor = None
    for _ in range(_MOST_PAGES):
        try:
            page = await client.list_tools(cursor)
        except tasks.CredentialRefusedError:
            raise
        except tasks.SessionError as error:
            failure = as_command_error(error)
            if failure.exit is Exit.OUTCOME_UNKNOWN:
                failure.exit = Exit.UNREACHABLE
            raise failure from None
        for tool in page.tools:
            yield tool
        if page.next_cursor is None:
            return
        cursor = page.next_cursor
    raise CommandError(Exit.UNEXPECTED, f"The server's list of tools has more than {_MOST_PAGES} pages.")
