"""The one thread of this process that touches what a journal is kept in, and who waits for it.

However many journals of a process keep the same medium (a file, a database), they share its thread. Callers
leave work and wait for it. The thread takes whatever has gathered, carries it out at once and wakes the
callers, so that a thousand of them share one commit. A medium's calls block, which nothing in an event loop
may do; a thread for each call, or a commit for each, is ten times slower.

What nobody waits for shares those commits: deliveries, and the renewal of leases.

A medium is a subclass: what its work is, and how it is opened, carried out and closed.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Self, TypeVar, cast

import anyio

from ..aio.uncut import caller_of_loop, on_asyncio
from ..errors import DrivenElsewhereError, JournalError
from .base import Lease, LeaseSource
from .row import not_open

__all__ = ["Job", "JournalThread"]

logger = logging.getLogger("mcp_tasks_client")

T = TypeVar("T")
W = TypeVar("W")

_LINGER_S: Final = 10.0
"""Seconds for which a medium stays open after its last user has left without waiting."""

_GATHER_S: Final = 0.005
"""Seconds for which the thread lets more gather, if several waited already when it came to look. Who is
alone never waits for that. It saves an eighth of the CPU of 2,000 dropped-in tasks."""

TICK_S: Final = 1.0
"""Seconds after which the thread looks, by itself, at the leases, at what nobody waits for, and whether
anybody is left who has the medium open."""

_CLOSING_S: Final = 10.0
"""Seconds that the last user's leaving allows the medium, besides its own time to wait."""

_EXIT_S: Final = 2.0
"""Seconds for which the end of the interpreter waits for the thread, and so does a fork."""


class Waiter:
    """A task of some event loop that waits for the thread."""

    def __init__(self) -> None:
        self.call_soon = caller_of_loop()
        """Has the event loop call a function; may be called from any thread."""

        # On asyncio an event costs three times as much as a future.
        self._done: asyncio.Future[None] | anyio.Event = (
            asyncio.get_running_loop().create_future() if on_asyncio() else anyio.Event()
        )

    def wake(self) -> None:
        """End :meth:`wait`. To be called in the event loop."""
        if isinstance(self._done, anyio.Event):
            self._done.set()
        elif not self._done.done():  # cancelled, with the task
            self._done.set_result(None)

    async def wait(self) -> None:
        """Return once the thread is done."""
        if isinstance(self._done, anyio.Event):
            await self._done.wait()
        else:
            await self._done


class Job(Generic[W, T]):
    """Some work for the thread, and who waits for it.

    Args:
        work: What the thread carries out.
        waiter: Who waits; ``None`` if nobody does.

    Attributes:
        result: What came of it, once it is done and ``error`` is ``None``.
        error: Why it failed.
    """

    __slots__ = ("error", "result", "waiter", "work")

    def __init__(self, work: W, *, waiter: Waiter | None) -> None:
        self.work = work
        self.waiter = waiter
        self.error: Exception | None = None
        self.result: T

    async def wait(self, explain: Callable[[Exception], JournalError]) -> T:
        """Wait until the work is done and, if it writes, committed.

        Args:
            explain: Makes the error to raise for one of the medium's, always a new one, as one failed commit
                is raised by everybody who waited for it.

        Raises:
            JournalError: It failed, or its commit did.
        """
        assert self.waiter is not None
        await self.waiter.wait()
        match self.error:
            case None:
                return self.result
            case DrivenElsewhereError():
                raise self.error
            case JournalError():
                raise explain(self.error)
            case _:
                raise explain(self.error) from self.error


