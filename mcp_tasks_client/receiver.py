"""Runs tasks for a server of 2025-11-25: makes them, says how they are, and serves what they came to.

Theory of operation
===================

The journal is where a task is; here is only who asks the host for it, and who waits for it. So it makes no
difference which of our processes a server's request reaches, as long as it is in the session that the task
was made in. What each request means is decided in :mod:`.received`.

- A task is committed before the server hears of it, its answer before the server can see it.
- What a process that died was asking for is asked again by the next one here, once it has gone back to the
  session and the server still knows it. What had been answered is only served.
- A time-to-live that is over ends everything, the asking too; so does the end of the session. Where a
  server has no name for its sessions, a task is bound to the connection, and ends with it.
"""

from __future__ import annotations

import logging
import math
import secrets
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias, assert_never
from weakref import WeakKeyDictionary

import anyio
from anyio.abc import TaskGroup

from .asking import Asking, Run
from .clock import Clock, SystemClock
from .custody import Custody
from .demands import (
    Allowance,
    AskedCancel,
    AskedGet,
    AskedList,
    AskedResult,
    AskedTask,
    RefusedError,
    answerable,
    concerns,
    offered,
    read_request,
)
from .errors import DrivenElsewhereError, JournalError, SessionError
from .inputs import Inputs
from .journal.base import Journal, TaskRecord
from .owners import LEASE_S, Place
from .received import (
    INTERNAL_ERROR,
    ReceivePolicy,
    admit,
    created,
    creation,
    expires_at,
    made_in,
    page,
    received_scope,
    repeated,
    result,
    shown,
)
from .sessions.peer import Peer
from .sessions.shapes_2025_11_25 import id_text, request_id_of
from .wire import JSONObject, RequestId, RpcError

__all__ = ["Adopt", "Attend", "Receiver"]

logger = logging.getLogger("mcp_tasks_client")

Adopt: TypeAlias = Callable[[str], Peer]
"""Gives the peer of a session that there was before, by its ID."""

Attend: TypeAlias = Callable[[Peer], None]
"""Has it be heard what the server says to a peer."""

_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 2.0
_SWEEP_S: Final = 30.0
_SESSION: Final = "session:"
_CONNECTION: Final = "connection:"


