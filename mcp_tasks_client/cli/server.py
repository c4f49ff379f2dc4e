"""Which server a verb talks to, and with which credential."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer

import mcp_tasks_client as tasks

from .asking import Elicit
from .exits import CommandError, Exit
from .journal import APPLICATION, Where

__all__ = ["BearerOption", "HeaderEnvOption", "HeaderOption", "Server", "ServerOption", "read_headers"]

HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME:VALUE", help="A header of each request. `ps` shows it to others."),
]
BearerOption = Annotated[
    str | None,
    typer.Option("--bearer-env", metavar="VAR", help="The environment variable that has the bearer token."),
]
HeaderEnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header-env", metavar="NAME=VAR", help="A header whose value an environment variable has."
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server", metavar="URL", help="Where the server of the call is, if its record does not say."
    ),
]


@dataclass(frozen=True, slots=True)
class Server:
    """A server by its URL, with the headers of each request."""

    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def client(
        self,
        where: Where,
        elicitation: Elicit,
        *,
        scope: tasks.Scope | None = None,
        application: str = APPLICATION,
    ) -> tasks.TasksClient:
        """A client for the server, over the journal.

        Args:
            where: The journal, and on whose behalf.
            elicitation: Answers questions.
            scope: Of a call that is there already; ``None`` is that of a new one.
            application: Whose calls the client makes.
        """
        principal = where.principal if scope is None else scope.principal
        return tasks.TasksClient(
            self.url,
            journal=where.name_journal(),
            endpoint=None if scope is None else scope.endpoint,
            principal=principal,
            application=application,
            elicitation=elicitation,
            headers=self.headers or None,
        )


def read_headers(
    given: Sequence[str] | None, bearer: str | None, from_environment: Sequence[str] | None
) -> dict[str, str]:
    """The headers that the options name.

    Raises:
        CommandError: One is none, or a variable is not set.
    """
    headers = {}
    for one in given or ():
        name, colon, value = one.partition(":")
        if not colon or not name.strip():
            raise CommandError(Exit.USAGE, "A --header is NAME:VALUE, such as 'X-Team: builds'.")
        headers[name.strip()] = value.strip()
    for one in from_environment or ():
        name, equals, variable = one.partition("=")
        if not equals or not name.strip():
            raise CommandError(Exit.USAGE, "A --header-env is NAME=VAR, such as X-Api-Key=API_KEY.")
        headers[name.strip()] = _read_variable(variable)
    if bearer is not None:
        headers["Authorization"] = f"Bearer {_read_variable(bearer)}"
    return headers


def _read_variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise CommandError(Exit.USAGE, f"The environment variable {name!r} is not set.")
    return value
