"""Which library is measured: the present one, or version 0.1 beside it.

Imported names are looked up when they are used, so that a process that measures another client
holds nothing of ours.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

__all__ = ["PRESENT", "public", "select"]

PRESENT: Final = "mcp_tasks_client"

_IN_OLD: Final = {
    "TasksClient": "client",
    "TasksExtension": "extension",
    "SqliteJournal": "journal.sqlite",
    "MemoryJournal": "journal.memory",
    "PollPolicy": "policy",
    "Task": "wire",
    "TaskRecord": "journal.base",
    "Scope": "journal.base",
    "dump_state": "journal.base",
    "Observing": "states",
}
_IN_ROOMS: Final = {"Scope": "journal.record", "dump_state": "journal.record", "Observing": "machine.states"}

_selected = [PRESENT]


def select(name: str) -> None:
    """Measure this package from now on."""
    _selected[0] = name


def public(name: str) -> Any:
    """A name of the library that is measured."""
    room = (_IN_ROOMS if _selected[0] == PRESENT else _IN_OLD).get(name)
    return getattr(import_module(f"{_selected[0]}.{room}" if room else _selected[0]), name)
