"""The logins of the user: the tokens of each server, in a file that only the user may read.

A file is for one URL and names it, so that no token goes to another server. It is replaced as a whole, under
a lock that processes share: a refresh token may be used once.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio

import mcp_tasks_client as tasks

__all__ = ["Login", "LoginFile", "login_refused"]

_EARLY_S: Final = 10.0
"""Seconds before its end at which a token counts as expired, since a request takes its time."""

_LOCK_S: Final = 60.0
"""Seconds that another process may take to renew a login."""

_LOOK_S: Final = 0.05
_MOST_BYTES: Final = 1_000_000
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def login_refused(message: str, *, status: int | None = None) -> tasks.CredentialRefusedError:
    """The error of a login that cannot be used: the user has to log in again."""
    error = tasks.CredentialRefusedError(message, not_executed=True, http_status=status)
    error.challenge = 'Bearer error="invalid_token"'  # so that the client does not ask by another version
    return error


@dataclass(frozen=True, slots=True)
class Login:
    """The tokens of a server at which the user has logged in, and the data for their renewal."""

    server: str = field(repr=False)
    client: Mapping[str, Any] = field(repr=False)
    """The registration of the client, in the SDK's form. So are the next ones."""

    tokens: Mapping[str, Any] = field(repr=False)
    expires_at: float | None
    """When the access token expires (Unix time); ``None`` if the server did not say."""

    authorization_server: Mapping[str, Any] | None = field(default=None, repr=False)
    resource: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def is_expired(self) -> bool:
        """True if the access token has expired, or does so in a moment."""
        return self.expires_at is not None and time.time() > self.expires_at - _EARLY_S

    @property
    def renews(self) -> bool:
        """True if the server gave a token by which it gives another one."""
        return "refresh_token" in self.tokens

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request with the access token."""
        return {"Authorization": f"Bearer {self.tokens['access_token']}"}


class LoginFile:
    """The file of one server's login.

    Args:
        url: Of the server. A user, a password and a fragment in it do not count.

    Attributes:
        server: The URL as the file names it.

    Raises:
        ValueError: The URL cannot be read.
        SessionError: The user has no home folder.
    """

    def __init__(self, url: str) -> None:
        import hashlib  # on use, as httpx below: help is shown without it

        self.server = _name(url)
        stem = hashlib.sha256(self.server.encode()).hexdigest()[:32]
        self._path = _folder() / f"{stem}.json"

    @property
    def is_there(self) -> bool:
        """True if there is a login, valid or not."""
        try:
            return self._path.exists()
        except OSError:  # a folder that the user may not enter
            return False

    def read(self) -> Login | None:
        """The login; ``None`` if there is none.

        Raises:
            CredentialRefusedError: The file is damaged, of another server, or open to other users.
        """
        try:
            with self._path.open("rb") as file:
                self._check_rights(os.fstat(file.fileno()))
                content = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise login_refused(f"The login in {self._path} cannot be read: {error.strerror}.") from None
        try:
            login = _read_login(json.loads(content))
        except (ValueError, TypeError, RecursionError):  # without its text, which may quote a token
            raise login_refused(f"The login in {self._path} is damaged. Log in again.") from None
        if login.server != self.server:
            raise login_refused(f"The login in {self._path} is of another server. Log in again.")
        return login

    def write(self, login: Login) -> None:
        """Replace the login, under the lock.

        Raises:
            SessionError: The file cannot be written.
        """
        new = self._path.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)  # left by a process that was killed
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(login), file)
                file.flush()
                os.fsync(descriptor)
            new.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise self._unwritable(error) from None

    def remove(self) -> bool:
        """Remove the login, under the lock. Returns False if there was none.

        Raises:
            SessionError: The file cannot be removed.
        """
        try:
            self._path.with_suffix(".new").unlink(missing_ok=True)
            self._path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unwritable(error) from None
        return True

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Have the login for this process alone. The folder is made if there is none.

        Raises:
            ConnectionLostError: Another process has had it for too long.
            SessionError: The folder cannot be written.
        """
        try:
            _make_private(self._path.parent)
            descriptor = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            with anyio.move_on_after(_LOCK_S) as scope:
                while not _try_lock(descriptor):  # noqa: ASYNC110  # no other process tells us
                    await anyio.sleep(_LOOK_S)
            if scope.cancelled_caught:
                raise tasks.ConnectionLostError(
                    f"Another process has been renewing the login for {_LOCK_S:.0f} s. Try again later.",
                    retryable=True,
                    not_executed=True,
                )
            yield
        finally:
            os.close(descriptor)  # and the lock is gone, as it is when the process dies

    def _check_rights(self, found: os.stat_result) -> None:
        if sys.platform == "win32":  # where a user's folder is the user's alone
            return
        if found.st_uid != os.getuid():
            raise login_refused(f"The login in {self._path} belongs to another user.")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise login_refused(
                f"Other users may read or write the login in {self._path}, so it is not used. Log in again."
            )

    def _unwritable(self, error: OSError) -> tasks.SessionError:
        return tasks.SessionError(
            f"The login cannot be kept in {self._path.parent}: {error.strerror}.", not_executed=True
        )


def _name(url: str) -> str:
    """A URL as a file names it: the same as the journal has it, with the query.

    Raises:
        ValueError: It cannot be read.
    """
    import httpx

    try:
        parsed = httpx.URL(url).copy_with(userinfo=b"", fragment=None)
    except httpx.InvalidURL as error:
        raise ValueError(f"The URL of the server cannot be read: {error}") from None
    if parsed.port == _DEFAULT_PORTS.get(parsed.scheme):
        parsed = parsed.copy_with(port=None)
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}{parsed.raw_path.decode('ascii')}"


def _folder() -> Path:
    import platformdirs

    try:
        return platformdirs.user_state_path("mcp-tasks-client", appauthor=False) / "logins"
    except RuntimeError as error:
        raise tasks.SessionError(
            f"There is no home folder for logins ({error}).", not_executed=True
        ) from None


def _make_private(folder: Path) -> None:
    """Make a folder that others can neither read nor write, or take these rights away from it."""
    # Path.mkdir(parents=True) would give the folders in between the default mode.
    for one in reversed([folder, *(p for p in folder.parents if not p.exists())]):
        one.mkdir(mode=0o700, exist_ok=True)
    if sys.platform != "win32" and stat.S_IMODE(folder.stat().st_mode) & 0o077:
        folder.chmod(0o700)


def _read_login(value: Any) -> Login:
    """A login from the JSON of its file.

    Raises:
        ValueError: It is no login.
        TypeError: A field is missing, or one is unknown.
    """
    if not isinstance(value, dict):
        raise ValueError("no object")
    login = Login(**value)
    tokens, expires_at = login.tokens, login.expires_at
    if not (
        isinstance(login.server, str)
        and isinstance(login.client, dict)
        and isinstance(tokens, dict)
        and isinstance(tokens.get("access_token"), str)
        and isinstance(tokens.get("refresh_token", ""), str)
        and (expires_at is None or (isinstance(expires_at, int | float) and expires_at == expires_at))
        and isinstance(login.authorization_server, dict | None)
        and isinstance(login.resource, dict | None)
    ):
        raise ValueError("wrong fields")
    return login


def _try_lock(descriptor: int) -> bool:
    """Take the lock of an open file. Returns False if another opening has it, also one of this process."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
