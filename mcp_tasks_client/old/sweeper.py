"""Looks after the tasks that a server has us run: forgets what is over, takes up what a process has left.

Each session is seen to by itself: one that does not answer must not hold up what is asked in another.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import anyio.lowlevel

from .asking import Asking
from .clock import Clock
from .custody import Custody
from .demands import answerable
from .errors import JournalError
from .inputs import Inputs
from .journal.base import Scope, TaskRecord
from .parties import Adopt, Attend, Parties
from .received import expires_at, made_in, needed_for
from .serving import Serving
from .sessions.peer import Peer
from .telling import Telling
from .wire import RequestId

__all__ = ["GoOn", "Sweeper"]

logger = logging.getLogger("mcp_tasks_client")

GoOn: TypeAlias = Callable[[TaskRecord, Peer, Sequence[tuple[RequestId, str]]], None]
"""Goes on with a task in its session, and says what is owed there."""

_SWEEP_S: Final = 30.0


class Sweeper:
    """Sweeps for one client.

    Args:
        custody: Has the records.
        asking: Who is asked.
        serving: What is being said.
        telling: What is owed.
        parties: The sessions.
        clock: Tells what is over.
        calls: Where the server's own tasks are.
        inputs: Ask the host.
        go_on: Takes over what was taken up.
        in_background: Has something be done by and by.
    """

    def __init__(
        self,
        custody: Custody,
        *,
        asking: Asking,
        serving: Serving,
        telling: Telling,
        parties: Parties,
        clock: Clock,
        calls: Scope,
        inputs: Inputs,
        go_on: GoOn,
        in_background: Callable[..., None],
    ) -> None:
        self._custody = custody
        self._asking = asking
        self._serving = serving
        self._telling = telling
        self._parties = parties
        self._clock = clock
        self._calls = calls
        self._inputs = inputs
        self._go_on = go_on
        self._in_background = in_background
        self._seeing_to: set[str] = set()

    async def sweep(self, adopt: Adopt, attend: Attend) -> float:
        """Forget what is over, take up what nobody else does; returns for how many seconds that does.

        Args:
            adopt: Gives the peer of an earlier session.
            attend: Has it be heard what the server says there.
        """
        try:
            await self._custody.membership.renew()
            records = await self._custody.records()
        except JournalError as error:
            _later(error)
            return _SWEEP_S
        of_parties = defaultdict[str, list[TaskRecord]](list)
        for record in records:
            of_parties[made_in(record)].append(record)
        for party in of_parties.keys() - self._seeing_to:
            self._seeing_to.add(party)
            self._in_background(self._see_to_all, party, of_parties[party], adopt, attend)
        left = [expires_at(record) - self._clock.time() for record in records]
        ahead_s = min((left_s for left_s in left if left_s > 0), default=math.inf)
        # With none as well: another process may make one, and die.
        return min(ahead_s, self._custody.membership.tenure.renew_s, _SWEEP_S) if records else _SWEEP_S

    async def _see_to_all(self, party: str, records: list[TaskRecord], adopt: Adopt, attend: Attend) -> None:
        try:
            for record in records:
                if record.finished:
                    self._asking.stop(str(record.task_id))  # for another process may have ended it
                await self._see_to(record, adopt, attend)
        except JournalError as error:
            _later(error)
        finally:
            self._seeing_to.discard(party)

    async def _see_to(self, record: TaskRecord, adopt: Adopt, attend: Attend) -> None:
        if expires_at(record) <= self._clock.time():
            await self._forget(record)
        elif not record.finished and self._telling.is_over(record) and self._parties.of(made_in(record)):
            await self._custody.abandon(record, self._asking.goes_on)
        elif not record.pending:
            pass  # what has ended is served as it is
        elif not self._asking.has(record):
            await self._take_up(record, adopt, attend)
        elif await self._parties.find(made_in(record), adopt, attend) is None:
            await self._leave(record)

    async def _forget(self, record: TaskRecord) -> None:
        self._asking.stop(str(record.task_id))
        await self._custody.forget(record)
        self._telling.forget(record)
        logger.info("A task of the server's is forgotten: %r", record)

    async def _leave(self, record: TaskRecord) -> None:
        """Ask nobody for what nobody will ever come for. What was answered in a session is kept."""
        party, peer = made_in(record), self._parties.of(made_in(record))
        ended = self._parties.was_ended(party)
        if ended and peer is not None:
            self._serving.leave(peer)
        if ended and not record.finished:
            self._asking.stop(str(record.task_id))
            await self._custody.give_up(record)
            self._telling.forget(record)
        elif not ended and self._parties.is_gone(party):
            await self._forget(record)

    async def _take_up(self, record: TaskRecord, adopt: Adopt, attend: Attend) -> None:
        """Go on with a task whose process is gone, in its session, unless the server is away there."""
        party = made_in(record)
        owes = bool(self._telling.owed_by_others(record))
        if record.finished and not owes and self._parties.of(party) is not None:
            return  # it is served as it is
        if not record.finished and not answerable(str(record.tool), self._inputs.capabilities):
            return  # another of our processes may have somebody to ask
        taken = await self._custody.take(record)
        if taken is None:
            return
        needed = None if taken.finished and not owes else needed_for(taken)
        if needed is not None and await self._custody.was_cancelled(self._calls, needed):
            await self._custody.abandon(taken, self._asking.goes_on)  # by a process that has died since
            return
        peer = await self._parties.find(party, adopt, attend)
        if peer is None:
            await self._leave(taken)
            return
        await anyio.lowlevel.checkpoint_if_cancelled()  # or the host would be asked while the client closes
        self._go_on(taken, peer, self._telling.owed_by_others(taken))


def _later(error: JournalError) -> None:
    logger.warning("What the server has us run is looked after later: %s", error)
