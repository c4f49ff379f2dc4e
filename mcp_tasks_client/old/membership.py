"""Our client among those that share a journal: its name, its process's lease, and its leaving."""

from __future__ import annotations

from typing import Final

import anyio

from .clock import Clock
from .errors import JournalError
from .journal.base import Journal, Judge
from .journal.failures import typed
from .owners import Place, Tenure
from .points import Passage, Point

__all__ = ["Membership"]

_TRIES_TO_LEAVE: Final = 3
"""Without a pause: a journal that is locked has waited already."""


class Membership:
    """Says in the journal that we are there, for as long as we are.

    Args:
        journal: Where it is said.
        clock: Tells when it has to be said again.
        passing: Told of every commit.
        place: The process that we are; ``None`` finds out.
        lease_s: Seconds that its lease lasts.

    Attributes:
        owner: Our name in the journal, from now until :meth:`leave`.
        tenure: What our process holds in it.
    """

    def __init__(
        self, journal: Journal, clock: Clock, passing: Passage, place: Place | None, lease_s: float
    ) -> None:
        self.tenure, self.owner = Tenure.enter(journal, place, lease_s)
        self._journal = journal
        self._clock = clock
        self._passing = passing

    def judge(self) -> Judge:
        """Says of an owner whether it is gone."""
        return self.tenure.judge(self._clock)

    async def enrol(self) -> None:
        """Have a lease that lasts, before anything is owned."""
        tenure = self.tenure
        if not tenure.enrolled or tenure.expires_before(self._clock.time() + tenure.renew_s):
            await self._passing(Point.RENEW, self.tenure.renew, self._clock)

    async def renew(self) -> None:
        """Renew our process's lease, if there is one.

        Raises:
            JournalError: It could not be written. Others may come to think that we are gone.
        """
        # Whoever closes meanwhile must not take along that the lease had lapsed.
        with anyio.CancelScope(shield=True), typed:
            await self._let_go()
            if self.tenure.due(self._clock):
                await self._passing(Point.RENEW, self.tenure.renew, self._clock)

    async def leave(self) -> None:
        """Own nothing any more. Tried a few times: others wait, and there may be no client here to try later.

        Raises:
            JournalError: The journal still says otherwise.
        """
        self.tenure.leave(self.owner)  # which this process knows, whatever the journal says
        for tries_left in reversed(range(_TRIES_TO_LEAVE)):
            try:
                with typed:
                    await self._let_go()
                return
            except JournalError:
                if not tries_left:
                    raise

    async def _let_go(self) -> None:
        """Have the journal let go of those who have ended here, now or when it could not be written."""
        if names := self.tenure.ended:
            await self._passing(Point.LEAVE, self._journal.release, *names)
            self.tenure.let_go(names)
