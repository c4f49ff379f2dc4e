"""Who drives what the journal holds. Within this process it is known; between processes not yet."""

from __future__ import annotations

import os
import socket
import uuid
from typing import Final

from .errors import TasksClientError
from .journal.base import TaskRecord

__all__ = [
    "DrivenElsewhereError",
    "driven_elsewhere",
    "end",
    "let_go",
    "new_owner",
    "refuse_if_driven_elsewhere",
    "take",
]

_ALIVE: Final[set[str]] = set()
_DRIVEN: Final[dict[str, str]] = {}
"""Owners by the record that they drive: known before the journal is, which takes a moment."""


class DrivenElsewhereError(TasksClientError):
    """Another client of this process drives the call."""


def _forget() -> None:
    _ALIVE.clear()
    _DRIVEN.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    # A child drives nothing of what its parent did.
    os.register_at_fork(after_in_child=_forget)


def new_owner() -> str:
    """A name for somebody who drives, as it is written in records; alive until :func:`end`."""
    owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
    _ALIVE.add(owner)
    return owner


def end(owner: str) -> None:
    """Nobody drives under this name any more."""
    _ALIVE.discard(owner)
    for record_id in [record_id for record_id, driver in list(_DRIVEN.items()) if driver == owner]:
        del _DRIVEN[record_id]


def take(record: TaskRecord, owner: str) -> None:
    """Become the one in this process who drives the record.

    Raises:
        DrivenElsewhereError: Another is.
    """
    if _DRIVEN.setdefault(record.record_id, owner) != owner:
        raise _refusal(record)


def let_go(record: TaskRecord, owner: str) -> None:
    """Drive it no more."""
    if _DRIVEN.get(record.record_id) == owner:
        del _DRIVEN[record.record_id]


def driven_elsewhere(record: TaskRecord, owner: str) -> bool:
    """Whether another than ``owner``, in this process, drives the record."""
    driver = _DRIVEN.get(record.record_id, record.owner)
    return driver != owner and driver in _ALIVE


def refuse_if_driven_elsewhere(record: TaskRecord, owner: str) -> None:
    """Two must not drive one call: both would ask its questions.

    Raises:
        DrivenElsewhereError: Another client of this process drives it.
    """
    if driven_elsewhere(record, owner):
        raise _refusal(record)


def _refusal(record: TaskRecord) -> DrivenElsewhereError:
    return DrivenElsewhereError(
        f"Another client of this process is at the call of {record.tool!r}. Use that client for it, or wait "
        "until it has let go."
    )
