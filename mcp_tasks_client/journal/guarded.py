"""A journal as the engine uses it: it fails with a typed error only."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio

from ..aio.host_code import describe, was_cancelled_from_inside
from ..errors import JournalError, TasksClientError
from .base import Journal

__all__ = ["GuardedJournal"]

P = ParamSpec("P")
T = TypeVar("T")


def _guard(
    method: Callable[Concatenate[Journal, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[GuardedJournal, P], Coroutine[Any, Any, T]]:
    """Call the method of the journal within, and raise its errors as typed ones."""
    name = method.__name__

    @wraps(method, updated=())  # so that it is not abstract
    async def call(self: GuardedJournal, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await getattr(self._journal, name)(*args, **kwargs)  # type: ignore[no-any-return]  # found by name
        except TasksClientError:
            raise
        except Exception as error:
            raise _failure(error) from error
        except anyio.get_cancelled_exc_class() as error:
            # Passed on, a cancellation from inside of the journal would look like the end of the caller.
            if not was_cancelled_from_inside():
                raise
            raise JournalError(
                "the journal was cancelled from inside, so nobody knows whether it has written; "
                "resume the task"
            ) from error

    return call


def _guard_sync(
    method: Callable[Concatenate[Journal, P], T],
) -> Callable[Concatenate[GuardedJournal, P], T]:
    """Likewise, of a method that is no coroutine."""
    name = method.__name__

    @wraps(method, updated=())
    def call(self: GuardedJournal, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return getattr(self._journal, name)(*args, **kwargs)  # type: ignore[no-any-return]  # found by name
        except TasksClientError:
            raise
        except Exception as error:
            raise _failure(error) from error

    return call


def _failure(error: Exception) -> JournalError:
    return JournalError(f"the journal failed ({describe(error)}); mend it, then resume the task")


class GuardedJournal(Journal):
    """Any journal, whose failures are all typed errors.

    An exception of a foreign class becomes a :class:`JournalError`, since a journal is a plug-in and may
    raise anything. Against cancellation the callers protect whole steps, see
    :mod:`mcp_tasks_client.aio.uncut`.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.retention_s = journal.retention_s
        self.keep_delivered_s = journal.keep_delivered_s

    @property
    def identity(self) -> Hashable:
        """The journal's own."""
        return self._journal.identity

    @property
    def clock(self) -> Callable[[], float | None] | None:
        """The journal's own."""
        return self._journal.clock

    def __repr__(self) -> str:
        return f"GuardedJournal({self._journal!r})"

    open = _guard(Journal.open)
    open_existing = _guard(Journal.open_existing)
    aclose = _guard(Journal.aclose)
    aclose_soon = _guard_sync(Journal.aclose_soon)
    claim = _guard(Journal.claim)
    save = _guard(Journal.save)
    deliver = _guard_sync(Journal.deliver)
    remove = _guard(Journal.remove)
    by_id = _guard(Journal.by_id)
    by_task_id = _guard(Journal.by_task_id)
    records = _guard(Journal.records)
    asking = _guard(Journal.asking)
    prune = _guard(Journal.prune)
    renew = _guard(Journal.renew)
    keep_renewing = _guard_sync(Journal.keep_renewing)
    owners = _guard(Journal.owners)
    take = _guard(Journal.take)
    take_pending = _guard(Journal.take_pending)
    principals = _guard(Journal.principals)
    release = _guard(Journal.release)
    instruct = _guard(Journal.instruct)
    instructions = _guard(Journal.instructions)
    listen = _guard_sync(Journal.listen)
    watch = _guard_sync(Journal.watch)
    durations = _guard(Journal.durations)
    follow = _guard(Journal.follow)
