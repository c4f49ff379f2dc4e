"""Being told that something has happened, at a price that thousands of parked calls can pay.

Each of them waits for a signal of its own, for hours. An event of asyncio's takes 0.8 KB for that, most of
it a queue for waiters that never come; a future takes a fifth.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    import asyncio

__all__ = ["Signal", "on_asyncio", "signal"]


class Signal(Protocol):
    """Set once, waited for by any number."""

    def set(self) -> object:
        """Wake those who wait."""

    def wait(self) -> Awaitable[object]:
        """Return once it is set."""


def signal() -> Signal:
    """A signal for the event loop that runs us."""
    return _Futures() if on_asyncio() else anyio.Event()


def on_asyncio() -> bool:
    """Whether asyncio runs us, and nothing on top of it."""
    import asyncio  # slow to import, and loaded by now, if it is what runs us

    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


class _Futures:
    """A future for each who waits: one that is shared would be cancelled for all with the first of them."""

    __slots__ = ("_enough", "_is_set", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._enough = 2
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        for one in self._waiting:
            if not one.done():  # cancelled, with whoever waited
                one.set_result(None)

    def wait(self) -> Awaitable[None]:
        import asyncio

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._is_set:
            future.set_result(None)
            return future
        if len(self._waiting) >= self._enough:
            # Whoever stopped waiting has left a future behind.
            self._waiting = [one for one in self._waiting if not one.done()]
            self._enough = 2 * len(self._waiting) + 2
        self._waiting.append(future)
        return future