class Receiver:
    """Runs what one server wants to have run, in whichever of its sessions.

    Args:
        journal: Where the tasks are; open for as long as this runs.
        inputs: Ask the host.
        endpoint: The server's name in the journal.
        principal: On whose behalf.
        policy: Limits.
        clock: ``None`` is the system's.
        timeout_s: Seconds that a reply may take to be taken.
        place: The process that we are; ``None`` finds out.
        lease_s: Seconds that its lease lasts.
    """

    def __init__(
        self,
        journal: Journal,
        inputs: Inputs,
        endpoint: str,
        principal: str = "",
        *,
        policy: ReceivePolicy | None = None,
        clock: Clock | None = None,
        timeout_s: float = _TIMEOUT_S,
        place: Place | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self._journal = journal
        self._inputs = inputs
        self._scope = received_scope(endpoint, principal)
        self._policy = policy or ReceivePolicy()
        self._clock = clock or SystemClock()
        self._timeout_s = timeout_s
        self._place = place
        self._lease_s = lease_s
        self._running: tuple[Custody, TaskGroup] | None = None
        self._admitting = anyio.Lock()
        self._news = anyio.Event()
        self._asking = Asking(inputs, self._clock, timeout_s)
        self._serving: set[tuple[int, str]] = set()
        self._waiting: dict[tuple[int, str], anyio.CancelScope] = {}
        self._present: dict[str, Peer] = {}
        self._names: WeakKeyDictionary[Peer, str] = WeakKeyDictionary()
        self._allowances: WeakKeyDictionary[Peer, Allowance] = WeakKeyDictionary()

    @property
    def capabilities(self) -> JSONObject:
        """What to declare, besides what can be asked plainly."""
        return offered(self._inputs.capabilities)

    # ── life ──────────────────────────────────────────────────────────────────────────────────

    async def run(self, adopt: Adopt, attend: Attend) -> None:
        """Serve, for ever; and go on with what processes before us have left.

        Args:
            adopt: Gives the peer of an earlier session.
            attend: Has it be heard what the server says there.
        """
        if not self.capabilities:
            await anyio.sleep_forever()  # nothing was declared, so that nothing can be asked
        custody = Custody(self._journal, self._scope, self._clock, self._place, self._lease_s)
        try:
            async with anyio.create_task_group() as tasks:
                self._running = custody, tasks
                while True:
                    self._news = anyio.Event()
                    await self._clock.wait(self._news, await self._upkeep(adopt, attend))
        finally:
            self._running = None
            await custody.leave()

    async def _upkeep(self, adopt: Adopt, attend: Attend) -> float:
        """Forget what is over, take up what nobody else does; returns for how many seconds that does."""
        try:
            await self._custody.membership.renew()
            records = await self._custody.records()
            away: set[str] = set()
            for record in records:
                if record.finished:
                    self._asking.stop(str(record.task_id))  # for another process may have ended it
                if expires_at(record) <= self._clock.time() or self._is_lost(record):
                    await self._forget(record)
                elif record.pending and not self._asking.has(record):
                    await self._take_up(record, adopt, attend, away)
        except JournalError as error:
            logger.warning("What the server has us run is looked after later: %s", error)
            return _SWEEP_S
        left = [expires_at(record) - self._clock.time() for record in records]
        ahead_s = min((left_s for left_s in left if left_s > 0), default=math.inf)
        # With none as well: another process may make one, and die.
        return min(ahead_s, self._custody.membership.tenure.renew_s, _SWEEP_S) if records else _SWEEP_S

    def _is_lost(self, record: TaskRecord) -> bool:
        peer = self._present.get(made_in(record))
        return peer is not None and peer.lost  # nobody will ever come for it

    async def _forget(self, record: TaskRecord) -> None:
        self._asking.stop(str(record.task_id))
        await self._custody.forget(record)
        logger.info("A task of the server's is forgotten: %r", record)

    async def _take_up(self, record: TaskRecord, adopt: Adopt, attend: Attend, away: set[str]) -> None:
        """Go on with a task whose process is gone, in its session, unless the server was away there."""
        party = made_in(record)
        if party in away or (record.finished and party in self._present):
            return  # what has ended is served as it is
        if not record.finished and not answerable(str(record.tool), self._inputs.capabilities):
            return  # another of our processes may have somebody to ask
        taken = await self._custody.take(record)
        if taken is None:
            return
        if party not in self._present:
            if not party.startswith(_SESSION):
                await self._forget(taken)  # its connection is gone
                return
            peer = await self._back_in(adopt(party.removeprefix(_SESSION)))
            if peer is None:
                away.add(party)
                return
            if peer.lost:
                await self._forget(taken)
                return
            self._present[party] = peer
            attend(peer)
        if not taken.finished:
            self._begin(self._asking.expect(taken, self._present[party]))

    async def _back_in(self, peer: Peer) -> Peer | None:
        """The peer, if the server knows whether there is its session; else ``None``."""
        try:
            if not peer.lost:
                await peer.request("ping", {}, self._timeout_s)
        except SessionError as error:
            logger.info("The server cannot be reached for what it has us run: %s", error)
            return peer if peer.lost else None
        return peer

    @property
    def _custody(self) -> Custody:
        assert self._running is not None, "nothing is served before it runs"
        return self._running[0]

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def told(self, peer: Peer, message: JSONObject) -> bool:
        """Take a message, if it is about what we run.

        Returns:
            Whether it is.
        """
        if message.get("method") == "notifications/cancelled":
            self._withdraw(peer, message.get("params"))
            return False  # it may as well be about something else
        request_id = request_id_of(message)
        if self._running is None or request_id is None or not concerns(message, self._inputs.capabilities):
            return False
        self._present[self._party(peer)] = peer
        name = _name(peer, request_id)
        if len(self._serving) >= self._policy.max_requests:
            logger.warning("%r asks for too much at once; a request is left unanswered", peer)
        elif name not in self._serving:  # or it has come twice
            self._serving.add(name)
            self._running[1].start_soon(self._serve, peer, request_id, message)
        return True

    def _withdraw(self, peer: Peer, params: object) -> None:
        """Do not answer a ``tasks/result`` that the server does not wait for any more. Its task goes on."""
        request_id = request_id_of({"id": params.get("requestId")} if isinstance(params, dict) else {})
        scope = None if request_id is None else self._waiting.get(_name(peer, request_id))
        if scope is not None:
            scope.cancel()

    async def _serve(self, peer: Peer, request_id: RequestId, message: JSONObject) -> None:
        name = _name(peer, request_id)
        try:
            await self._answer(peer, request_id, message)
        except Exception:  # whatever a server says must not end the host's client
            logger.exception("A request about a task of the server's could not be served")
            await self._send(peer, request_id, RpcError(INTERNAL_ERROR, "Internal error", None))
        finally:
            self._serving.discard(name)

    async def _answer(self, peer: Peer, request_id: RequestId, message: JSONObject) -> None:
        try:
            self._check_pace(peer)
            asked = read_request(request_id, message)
            if isinstance(asked, AskedTask):
                await self._make(peer, request_id, asked)
            elif isinstance(asked, AskedResult):
                await self._retrieve(peer, request_id, asked.task_id)
            else:
                await self._send(peer, request_id, await self._look(peer, asked))
        except RefusedError as error:
            await self._send(peer, request_id, error.error)
        except (JournalError, DrivenElsewhereError) as error:
            logger.warning("A request about a task of the server's could not be served: %s", error)
            said = "Internal error: the tasks cannot be read or written at present"
            await self._send(peer, request_id, RpcError(INTERNAL_ERROR, said, None))

    def _check_pace(self, peer: Peer) -> None:
        allowance = self._allowances.get(peer)
        if allowance is None:
            allowance = Allowance(self._policy.max_requests_per_s, self._clock.time())
            self._allowances[peer] = allowance
        if not allowance.take(self._clock.time()):
            logger.warning("%r asks about tasks more than %g times a second", peer, allowance.rate)
            raise RefusedError(INTERNAL_ERROR, "Too many requests about tasks; ask again in a second")

    async def _look(self, peer: Peer, asked: AskedGet | AskedCancel | AskedList) -> JSONObject:
        match asked:
            case AskedGet(task_id):
                return shown(await self._custody.find(task_id, self._party(peer)))
            case AskedList(after):
                records = await self._custody.records(self._party(peer))
                return page(records, after, self._policy.page_size)
            case AskedCancel(task_id):
                return shown(await self._cancel(await self._custody.find(task_id, self._party(peer))))
            case _:
                assert_never(asked)

    async def _cancel(self, record: TaskRecord) -> TaskRecord:
        ended = await self._custody.cancel(record, self._asking.goes_on)
        self._asking.stop(str(record.task_id))
        logger.info("The server has cancelled %r", ended)
        return ended

    async def _retrieve(self, peer: Peer, request_id: RequestId, task_id: str) -> None:
        """Answer with a task's end, when there is one."""
        name = _name(peer, request_id)
        with anyio.CancelScope() as scope:
            self._waiting[name] = scope
            try:
                record = await self._ended(task_id, self._party(peer))
            finally:
                del self._waiting[name]
            reply = result(record)
            assert reply is not None, "it has ended"
            if await self._send(peer, request_id, reply):
                with suppress(JournalError):  # then the next process goes back to the session in vain
                    await self._custody.fetched(record)
                logger.info("The server has the end of %r", record)

    async def _ended(self, task_id: str, party: str) -> TaskRecord:
        while True:
            run = self._asking.of(task_id)  # before the look, or its end could come in between
            goes_on = run is not None and not run.over.is_set()
            record = await self._custody.find(task_id, party)
            if record.finished:
                return record
            if run is not None and goes_on:
                await run.over.wait()
            else:
                await self._clock.wait(anyio.Event(), _LOOK_S)  # another process asks for it

    async def _send(self, peer: Peer, request_id: RequestId, reply: JSONObject | RpcError) -> bool:
        try:
            await peer.answer(request_id, reply, self._timeout_s)
        except SessionError as error:
            logger.info("A reply about a task of the server's may not have arrived: %s", error)
            return False
        return True

    # ── asking ────────────────────────────────────────────────────────────────────────────────

    async def _make(self, peer: Peer, request_id: RequestId, asked: AskedTask) -> None:
        """Make a task, say so, and begin with it."""
        party, run = self._party(peer), None
        async with self._admitting:  # or two that come at once would both be the last one allowed
            records = await self._custody.records(party)
            record = repeated(asked, records)
            if record is None:
                admit(records, self._policy)
                record = self._custody.owned(self._record(asked, party))
                # Before it is journaled, for what nobody runs is taken up.
                run = self._asking.expect(record, peer)
                try:
                    await self._custody.keep(record)
                except BaseException:
                    self._asking.forget(run)
                    raise
        self._news.set()  # for it has a time when it is over
        logger.info("The server has us run %r", record)
        await self._send(peer, request_id, creation(record, asked.related))
        if run is not None:
            self._begin(run)

    def _record(self, asked: AskedTask, party: str) -> TaskRecord:
        return created(
            asked,
            record_id=uuid.uuid4().hex,
            task_id=secrets.token_urlsafe(24),
            party=party,
            scope=self._scope,
            at=self._clock.time(),
            policy=self._policy,
        )

    def _begin(self, run: Run) -> None:
        assert self._running is not None, "nothing is begun before"
        custody, tasks = self._running
        tasks.start_soon(self._asking.see_through, run, custody)

    def _party(self, peer: Peer) -> str:
        """By which a session is known, also to other processes of ours if it has a name."""
        if peer.session_id is not None:
            return _SESSION + peer.session_id
        return _CONNECTION + self._names.setdefault(peer, uuid.uuid4().hex)


def _name(peer: Peer, request_id: RequestId) -> tuple[int, str]:
    return id(peer), id_text(request_id)
