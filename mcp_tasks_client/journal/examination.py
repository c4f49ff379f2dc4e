"""The examination of a journal: where it is kept, and its faults. It only reads."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Examination", "JournalUser"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalUser:
    """A process that has a journal open, as far as the operating system or the database tells."""

    program: str
    """Its name there."""

    host: str | None
    """The address of its machine; ``None`` for the machine that the journal is on."""

    pid: int
    """Its number; of a database, that of the process of the server that serves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The condition of a journal."""

    name: str
    """The file, or the schema and the database. Nothing of it is secret."""

    database: str
    """The kind and version of the database."""

    is_there: bool
    """False until a client has made the journal."""

    is_usable: bool
    """True if it can be opened, since it is a journal of this version, can be read, and has no damage."""

    version: int | None
    """The version of its tables; ``None`` if it is unknown."""

    size: int | None
    """In bytes, with all that belongs to it; ``None`` likewise."""

    file_system: str | None
    """The kind of the file system that a file is in; ``None`` where the operating system does not tell."""

    users: tuple[JournalUser, ...]
    """The processes that have it open, those of other users only where this one may see them."""

    faults: tuple[str, ...]
    """The faults, each a sentence with its remedy."""
