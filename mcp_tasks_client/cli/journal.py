"""The journal of a verb, and its calls and questions by the beginnings of their IDs."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

import mcp_tasks_client as tasks

from .exits import CommandError, Exit
from .lines import make_line

__all__ = [
    "APPLICATION",
    "ApplicationOption",
    "JournalOption",
    "KeysOption",
    "Nowhere",
    "PrincipalOption",
    "SchemaOption",
    "Where",
    "find_question",
    "find_record",
]

APPLICATION: Final = "mcp-tasks"
"""The application of the calls that the command makes."""

JournalOption = Annotated[
    str | None,
    typer.Option(
        "--journal",
        envvar="MCP_TASKS_JOURNAL",
        metavar="FILE|DSN",
        help="The journal: a file, or postgresql://user@host/database. Without it, the user's own file.",
    ),
]
SchemaOption = Annotated[
    str | None,
    typer.Option(envvar="MCP_TASKS_SCHEMA", metavar="NAME", help="The schema of a journal in PostgreSQL."),
]
KeysOption = Annotated[
    Path | None,
    typer.Option(
        envvar="MCP_TASKS_KEYS", metavar="FILE", help="Fernet keys of an encrypted journal, one a line."
    ),
]
PrincipalOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="On whose behalf calls are made. Lists show everybody without it."),
]
ApplicationOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Show only calls of programs that give this name, or none."),
]

_IN_DATABASE: Final = re.compile(r"\s*(\w[\w+.-]*://|\w+\s*=)")
"""Begins the address of a database: also of one that libpq does not know, which may have a password too."""

_SECRET: Final = re.compile("password|secret|scram")
"""In the names of the parameters that are secrets."""


@dataclass(frozen=True, slots=True)
class Where:
    """A journal, and which of its calls a verb sees."""

    journal: str | None = None
    schema: str | None = None
    keys: Path | None = None
    principal: str | None = None
    application: str | None = None
    access: tuple[str, ...] = ()
    """Options that name the server of a call and the credential, for a line that reaches it. No secrets."""

    @asynccontextmanager
    async def inbox(self) -> AsyncIterator[tasks.Inbox]:
        """The calls of the journal, as the options bound them.

        The user's own journal is made if there is none, as by a first call. A journal that was named is not.

        Raises:
            CommandError: As from :meth:`name_journal`.
            JournalError: The journal could not be opened.
        """
        journal = self.name_journal()
        if self.journal is None and isinstance(journal, tasks.SqliteJournal) and _is_missing(journal.path):
            await journal.open()
            await journal.aclose()
        async with tasks.Inbox(journal, principal=self.principal, application=self.application) as inbox:
            yield inbox

    def name_journal(self) -> tasks.SqliteJournal | tasks.PostgresJournal:
        """The journal that the options name.

        Raises:
            CommandError: The address, the schema or the keys make no sense.
        """
        codec = None
        try:
            if self.keys is not None:
                codec = tasks.FernetCodec(*self.keys.read_text().split())
            if self.journal is not None and _IN_DATABASE.match(self.journal):
                made = partial(tasks.PostgresJournal, self.journal, codec=codec)
                return made() if self.schema is None else made(schema=self.schema)
            return tasks.SqliteJournal(self.journal, codec=codec)
        except tasks.JournalError:
            raise
        except (ImportError, ValueError, TypeError, OSError) as error:
            raise CommandError(Exit.USAGE, f"The journal cannot be named so: {error}") from None

    def line(self, verb: str, *words: str) -> str:
        """A command line that looks at the same journal, and reaches the same server if the verb does."""
        options = list(self.access if verb in ("wait", "cancel") else ())
        for option, value, variable in (
            ("--journal", self.journal, "MCP_TASKS_JOURNAL"),
            ("--schema", self.schema, "MCP_TASKS_SCHEMA"),
            ("--keys", self.keys, "MCP_TASKS_KEYS"),
        ):
            if value is not None and os.environ.get(variable) != str(value):
                options += option, _without_secrets(str(value)) if value is self.journal else str(value)
        return make_line(verb, *words, *options)


def _is_missing(file: Path) -> bool:
    """False if it cannot be seen: the error of its opening says why."""
    try:
        return not file.exists()
    except OSError:
        return False


def _without_secrets(journal: str) -> str:
    """A journal as another line may name it. The address of a database that cannot be read is ``…``."""
    if _IN_DATABASE.match(journal) is None:
        return journal
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError:
        return "…"
    try:
        parts = conninfo_to_dict(journal)
    except ProgrammingError:
        return "…"
    secrets = {name: "…" for name in parts if _SECRET.search(name)}
    return make_conninfo("", **{**parts, **secrets}) if secrets else journal


class Nowhere(Where):
    """No journal of the user: a look at a server leaves nothing behind."""

    def name_journal(self) -> tasks.MemoryJournal:  # type: ignore[override]  # nobody examines it
        """A journal in memory."""
        return tasks.MemoryJournal()


async def find_record(inbox: tasks.Inbox, beginning: str) -> tasks.TaskRecord:
    """The call whose ``record_id`` begins so.

    Raises:
        CommandError: There is none, or more than one.
        JournalError: The journal could not be read.
    """
    exact = await inbox.record(beginning)
    if exact is not None:
        return exact
    found = [one for one in await inbox.records() if beginning and one.record_id.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    if found:
        raise CommandError(
            Exit.USAGE, f"{len(found)} calls have an ID that begins with {beginning!r}. Give more of it."
        )
    raise CommandError(
        Exit.GONE,
        f"The journal has no call {beginning!r}. A call without a key is forgotten once its program has "
        "received the outcome.",
    )


async def find_question(inbox: tasks.Inbox, beginning: str) -> tasks.Question:
    """The open question whose ID begins so, or the only one of the call whose ID begins so.

    The ID of a question is that of its call, a dash, and more; both parts may be shortened.

    Raises:
        CommandError: There is none, or more than one.
        JournalError: The journal could not be read.
    """
    call, _, rest = beginning.partition("-")
    found = [
        one
        for one in await inbox.questions()
        if call
        and one.record_id.startswith(call)
        and one.question_id.removeprefix(f"{one.record_id}-").startswith(rest)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise CommandError(
            Exit.USAGE, f"{len(found)} questions are open under {beginning!r}. Give the ID of one of them."
        )
    raise CommandError(
        Exit.GONE,
        f"No open question has an ID that begins with {beginning!r}. It has an answer, or its call is over.",
    )
