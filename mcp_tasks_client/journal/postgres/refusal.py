"""The code with which a server refuses a connection, which libpq keeps to itself.

libpq tells the words of a refusal only, which are in the server's language. The code stands in the notes that
libpq takes of the protocol (``PQtrace``), on Linux, and in full since version 18.
"""

from __future__ import annotations

import os
import re
import selectors
import time
from typing import Final

import psycopg
from psycopg import errors, pq

__all__ = ["CONNECT_S", "told_by_code"]

CONNECT_S: Final = 5.0
"""Seconds that making a connection may take."""

_FINAL: Final = ("0A", "22", "28", "3D", "3F", "42")
"""The codes with which a server that is there refuses a connection for good: the user, the password, the
database, a setting. All else that keeps a connection from being made may pass."""


def told_by_code(error: psycopg.OperationalError, address: str) -> psycopg.Error:
    """The error of a connection that could not be made: of its code's class if the refusal is final.

    An error without a code is one of a server that may take connections later.
    """
    sqlstate = _sqlstate_of(error, address)
    if not sqlstate.startswith(_FINAL):
        return error
    try:
        kind = errors.lookup(sqlstate)
    except KeyError:  # psycopg has no class for this code
        return error
    return kind(str(error))


_REASONS: Final[dict[str, str]] = {}
"""The codes of refusals, by their words."""


def _sqlstate_of(error: psycopg.OperationalError, address: str) -> str:
    """The code with which a server refuses a connection; empty if it does not, or is unknown."""
    if error.pgconn is not None and error.pgconn.needs_password:
        return errors.InvalidPassword.sqlstate or ""
    words = str(error)
    if isinstance(error, errors.ConnectionTimeout):
        return ""  # no server has replied
    if words not in _REASONS:
        was_asked = error.pgconn is not None and error.pgconn.used_password
        guess = errors.InvalidPassword.sqlstate if was_asked else None
        said, sqlstate = _ask_again(address) or (words, guess or "")
        if not said or said not in words:  # it was another reason
            return ""
        if len(_REASONS) > _REASONS_KEPT:
            _REASONS.clear()
        _REASONS[words] = sqlstate
    return _REASONS[words]


_REASONS_KEPT: Final = 100


def _ask_again(address: str) -> tuple[str, str] | None:
    """Try to connect once more, and read the server's refusal in libpq's notes of the protocol.

    libpq keeps the code to itself, and the words are in the server's language. Each time some KB are lost,
    which libpq's C library never gives back.

    Returns:
        The last line of libpq's words, and the code; ``None`` if this libpq or system notes nothing.
    """
    pgconn = pq.PGconn.connect_start(address.encode())
    try:
        if pgconn.status == pq.ConnStatus.BAD:
            return _last_line(pgconn), ""
        try:
            notes = os.memfd_create("mcp-tasks-refusal")
        except AttributeError:
            return None
        with os.fdopen(notes, "rb") as read:
            try:
                pgconn.trace(notes)
            except psycopg.NotSupportedError:
                return None
            try:
                is_over = _poll(pgconn)
            finally:
                pgconn.untrace()
            read.seek(0)
            noted = read.read()
        said = _last_line(pgconn)
    finally:
        pgconn.finish()
    refusals = re.findall(rb'\tErrorResponse\t.*? C "([0-9A-Z]{5})"', noted)
    if is_over and not refusals and pq.version() < _NOTES_ALL:
        return None  # perhaps the refusal of a password, which it does not note
    return said, refusals[-1].decode() if refusals else ""


_NOTES_ALL: Final = 18_00_00
"""The version of libpq that also notes a server's refusal of a password."""


def _poll(pgconn: pq.abc.PGconn) -> bool:
    """Go on with connecting until it is done or has failed. False if that takes too long."""
    until = time.monotonic() + CONNECT_S
    while (status := pgconn.connect_poll()) in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
        events = selectors.EVENT_READ if status == pq.PollingStatus.READING else selectors.EVENT_WRITE
        with selectors.DefaultSelector() as selector:
            selector.register(pgconn.socket, events)
            if not selector.select(max(0.0, until - time.monotonic())):
                return False
    return True


def _last_line(pgconn: pq.abc.PGconn) -> str:
    return pgconn.get_error_message().strip().rpartition("\n")[2]
