"""The server that a verb talks to, in each form that a line may name it, and the credential."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import urlsplit

import typer

import mcp_tasks_client as tasks

from .asking import Elicit
from .command import Command
from .exits import CommandError, Exit, as_command_error, reading_options
from .journal import APPLICATION, Where
from .lines import make_line
from .logins import LoginFile
from .mcp_json import read_entry
from .oauth import authorize

__all__ = [
    "AnyServer",
    "BearerOption",
    "HeaderEnvOption",
    "HeaderOption",
    "Reach",
    "Server",
    "ServerArgument",
    "ServerOption",
    "access_words",
    "name_command",
    "name_server",
    "read_headers",
    "read_login_server",
    "read_reach",
    "read_server",
]

_FORBIDDEN: Final = 403
_HAS_LOGINS: Final = "resource_metadata"
"""In a ``WWW-Authenticate``, points to the ways to log in. Source: RFC 9728, 5.1."""

_COMMAND: Final = "\0"
"""Begins the text that stands for a command, where a line has a URL. No typed word can hold it."""

ServerArgument = Annotated[
    str,
    typer.Argument(
        help="A URL, or FILE:NAME for a server in an mcp.json; none if a command stands behind --.",
        show_default=False,
    ),
]

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
        "--server",
        metavar="URL|FILE:NAME",
        help="Where the server of the calls is, if their records do not say.",
    ),
]


@dataclass(frozen=True, slots=True)
class Server:
    """A server by its URL, with the headers of each request.

    Raises:
        CommandError: The URL cannot be read.
    """

    url: str = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    file_name: str | None = None
    """``FILE:NAME``, if the server was named so."""

    words: tuple[str, ...] = ()
    """The options that name the credential in another line. They hold no secret."""

    def __post_init__(self) -> None:
        try:
            _ = urlsplit(self.url).port
        except ValueError:  # its message may quote a password
            raise CommandError(Exit.USAGE, "The URL of the server has no valid host or port.") from None

    @property
    def name(self) -> str:
        """The server's name in another line. Parts of a URL that may be secrets are left out."""
        if self.file_name is not None:
            return self.file_name
        parts = urlsplit(self.url)
        _, at, host = parts.netloc.rpartition("@")
        query = "?…" if parts.query else ""
        return f"{parts.scheme}://{'…@' if at else ''}{host}{parts.path}{query}"

    @property
    def outlives_us(self) -> bool:
        """True: its tasks run on when the command has ended."""
        return True

    @property
    def is_in_record(self) -> bool:
        """True if the record of a call has the whole URL, and no file has headers for it."""
        return self.file_name is None and "…" not in self.name

    @property
    def has_credential(self) -> bool:
        """True if the line or an mcp.json gives a credential. The user's login is left alone then."""
        return "@" in urlsplit(self.url).netloc or "authorization" in map(str.lower, self.headers)

    def login_file(self) -> LoginFile:
        """The file of the user's login at the server.

        Raises:
            CommandError: The URL makes no sense.
            SessionError: The user has no home folder.
        """
        with reading_options():
            return LoginFile(self.url)

    def refuse(self, error: tasks.CredentialRefusedError) -> CommandError:
        """The error of a credential that is refused: for a server with logins the line that logs in."""
        failure = as_command_error(error)
        has_logins = _HAS_LOGINS in error.challenge or self._find_login() is not None
        if has_logins and not self.has_credential and error.http_status != _FORBIDDEN:
            failure.next = make_line("login", self.name)
        return failure

    @asynccontextmanager
    async def client(
        self,
        where: Where,
        elicitation: Elicit,
        *,
        scope: tasks.Scope | None = None,
    ) -> AsyncIterator[tasks.TasksClient]:
        """A client for the server, over the journal. It has the user's login, if the line has no credential.

        Args:
            where: The journal, and on whose behalf.
            elicitation: Answers questions.
            scope: Of an existing call; ``None`` is that of a new one.

        Raises:
            CommandError: The URL, a header or the journal makes no sense; or the credential is refused.
        """
        made = self.make_client(
            where,
            endpoint=None if scope is None else scope.endpoint,
            principal=where.principal if scope is None else scope.principal,
            application=APPLICATION,
            elicitation=elicitation,
        )
        try:
            async with made as client:
                yield client
        except tasks.CredentialRefusedError as error:
            raise self.refuse(error) from error

    def make_client(self, where: Where, *, lives_long: bool = False, **options: Any) -> tasks.TasksClient:
        """A client for the server, over the journal.

        Args:
            where: The journal, and on whose behalf.
            lives_long: The client uses a login that comes later, too.
            options: Of :class:`TasksClient`.

        Raises:
            CommandError: The URL, a header or the journal makes no sense.
        """

        async def add_login() -> dict[str, str]:
            login = self._find_login()
            return {**self.headers, **({} if login is None else await authorize(login))}

        has_login = lives_long or self._find_login() is not None
        with reading_options():
            return tasks.TasksClient(
                self.url,
                journal=where.name_journal(),
                # A function is asked again after HTTP 401, and the request repeated: for a login alone.
                headers=add_login if has_login else self.headers,
                **{"principal": where.principal, **options},
            )

    def _find_login(self) -> LoginFile | None:
        """The file of a login to use; ``None`` if there is none."""
        if self.has_credential:
            return None
        try:
            file = self.login_file()
        except tasks.SessionError:  # a user without a home has never logged in
            return None
        return file if file.is_there else None


