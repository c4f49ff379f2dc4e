"""The questions of one call that are put to the host: to whom, and one at a time to each.

A person has one form before them at a time. What a program answers does not wait for that: the server may
have set it a time limit of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from .events import Ask

__all__ = ["Prompts", "Queue"]

_OF_PERSONS: Final = "elicitation/create"


class Queue:
    """Who answers one question after the other.

    Attributes:
        asks: The questions, by key. The first is the one that is up; after a stop it is a new dictionary.
        scope: Of who asks; ``None`` while nothing is up.
        rests: Set while nobody is before a question, and the answer to the last one is journaled.
    """

    __slots__ = ("asks", "rests", "scope")

    def __init__(self) -> None:
        self.asks: dict[str, Ask] = {}
        self.scope: anyio.CancelScope | None = None
        self.rests = anyio.Event()
        self.rests.set()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Note that somebody is before a question, for the length of the block."""
        self.rests = rests = anyio.Event()
        try:
            yield
        finally:
            rests.set()

    def outdated(self, is_open: Callable[[str], bool]) -> bool:
        """Whether the server does not wait for the answer to what is up, but for another one.

        Args:
            is_open: Tells of a key whether the server waits for its answer.
        """
        if self.scope is None or not self.asks:
            return False
        up, *others = self.asks
        return not is_open(up) and any(map(is_open, others))

    def withdraw(self) -> None:
        """Withdraw what is up. It stays the first of the queue."""
        if self.scope is not None:
            self.scope.cancel()
            self.scope = None

    def stop(self) -> None:
        """Withdraw what is up, and have nothing wait any more."""
        self.asks = {}
        self.withdraw()


class Prompts:
    """The queues of a call.

    Attributes:
        held_by: Whose question has no answer, as long as that is not told; nothing more is put to anybody.
    """

    __slots__ = ("_of_persons", "_of_programs", "held_by")

    def __init__(self) -> None:
        self._of_persons = Queue()
        self._of_programs = Queue()
        self.held_by: Queue | None = None

    @property
    def queues(self) -> tuple[Queue, Queue]:
        """All of them."""
        return self._of_persons, self._of_programs

    def add(self, ask: Ask) -> None:
        """Have a question be put when it is its turn."""
        asks_a_person = ask.request.get("method") == _OF_PERSONS
        queue = self._of_persons if asks_a_person else self._of_programs
        queue.asks.setdefault(ask.key, ask)

    def are_held(self) -> bool:
        """Whether nothing more is put to anybody."""
        return self.held_by is not None

    async def others_rest(self, queue: Queue) -> None:
        """Wait until whoever is before something else is done with that. They get nothing more meanwhile."""
        self.held_by = queue
        try:
            for other in self.queues:
                if other is not queue:
                    await other.rests.wait()
        finally:
            if self.held_by is queue:
                self.held_by = None

    def stop(self) -> None:
        """Withdraw what is up, and have nothing wait any more."""
        self.held_by = None  # whoever is asked next may be so before this one has noticed
        for queue in self.queues:
            queue.stop()
