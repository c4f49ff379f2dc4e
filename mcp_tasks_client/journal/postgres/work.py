"""What is to be done in a database: statements by their names, and how much of it one statement does.

With each statement Python's lock is given away, and a busy event loop gives it back up to 5 ms later. So
works of the same statements about different rows are done by one statement of each: rows travel as JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

__all__ = ["Found", "Work", "group_jobs", "row_json", "values_of"]

Found: TypeAlias = Sequence[Sequence[tuple[Any, ...]]]
"""What the statements of a work returned, of each its rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """Some statements, one after the other in one transaction.

    Attributes:
        statements: Their names in ``queries.sql``.
        values: The values of their placeholders.
        read: Makes the result. It is called in the thread, after the commit.
        writes: Whether they change anything.
        row: The work as a row of statements that take many: JSON, in place of ``values``.
        key: The first column of what such statements return for this row.
        touches: Names of what the row is about. Works that touch the same are done in their order.
        again: The statements that read the result of the work if it was committed and the reply was lost.
            ``None`` means ``statements``, which it is then safe to execute once more.
        in_scope: Whether the statements are about one scope.
        asked_at: When it was asked for, by the monotonic clock.
    """

    statements: tuple[str, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[Found], Any] = lambda found: None
    writes: bool = True
    row: str | None = None
    key: str = ""
    touches: tuple[str, ...] = ()
    again: tuple[str, ...] | None = None
    in_scope: bool = True
    asked_at: float = field(default_factory=time.monotonic)


def group_jobs(jobs: Iterable[Any]) -> list[list[Any]]:
    """Group jobs into lists, each of which is one execution, in the order in which they are executed.

    The jobs of a list have the same statements and different rows. A job that writes and has no row is a list
    of its own: it comes after all jobs that were asked for before it, and before all others. Jobs that only
    read and have no row come last, each by itself.

    Args:
        jobs: Each with a ``work``.
    """
    turns: dict[tuple[int, tuple[str, ...] | int], list[Any]] = {}
    turn_of: dict[str, int] = {}  # the last one that touches a name
    first = last = 0
    for number, job in enumerate(jobs):
        work: Work = job.work
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


def row_json(row: Mapping[str, Any]) -> str:
    """A row for a statement that takes many."""
    try:
        return json.dumps(row, allow_nan=False, separators=(",", ":"))
    except ValueError:  # JSON has no infinity, but the database reads the word
        return json.dumps(
            {
                name: str(value) if isinstance(value, float) and value - value != 0 else value
                for name, value in row.items()
            }
        )


def values_of(works: Sequence[Work]) -> Mapping[str, Any]:
    """The values for the statements of works that are done together."""
    if works[0].row is None:
        return works[0].values
    return {"rows": f"[{','.join(work.row or '' for work in works)}]"}
