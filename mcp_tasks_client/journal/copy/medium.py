"""A whole journal, read from one medium and written to another: rows as they are, damaged ones included.

Both journals are locked meanwhile, so that nobody writes to one of them. Nothing is copied while the lease of
a process says that it drives calls there, or adopts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Final, TypeAlias

from ...errors import JournalError, JournalLockedError
from ..codec import Codec, decoded, encoded
from ..row import Row

__all__ = ["Instructed", "Medium", "copy"]

_AT_ONCE: Final = 500
"""Rows that are written by one statement."""

Instructed: TypeAlias = tuple[str, str, str, float, int]
"""The record, name, body, time, and whether it was heeded."""


class Medium(ABC):
    """Where a journal is kept. Used within :meth:`locked`."""

    @abstractmethod
    def is_there(self) -> bool:
        """Whether there is a journal, empty or not. Makes none.

        Raises:
            JournalError: It cannot be told.
        """

    @abstractmethod
    def locked(self) -> AbstractContextManager[None]:
        """Keep everybody else from it, and keep what is written if the block does not fail.

        Raises:
            JournalError: It cannot be opened, read or written.
        """

    @abstractmethod
    def in_use(self) -> Sequence[tuple[str, int, float]]:
        """The processes that have it open: host, number, and how many seconds their leases last still."""

    @abstractmethod
    def count(self) -> int:
        """How many records it has."""

    @abstractmethod
    def records(self) -> Iterator[Row]:
        """The rows of all records, in the order of their arrival."""

    @abstractmethod
    def instructions(self) -> Iterator[Instructed]:
        """All instructions, in the order of their arrival."""

    @abstractmethod
    def write(self, records: Sequence[Row], instructions: Sequence[Instructed]) -> None:
        """Add some."""


def copy(
    source: Medium, target: Medium, *, decoder: Codec | None = None, encoder: Codec | None = None
) -> tuple[int, int]:
    """Copy a journal.

    Args:
        source: From where.
        target: Where to.
        decoder: What has encoded the records of the source.
        encoder: Encodes those of the target. Without both codecs, records are copied as they are.

    Returns:
        How many records and instructions.

    Raises:
        JournalLockedError: A process drives calls of one of them, or adopts.
        JournalCodecError: A record is not encoded by ``decoder``. The target stays as it was.
        JournalError: There is no source, the target is not empty, or one of them could not be read or
            written. The target stays as it was.
    """
    if str(source) == str(target):
        raise JournalError(f"the journal {source} cannot be copied to itself; give another TO")
    if not source.is_there():
        raise JournalError(f"there is no journal {source}; see to the address, and to --schema of a database")
    with source.locked(), target.locked():
        for journal in (source, target):
            for host, pid, left_s in journal.in_use():
                raise JournalLockedError(
                    f"the journal {journal} is in use by process {pid} on {host.partition(':')[0]}; stop it, "
                    f"or wait {left_s:.0f} seconds if it has died"
                )
        if target.count():
            raise JournalError(
                f"the journal {target} has {target.count()} records already; copy to an empty one"
            )
        recodes = decoder is not None or encoder is not None
        records = instructions = 0
        for rows in _some(source.records()):
            if recodes:
                rows = [row.recoded(decoder, encoder) for row in rows]
            target.write(rows, ())
            records += len(rows)
        for left in _some(source.instructions()):
            if recodes:
                left = [
                    (key, name, encoded(decoded(body, decoder, key), encoder), at, heeded)
                    for key, name, body, at, heeded in left
                ]
            target.write((), left)
            instructions += len(left)
    return records, instructions


def _some(rows: Iterable[Any]) -> Iterator[list[Any]]:
    rows = iter(rows)
    while found := list(islice(rows, _AT_ONCE)):
        yield found
