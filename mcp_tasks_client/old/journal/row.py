"""A record as a row of plain columns, the same in every journal.

Both journals keep rows and not records, so that what is read back is independent of what was
given, and the one in memory forgets and refuses exactly what the one on disk does.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self, overload

from ..errors import DrivenElsewhereError, JournalCorruptError
from ..states import Observing
from .base import Scope, TaskRecord, dump_state, load_state

__all__ = ["Row", "checked_time", "escape", "overtaken"]


class Row(NamedTuple):
    """One row of the table ``records``, whose columns ``schema.sql`` describes."""

    record_id: str
    endpoint: str
    principal: str
    tool: str | None
    arguments_digest: str | None
    idempotency_key: str | None
    generation: str
    owner: str | None
    fence: int
    created_at: float
    updated_at: float
    delivered_at: float | None
    state: str
    task_id: str | None
    status: str
    pending: int
    due_at: float | None

    @classmethod
    def of(cls, record: TaskRecord) -> Self:
        """The row of a record.

        Raises:
            TypeError: Something that should be text is not, or a value has no JSON form.
            ValueError: A time is not finite, or the fence is no 64-bit count.
        """
        if not 0 <= record.fence < 2**63:
            raise ValueError(f"fence must be between 0 and 2**63 - 1, not {record.fence}")
        return cls(
            record_id=escape(record.record_id),
            endpoint=escape(record.scope.endpoint),
            principal=escape(record.scope.principal),
            tool=escape(record.tool),
            arguments_digest=escape(record.arguments_digest),
            idempotency_key=escape(record.idempotency_key),
            generation=escape(record.generation),
            owner=escape(record.owner),
            fence=record.fence,
            created_at=checked_time(record.created_at),
            updated_at=checked_time(record.updated_at),
            delivered_at=None if record.delivered_at is None else checked_time(record.delivered_at),
            state=dump_state(record.state),
            task_id=escape(record.task_id),
            status=escape(record.status),
            pending=int(record.pending),
            due_at=record.state.due_at if isinstance(record.state, Observing) else None,
        )

    @property
    def undelivered(self) -> bool:
        """Whether it is an outcome that nobody has received yet."""
        return bool(self.pending) and self.due_at is None

    def delivered(self, at: float) -> Self:
        """The row of an outcome that its host has had."""
        return self._replace(delivered_at=checked_time(at), updated_at=at, owner=None, pending=0)

    def record(self) -> TaskRecord:
        """The record of this row.

        Raises:
            JournalCorruptError: The row does not hold one.
        """
        try:
            return TaskRecord(
                record_id=_unescape(self.record_id),
                scope=Scope(_unescape(self.endpoint), _unescape(self.principal)),
                tool=_unescape(self.tool),
                arguments_digest=_unescape(self.arguments_digest),
                idempotency_key=_unescape(self.idempotency_key),
                generation=_unescape(self.generation),
                owner=_unescape(self.owner),
                fence=int(self.fence),
                created_at=float(self.created_at),
                updated_at=float(self.updated_at),
                delivered_at=None if self.delivered_at is None else float(self.delivered_at),
                state=load_state(self.state),
            )
        # A damaged column may hold a value of any type, and JSON nested without end.
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise JournalCorruptError(
                f"the journal's record {self.record_id!a} cannot be read ({type(error).__name__}); "
                "restore the journal from a backup, or remove this record and attach to its task by its ID"
            ) from None  # its words may quote answers and task IDs


def overtaken(row: Row) -> DrivenElsewhereError:
    """What to tell an owner whose record was taken, and maybe forgotten since."""
    return DrivenElsewhereError(
        f"Another client has taken over the call of {row.tool!r}, so nothing is written here any more. "
        "Await the handle again for what becomes of it there."
    )


@overload
def escape(text: str) -> str: ...
@overload
def escape(text: str | None) -> str | None: ...
def escape(text: object) -> str | None:
    r"""Any text in plain ASCII, as in a Python string literal; ``None`` stays ``None``.

    One to one, also for lone surrogates and NUL, so escaped texts compare as the texts do.
    JSON would not do: it writes ``"\ud83d" + "\ude00"`` and the character of that pair alike.

    Raises:
        TypeError: Not text.
    """
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"a journal keeps text here, not {type(text).__name__}")
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text  # as nearly all of it
    return text.encode("unicode_escape").decode("ascii")


@overload
def _unescape(text: str) -> str: ...
@overload
def _unescape(text: str | None) -> str | None: ...
def _unescape(text: str | None) -> str | None:
    return None if text is None else text.encode("ascii").decode("unicode_escape")


def checked_time(value: float) -> float:
    """The time, in seconds.

    Raises:
        ValueError: It is not finite.
    """
    # SQLite stores NaN as NULL.
    if not math.isfinite(value):
        raise ValueError(f"a time must be a finite number of seconds, not {value}")
    return value
