"""A journal whose medium lives in a thread: who has it open.

The medium's thread is :mod:`.thread`; what is read and written there is each journal's own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .base import Journal, LeaseSource, Listener
from .codec import Codec, check_codec
from .row import not_open, unescape

if TYPE_CHECKING:
    from .thread import JournalThread

__all__ = ["ThreadedJournal"]

T = TypeVar("T", bound="JournalThread[Any]")


class ThreadedJournal(Journal, Generic[T]):
    """A journal that shares a thread with the other journals of its process that keep the same medium.

    Args:
        name: What the journal is called in messages.
        join: Finds or makes the thread of the medium, and counts one more user there.
        codec: Encodes what is private before it is stored.
    """

    def __init__(self, name: object, join: Callable[[], T], codec: Codec | None) -> None:
        self._name = name
        self._join = join
        self._codec = codec
        self._lock = threading.Lock()
        self._users = 0
        self._thread: T | None = None  # while there are users
        self._finalizer: weakref.finalize[..., ThreadedJournal[T]] | None = None

    async def open(self) -> None:
        """Open or make the medium, and commit a first write to it.

        Raises:
            JournalLockedError: Another process held the file all the time that is waited for, or has it open
                in an older version of this package.
            JournalCorruptError: The file is damaged, or no database. It is left as it is.
            JournalSchemaError: The medium is another program's or a newer version's. It is left as it is.
            JournalCodecError: The codec does not decode what it encodes.
            JournalError: The medium cannot be reached, or cannot be written.
        """
        check_codec(self._codec)
        with self._lock:
            if self._thread is None:
                self._thread = self._join()
                # Of a journal that is dropped without being closed, nothing must stay.
                self._finalizer = weakref.finalize(self, self._thread.leave_unseen)
                self._finalizer.atexit = False
            thread = self._thread
            self._users += 1
        try:
            await thread.wait_until_open()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Count one user less. The last one's leaving finishes every write.

        It also closes the medium, unless another journal of this process has it open.
        """
        thread = self._left()
        if thread is not None:
            await thread.leave()

    def aclose_soon(self) -> None:
        """Count one user less. Ten seconds after this process's last one has left, the medium is closed."""
        thread = self._left()
        if thread is not None:
            thread.leave_soon()

    def _left(self) -> T | None:
        """Count one user less. Returns the thread that the last one leaves."""
        with self._lock:
            self._users = max(0, self._users - 1)
            if self._users or self._thread is None:
                return None
            thread, self._thread = self._thread, None
            assert self._finalizer is not None
            self._finalizer.detach()
            return thread

    def _opened(self) -> T:
        if self._thread is None:
            raise not_open(self._name)
        return self._thread

    def keep_renewing(self, source: LeaseSource) -> None:
        """Have the thread renew the lease, with what else it writes or by itself."""
        self._opened().keep_renewing(source)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell of instructions: of those left in this process at once; see the journal for others."""
        return self._opened().listen(lambda keys: listener([unescape(key) for key in keys]))
