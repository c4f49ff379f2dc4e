"""The surroundings of an engine: time, chance, process, and the observer of calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ..aio.clock import Clock, SharedClock, SystemClock
from ..journal.base import Journal
from ..machine.replacing import replace
from .observer import Observer
from .process import Process

__all__ = ["LEASE_S", "Environment"]

LEASE_S: Final = 30.0
"""Seconds after which a process that has not renewed its lease counts as gone, if it cannot be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Passed in once per client. The defaults are the real ones."""

    clock: Clock = field(default_factory=SystemClock)
    jitter: Callable[[], float] = random.random
    """Draws fractions from 0 to 1."""

    process: Process | None = None
    """The process that we are; ``None`` asks the operating system."""

    observer: Observer | None = None
    """Told of each step of each call; ``None`` is no observer."""

    lease_s: float = LEASE_S
    """Seconds for which the lease of this process lasts, after which others may take its calls over. Of
    several clients of a process on one journal, the one counts that opened it first."""

    def around(self, journal: Journal) -> Environment:
        """The same, by the clock that all clients of the journal share, if it has one."""
        if journal.clock is None:
            return self
        return replace(self, clock=SharedClock(self.clock, journal.clock))
