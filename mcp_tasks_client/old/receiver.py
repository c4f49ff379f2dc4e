"""Runs tasks for a server of 2025-11-25: makes them, says how they are, and serves what they came to.

Theory of operation
===================

The journal is where a task is; here is only who asks the host for it, and who waits for it. So it makes no
difference which of our processes a server's request reaches, as long as it is in the session that the task
was made in. What each request means is decided in :mod:`.received`.

- A task is committed before the server hears of it, its answer before the server can see it.
- What a process that died was asking for is asked again here, once we have gone back to the session. What
  had been answered is only served.
- A time-to-live that is over ends everything, the asking too. The end of the session ends the asking; what
  was answered is kept. Where a server has no name for its sessions, a task ends with its connection.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, assert_never

import anyio
from anyio import CancelScope
from anyio.abc import TaskGroup

from .asking import Asking, Run
from .clock import Clock, SystemClock
from .custody import Custody
from .demands import (
    AskedCancel,
    AskedGet,
    AskedList,
    AskedResult,
    AskedTask,
    RefusedError,
    concerns,
    offered,
    read_request,
)
from .errors import DrivenElsewhereError, JournalError
from .inputs import Inputs
from .journal.base import Journal, Scope, TaskRecord
from .owners import LEASE_S, Place
from .parties import Adopt, Attend, Parties
from .received import (
    CREATION,
    INTERNAL_ERROR,
    RESULT,
    ReceivePolicy,
    admit,
    created,
    page,
    received_scope,
    repeated,
    result,
    shown,
    was_abandoned,
)
from .serving import Serving
from .sessions.peer import Peer
from .sessions.shapes_2025_11_25 import related_task, request_id_of
from .sweeper import Sweeper
from .telling import Change, Telling
from .wire import JSONObject, RequestId, RpcError

__all__ = ["Receiver"]

logger = logging.getLogger("mcp_tasks_client")

_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 2.0


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
        self._inputs = inputs
        self._scope = received_scope(endpoint, principal)
        self._policy = policy or ReceivePolicy()
        self._clock = clock or SystemClock()
        self._new_custody = partial(Custody, journal, self._scope, self._clock, place, lease_s)
        self._running: tuple[Custody, TaskGroup] | None = None
        self._admitting = anyio.Lock()
        self._news = anyio.Event()
        self._asking = Asking(inputs, self._clock, timeout_s)
        self._serving = Serving(self._policy, self._clock, timeout_s)
        self._parties = Parties(self._clock)
        self._telling = Telling(self._serving, self._note, self._in_background)
        self._new_sweeper = partial(
            Sweeper,
            asking=self._asking,
            serving=self._serving,
            telling=self._telling,
            parties=self._parties,
            clock=self._clock,
            calls=Scope(endpoint, principal),
            inputs=inputs,
            go_on=self._go_on,
            in_background=self._in_background,
        )

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
        custody = self._new_custody()
        try:
            async with anyio.create_task_group() as tasks:
                self._running = custody, tasks
                sweeper = self._new_sweeper(custody)
                while True:
                    self._news = anyio.Event()
                    await self._clock.wait(self._news, await sweeper.sweep(adopt, attend))
        finally:
            self._running = None
            await custody.leave()

    @property
    def _custody(self) -> Custody:
        assert self._running is not None, "nothing is served before it runs"
        return self._running[0]

    async def _note(self, record: TaskRecord, change: Change) -> None:
        await self._custody.note(record, change, self._asking.goes_on)
        self._news.set()  # whoever has looked before that could not store anything

    def _in_background(self, do: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        assert self._running is not None, "nothing is begun before"
        self._running[1].start_soon(do, *args)

    def _go_on(self, record: TaskRecord, peer: Peer, owed: Sequence[tuple[RequestId, str]]) -> None:
        """Go on with what a process has left. What it owed is said unless its ID is another's by then."""
        for request_id, kind in owed:
            self._telling.take_over(peer, request_id, record)
            self._take(peer, request_id, {"method": kind, "params": {"taskId": record.task_id}})
        if not record.finished:
            self._begin(self._asking.expect(record, peer))

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def told(self, peer: Peer, message: JSONObject) -> bool:
        """Take a message, if it is about what we run. Returns whether it is."""
        request_id = request_id_of(message)
        if self._running is None or request_id is None or not concerns(message, self._inputs.capabilities):
            return False
        self._parties.heard(peer)
        if not self._telling.has_given_up(related_task(message.get("params"))):
            self._take(peer, request_id, message)
        return True

    def _take(self, peer: Peer, request_id: RequestId, message: JSONObject) -> None:
        scope = self._serving.begin(peer, request_id, message)
        if scope is not None:
            self._in_background(self._serve, peer, request_id, message, scope)

    def withdraw(self, peer: Peer, request_id: RequestId, message: JSONObject | None = None) -> None:
        """Do not answer what has come under an ID, unless it is this message. Its task goes on."""
        if self._serving.withdraw(peer, request_id, message):
            self._telling.withdraw(peer, request_id)

    async def retire(self) -> None:
        """Answer what has come before all is let go of: the server would wait for that reply for ever."""
        await self._serving.at_rest()

    def works_for(self, task_id: str) -> bool:
        """Whether somebody is before what the server needs for a task of its own."""
        return bool(self._asking.needed_for(task_id))

    def give_up(self, task_id: str) -> None:
        """Ask nobody any more what the server needs for a task of its own, and say nothing more about it."""
        self._telling.give_up(task_id)
        self._asking.stop_for(task_id)
        self._news.set()  # it is to be journaled

    async def _serve(
        self, peer: Peer, request_id: RequestId, message: JSONObject, scope: CancelScope
    ) -> None:
        try:
            with scope:
                await self._answer(peer, request_id, message)
        except Exception:  # whatever a server says must not end the host's client
            logger.exception("A request about a task of the server's could not be served")
            await self._serving.say(peer, request_id, RpcError(INTERNAL_ERROR, "Internal error", None))
        finally:
            self._serving.end(peer, request_id, message)

    async def _answer(self, peer: Peer, request_id: RequestId, message: JSONObject) -> None:
        try:
            if "id" in message:  # or it is what a process before us owed
                self._serving.check_pace(peer)
            if message["method"] == CREATION:
                record = await self._custody.find(message["params"]["taskId"], self._parties.name(peer))
                return await self._telling.made(peer, request_id, record)
            asked = read_request(request_id, message)
            if isinstance(asked, AskedTask):
                await self._make(peer, request_id, asked)
            elif isinstance(asked, AskedResult):
                await self._retrieve(peer, request_id, asked.task_id)
            else:
                await self._show(peer, request_id, asked)
        except RefusedError as error:
            await self._serving.say(peer, request_id, error.error)
        except (JournalError, DrivenElsewhereError) as error:
            logger.warning("A request about a task of the server's could not be served: %s", error)
            said = "Internal error: the tasks cannot be read or written at present"
            await self._serving.say(peer, request_id, RpcError(INTERNAL_ERROR, said, None))

    async def _show(
        self, peer: Peer, request_id: RequestId, asked: AskedGet | AskedCancel | AskedList
    ) -> None:
        party = self._parties.name(peer)
        match asked:
            case AskedGet(task_id):
                record, reply = await self._find(task_id, party), partial(shown, at=self._clock.time())
                await self._telling.say(peer, request_id, record, "tasks/get", reply)
            case AskedList(after):
                records = await self._custody.records(party)
                self._telling.listed(records)
                listed = page(records, after, self._policy.page_size, self._clock.time())
                await self._serving.say(peer, request_id, listed)
            case AskedCancel(task_id):
                record = await self._find(task_id, party)
                ended = record if was_abandoned(record) else await self._cancel(record)
                await self._serving.say(peer, request_id, shown(ended))
            case _:
                assert_never(asked)

    async def _find(self, task_id: str, party: str) -> TaskRecord:
        """A task that the server asks about, of which it then knows."""
        record = await self._custody.find(task_id, party)
        await self._telling.knows(record)
        return record

    async def _cancel(self, record: TaskRecord) -> TaskRecord:
        ended = await self._custody.cancel(record, self._asking.goes_on)
        self._asking.stop(str(record.task_id))
        return ended

    async def _retrieve(self, peer: Peer, request_id: RequestId, task_id: str) -> None:
        """Answer with a task's end, when there is one."""
        party = self._parties.name(peer)
        record = await self._find(task_id, party)
        if not record.finished:
            await self._telling.owe(peer, request_id, record, RESULT)
            self._serving.rest(peer, request_id)
            record = await self._ended(task_id, party)
        if await self._telling.say(peer, request_id, record, RESULT, result):
            with suppress(JournalError):  # then the next process goes back to the session in vain
                await self._custody.fetched(record)
                self._telling.forget(record)
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

    # ── asking ────────────────────────────────────────────────────────────────────────────────

    async def _make(self, peer: Peer, request_id: RequestId, asked: AskedTask) -> None:
        """Make a task, say so, and begin with it."""
        party, run = self._parties.name(peer), None
        async with self._admitting:  # or two that come at once would both be the last one allowed
            records = await self._custody.records(party)
            record = repeated(asked, records)
            if record is None:
                admit(records, self._policy)
                record = created(
                    asked,
                    record_id=uuid.uuid4().hex,
                    task_id=secrets.token_urlsafe(24),
                    party=party,
                    scope=self._scope,
                    at=self._clock.time(),
                    policy=self._policy,
                )
                record = self._custody.owned(record)
                # Before it is journaled, for what nobody runs is taken up.
                run = self._asking.expect(record, peer)
                try:
                    await self._custody.keep(record)
                except BaseException:
                    self._asking.forget(run)
                    raise
        self._news.set()  # for it has a time when it is over
        logger.info("The server has us run %r", record)
        begin = partial(self._begin, run)
        try:
            # From the first try on the server may know of it, though nobody says so.
            await self._telling.made(peer, request_id, record, begin)
        finally:
            begin()

    def _begin(self, run: Run | None) -> None:
        """Have the host be asked, unless that was begun, or is not wanted any more."""
        if run is not None and self._telling.is_over(run.record):
            self._asking.stop(str(run.record.task_id))  # meanwhile
        if run is not None and self._asking.begins(run):
            self._in_background(self._asking.see_through, run, self._custody)
