"""The live calls of one client, by their records, and those among them that no journal has whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

import anyio

from ..machine.record import TaskRecord
from .live_call import LiveCall, Nobody

__all__ = ["BATCH", "Registry"]

BATCH: Final = 50
"""Calls that are taken up between two moments in which the event loop is free for others."""


class Registry:
    """The live calls of one client.

    Attributes:
        live: The live call of each record, by ``record_id``. Weak: a call without callers,
            handles and driver is forgotten.
        joining: Held while a caller joins the call that its key stands for, so that one at a time decides.
        bells: Told of each call that has come to rest or awaits a person; ``None`` when the engine is left.
        unsaved: Calls with replies, answers or states that could not be committed. They are not forgotten.
        left: Those of them without a driver. Kept, since each call that begins would have to walk over all.
    """

    def __init__(self) -> None:
        self.live: WeakValueDictionary[str, LiveCall] = WeakValueDictionary()
        self.joining = anyio.Lock()
        self.bells: set[Callable[[LiveCall | None], None]] = set()
        self.unsaved: set[LiveCall] = set()
        self.left: set[LiveCall] = set()
        self._remembering = 0
        self._remembered: set[LiveCall] = set()

    def add(self, call: LiveCall) -> LiveCall:
        """The live call of a record: the one given, unless there is one already."""
        call = self.live.setdefault(call.record.record_id, call)
        if self._remembering:
            self._remembered.add(call)
        return call

    def live_of(self, record: TaskRecord) -> LiveCall:
        """The live call of a record that was read from the journal."""
        return self.add(LiveCall(record, Nobody(ours_until=None)))

    def forget_all(self) -> None:
        """Forget every live call, since the event loops that drove them have closed."""
        self.live.clear()
        self.joining = anyio.Lock()

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Keep every live call while records are read and matched with them.

        A record that was read a moment ago may be out of date; its live call never is.
        """
        self._remembering += 1
        self._remembered.update(self.live.values())
        try:
            yield
        finally:
            self._remembering -= 1
            if not self._remembering:
                self._remembered.clear()

    def ring_bells(self, call: LiveCall | None) -> None:
        """Tell that a call has come to rest, or waits for a person; ``None`` that the engine is left."""
        for bell in list(self.bells):
            bell(call)

    def note_unsaved(self, call: LiveCall) -> None:
        """Hold on to a call until the journal has all of it."""
        self.unsaved.add(call)
        self.note_driver(call)

    def note_saved(self, call: LiveCall) -> None:
        """Note that the journal has all of a call."""
        self.unsaved.discard(call)
        self.left.discard(call)

    def note_driver(self, call: LiveCall) -> None:
        """Note that the driver of a call has begun or ended.

        A driver commits all that its call holds. Without one, :meth:`CallStore.commit_left` does.
        """
        if not call.is_driven and call in self.unsaved:
            self.left.add(call)
        else:
            self.left.discard(call)
