"""Works: statements by their names, and the jobs that one execution of each does together.

With each statement Python's lock is given away, and a busy event loop gives it back up to 5 ms later. So
works of the same statements about different rows are done by one execution of each statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar

from .base import Lease
from .row import escape

__all__ = [
    "LEASE_STATEMENTS",
    "Found",
    "Job",
    "Work",
    "also_of",
    "group_jobs",
    "note_results",
    "release",
    "renew_lease",
]

W = TypeVar("W")

LEASE_STATEMENTS: Final = ("lease_until", "renew")
"""The statements of a work that stores a lease."""

Found: TypeAlias = Sequence[Sequence[tuple[Any, ...]]]
"""The rows that each statement of a work returned. A statement that returns none, and has no given rows, has
one row with the number of rows that it changed. Of a statement that has given rows and returns none, nothing
is read."""


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """Some statements, one after the other in one transaction."""

    statements: tuple[str, ...]
    """Their names in ``statements.sql``."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """The values that the statements name: plain ones, and lists of texts."""

    row: Mapping[str, Any] | None = None
    """The row that the statements are given, in place of ``values``."""

    key: str = ""
    """The first column of each row that is returned for the given row."""

    touches: tuple[str, ...] = ()
    """Names for the subjects of the row. Works that touch the same name are done in their order."""

    also: str | None = None
    """A statement that comes before the others, in each execution of which a work has it. It is given the
    rows of all works of the execution, with NULL for columns that a row lacks. Its result is not read."""

    read: Callable[[Found], Any] = lambda found: None
    """Makes the result. It is called in the thread of the medium, after the commit."""

    writes: bool = True
    """Whether the statements change anything."""

    again: tuple[str, ...] | None = None
    """The statements that read the result of the work if it was committed and the reply was lost. ``None``
    means ``statements``, which it is then safe to execute once more."""

    asked_at: float = field(default_factory=time.monotonic)
    """When the work was asked for, by the monotonic clock."""

    @property
    def is_single(self) -> bool:
        """True for a work of one statement."""
        return len(self.statements) == 1 and self.also is None


class Job(Generic[W]):
    """A work, the task that waits for it, and its result or error."""

    __slots__ = ("error", "number", "result", "tried", "waiter", "work")

    def __init__(self, work: Work, waiter: W) -> None:
        self.work = work
        self.waiter = waiter
        self.number = 0  # in the order of the calls, where a thread takes jobs
        self.error: Exception | None = None
        self.result: Any = None
        self.tried: Any = None  # the transaction that has failed with it, as the medium knows it


def group_jobs(jobs: Iterable[Job[Any]]) -> list[list[Job[Any]]]:
    """Group jobs into lists, each of which is one execution, in the order in which they are executed.

    The jobs of a list have the same statements and different rows. A job that writes and has no row is a list
    of its own: it comes after all jobs that were asked for before it, and before all others. Jobs that only
    read and have no row come last, each by itself.
    """
    turns: dict[tuple[int, tuple[str, ...] | int], list[Job[Any]]] = {}
    turn_of: dict[str, int] = {}  # the last one that touches a name
    first = last = 0
    for number, job in enumerate(jobs):
        work = job.work
        if work.row is not None:
            turn = max([first, *(turn_of[name] + 1 for name in work.touches if name in turn_of)])
            turn_of.update(dict.fromkeys(work.touches, turn))
            turns.setdefault((turn, work.statements), []).append(job)
        elif work.writes:
            turn = last + 1
            first = turn + 1
            turns[turn, number] = [job]
        else:
            turns[_LAST, number] = [job]
            continue
        last = max(last, turn)
    return [turns[key] for key in sorted(turns, key=lambda key: key[0])]


_LAST: Final = 2**62


def also_of(group: Iterable[Job[Any]]) -> str | None:
    """The statement that comes before the others in this execution; see :attr:`Work.also`."""
    return next((job.work.also for job in group if job.work.also is not None), None)


def note_results(group: Iterable[Job[Any]], found: Found) -> None:
    """Give each job of one execution its result, made of the rows that were returned for its own row."""
    rows_of: list[dict[str, list[tuple[Any, ...]]]] | None = None
    for job in group:
        work = job.work
        own = found
        if work.row is not None:
            rows_of = rows_of if rows_of is not None else [_by_key(rows) for rows in found]
            own = [by_key.get(work.key, []) for by_key in rows_of]
        job.error = None
        try:
            job.result = work.read(own)
        except Exception as error:
            job.error = error


def _by_key(rows: Sequence[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    by_key: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        by_key.setdefault(row[0], []).append(row[1:])
    return by_key


def renew_lease(lease: Lease) -> Work:
    """The work that stores a lease, and says whether it was there and had not run out."""
    row = {name: escape(value) if isinstance(value, str) else value for name, value in asdict(lease).items()}
    return Work(
        statements=LEASE_STATEMENTS,
        row=row,
        key=row["lease_id"],
        touches=(f"lease {row['lease_id']}",),
        again=("lease_until",),  # which does not tell the lease of before: it counts as lapsed
        read=lambda found: len(found) > 1 and bool(found[0]) and found[0][0][0] >= lease.renewed_at,
    )


def release(names: Iterable[str]) -> Work:
    """The work that releases the records of these owners, and forgets the leases of these names."""
    escaped = list(map(escape, names))
    return Work(statements=("release", "end_leases"), values={"owners": escaped, "lease_ids": escaped})