class JournalThread(ABC, Generic[W]):
    """A medium and the thread it lives in, from its opening to its closing.

    Its users are the journals of this process that have the medium open. :meth:`joined` makes it. It is

    - *used* while it has users;
    - *left* from then until ``_close_at``, which is at once after :meth:`leave`, ten seconds later after
      :meth:`leave_soon`, and at once where the interpreter ends or forks. A new user makes it used again;
    - *ended* when it is time and nothing is left to do. Nobody can enter it any more, and the medium is
      closed.

    Args:
        key: What tells the medium from others in this process.
        name: What it is called in messages.
        patience_s: Seconds for which a commit may wait for others who have the medium.
    """

    def __init__(self, key: Hashable, name: object, patience_s: float) -> None:
        self._key = key
        self._name = name
        self._patience_s = patience_s
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._users = 0
        self._close_at = math.inf
        self._ended = False
        self._is_open = False
        self._jobs: SimpleQueue[Job[W, Any] | None] = SimpleQueue()  # None: look what else there is to do
        self._unattended: list[Job[W, Any]] = []
        self._failing = False  # the last write that nobody waits for has failed
        self._sources: dict[str, LeaseSource] = {}  # by lease_id
        self._closing: list[Waiter] = []
        self._listeners: dict[object, Callable[[Collection[str]], object]] = {}
        self._is_to_tell = False  # a listener is new, or this process has left an instruction
        # A daemon, so that a journal that nobody closed does not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._serve, name="mcp-tasks-journal", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    # ── what a medium is ──────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _open(self) -> None:
        """Open the medium. In the thread, as all that follows."""

    @abstractmethod
    def _carry_out(self, jobs: list[Job[W, Any]]) -> None:
        """Do all of this, each with its result or error."""

    def _comes_later(self, work: W) -> bool:
        """Whether this work is carried out by itself, once all other gathered work is done and told."""
        return False

    @abstractmethod
    def _instructed(self, is_to_tell: bool) -> Collection[str]:
        """The records that have instructions to heed, if there may be new ones; called once in a tick.

        Args:
            is_to_tell: This process has left an instruction, or has a new listener, since the last call.
        """

    @abstractmethod
    def _tidy_up(self) -> None:
        """Do a little of what tidies the medium up: nobody waits at this moment."""

    @abstractmethod
    def _close(self, lease_ids: list[str]) -> None:
        """Forget these leases, which nobody gave up, and close the medium. Everything is committed."""

    @abstractmethod
    def _renewal(self, lease: Lease) -> W:
        """The work that stores a lease, and says whether it was there and had not run out."""

    @abstractmethod
    def _calling(self, function: Callable[[], object]) -> W:
        """The work that calls a function in the thread."""

    @abstractmethod
    def _is_there(self) -> bool:
        """Whether the medium is the one that was opened."""

    @abstractmethod
    def explain(self, error: Exception) -> JournalError:
        """The error to raise for one of the medium's, always a new one."""

    # ── called by event loops ─────────────────────────────────────────────────────────────────

    @classmethod
    def joined(cls, key: Hashable, make: Callable[[], Self]) -> Self:
        """The thread of a medium, with one more user: the one that there is in this process, or a new one.

        Args:
            key: What tells the medium from others.
            make: Makes a thread. What whoever came first has given counts.
        """
        with _table:
            thread = cast("Self | None", _THREADS.get(key))
            if thread is None or not thread._enter():
                thread = _THREADS[key] = make()
                thread._enter()
            return thread

    def _enter(self) -> bool:
        """Count one more user. False if the thread has ended, or its medium is not there any more."""
        with self._lock:
            if self._ended or not self._is_there():
                return False
            self._users += 1
            self._close_at = math.inf
            for waiter in self._closing:  # the medium stays open after all
                self._put_barrier(waiter)
            self._closing = []
            return True

    def leave_soon(self) -> None:
        """Count one user less. The last one's leaving closes the medium some seconds later."""
        self._leave(_LINGER_S)

    def leave_unseen(self) -> None:
        """Have the thread do :meth:`leave_soon`.

        For finalizers. They run in the middle of anything, also while this thread holds the lock.
        """
        self._jobs.put(Job(self._calling(self.leave_soon), waiter=None))

    async def leave(self) -> None:
        """Count one user less, and finish what is queued. The last one's leaving closes the medium."""
        if os.getpid() != self._pid:
            return  # the thread is the parent's
        waiter = Waiter()
        self._leave(0, waiter)
        # Twice the wait for others who have the medium, and time for the medium itself. Shielded, so that the
        # thread's work for a scope ends with the scope.
        with anyio.move_on_after(2 * self._patience_s + _CLOSING_S, shield=True):
            await waiter.wait()

    async def wait_until_open(self) -> None:
        """Return once the medium is open and was written to.

        Raises:
            JournalError: It cannot be, or the process was forked since it was opened.
        """
        self._check_process()
        if not self._is_open:
            await self.put(self._calling(lambda: None)).wait(self.explain)

    def put(self, work: W) -> Job[W, Any]:
        """Queue some work. It will be done, whether or not anybody waits for it.

        Raises:
            JournalError: The journal is not open, or the process was forked since it was opened.
        """
        with self._lock:
            self._check_open()
            job = Job[W, Any](work, waiter=Waiter())
            self._jobs.put(job)
        return job

    def put_unattended(self, work: W) -> None:
        """Queue a write that nobody waits for. It comes before whatever is queued later.

        Raises:
            JournalError: As from :meth:`put`.
        """
        with self._lock:
            self._check_open()
            self._unattended.append(Job(work, waiter=None))

    def keep_renewing(self, source: LeaseSource) -> None:
        """Store the lease of ``source`` whenever it is due.

        Raises:
            JournalError: As from :meth:`put`.
        """
        with self._lock:
            self._check_open()
            self._sources[source.lease_id] = source

    def stop_renewing(self, lease_id: str) -> None:
        """Forget who renews a lease that was given up."""
        with self._lock:
            self._sources.pop(lease_id, None)

    def listen(self, listener: Callable[[Collection[str]], object]) -> Callable[[], None]:
        """Tell of the records that have instructions, until the function that is returned is called.

        Raises:
            JournalError: As from :meth:`put`.
        """
        token = object()
        with self._lock:
            self._check_open()
            self._listeners[token] = listener
            self._is_to_tell = True  # of those that there are, within a second

        def stop() -> None:
            with self._lock:
                self._listeners.pop(token, None)

        return stop

    def note_instruction(self) -> None:
        """Have the listeners told once the present transaction is committed. For work."""
        self._is_to_tell = True

    def _check_process(self) -> None:
        """Refuse to be used in a process that was forked since."""
        if os.getpid() != self._pid:
            raise JournalError(
                f"the journal {self._name} was opened in another process, before a fork; "
                "fork before it is opened, or start this process by spawn"
            )

    def _check_open(self) -> None:
        self._check_process()
        if not self._users:
            raise not_open(self._name)

    def _leave(self, after_s: float, waiter: Waiter | None = None) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                if waiter is not None:
                    self._put_barrier(waiter)
                return
            self._close_at = time.monotonic() + after_s
            if waiter is not None:
                self._closing.append(waiter)
                self._jobs.put(None)

    def _put_barrier(self, waiter: Waiter) -> None:
        """Have one woken when all is done that is queued by now."""
        self._jobs.put(Job(self._calling(lambda: None), waiter=waiter))

    def _close_at_exit(self) -> None:
        """Write what nobody waits for, even if the interpreter ends before it was time."""
        with self._lock:
            self._users = 0
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Close the medium at once, if its last user has left, and wait for that."""
        with self._lock:
            if self._users:
                return
            self._close_at = -math.inf
            self._jobs.put(None)
        self._thread.join(_EXIT_S)  # returns at once in a child of the process, where the thread is not

    # ── the thread ────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        try:
            self._open()
        except Exception as error:
            self._refuse_all(error)
            return
        self._is_open = True
        while not self._try_to_end():
            jobs = self._take()
            has_written = self._do(jobs)
            self._tell_of_instructions()
            if not (jobs or has_written):
                self._tidy_up()
        # Those of clients that were dropped, and that nobody therefore gave up.
        self._close([lease_id for lease_id, source in self._sources.items() if source.end()])
        self._end()

    def _refuse_all(self, error: Exception) -> None:
        """Answer everything with the error of opening, until those who asked have left."""
        while not self._try_to_end():
            jobs = self._take()
            self._take_unattended()
            for job in jobs:
                job.error = error
            _wake_for(jobs)
        self._end()

    def _try_to_end(self) -> bool:
        """Whether the medium is to be closed and nothing is left to do; then nobody can enter any more."""
        with self._lock:
            if self._close_at > time.monotonic():
                return False
            self._ended = self._jobs.empty() and not self._unattended
            return self._ended

    def _end(self) -> None:
        atexit.unregister(self._close_at_exit)
        with _table:
            if _THREADS.get(self._key) is self:  # else its medium was opened anew meanwhile
                del _THREADS[self._key]
        _wake(self._closing)

    def _take(self) -> list[Job[W, Any]]:
        """Wait for jobs. An empty list means that only work is due which nobody waits for."""
        if self._jobs.qsize() > 1:
            time.sleep(_GATHER_S)
        try:
            job = self._jobs.get(timeout=min(TICK_S, max(0.0, self._close_at - time.monotonic())))
        except Empty:
            return []
        jobs = [job, *(self._jobs.get() for _ in range(self._jobs.qsize()))]
        return [job for job in jobs if job is not None]

    def _take_unattended(self) -> list[Job[W, Any]]:
        with self._lock:
            taken, self._unattended = self._unattended, []
        return taken

    def _do(self, jobs: list[Job[W, Any]]) -> bool:
        """Carry out what was taken, what nobody waits for, and the renewal of leases.

        Returns:
            Whether there was anything that nobody waits for.
        """
        unattended = self._take_unattended()
        with self._lock:
            sources = list(self._sources.values())
        renewals = [
            (source, lease, Job[W, bool](self._renewal(lease), waiter=None))
            for source, lease in _due_leases(sources)
        ]
        unattended += (job for *_, job in renewals)
        later = [job for job in jobs if self._comes_later(job.work)]
        first = [*unattended, *(job for job in jobs if not self._comes_later(job.work))]
        if first:
            self._carry_out(first)
        if unattended:
            self._log_first(next((job.error for job in unattended if job.error is not None), None))
        for source, lease, job in renewals:
            if job.error is None:
                with _logged("the renewal of a lease"):
                    source.renewed(lease, had_lapsed=not job.result)
        _wake_for(first)
        if later:
            self._carry_out(later)
            _wake_for(later)
        return bool(unattended)

    def _log_first(self, error: Exception | None) -> None:
        """Log the first failure of a row."""
        if error is not None and not self._failing:
            logger.warning(
                "leases will be tried again, and what was delivered may be given out once more: %s",
                self.explain(error),
            )
        self._failing = error is not None

    def _tell_of_instructions(self) -> None:
        with self._lock:
            if not self._listeners:
                return
            is_to_tell, self._is_to_tell = self._is_to_tell, False
        with _logged("instructions"):
            found = self._instructed(is_to_tell)
            if found:
                self.tell(found)

    def tell(self, record_ids: Collection[str]) -> None:
        """Tell the listeners of these records. From any thread."""
        with self._lock:
            listeners = list(self._listeners.values())
        for listener in listeners:
            with _logged("instructions"):  # one that fails, such as that of a loop that has ended
                listener(record_ids)


_THREADS: Final[dict[Hashable, JournalThread[Any]]] = {}
"""The threads of this process, by what tells their media apart."""

_table = threading.Lock()


def _close_unused() -> None:
    for thread in list(_THREADS.values()):
        thread._close_if_unused()


def _make_new_locks() -> None:
    """In a child of the process nobody would release what another thread held at the fork."""
    global _table
    _table = threading.Lock()
    for thread in _THREADS.values():
        thread._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # A child cannot use what its parent has open: SQLite in it would count on locks that it does not have.
    os.register_at_fork(before=_close_unused, after_in_child=_make_new_locks)


def _due_leases(sources: Iterable[LeaseSource]) -> Iterator[tuple[LeaseSource, Lease]]:
    for source in sources:
        with _logged("the lease of this process"):
            lease = source.due()
            if lease is not None:
                yield source, lease


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Keep the thread alive, whatever the code of others raises."""
    try:
        yield
    except Exception:
        logger.exception("%s could not be looked after", what)


def _wake_for(jobs: Iterable[Job[Any, Any]]) -> None:
    """Wake those who wait for jobs, with one call for each event loop."""
    _wake(job.waiter for job in jobs if job.waiter is not None)


def _wake(waiters: Iterable[Waiter]) -> None:
    loops: defaultdict[Callable[..., object], list[Waiter]] = defaultdict(list)
    for waiter in waiters:
        loops[waiter.call_soon].append(waiter)
    for call_soon, sleeping in loops.items():
        # Both loops say by a RuntimeError that they have closed: nobody waits there any more.
        with suppress(RuntimeError):
            call_soon(_wake_each, sleeping)


def _wake_each(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        waiter.wake()
