"""What a server says of its tasks by itself without having promised to, passed on to whom it is about.

A server of the generation before asks so, and does not ask again. So it is listened to for as long as the
client is open, and a task need not be observed for it: of one at rest it is journaled, for whoever goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from .drive import Drive
from .sessions.base import Session
from .wire import Task

__all__ = ["Hearsay"]


class Hearsay:
    """Knows whose tasks they are.

    Args:
        session: Where it is said.
        told: Gets each snapshot that is about one of our drives, whether that runs or not.
    """

    def __init__(self, session: Session, *, told: Callable[[Drive, Task], None]) -> None:
        self._session = session
        self._told = told
        self._drives: WeakValueDictionary[str, Drive] = WeakValueDictionary()

    def add(self, drive: Drive) -> None:
        """Pass on what is said of a drive's task: from here on, and what was said before we knew its ID."""
        task_id = drive.task_id
        if task_id is None:
            return
        known = self._drives.get(task_id)
        if known is not None and known.running:
            return  # two calls may have one task, which is told of once
        self._drives[task_id] = drive
        task = self._session.told(task_id)
        if task is not None:
            self._told(drive, task)

    def heard(self, task: Task) -> None:
        """Take what is said of a task, which may be anybody's."""
        drive = self._drives.get(task.task_id)
        if drive is not None:
            self._told(drive, task)
