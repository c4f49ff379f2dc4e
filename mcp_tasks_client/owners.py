"""Who drives what the journal holds. Within this process it is known; between processes not yet."""

from __future__ import annotations

import os
import socket
import uuid
from typing import Final

from .errors import TasksClientError
from .journal.base import TaskRecord

__all__ = ["driven_elsewhere", "end", "new_owner", "refuse_if_driven_elsewhere"]

_ALIVE: Final[set[str]] = set()


def new_owner() -> str:
    """A name for somebody who drives, as it is written in records; alive until :func:`end`."""
    owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
    _ALIVE.add(owner)
    return owner


def end(owner: str) -> None:
    """Nobody drives under this name any more."""
    _ALIVE.discard(owner)


def driven_elsewhere(record: TaskRecord, owner: str) -> bool:
    """Whether another than ``owner``, in this process, drives the record."""
    return record.owner != owner and record.owner in _ALIVE


def refuse_if_driven_elsewhere(record: TaskRecord, owner: str) -> None:
    """Two must not drive one call: both would ask its questions.

    Raises:
        TasksClientError: Another client of this process drives it.
    """
    if driven_elsewhere(record, owner):
        raise TasksClientError(
            f"Another client of this process is at the call of {record.tool!r}. Use that client for it, or "
            "wait until it has let go."
        )
