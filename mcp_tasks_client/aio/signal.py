"""Being woken once, at a price that thousands of waiting calls can pay.

Each call that waits for its next poll, and each caller that waits for a call, waits for a signal, often for
hours. An event of ``anyio`` on asyncio takes 1.2 KB and three coroutines for that; a future takes a fifth.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

import anyio

from .uncut import on_asyncio

if TYPE_CHECKING:
    import asyncio

__all__ = ["FutureSignal", "Signal", "make_signal"]


class Signal(Protocol):
    """Set once, waited for by any number. An ``anyio.Event`` is one."""

    def set(self) -> object:
        """Wake all who wait."""

    def wait(self) -> Awaitable[object]:
        """Return once the signal is set."""


def make_signal() -> Signal:
    """A signal for the event loop that runs us."""
    return FutureSignal() if on_asyncio() else anyio.Event()


class FutureSignal:
    """A future for each who waits: a shared one would be cancelled for all with the first of them."""

    __slots__ = ("_futures", "_is_set")

    def __init__(self) -> None:
        self._futures: tuple[asyncio.Future[None], ...] = ()
        self._is_set = False

    def set(self) -> None:
        """Wake all who wait."""
        self._is_set = True
        for future in self._futures:
            if not future.done():  # cancelled, with its waiter
                future.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        """A future that is done once the signal is set."""
        import asyncio  # loaded already by the event loop that runs us

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._is_set:
            future.set_result(None)
        else:
            self._futures = (*(one for one in self._futures if not one.done()), future)
        return future