AnyServer: TypeAlias = Server | Command


def name_command(command: Sequence[str]) -> str:
    """The text that stands for a command where a line has a URL."""
    return _COMMAND + json.dumps(list(command))


def read_server(
    given: str,
    header: Sequence[str] | None = None,
    bearer: str | None = None,
    from_environment: Sequence[str] | None = None,
) -> AnyServer:
    """The server that a line names.

    Args:
        given: A URL, ``FILE:NAME``, or a text of :func:`name_command`.
        header: As for :func:`read_headers`, and the next two as well.
        bearer: As above.
        from_environment: As above.

    Raises:
        CommandError: It is none of these, or the file, a variable or a header is not there.
    """
    headers = read_headers(header, bearer, from_environment)
    words = tuple(_credential_words(header, bearer, from_environment))
    if given.startswith(_COMMAND):
        command = json.loads(given.removeprefix(_COMMAND))
        if not command:
            raise CommandError(Exit.USAGE, "There is no command behind --.")
        _refuse_headers(headers)
        # A typed command has the variables of the shell, as any other has.
        return Command(command[0], tuple(command[1:]), environment=dict(os.environ))
    if re.match(r"https?://", given, re.IGNORECASE):
        return Server(given, headers, words=words)
    path, _, name = given.rpartition(":")
    if not path or not name or "://" in given:
        raise CommandError(
            Exit.USAGE, "SERVER is a URL (http:// or https://), or FILE:NAME for a server in an mcp.json."
        )
    entry = read_entry(path, name)
    if entry.url is not None:
        return Server(entry.url, {**entry.headers, **headers}, file_name=given, words=words)
    assert entry.command is not None, "a URL or a command"
    _refuse_headers(headers)
    folder = str(Path(entry.cwd or "").absolute())
    return Command(entry.command, entry.args, environment=entry.env, folder=folder, name=given)


def read_login_server(given: str) -> Server:
    """The server that a line names, for a login.

    Raises:
        CommandError: As above; or a login would never be used for it.
    """
    server = read_server(given)
    if isinstance(server, Command):
        raise CommandError(Exit.USAGE, "A login is for a server by its URL. A command gets none.")
    if server.has_credential:
        raise CommandError(Exit.USAGE, "SERVER brings a credential, which is used in place of a login.")
    return server


def name_server(server: AnyServer) -> list[str]:
    """The server as the first argument of another line; nothing for a command that was typed."""
    return [server.name] if server.name else []


def access_words(server: AnyServer) -> tuple[str, ...]:
    """The options by which a line that has the ID of a call reaches the call's server."""
    named = () if server.is_in_record or not server.name else ("--server", server.name)
    return *named, *server.words


@dataclass(frozen=True, slots=True)
class Reach:
    """The way to the servers of existing calls: by the options of a line, or else by their records."""

    server: AnyServer | None
    headers: dict[str, str] = field(repr=False)
    words: tuple[str, ...] = ()
    """The same options for another line."""

    def check(self, records: Sequence[tasks.TaskRecord]) -> None:
        """Refuse options for calls at several servers: one would get the credential or the tasks of another.

        Raises:
            CommandError: There are such options.
        """
        if (self.server is not None or self.headers) and len({one.scope.endpoint for one in records}) > 1:
            raise CommandError(
                Exit.USAGE,
                "The calls are at several servers, and --server and the options of a credential are for one. "
                "Give the calls of each server in a line of their own.",
            )

    def server_of(self, record: tasks.TaskRecord) -> AnyServer:
        """The server of a call.

        Raises:
            CommandError: Neither the line nor the record says where it is.
        """
        if self.server is not None:
            return self.server
        endpoint = record.scope.endpoint
        if not endpoint.startswith(("http://", "https://")) or "?sha256=" in endpoint:
            raise CommandError(
                Exit.USAGE,
                f"Nobody drives the call, and {endpoint!r} is no address. Give --server.",
                record=record.record_id,
            )
        return Server(endpoint, self.headers)


def read_reach(
    server: str | None,
    header: Sequence[str] | None,
    bearer: str | None,
    from_environment: Sequence[str] | None,
) -> Reach:
    """The way to the servers of calls. Arguments and errors are those of :func:`read_server`."""
    named = None if server is None else read_server(server, header, bearer, from_environment)
    words = () if named is None or not named.name else ("--server", named.name)
    return Reach(
        named,
        read_headers(header, bearer, from_environment),
        (*words, *_credential_words(header, bearer, from_environment)),
    )


def _refuse_headers(headers: dict[str, str]) -> None:
    if headers:
        raise CommandError(Exit.USAGE, "Headers are for a server by its URL. A command gets none.")


def _credential_words(
    given: Sequence[str] | None, bearer: str | None, from_environment: Sequence[str] | None
) -> Iterator[str]:
    """The options of another line that name the same credential. They hold no secret."""
    for one in given or ():
        yield from ("--header", f"{one.partition(':')[0].strip()}: …")
    for one in from_environment or ():
        yield from ("--header-env", one)
    if bearer is not None:
        yield from ("--bearer-env", bearer)


def read_headers(
    given: Sequence[str] | None, bearer: str | None, from_environment: Sequence[str] | None
) -> dict[str, str]:
    """The headers that the options name.

    Raises:
        CommandError: A header is malformed, or a variable is not set.
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
    return value.strip()
