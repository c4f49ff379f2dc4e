"""A journal's SQLite file, examined by reading alone: the file and its log stay byte for byte as they are."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..examination import Examination, JournalUser
from .file import (
    check_readable,
    damaged,
    explain,
    find_dangers,
    find_file_system,
    find_missing_right,
    read_unwritable,
    sidecars,
    version_of,
)

__all__ = ["examine_file"]

_MOST_DAMAGES: Final = 5
"""Damaged places that are named."""


def examine_file(path: Path, busy_timeout_s: float) -> Examination:
    """Examine a file.

    Args:
        path: Without symbolic links.
        busy_timeout_s: Seconds to wait for other processes.
    """
    faults: list[str] = []
    damages: list[str] = []
    version: int | None = None

    def read(connection: sqlite3.Connection) -> None:
        nonlocal version
        version = version_of(connection, path)
        found = connection.execute(f"PRAGMA quick_check({_MOST_DAMAGES})")
        damages[:] = [" ".join(row[0].split()) for row in found]

    try:
        missing = find_missing_right(path)
        check_readable(path)
        read_unwritable(path, busy_timeout_s, read)
        if damages != ["ok"]:
            raise damaged(path, "; ".join(damages))
        if missing is not None:
            faults.append(str(missing))
        is_usable = True
    except Exception as error:
        faults.append(str(explain(error, path, writes=False)))
        is_usable = False
    file_system = None
    with suppress(OSError):  # there is no file
        faults += find_dangers(path)
        file_system = find_file_system(path)
    sizes = list(_sizes(path))
    return Examination(
        name=str(path),
        database=f"SQLite {sqlite3.sqlite_version}",
        is_there=any(sizes),
        is_usable=is_usable,
        version=version,
        size=sum(sizes) if sizes else None,
        file_system=file_system,
        users=tuple(_find_users(path)),
        faults=tuple(faults),
    )


def _sizes(path: Path) -> Iterator[int]:
    """The sizes of the file and of the logs beside it, in bytes."""
    for file in sidecars(path):
        with suppress(OSError):
            if not file.name.endswith("-shm"):
                yield file.stat().st_size


def _find_users(path: Path) -> Iterator[JournalUser]:
    """The processes of this machine that have a file open, this one included."""
    if os.name == "nt":  # where asking for the files of a process can hang
        return
    import psutil  # imported on use: only an examination looks at all processes

    files = {str(file) for file in sidecars(path)}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it has ended, or is another user's
            if any(opened.path in files for opened in process.open_files()):
                yield JournalUser(program=process.name(), host=None, pid=process.pid)
