"""A journal as the engine uses it: it fails with a typed error only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import anyio

from ..errors import JournalError, TasksClientError
from ..host_code import was_cancelled_from_inside
from ..machine.record import Scope, TaskRecord
from .base import Journal, Judge, Lease, LeaseSource, Taken

__all__ = ["GuardedJournal"]

P = ParamSpec("P")
T = TypeVar("T")


class GuardedJournal(Journal):
    """Any journal, made safe to call from a task that may be cancelled.

    An exception of a foreign class becomes a :class:`JournalError`, since a journal is a plug-in and may
    raise anything. Against cancellation the callers protect whole steps, see :mod:`mcp_tasks_client.uncut`.

    Args:
        journal: The journal that does the work.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.retention_s = journal.retention_s
        self.keep_delivered_s = journal.keep_delivered_s

    @property
    def identity(self) -> Hashable:
        """That of the journal."""
        return self._journal.identity

    def __repr__(self) -> str:
        return f"GuardedJournal({self._journal!r})"

    async def open(self) -> None:
        """See :meth:`Journal.open`."""
        await _call(self._journal.open)

    async def aclose(self) -> None:
        """See :meth:`Journal.aclose`."""
        await _call(self._journal.aclose)

    def aclose_soon(self) -> None:
        """See :meth:`Journal.aclose_soon`."""
        with _typed():
            self._journal.aclose_soon()

    async def claim(self, record: TaskRecord) -> TaskRecord:
        """See :meth:`Journal.claim`."""
        return await _call(self._journal.claim, record)

    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        """See :meth:`Journal.save`."""
        await _call(self._journal.save, record, known=known)

    def deliver(self, at: float, fences: Mapping[str, int], *, keep_until: float | None = None) -> None:
        """See :meth:`Journal.deliver`."""
        with _typed():
            self._journal.deliver(at, fences, keep_until=keep_until)

    async def remove(self, record: TaskRecord) -> None:
        """See :meth:`Journal.remove`."""
        await _call(self._journal.remove, record)

    async def by_id(self, record_id: str) -> TaskRecord | None:
        """See :meth:`Journal.by_id`."""
        return await _call(self._journal.by_id, record_id)

    async def by_key(self, scope: Scope, idempotency_key: str) -> TaskRecord | None:
        """See :meth:`Journal.by_key`."""
        return await _call(self._journal.by_key, scope, idempotency_key)

    async def by_task_id(self, scope: Scope, task_id: str) -> TaskRecord | None:
        """See :meth:`Journal.by_task_id`."""
        return await _call(self._journal.by_task_id, scope, task_id)

    async def records(
        self, scope: Scope, *, pending: bool = False, delivered_since: float | None = None
    ) -> list[TaskRecord]:
        """See :meth:`Journal.records`."""
        return await _call(self._journal.records, scope, pending=pending, delivered_since=delivered_since)

    async def prune(self, before: float, now: float, gone: Judge) -> int:
        """See :meth:`Journal.prune`."""
        return await _call(self._journal.prune, before, now, gone)

    async def renew(self, lease: Lease) -> bool:
        """See :meth:`Journal.renew`."""
        return await _call(self._journal.renew, lease)

    def keep_renewing(self, source: LeaseSource) -> None:
        """See :meth:`Journal.keep_renewing`."""
        with _typed():
            self._journal.keep_renewing(source)

    async def take(self, record_id: str, owner: str, gone: Judge) -> Taken | None:
        """See :meth:`Journal.take`."""
        return await _call(self._journal.take, record_id, owner, gone)

    async def take_pending(self, scope: Scope, owner: str, gone: Judge) -> list[Taken]:
        """See :meth:`Journal.take_pending`."""
        return await _call(self._journal.take_pending, scope, owner, gone)

    async def release(self, *names: str) -> None:
        """See :meth:`Journal.release`."""
        await _call(self._journal.release, *names)


async def _call(method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await method(*args, **kwargs)
    except TasksClientError:
        raise
    except Exception as error:
        raise _failure(error) from error
    except anyio.get_cancelled_exc_class() as error:
        # Passed on, a cancellation from inside of the journal would look like the end of whoever called.
        if not was_cancelled_from_inside():
            raise
        raise JournalError(
            "the journal was cancelled from inside, so nobody knows whether it has written; resume the task"
        ) from error


@contextmanager
def _typed() -> Iterator[None]:
    try:
        yield
    except TasksClientError:
        raise
    except Exception as error:
        raise _failure(error) from error


def _failure(error: Exception) -> JournalError:
    return JournalError(
        f"the journal failed ({type(error).__name__}: {error}); mend it, then resume the task"
    )
