"""A record as a row of plain columns, the same in every journal.

A row is independent of the record that it was made of: neither changes with the other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self, overload

from anyio.lowlevel import checkpoint

from ..errors import DrivenElsewhereError, JournalCodecError, JournalCorruptError, JournalError
from ..machine.record import Origin, Scope, TaskRecord, dump_state, load_state
from ..machine.states import Gathering
from ..protocol.text import name_tool
from .base import Instruction
from .codec import Codec, decoded, encoded

__all__ = [
    "ASKING",
    "CHANGING",
    "Row",
    "changing_columns",
    "checked_fence",
    "checked_time",
    "columns_of",
    "columns_of_row",
    "driven_elsewhere",
    "duration_columns",
    "escape",
    "key_digest",
    "not_open",
    "read_instruction",
    "read_instructions",
    "read_rows",
    "scope_digest",
    "tool_digest",
    "unescape",
    "unescape_each",
]

logger = logging.getLogger("mcp_tasks_client")


ASKING: Final = ("input_required", "gathering")
"""The statuses of records whose server asks something."""


class Row(NamedTuple):
    """A record as columns of plain types, for any database.

    In our own it is a row of the table ``records``. All texts are ASCII, as :func:`escape` makes them. Most
    columns are fields of the record. Others are there for statements that look for rows.

    Attributes:
        state: The state as JSON text, which only :meth:`record` reads.
        status: :attr:`~mcp_tasks_client.TaskRecord.status`.
        pending: 1 for a task to observe or an outcome that was not delivered, else 0.
        due_at: When a task is polled next; ``None`` without a task to observe.
        expires_at: When a task's time-to-live has passed, or until when an outcome is kept after its
            delivery.
        origin: JSON text.
    """

    record_id: str
    endpoint: str
    principal: str
    tool: str | None
    arguments_digest: str | None
    idempotency_key: str | None
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
    expires_at: float | None
    label: str | None
    application: str | None
    origin: str | None

    def __repr__(self) -> str:
        return f"Row(record_id={self.record_id!r}, fence={self.fence})"

    @classmethod
    def of(cls, record: TaskRecord, codec: Codec | None = None) -> Self:
        """The row of a record.

        Raises:
            JournalCodecError: The codec has failed.
            TypeError: Something that should be text is not, or a value has no JSON form.
            ValueError: A time is not finite, or the fence is no 64-bit count.
        """
        columns = columns_of(record, codec)
        return cls(*(columns[name] for name in cls._fields))

    def recoded(self, decoder: Codec | None, encoder: Codec | None) -> Self:
        """The row as it is with another codec.

        Raises:
            JournalCodecError: The row is not encoded by ``decoder``.
        """
        digest = decoded(self.arguments_digest, decoder, self.record_id)
        state = decoded(self.state, decoder, self.record_id)
        return self._replace(arguments_digest=encoded(digest, encoder), state=encoded(state, encoder))

    def taken(self, owner: str, gone: Collection[str]) -> Self:
        """The row as it is once ``owner`` has taken it; the same one if it cannot be taken.

        Args:
            owner: The escaped name of the taker. A record that is its own already, it takes anew.
            gone: The escaped names of owners that are gone.
        """
        is_free = self.owner is None or self.owner == owner or self.owner in gone
        if self.delivered_at is not None or not is_free:
            return self
        return self._replace(owner=owner, fence=self.fence + 1)

    def record(self, codec: Codec | None = None) -> TaskRecord:
        """The record of this row.

        Args:
            codec: The one that was given to :meth:`of`, or one that decodes its values.

        Raises:
            JournalCodecError: The codec cannot decode the row, is missing, or is one too many.
            JournalCorruptError: The row is damaged.
        """
        try:
            return TaskRecord(
                record_id=unescape(self.record_id),
                scope=Scope(unescape(self.endpoint), unescape(self.principal)),
                tool=unescape(self.tool),
                arguments_digest=unescape(decoded(self.arguments_digest, codec, self.record_id)),
                idempotency_key=unescape(self.idempotency_key),
                owner=unescape(self.owner),
                fence=int(self.fence),
                created_at=float(self.created_at),
                updated_at=float(self.updated_at),
                delivered_at=None if self.delivered_at is None else float(self.delivered_at),
                state=load_state(decoded(self.state, codec, self.record_id)),
                label=unescape(self.label),
                application=unescape(self.application),
                origin=None if self.origin is None else _load_origin(self.origin),
            )
        except _DAMAGE as error:
            raise JournalCorruptError(
                f"the journal's record {self.record_id!a} cannot be read ({type(error).__name__}); "
                "restore the journal from a backup, or remove this record and attach to its task by its ID"
            ) from None  # the words of that error may quote answers and task IDs


CHANGING: Final = (
    *("owner", "updated_at", "delivered_at", "state"),
    *("task_id", "status", "pending", "due_at", "expires_at"),
)
"""The columns that a save of a known record may change."""


def changing_columns(record: TaskRecord, codec: Codec | None = None) -> dict[str, Any]:
    """The columns of a record that a save may change, with ``record_id`` and ``fence``.

    Raises:
        Exception: As from :meth:`Row.of`.
    """
    return {
        "record_id": escape(record.record_id),
        "fence": checked_fence(record.fence),
        "owner": escape(record.owner),
        "updated_at": checked_time(record.updated_at),
        "delivered_at": None if record.delivered_at is None else checked_time(record.delivered_at),
        "state": encoded(dump_state(record.state), codec),
        "task_id": escape(record.task_id),
        "status": escape(record.status),
        "pending": int(record.pending),
        "due_at": _checked_number(record.due_at),
        "expires_at": _checked_number(record.expires_at) if not _is_given_up(record) else record.updated_at,
    }


def columns_of(record: TaskRecord, codec: Codec | None = None) -> dict[str, Any]:
    """The columns of a record, and the digests ``scope`` and ``key``, by which it is found.

    Raises:
        Exception: As from :meth:`Row.of`.
    """
    return {
        **changing_columns(record, codec),
        "endpoint": escape(record.scope.endpoint),
        "principal": escape(record.scope.principal),
        "tool": escape(record.tool),
        "arguments_digest": encoded(escape(record.arguments_digest), codec),
        "idempotency_key": escape(record.idempotency_key),
        "created_at": checked_time(record.created_at),
        "label": escape(record.label),
        "application": escape(record.application),
        "origin": None if record.origin is None else _dump_origin(record.origin),
        "scope": scope_digest(record.scope),
        "key": key_digest(record),
    }


def columns_of_row(row: Row) -> dict[str, Any]:
    """The columns of a row as it stands, with the digests ``scope`` and ``key``."""
    where = row.endpoint, row.principal
    key = None if row.idempotency_key is None else _digest(*where, row.idempotency_key)
    return {**row._asdict(), "scope": _digest(*where), "key": key}


def duration_columns(record: TaskRecord) -> dict[str, Any]:
    """The columns of the time that a task ran; none if the record has no such time, or no tool.

    Raises:
        ValueError: The time is not finite.
    """
    if record.tool is None or record.took_s is None:
        return {}
    return {
        "tool_key": tool_digest(record.scope, record.tool),
        "endpoint": escape(record.scope.endpoint),
        "principal": escape(record.scope.principal),
        "tool": escape(record.tool),
        "took_s": checked_time(record.took_s),
    }


@lru_cache(maxsize=256)
def tool_digest(scope: Scope, tool: str) -> str:
    """The digest of endpoint, principal and tool."""
    return _digest(escape(scope.endpoint), escape(scope.principal), escape(tool))


@lru_cache(maxsize=64)
def scope_digest(scope: Scope) -> str:
    """The digest of endpoint and principal, which may be too long for an index."""
    return _digest(escape(scope.endpoint), escape(scope.principal))


def key_digest(record: TaskRecord) -> str | None:
    """The digest of scope and idempotency key; ``None`` without a key."""
    key, scope = escape(record.idempotency_key), record.scope
    return None if key is None else _digest(escape(scope.endpoint), escape(scope.principal), key)


def _digest(*texts: str) -> str:
    # A line break is in none of them, since they are escaped.
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]


@lru_cache(maxsize=64)  # a process has one, and looks at those of some others
def _dump_origin(origin: Origin) -> str:
    return json.dumps(asdict(origin), separators=(",", ":"))


@lru_cache(maxsize=64)
def _load_origin(text: str) -> Origin:
    return Origin(**json.loads(text))


def _is_given_up(record: TaskRecord) -> bool:
    """Whether nothing of a call can have run or been answered, so that it may be pruned."""
    state = record.state
    return isinstance(state, Gathering) and not (state.again or state.questions or state.request_state)


async def read_rows(
    rows: Iterable[Row], journal: Hashable, codec: Codec | None = None
) -> list[tuple[Row, TaskRecord]]:
    """The rows that can be read, each with its record.

    Each damaged row is logged once per process. Of the rows that the codec cannot decode only the first is
    logged, since with a wrong key that is every row.

    Lets other tasks run now and then, since a journal may hold tens of thousands of rows.
    """
    undecoded: JournalCodecError | None = None
    read: list[tuple[Row, TaskRecord]] = []
    for number, row in enumerate(rows, 1):
        try:
            read.append((row, row.record(codec)))
        except JournalCodecError as error:
            undecoded = undecoded or error
        except JournalCorruptError as error:
            _warn(str(error), journal)
        if number % _READ_AT_ONCE == 0:
            await checkpoint()
    if undecoded is not None:
        _warn(str(undecoded), journal)
    return read


def unescape_each(texts: Iterable[str], journal: Hashable) -> list[str]:
    """The texts that are not damaged. Each damaged one is logged once per process."""
    read: list[str] = []
    for text in texts:
        try:
            read.append(unescape(text))
        except _DAMAGE:
            _warn(f"the text {text!a} cannot be read", journal)
    return read


def read_instruction(row: Sequence[Any], record_id: str, codec: Codec | None) -> Instruction:
    """The instruction of a row of the table ``instructions``.

    Args:
        row: Its name, body, time, and whether it was heeded.
        record_id: Of the record that it is about.
        codec: Of the journal.

    Raises:
        JournalCodecError: The codec cannot decode it, is missing, or is one too many.
        JournalCorruptError: The row is damaged.
    """
    name, body, at, heeded = row
    try:
        return Instruction(unescape(name), unescape(decoded(body, codec, record_id)), float(at), bool(heeded))
    except _DAMAGE as error:
        raise JournalCorruptError(
            f"an instruction of the journal's record {record_id!a} cannot be read ({type(error).__name__}); "
            "restore the journal from a backup, or remove this instruction"
        ) from None


def read_instructions(
    rows: Iterable[Sequence[Any]], record_id: str, journal: Hashable, codec: Codec | None
) -> list[Instruction]:
    """The instructions that can be read. Each other one is logged once per process."""
    read: list[Instruction] = []
    for row in rows:
        try:
            read.append(read_instruction(row, record_id, codec))
        except (JournalCodecError, JournalCorruptError) as error:
            _warn(str(error), journal)
    return read


_DAMAGE: Final = (ValueError, TypeError, AttributeError, RecursionError)
"""Errors of reading a damaged column: it may hold a value of any type, and JSON nested without end."""

_READ_AT_ONCE = 50
"""Rows; about 3 ms of them."""


@lru_cache(maxsize=1024)
def _warn(message: str, journal: Hashable) -> None:
    logger.warning("left out of %s: %s", journal, message)


def not_open(name: object = "") -> JournalError:
    """The error for a caller that uses a journal without having opened it."""
    which = f"the journal {name}".rstrip()
    return JournalError(f"{which} is not open; open it first (async with journal)")


def driven_elsewhere(tool: str | None) -> DrivenElsewhereError:
    """The error for an owner whose record another client has taken, and perhaps forgotten since."""
    return DrivenElsewhereError(
        f"Another client has taken over the call of {name_tool(tool)} and drives it now. "
        "Await the handle again for its outcome there."
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
def unescape(text: str) -> str: ...
@overload
def unescape(text: str | None) -> str | None: ...
def unescape(text: str | None) -> str | None:
    """The text that :func:`escape` was given."""
    return None if text is None else text.encode("ascii").decode("unicode_escape")


def checked_fence(fence: int) -> int:
    """The fence.

    Raises:
        ValueError: It is no 64-bit count.
    """
    if not 0 <= fence < 2**63:
        raise ValueError(f"fence must be between 0 and 2**63 - 1, not {fence}")
    return fence


def _checked_number(value: float | None) -> float | None:
    """A time that may be infinite, as that of a time-to-live is."""
    if value is not None and math.isnan(value):
        raise ValueError("a time must be a number, not NaN")
    return value


def checked_time(value: float) -> float:
    """The time, in seconds.

    Raises:
        ValueError: It is not finite.
    """
    # SQLite stores NaN as NULL.
    if not math.isfinite(value):
        raise ValueError(f"a time must be a finite number of seconds, not {value}")
    return value
