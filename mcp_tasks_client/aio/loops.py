"""The event loops that a client has run in, and whether all of them have closed.

An asyncio loop may be closed at any moment at which it stands still: its tasks then stay where they are, and
nothing in them is told. trio ends all of its tasks before it ends itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from .uncut import on_asyncio, running_loop

if TYPE_CHECKING:
    import asyncio

__all__ = ["Loops"]


class Loops:
    """The event loops that something has run in. Any thread may ask."""

    def __init__(self) -> None:
        # Weak, because a loop refers to its tasks.
        self._loops: tuple[Callable[[], asyncio.AbstractEventLoop | None], ...] = ()
        self._on_trio = False

    def note_running(self) -> None:
        """Note the event loop that runs us."""
        if not on_asyncio():
            self._on_trio = True
            return
        loop = running_loop()
        if all(known() is not loop for known in self._loops):
            self._loops = (*(known for known in self._loops if _is_open(known())), weakref.ref(loop))

    def have_closed(self) -> bool:
        """True once every noted event loop has closed. False as long as none was noted."""
        return bool(self._loops) and not self._on_trio and not any(_is_open(known()) for known in self._loops)


def _is_open(loop: asyncio.AbstractEventLoop | None) -> bool:
    return loop is not None and not loop.is_closed()
