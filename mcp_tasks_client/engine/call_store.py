"""The journal, for all calls of one client. The store writes the entry of each call, and no other room does.

It has four parts: the calls that live here, which of them are ours, the steps that they take, and the ends
that hosts have received.
"""

from __future__ import annotations

import logging

from ..aio.uncut import run_to_its_end
from ..errors import JournalError, TasksClientError
from ..journal.guarded import GuardedJournal
from ..policy import PollPolicy
from .ends import Ends
from .environment import Environment
from .live_call import LiveCall
from .owning import Owning
from .registry import Registry
from .steps import Steps

__all__ = ["CallStore"]

logger = logging.getLogger("mcp_tasks_client")


class CallStore:
    """The journal, for all calls of one client.

    Attributes:
        registry: The calls that live here.
        owning: Which records are this client's.
        steps: The steps that calls take.
        ends: The ends of calls that hosts have.
    """

    def __init__(self, journal: GuardedJournal, policy: PollPolicy, environment: Environment) -> None:
        self.journal = journal
        self.registry = Registry()
        self.owning = Owning(journal, self.registry, environment)
        self.steps = Steps(journal, self.registry, self.owning, policy, environment)
        self.ends = Ends(journal, self.owning, environment)

    async def commit_left(self) -> None:
        """Commit the events that could not be committed before, of calls without a driver, and release those.

        Stops at the first that fails again, and leaves the rest for the next time.
        """
        while self.registry.left:
            call = next(iter(self.registry.left))
            try:
                await self._commit_left(call)
            except TasksClientError as error:
                logger.warning("%r still cannot be journaled: %s", call.record, error)
            if call in self.registry.unsaved:
                return

    async def _commit_left(self, call: LiveCall) -> None:
        if await self.owning.take(call):
            while call.uncommitted:
                await self.steps.apply_uncommitted(call)
            if not call.is_driven:
                await self.owning.release(call)

    async def close(self) -> None:
        """Commit once more the events that could not be committed before, and release each call."""
        await run_to_its_end(self._close)

    async def _close(self) -> None:
        why: Exception | None = None
        for call in list(self.registry.unsaved):
            try:
                await self._commit_left(call)
            except Exception as error:  # of any kind: it must not hold up the end
                why = error
            if call in self.registry.unsaved:
                break  # a journal that fails has waited already, and would do so for each of them
        for call in self.registry.unsaved:
            if call.uncommitted:
                logger.error("The reply to %r was never journaled: %s", call.record, why)
        try:
            await self.owning.leave()
        except JournalError as error:
            logger.warning("The journal does not know yet that this client has ended: %s", error)
