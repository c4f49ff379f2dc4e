"""The file, database or memory that keeps a journal, as the journal uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from .base import LeaseSource
from .work import Work

__all__ = ["Medium", "Timing"]


@dataclass(frozen=True, slots=True)
class Timing:
    """The waits of a medium with a thread of its own, in seconds."""

    linger_s: float = 10.0
    """For which a medium stays open after its last journal has left without waiting."""

    gather_s: float = 0.005
    """For which the thread lets more works gather, if several callers waited in the turn before. A single
    caller never waits for that. It saves an eighth of the CPU of 2,000 dropped-in tasks."""

    tick_s: float = 1.0
    """After which the thread looks, by itself, at the leases, at unattended writes, at instructions, and
    whether any journal is left that has the medium open."""


class Medium(ABC):
    """A file, a database, or memory: carries out works for the journals of this process that keep it.

    Of a medium with a thread, :meth:`run`, :meth:`run_unattended`, :meth:`keep_renewing`, :meth:`listen` and
    :meth:`watch` raise :class:`JournalError` while no journal has entered.
    """

    @abstractmethod
    async def wait_until_open(self, *, existing: bool) -> None:
        """Return once the medium is open, and was written to unless it is opened as an existing one.

        Raises:
            JournalError: It cannot be opened.
        """

    @abstractmethod
    async def leave(self, journal: object) -> None:
        """Count a journal out, and finish every write. With the last journal the medium closes."""

    @abstractmethod
    def leave_soon(self, journal: object) -> None:
        """Count a journal out. Some seconds after the last one has left, the medium closes."""

    @abstractmethod
    async def run(self, work: Work) -> Any:
        """Carry a work out, even if the caller is cancelled, and return its result once it is committed.

        Raises:
            JournalError: It failed, or its commit did.
            DrivenElsewhereError: The work raises it itself.
        """

    @abstractmethod
    def run_unattended(self, work: Work) -> None:
        """Carry out a write that no caller waits for, in its turn."""

    @abstractmethod
    def keep_renewing(self, source: LeaseSource) -> None:
        """Store the lease of ``source`` whenever it is due."""

    @abstractmethod
    def stop_renewing(self, lease_id: str) -> None:
        """Forget the source of a lease."""

    @abstractmethod
    def listen(self, listener: Callable[[Collection[str]], object]) -> Callable[[], None]:
        """Tell of the records that have instructions, until the function that is returned is called."""

    @abstractmethod
    def tell(self, record_ids: Collection[str]) -> None:
        """Tell the listeners of these records. It may be called from any thread."""

    @abstractmethod
    def watch(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Tell that calls may have asked or ended, until the function that is returned is called."""

    @abstractmethod
    def tell_watchers(self) -> None:
        """Tell the watchers. It may be called from any thread."""
