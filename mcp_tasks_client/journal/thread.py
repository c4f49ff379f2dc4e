"""The one thread of this process that touches the database of a journal, and the callers that wait for it.

However many journals of a process keep the same medium (a file, a database), they share its thread. Callers
leave works and wait. The thread takes all works that have gathered, carries them out at once and wakes the
callers, so that a thousand of them share one commit. Calls of a database block, which nothing in an event
loop may do; a thread for each call, or a commit for each, is ten times slower.

Writes that no caller waits for share those commits: deliveries, and the renewal of leases in a file.

**A work is repeated until its time to wait is over.** A work that failed by a fault that may pass (the
database is away, another process has the row) is carried out again, until the medium's time to wait has
passed since it was asked for. It then fails alone. Works that were asked for meanwhile do not wait for it,
unless they are about the same row.

Each kind of database is a subclass: how it is opened, how works are carried out, how it is closed.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final, Self, TypeAlias, cast
from weakref import WeakSet

import anyio

from ..aio.signal import make_signal
from ..aio.uncut import caller_of_loop
from ..errors import DrivenElsewhereError, JournalError
from .base import Lease, LeaseSource
from .medium import Medium, Timing
from .row import not_open, unescape_each
from .work import LEASE_STATEMENTS, Job, Work, release, renew_lease

__all__ = ["JournalThread", "note_renewal"]

logger = logging.getLogger("mcp_tasks_client")

_CLOSING_S: Final = 10.0
"""Seconds that leaving allows the medium besides its time to wait: for one attempt that is under way then."""

_WOKEN_AT_ONCE: Final = 50
"""Callers that one turn of an event loop wakes. Each may step for a tenth of a millisecond and more."""

_EXIT_S: Final = 2.0
"""Seconds for which the end of the interpreter waits for the thread, and so does a fork."""


class Waiter:
    """A task of some event loop that waits for the thread."""

    def __init__(self) -> None:
        self.call_soon = caller_of_loop()
        """Has the event loop call a function; may be called from any thread."""

        signal = make_signal()
        self.wake = signal.set
        """Ends :meth:`wait`. To be called in the event loop."""

        self.wait = signal.wait
        """Returns once the thread is done."""


_Job: TypeAlias = Job["Waiter | None"]


class JournalThread(Medium):
    """A medium and the thread it lives in, from its opening to its closing.

    Its users are the journals of this process that have the medium open. :meth:`joined` makes it. It is

    - *used* while it has users;
    - *left* from then until ``_close_at``, which is at once after :meth:`leave`, some seconds later after
      :meth:`leave_soon` or when the last user was dropped, and at once where the interpreter ends or forks. A
      new user makes it used again;
    - *ended* when it is time and nothing is left to do. No journal can enter it, and the medium is closed.

    Args:
        key: Tells the medium from others in this process.
        name: The name of the medium in messages.
        patience_s: Seconds for which a work is carried out again, from when it was asked for.
        timing: Of the journal that came first.
    """

    def __init__(self, key: Hashable, name: object, patience_s: float, timing: Timing) -> None:
        self._key = key
        self._name = name
        self._patience_s = patience_s
        self._timing = timing
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # Weak, so that nothing stays of a journal that is dropped without being closed.
        self._users: WeakSet[object] = WeakSet()
        self._close_at = math.inf
        self._ended = False
        self._is_open = False
        self._read_only: JournalError | None = None  # says which right to write is missing
        # A waiter by itself is woken when all earlier jobs are done. None: look for other work.
        self._jobs: SimpleQueue[_Job | Waiter | None] = SimpleQueue()
        self._barriers: list[Waiter] = []
        self._numbers = count(1)  # of jobs; a renewal has none, and comes first
        self._came = 0  # how many jobs the last turn took
        self._unattended: list[_Job] = []
        self._again: list[_Job] = []  # failed by a fault that may pass, oldest first
        self._again_at = 0.0  # when they are carried out again, by the monotonic clock
        self._failing = False  # the last unattended write has failed
        self._sources: dict[str, LeaseSource] = {}  # by lease_id
        self._closing: list[Waiter] = []
        self._listeners: dict[object, Callable[[Collection[str]], object]] = {}
        self._watchers: dict[object, Callable[[], object]] = {}
        self._may_be_left = True  # instructions: the thread has not looked yet
        self._is_to_look = False  # a listener is new, and has not heard of them
        self._look_s = timing.tick_s
        self._look_at = 0.0
        # A daemon, so that a journal that was never closed does not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._serve, name="mcp-tasks-journal", daemon=True)

    # ── the database ──────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _open(self) -> None:
        """Open the database, in the thread, as all that follows. Sets ``_read_only`` if it has to."""

    @abstractmethod
    def _carry_out(self, jobs: list[_Job]) -> None:
        """Do all of these works, which either write or read; each job gets its result or error."""

    @abstractmethod
    def _pause_after(self, error: Exception) -> float | None:
        """Seconds before a work with this error is carried out again; ``None``: it has failed for good."""

    @abstractmethod
    def _may_have_changed(self) -> bool:
        """True if other processes may have written since the last look at the instructions."""

    @abstractmethod
    def _tidy_up(self) -> None:
        """Tidy the database up a little. No caller waits at this moment."""

    @abstractmethod
    def _close(self, names: list[str]) -> None:
        """Release these owners and forget these leases, and close the database. Everything is committed."""

    @abstractmethod
    def _is_there(self) -> bool:
        """Whether the medium is the one that was opened."""

    @abstractmethod
    def explain(self, error: Exception) -> JournalError:
        """The error to raise for one of the database's: a new one for each caller of a commit."""

    # ── called by event loops ─────────────────────────────────────────────────────────────────

    @classmethod
    def joined(cls, user: object, key: Hashable, make: Callable[[], Self]) -> Self:
        """The thread of a medium, with one more user: the one that there is in this process, or a new one.

        Args:
            user: The journal that opens the medium.
            key: Tells the medium from others.
            make: Makes a thread. The arguments of the journal that came first count.
        """
        with _threads_lock:
            thread = cast("Self | None", _THREADS.get(key))
            if thread is None or not thread._enter(user):
                thread = _THREADS[key] = make()
                thread._enter(user)
                thread._begin()
            return thread

    def _begin(self) -> None:
        self._thread.start()
        atexit.register(self._close_at_exit)

    def _enter(self, user: object) -> bool:
        """Count one more user. False if the thread has ended, or its medium has gone."""
        with self._lock:
            if self._ended or not self._is_there():
                return False
            self._users.add(user)
            self._close_at = math.inf
            for waiter in self._closing:  # the medium stays open after all
                self._put_barrier(waiter)
            self._closing = []
            return True

    async def wait_until_open(self, *, existing: bool) -> None:
        """Return once the database is open, and was written to unless it is opened as an existing one.

        Raises:
            JournalError: It cannot be, or the process was forked since it was opened.
        """
        self._check_process()
        if not self._is_open:
            await self.run(Work(statements=(), writes=False))
        if self._read_only is not None and not existing:
            raise self.explain(self._read_only)

    def leave_soon(self, journal: object) -> None:
        """Count a journal out. Some seconds after the last one has left, the database is closed."""
        self._leave(journal, self._timing.linger_s)

    async def leave(self, journal: object) -> None:
        """Count a journal out, and finish all queued works. The last one's leaving closes the database."""
        if os.getpid() != self._pid:
            return  # the thread is the parent's
        waiter = Waiter()
        self._leave(journal, 0, waiter)
        # Queued works were asked for before now. Shielded, so that they end before the caller's scope.
        with anyio.move_on_after(self._patience_s + _CLOSING_S, shield=True):
            await waiter.wait()

    async def run(self, work: Work) -> Any:
        """Have the thread carry a work out, and return its result once it is committed."""
        self._check_process()  # in a child of the process no waiter can be made
        waiter = Waiter()
        job = self.put(work, waiter)
        await waiter.wait()
        return self.result_of(job)

    def result_of(self, job: _Job) -> Any:
        """The result of a job that is done.

        Raises:
            JournalError: It failed, or its commit did.
            DrivenElsewhereError: The work raises it itself.
        """
        match job.error:
            case None:
                return job.result
            case DrivenElsewhereError():
                raise job.error
            case JournalError():
                raise self.explain(job.error)
            case error:
                raise self.explain(error) from error

    def put(self, work: Work, waiter: Waiter) -> _Job:
        """Queue a work. It will be done, whether or not the waiter still waits."""
        job: _Job = Job(work, waiter)
        with self._lock:
            self._check_open()
            job.number = next(self._numbers)
            self._jobs.put(job)
        return job

    def run_unattended(self, work: Work) -> None:
        """Have the thread carry out a write, with its other writes or within a tick."""
        job: _Job = Job(work, None)
        with self._lock:
            self._check_open()
            job.number = next(self._numbers)
            self._unattended.append(job)

    def keep_renewing(self, source: LeaseSource) -> None:
        """Store the lease of ``source`` whenever it is due, with other writes or by itself."""
        with self._lock:
            self._check_open()
            self._sources[source.lease_id] = source

    def stop_renewing(self, lease_id: str) -> None:
        """Forget the source of a lease that was given up."""
        with self._lock:
            self._sources.pop(lease_id, None)

    def listen(self, listener: Callable[[Collection[str]], object]) -> Callable[[], None]:
        """Tell of the records that have instructions, until the function that is returned is called."""
        token = object()
        with self._lock:
            self._check_open()
            self._listeners[token] = listener
            self._is_to_look = self._is_to_look or self._may_be_left

        def stop() -> None:
            self._listeners.pop(token, None)  # without the lock, which a finalizer may not wait for

        return stop

    def tell(self, record_ids: Collection[str]) -> None:
        """Tell the listeners of these records, by their escaped IDs."""
        with self._lock:
            self._may_be_left = True
            listeners = list(self._listeners.values())
        for listener in listeners:
            with _logged("instructions"):  # one that fails, such as that of a loop that has ended
                listener(unescape_each(record_ids, self._name))

    def watch(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Tell that calls may have asked or ended, until the function that is returned is called."""
        token = object()
        with self._lock:
            self._check_open()
            self._watchers[token] = watcher

        def stop() -> None:
            self._watchers.pop(token, None)  # as above

        return stop

    def tell_watchers(self) -> None:
        """Tell the watchers that calls may have asked or ended."""
        for watcher in list(self._watchers.values()):
            with _logged("questions and ends"):
                watcher()

    def look_for_instructions(self) -> None:
        """Have the thread look, in its next turn, which records have instructions."""
        self._is_to_look = True
        self._jobs.put(None)

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

    def _leave(self, user: object, after_s: float, waiter: Waiter | None = None) -> None:
        with self._lock:
            self._users.discard(user)
            if self._users:
                if waiter is not None:
                    self._put_barrier(waiter)
                return
            self._close_at = time.monotonic() + after_s
            if waiter is not None:
                self._closing.append(waiter)
                self._jobs.put(None)

    def _put_barrier(self, waiter: Waiter) -> None:
        """Have a waiter woken when all jobs that are queued by now are done."""
        self._jobs.put(waiter)

    def _close_at_exit(self) -> None:
        """Make the unattended writes, even if the interpreter ends before they were due."""
        with self._lock:
            self._users = WeakSet()
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Close the database at once, if its last user has left, and wait for that."""
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
            ended = self._find_ended()  # before jobs are taken: the writes of these owners come first
            jobs, unattended = self._take()
            has_written = self._do(jobs, unattended, ended)
            self._tell_of_others()
            if not (jobs or has_written):
                self._tidy_up()
        names = [name for _, found in self._find_ended() for name in found]
        # The leases of clients that were dropped without giving them up.
        with _logged("the leases of this process"):
            names += [lease_id for lease_id, source in self._sources.items() if source.end()]
        self._close(names)
        self._end()

    def _refuse_all(self, error: Exception) -> None:
        """Answer everything with the error of opening, until all callers have left."""
        while not self._try_to_end():
            jobs, _ = self._take()
            for job in jobs:
                job.error = error
            _wake_for(jobs)
            barriers, self._barriers = self._barriers, []
            _wake(barriers)
        self._end()

    def _try_to_end(self) -> bool:
        """End if the database is to be closed and nothing is left to do: no journal enters after that."""
        now = time.monotonic()
        with self._lock:
            if not self._users and self._close_at == math.inf:  # the last one was dropped
                self._close_at = now + self._timing.linger_s
            if self._close_at > now:
                return False
            self._ended = self._jobs.empty() and not self._unattended and not self._again
            return self._ended

    def _end(self) -> None:
        atexit.unregister(self._close_at_exit)
        with _threads_lock:
            if _THREADS.get(self._key) is self:  # else its medium was opened anew meanwhile
                del _THREADS[self._key]
        _wake(self._closing)

    def _take(self) -> tuple[list[_Job], list[_Job]]:
        """Wait until a job has come or unattended work is due. Returns all jobs, and the unattended ones."""
        if self._came > 1:
            time.sleep(self._timing.gather_s)
        until = self._again_at if self._again else self._close_at
        came = list[_Job | Waiter | None]()
        with suppress(Empty):
            came.append(self._jobs.get(timeout=min(self._timing.tick_s, max(0.0, until - time.monotonic()))))
        # Before the rest of the jobs, so that each save which was put before a delivery is taken with it.
        with self._lock:
            unattended, self._unattended = self._unattended, []
        came += [self._jobs.get() for _ in range(self._jobs.qsize())]
        self._came = len(came)
        self._barriers += (one for one in came if isinstance(one, Waiter))
        return [one for one in came if isinstance(one, Job)], unattended

    def _find_ended(self) -> list[tuple[LeaseSource, Collection[str]]]:
        """The owners that have ended without a word, by the source of their lease."""
        with self._lock:
            sources = list(self._sources.values())
        found = list[tuple[LeaseSource, Collection[str]]]()
        for source in sources:
            with _logged("the owners of this process"):
                found.append((source, source.ended()))
        return [(source, names) for source, names in found if names]

    def _do(
        self,
        jobs: list[_Job],
        unattended: list[_Job],
        ended: list[tuple[LeaseSource, Collection[str]]],
    ) -> bool:
        """Carry out jobs, repetitions and unattended work: writes, renewals, releases of ``ended``.

        Returns:
            Whether there was unattended work.
        """
        again, self._again = self._again, []
        renewals = self._renewals()
        releases: list[tuple[LeaseSource, Collection[str], _Job]] = [
            (source, names, Job(release(names), None)) for source, names in ended
        ]
        for *_, job in releases:
            job.number = next(self._numbers)
        unattended = [*unattended, *(job for *_, job in releases)]
        # Reads come after the commit, and outside of it: a long one holds up nobody's commit.
        writes, reads = [job for *_, job in renewals], list[_Job]()
        # A lease comes first, and by itself: a caller that is about to own something waits for no row.
        leases = [job for job in jobs if job.work.statements == LEASE_STATEMENTS]
        for job in (*again, *unattended, *(set(jobs) - set(leases))):
            (writes if job.work.writes else reads).append(job)
        if leases:
            self._write(leases)
            self._finish(leases)
        writes.sort(key=lambda job: job.number)
        if writes:
            self._write(writes)
        for source, lease, job in renewals:
            if job.error is None:
                note_renewal(source, lease, had_lapsed=not job.result)
        for source, names, job in releases:
            if job.error is None:
                with _logged("the owners of this process"):
                    source.released(names)
        self._finish(writes)
        reads.sort(key=lambda job: job.number)
        if reads:
            self._carry_out(reads)
            self._finish(reads)
        if not self._again:
            barriers, self._barriers = self._barriers, []
            _wake(barriers)
        return bool(unattended or renewals)

    def _write(self, jobs: list[_Job]) -> None:
        if self._read_only is None:
            self._carry_out(jobs)
        else:
            for job in jobs:
                job.error = self._read_only

    def _renewals(self) -> list[tuple[LeaseSource, Lease, _Job]]:
        """The leases that are due, with the jobs that renew them."""
        return [(source, lease, Job(renew_lease(lease), None)) for source, lease in self.due_leases()]

    def due_leases(self) -> list[tuple[LeaseSource, Lease]]:
        """The leases that are to be renewed now. May be called from any thread."""
        with self._lock:
            sources = list(self._sources.values())
        return list(_due_leases(sources))

    def _finish(self, jobs: list[_Job]) -> None:
        """Wake the callers of jobs, but for those jobs that are to be carried out again."""
        now, done, pauses = time.monotonic(), list[_Job](), list[float]()
        for job in jobs:
            may_wait = bool(job.number) and now < job.work.asked_at + self._patience_s
            pause_s = self._pause_after(job.error) if may_wait and job.error is not None else None
            if pause_s is None:
                done.append(job)
            else:
                self._again.append(job)
                pauses.append(pause_s)
        if pauses:
            at = now + min(pauses)
            self._again_at = min(at, self._again_at) if self._again_at > now else at
        unattended = [job.error for job in done if job.waiter is None]
        if unattended:
            self._log_first(next((error for error in unattended if error is not None), None))
        _wake_for(done)

    def _log_first(self, error: Exception | None) -> None:
        """Log a failure, unless the unattended writes before it failed as well."""
        if error is not None and not self._failing:
            logger.warning(
                "Leases and deliveries could not be written, and are tried again. "
                "Results may be given out twice: %s",
                self.explain(error),
            )
        self._failing = error is not None

    def _tell_of_others(self) -> None:
        """Tell of possible writes of other processes: instructions, questions, ends."""
        with self._lock:
            if not (self._listeners or self._watchers):
                return
            is_to_look, self._is_to_look = self._is_to_look, False
            if is_to_look:
                self._may_be_left = False  # unless some are found, or left meanwhile
        with _logged("instructions"):
            now = time.monotonic()
            if is_to_look or (now >= self._look_at and self._may_have_changed()):
                self._look_at = now + self._look_s
                self.tell_watchers()
                look: _Job = Job(_LOOK, None)
                self._carry_out([look])
                if look.error is not None:
                    self._look_at, self._is_to_look = now + self._timing.tick_s, True
                    if self._pause_after(look.error) is None:
                        raise look.error
                elif look.result:
                    self.tell(look.result)


_THREADS: Final[dict[Hashable, JournalThread]] = {}
"""The threads of this process, by the keys of their media."""

_threads_lock = threading.Lock()


def _close_unused() -> None:
    for thread in list(_THREADS.values()):
        thread._close_if_unused()


def _make_new_locks() -> None:
    """In a child of the process no thread would release locks that another one held at the fork."""
    global _threads_lock
    _threads_lock = threading.Lock()
    for thread in _THREADS.values():
        thread._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # A child cannot use its parent's connections: SQLite in it would count on locks that it does not have.
    os.register_at_fork(before=_close_unused, after_in_child=_make_new_locks)


def note_renewal(source: LeaseSource, lease: Lease, *, had_lapsed: bool) -> None:
    """Tell a source that its lease is stored."""
    with _logged("the renewal of a lease"):
        source.renewed(lease, had_lapsed=had_lapsed)


def _due_leases(sources: Iterable[LeaseSource]) -> Iterator[tuple[LeaseSource, Lease]]:
    for source in sources:
        with _logged("the lease of this process"):
            lease = source.due()
            if lease is not None:
                yield source, lease


@contextmanager
def _logged(subject: str) -> Iterator[None]:
    """Log an exception of a listener, a lease source or a look, so that the thread goes on."""
    try:
        yield
    except Exception:
        logger.exception("%s could not be looked after", subject)


_LOOK: Final = Work(
    statements=("instructed",),
    writes=False,
    read=lambda found: [key for (key,) in found[0]],
    asked_at=-math.inf,  # nobody waits for it while a database is away
)


def _wake_for(jobs: Iterable[_Job]) -> None:
    """Wake the callers of jobs, with one call for each event loop."""
    _wake(job.waiter for job in jobs if job.waiter is not None)


def _wake(waiters: Iterable[Waiter]) -> None:
    loops: defaultdict[Callable[..., object], list[Waiter]] = defaultdict(list)
    for waiter in waiters:
        loops[waiter.call_soon].append(waiter)
    for call_soon, sleeping in loops.items():
        _wake_in_loop(call_soon, sleeping, 0)


def _wake_in_loop(call_soon: Callable[..., object], waiters: list[Waiter], first: int) -> None:
    # A closed event loop raises RuntimeError. No caller waits in it.
    with suppress(RuntimeError):
        call_soon(_wake_some, call_soon, waiters, first)


def _wake_some(call_soon: Callable[..., object], waiters: list[Waiter], first: int) -> None:
    """Wake a few waiters in this turn of their event loop, and the rest in the next ones."""
    after = first + _WOKEN_AT_ONCE
    for waiter in waiters[first:after]:
        waiter.wake()
    if after < len(waiters):
        _wake_in_loop(call_soon, waiters, after)
