"""A server that ``mcp-tasks`` starts, and speaks to over stdio. Its tasks end with it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_tasks_client as tasks

from .asking import Elicit
from .exits import Exit, as_command_error, reading_options
from .journal import APPLICATION, Where

__all__ = ["Command"]


@dataclass(frozen=True, slots=True)
class Command:
    """A server by the command that starts it."""

    command: str
    arguments: Sequence[str] = field(default=(), repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the few of our variables that each server gets."""

    folder: str = field(default_factory=os.getcwd)
    """The working folder, of which the server's name in the journal has a digest: its words may mean another
    server in another folder."""

    name: str = ""
    """The server's name in a line; empty for a command that was typed."""

    words: tuple[str, ...] = ()
    """Always empty: a command gets no credential."""

    @property
    def outlives_us(self) -> bool:
        """False: the server's tasks end with it."""
        return False

    @property
    def is_in_record(self) -> bool:
        """False: the journal has only a name."""
        return False

    @asynccontextmanager
    async def client(
        self,
        where: Where,
        elicitation: Elicit,
        *,
        scope: tasks.Scope | None = None,
    ) -> AsyncIterator[tasks.TasksClient]:
        """A client for the server, which the first request starts. Args are those of :meth:`Server.client`.

        Raises:
            CommandError: The command is empty, or the server did not start, or has ended too soon.
        """
        client = self.make_client(
            where,
            endpoint=None if scope is None else scope.endpoint,
            principal=where.principal if scope is None else scope.principal,
            application=APPLICATION,
            elicitation=elicitation,
        )
        try:
            async with client:
                yield client
        except tasks.ConnectionLostError as error:
            failure = as_command_error(error)
            if error.handle is not None and error.handle.reference["task_id"] is not None:
                failure.exit = Exit.GONE
            raise failure from None

    def make_client(self, where: Where, *, lives_long: bool = False, **options: Any) -> tasks.TasksClient:
        """A client for the server. Args and errors are those of :meth:`Server.make_client`."""
        with reading_options():
            return tasks.TasksClient(
                tasks.StdioServer(self.command, self.arguments, env=self.environment, cwd=self.folder),
                journal=where.name_journal(),
                **{"principal": where.principal, **options},
            )
