"""One history: processes that come and go over one journal file, a server, and what must hold."""

from __future__ import annotations

import gc
import math
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import anyio
from anyio.abc import TaskGroup
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

from mcp_tasks_client import (
    DrivenElsewhereError,
    InputUnansweredError,
    JournalError,
    OutcomeUnknownError,
    RemoteProtocolError,
    SessionError,
    TaskError,
    TaskHandle,
    TaskReference,
    TasksClient,
    TasksClientError,
    WaitTimeoutError,
    owners,
)
from mcp_tasks_client.drive import Drive
from mcp_tasks_client.journal.base import Lease, TaskRecord
from mcp_tasks_client.owners import Place
from mcp_tasks_client.points import Point, Probe
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.sessions.base import TaskRef
from mcp_tasks_client.states import Observing
from mcp_tasks_client.testing import Arrival, ErrorReply, Fault, HttpError, KilledError, ScriptedServer
from mcp_tasks_client.testing.session import ServerSession
from mcp_tasks_client.testing.steps import Abort, Complete, Fail
from mcp_tasks_client.testing.timeline import Timeline
from mcp_tasks_client.wire import JSONObject

from .clock import ProcessClock, WorldClock
from .journal import InlineJournal, copy_of, disk_trouble
from .plans import CHAOS_S, Intent, Moment, Plan, fault, plan

__all__ = ["World", "play"]

CALM_S: Final = 1_500.0
"""Seconds at the end in which nothing goes wrong, and by which all must be over."""

SPARED_S: Final = 60.0
"""Seconds after its delivery for which an outcome is kept in any case."""

Happening = tuple[float, str]


@dataclass(frozen=True, slots=True)
class Spot(Place):
    """A place in a world: who lives there is known to the world, and to the others if they can see."""

    world: Any = field(default=None, compare=False)

    def lives(self, lease: Lease) -> bool | None:
        return None if self.world.plan.blind else lease.pid in self.world.living

    def holds(self, lease: Lease) -> bool:
        return lease.pid == self.pid


class Line(ServerSession):
    """A process's connection to the server, so that what it says about a cancelled task has a sender."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.server, task_timeout_s=8.0, call_read_timeout_s=30.0)
        self._process = process

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        self._process.not_after_a_cancel(ref.task_id, f"answers {', '.join(answers)}")
        await super().update(ref, answers)

    async def cancel(self, ref: TaskRef) -> None:
        self._process.cancels(ref.task_id)
        await super().cancel(ref)


class Process(Probe):
    """One life of one process of the host."""

    def __init__(self, world: World, number: int, *, last: bool = False) -> None:
        self.world = world
        self.number = number
        self.last = last
        self.pid = len(world.processes) + 1
        self.clock = ProcessClock(world.clock)
        self.killed = False
        self.points = 0
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.closing = anyio.Event()
        self.suspended_at: float | None = None
        self.late = False
        """Whether it was suspended for so long that others may think it gone."""

        self.journal = InlineJournal(world.path, self._trouble, watch=world)
        if world.plan.retention_s is not None:
            self.journal.retention_s = world.plan.retention_s
        self.random = Random(world.random.random())
        self.owner = ""
        self._task_ids: dict[int, int] = {}
        self._client: TasksClient | None = None
        self._tasks: TaskGroup | None = None
        self._cancelled_for_others: set[str] = set()
        self._now_asking: dict[int, str] = {}
        world.processes.append(self)
        world.living.add(self.pid)

    # ── how it lives ──────────────────────────────────────────────────────────────────────────

    async def live(self) -> None:
        world = self.world
        world.tell(f"process {self.pid} starts")
        deaf = "" if self.last else world.plan.deaf
        client = TasksClient(
            Line(self),
            journal=self.journal,
            elicitation=None if deaf == "elicitation" else self._ask,
            sampling=None if deaf == "sampling" else self._ask,
            roots=None if deaf == "roots" else self._ask,
            poll=PollPolicy(call_grace_s=1.0),
            on_abandon=world.plan.on_abandon,
        )
        engine = client._engine
        engine.clock, engine.probe, engine.jitter = self.clock, self, self.random.random
        engine.place = Spot("host", "boot", "", self.pid, 0.0, world)
        self._client = client
        try:
            with self.scope:
                await self._open(client)
        except BaseException as error:
            for one in _leaves(error):
                if not isinstance(one, KilledError | anyio.get_cancelled_exc_class()):
                    if isinstance(one, JournalError) and world.disk_failed:
                        continue
                    if self.killed and "is coming to an end" in str(one):
                        continue  # to a caller that was about to cancel
                    world.break_("an unexpected end", f"process {self.pid}: {one!r}", one)
        finally:
            self._die()

    async def _open(self, client: TasksClient) -> None:
        async with client:
            self.owner = client._engine.scheduler.driver.commits.owner
            self.world.owners[self.owner] = self
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._bring_home, client)
                for intent in self.world.plan.intents:
                    if intent.keyed or (self.pid == 1 and not intent.begun):
                        tasks.start_soon(self._do, client, intent)
                if not self.last:
                    await self.closing.wait()
                    tasks.cancel_scope.cancel()
                self._tasks = None

    def kill(self) -> None:
        if not self.ended.is_set():
            self.world.tell(f"process {self.pid} is killed")
            self.world.lose_replies(since=self.suspended_at if self.suspended_at is not None else math.inf)
            self.killed = True
            self.world.living.discard(self.pid)
            self.scope.cancel()
            self.clock.go_on()
            # A shield keeps out a cancellation, and no kill.
            for drive in list(self._drives()):
                drive.park(KilledError("while it was waited for"))  # type: ignore[arg-type]  # it goes through all

    def _drives(self) -> Iterable[Drive]:
        running = self._client._engine._running if self._client is not None else None
        return running.drives.values() if running is not None else ()

    def _die(self) -> None:
        world = self.world
        world.tell(f"process {self.pid} has ended")
        self.killed = True
        self.journal.let_go()
        world.living.discard(self.pid)
        owners._TENURES.pop(id(self.journal), None)  # as the end of a process does
        for key in [key for key, asking in world.prompts.items() if asking is self]:
            del world.prompts[key]
        self.ended.set()

    # ── what it does ──────────────────────────────────────────────────────────────────────────

    async def _bring_home(self, client: TasksClient) -> None:
        for _ in range(100):
            began = self.clock.time()
            try:
                handles = await client.resume()
            except (JournalError, TasksClientError) as error:
                self.world.tell(f"process {self.pid}: resume: {error!r}")
                await self._sleep(5.0)
                continue
            async with anyio.create_task_group() as tasks:
                for handle in handles:
                    assert handle._drive is not None
                    delivered_at = handle._drive.record.delivered_at
                    if delivered_at is not None and delivered_at < began:
                        self.world.break_("delivered twice", f"{handle!r} by resume()")
                    tasks.start_soon(self._await, handle)
            if not self.last or not await self._anything_left(client):
                return
            await self._sleep(5.0)

    async def _anything_left(self, client: TasksClient) -> bool:
        return any(record.pending for record in await client.records())

    async def _await(self, handle: TaskHandle) -> None:
        for _ in range(40):
            try:
                self.world.delivered(handle, _text(await handle.result()))
                return
            except TaskError as error:
                self.world.delivered(handle, type(error).__name__)
                return
            except (InputUnansweredError, JournalError, SessionError, DrivenElsewhereError) as error:
                if _violated(error):
                    self.world.received(handle.tool)
                self.world.tell(f"process {self.pid}: {handle!r}: {error!r}")
                await self._sleep(9.0)

    async def _do(self, client: TasksClient, intent: Intent) -> None:
        await self._sleep(0.0 if self.last else intent.at)
        if not intent.keyed:
            if not intent.begun:
                await self._do_once(client, intent)
            return
        resend = False
        for _ in range(40):
            if intent.received and self.world.plan.forgets:
                return
            if resend or not intent.begun:
                intent.begun += 1
            if resend:
                # It is a new call, and may ask what the lost one had asked before it had a task.
                self.world.committed -= intent.first_keys
            try:
                result = await self._within(
                    None if self.last else intent.timeout_s,
                    intent.tool,
                    partial(self._call, client, intent, "resend" if resend else "raise"),
                )
                self.world.told(intent, _text(result))
                return
            except OutcomeUnknownError:
                if not self.world.may_be_unknown(intent):
                    self.world.break_("unknown without a reason", f"{intent.tool}")
                intent.unknown = True
                if not intent.may_resend:
                    return
                resend = True
            except TaskError as error:
                self.world.tell(f"process {self.pid}: {intent.tool}: {error!r}")
                if getattr(error, "code", None) == -32602:
                    # Refused, not run: the same call may be made again.
                    intent.begun -= resend
                    await self._sleep(9.0)
                    continue
                self.world.told(intent, type(error).__name__)
                return
            except RemoteProtocolError as error:
                if not _violated(error):
                    raise
                self.world.told(intent, "violated")  # so a replica that lags behind makes it look
                return
            except (WaitTimeoutError, InputUnansweredError, JournalError, SessionError) as error:
                self.world.tell(f"process {self.pid}: {intent.tool}: {error!r}")
                if isinstance(error, SessionError) and error.not_executed and not intent.first_keys:
                    intent.begun -= resend  # in a later round, the leave that was given still counts
                resend = False
                await self._sleep(9.0)
            except DrivenElsewhereError as error:
                self.world.tell(f"process {self.pid}: {intent.tool}: {error!r}")

    async def _call(self, client: TasksClient, intent: Intent, on_unknown: Literal["raise", "resend"]) -> Any:
        try:
            result = await client.call_tool(
                intent.tool,
                {"intent": intent.number},
                idempotency_key=intent.key,
                on_unknown=on_unknown,
            )
        except (TaskError, RemoteProtocolError) as error:
            # What was refused is not journaled, and may be called again.
            intent.received |= _violated(error) or getattr(error, "code", None) != -32602
            raise
        intent.received = True
        return result

    async def _do_once(self, client: TasksClient, intent: Intent) -> None:
        intent.begun = 1
        try:
            result = await self._within(
                intent.timeout_s, intent.tool, partial(self._call, client, intent, "raise")
            )
            self.world.told(intent, _text(result))
        except TasksClientError as error:
            if isinstance(error, TaskError):
                self.world.told(intent, type(error).__name__)
            elif error.handle is not None and error.handle.task_id is not None:
                with _Ignored(TasksClientError):
                    await self._await(error.handle)

    # ── what it changes its mind about ────────────────────────────────────────────────────────

    @property
    def may_act(self) -> bool:
        """Whether it is there."""
        return self._tasks is not None and not self.killed

    def changes_its_mind(self, intent: Intent, after_s: float) -> None:
        """Begin to cancel what became of an intent."""
        assert self._tasks is not None
        self._tasks.start_soon(self._cancel, self._client, intent, after_s)

    async def _cancel(self, client: TasksClient | None, intent: Intent, after_s: float) -> None:
        assert client is not None
        await self._sleep(after_s)
        with _Ignored(TasksClientError, ValueError):
            for record in await client.records():
                if record.tool != intent.tool or record.finished:
                    continue
                handle = await client.attach(
                    TaskReference(
                        endpoint=record.scope.endpoint,
                        principal=record.scope.principal,
                        tool=record.tool,
                        task_id=record.task_id,
                        record_id=record.record_id,
                    )
                )
                self.world.tell(f"process {self.pid} cancels {handle!r}")
                task_id, was_over = handle.task_id, handle.done
                await handle.cancel()
                if task_id is not None and not (was_over or handle.done or self.world.hears_of(task_id)):
                    self.world.break_("cancelled to no effect", f"{task_id} by process {self.pid}")
                if self.random.random() < 0.5:
                    await self._await(handle)

    def prune(self) -> None:
        """Forget all that may be forgotten."""
        if self._tasks is not None and not self.killed:
            self._tasks.start_soon(self._prune, self._client)

    async def _prune(self, client: TasksClient | None) -> None:
        assert client is not None
        with _Ignored(JournalError):
            self.world.tell(f"process {self.pid} has forgotten {await client.prune(0)}")

    def cancels(self, task_id: str) -> None:
        """It is about to tell the server."""
        world = self.world
        if world.owner_of(task_id) != self.owner:
            self._cancelled_for_others.add(task_id)
        elif task_id not in world.wished and task_id not in self._cancelled_for_others:
            world.break_("cancelled before it was journaled", f"{task_id} by process {self.pid}")

    def not_after_a_cancel(self, task_id: str | None, what: str) -> None:
        """It is about to do something that nobody wants of a cancelled task. A late one cannot know."""
        wished_at = self.world.wished.get(task_id or "", math.inf)
        if self.world.clock.now > wished_at and not self.late:
            self.world.break_("on after a cancel", f"process {self.pid} {what} of {task_id}")

    async def _ask(self, context: Any, params: Any) -> Any:
        key, world = context.key, self.world
        task_id = context.task.task_id if context.task is not None else None
        self.not_after_a_cancel(task_id, f"asks {key}")
        world.moment("asked", context.tool)
        if key in world.committed:
            world.break_("asked twice", f"{key} by process {self.pid}, after its answer was committed")
        other = world.prompts.get(key)
        if other not in (None, self) and not other.late and not self.late:
            world.break_("asked by two at once", f"{key} by {other.pid} and {self.pid}")
        world.prompts[key] = self
        world.tell(f"process {self.pid} asks {key}")
        try:
            await self._sleep(world.plan.answer_s)
            self.not_after_a_cancel(task_id, f"goes on asking {key}")
            if not self.last and self.random.random() < world.plan.callback_fails:
                raise RuntimeError("nobody is there")
        finally:
            if world.prompts.get(key) is self:
                del world.prompts[key]
        world.answers += 1
        self._now_asking[_me()] = key
        return _answer(params, world.answers)

    def _waited_for_once(self) -> list[Drive]:
        """Tasks that are driven here for one caller alone."""
        return [
            drive
            for drive in self._drives()
            if drive.running and drive.held == 1 and isinstance(drive.record.state, Observing)
        ]

    def _is_cancelled(self, abandoned: list[Drive], tool: str) -> None:
        """What became of a task whose only caller went away, should that mean to cancel it."""
        world = self.world
        if world.plan.on_abandon != "cancel" or self.killed or self.late or world.disk_failed:
            return
        for drive in abandoned:
            record = drive.record
            if record.tool == tool and not record.finished and record.task_id not in world.wished:
                world.break_("abandoned, and not cancelled", f"{record.task_id} by process {self.pid}")

    async def _within(self, seconds: float | None, tool: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Wait for so many seconds of this world, and then go away, as a time-out does."""
        if seconds is None:
            return await work()
        result: list[Any] = []
        abandoned: list[Drive] = []
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                await self._sleep(seconds)
                abandoned.extend(self._waited_for_once())
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait)
            try:
                result.append(await work())
            except TasksClientError as error:
                result.append(error)
            tasks.cancel_scope.cancel()
        if not result:
            self._is_cancelled(abandoned, tool)
            raise WaitTimeoutError("It took too long.")
        if isinstance(result[0], TasksClientError):
            raise result[0]
        return result[0]

    async def _sleep(self, seconds: float) -> None:
        if seconds:
            await self.clock.wait(anyio.Event(), seconds)

    # ── what happens to it ────────────────────────────────────────────────────────────────────

    async def before(self, point: Point) -> None:
        await self._pass(point)
        if point is Point.TASK_CREATED:
            self._task_ids[_me()] = self.world.task_ids()

    async def after(self, point: Point) -> None:
        if point is Point.TASK_CREATED and self.world.task_ids() == self._task_ids.pop(_me(), -1):
            self.world.break_("a task ID is not journaled", f"by process {self.pid}")
        if point is Point.ANSWER_READY:
            key = self._now_asking.pop(_me(), None)
            if key is not None:
                self.world.committed.add(key)
        await self._pass(point)

    async def _pass(self, point: Point) -> None:
        if self.killed:
            raise KilledError(str(point))
        await self.clock.awake.wait()
        self.points += 1
        if not self.last and self.world.plan.point_kills.get(self.pid - 1) == self.points:
            self.kill()
        if self.killed:
            raise KilledError(str(point))

    def _trouble(self) -> sqlite3.OperationalError | None:
        for start, end, code in self.world.plan.disk:
            if not self.last and start <= self.world.clock.now < end:
                self.world.disk_failed = True
                self.late |= self.world.plan.blind and end - start > 15  # it cannot renew its lease
                self.world.lose_replies()
                return disk_trouble(code)
        return None


class World:
    """A history as it happens.

    Attributes:
        broken: What did not hold, in sentences.
        log: What happened, when.
    """

    def __init__(self, seed: int, folder: Path, empty: Path) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.plan: Plan = plan(self.random)
        self.clock = WorldClock()
        self.log: list[Happening] = []
        self.broken: list[str] = []
        self.path = copy_of(empty, folder / f"{os.getpid()}-{seed}.sqlite3")
        self.processes: list[Process] = []
        self.living: set[int] = set()
        self.prompts: dict[str, Process] = {}
        self.committed: set[str] = set()
        self.answers = 0
        self.disk_failed = False
        self.calm = False
        self.lost_replies: set[str] = set()
        self.wished: dict[str, float] = {}
        """Since when the journal has it that a task is to be cancelled."""

        self.calm_at = math.inf
        self.forgotten_tools: set[str] = set()
        self.forgotten_tasks: set[str] = set()
        self.owners: dict[str, Process] = {}
        self._faults = Random(seed + 1)
        self.server = ScriptedServer(clock=self.clock, identify=lambda tool, _: tool)
        self.server.on_request = self._on_request
        for intent in self.plan.intents:
            self.server.tool(intent.tool, intent.steps, **intent.terms)
        self._reader = sqlite3.connect(self.path)

    # ── telling ───────────────────────────────────────────────────────────────────────────────

    def tell(self, what: str) -> None:
        self.log.append((self.clock.now, what))

    def break_(self, law: str, how: str, error: BaseException | None = None) -> None:
        self.tell(f"BROKEN, {law}: {how}")
        self.broken.append(f"{law}: {how}")

    def task_ids(self) -> int:
        """How many task IDs the file holds."""
        (count,) = self._reader.execute("SELECT count(task_id) FROM records").fetchone()
        return int(count)

    # ── what is watched ───────────────────────────────────────────────────────────────────────

    def saved(self, record: TaskRecord, fence: int) -> None:
        """A record was stored over one with that fence."""
        if record.fence != fence:
            self.break_("a late owner writes", f"{record!r} over fence {fence}")
        if isinstance(record.state, Observing):
            task_id = record.state.task.task_id
            if record.state.cancel != "no":
                self.wished.setdefault(task_id, self.clock.now)
            elif task_id in self.wished:
                self.break_("the wish to cancel is forgotten", task_id)

    def removed(self, record: TaskRecord) -> None:
        """A call was refused, not run. It may be made again, from its first question on."""
        for intent in self.plan.intents:
            if intent.keyed and intent.key == record.idempotency_key:
                self.committed -= intent.first_keys

    def taken(self, before: str | None, owner: str) -> None:
        """A record changed its owner."""
        had = self.owners.get(before or "")
        if had is not None and before != owner and had.pid in self.living and not had.late:
            self.break_("taken from one who is there", f"from {had.pid} by {self.owners[owner].pid}")

    def forgotten(self, tool: str, task_id: str | None, delivered_at: float | None) -> None:
        """A record was pruned."""
        self.tell(f"{tool} is forgotten")
        if delivered_at is None or not self._intent_of(tool).received:
            self.break_("forgotten before anybody had it", f"{tool} {task_id}")
        elif self.clock.time() - delivered_at < SPARED_S:
            self.break_("forgotten while others look for it", f"{tool} {task_id}")
        self.forgotten_tools.add(tool)
        self.forgotten_tasks.add(task_id or "")

    def hears_of(self, task_id: str) -> bool:
        """Whether the wish to cancel it is journaled, or has come to the server."""
        cancels = self.server.witness.log("tasks/cancel", task_id)
        return task_id in self.wished or any(one.fault is None or one.fault.acted for one in cancels)

    def owner_of(self, task_id: str) -> str | None:
        """Who drives a task, by the journal."""
        query = "SELECT owner FROM records WHERE task_id = ?"
        (owner,) = self._reader.execute(query, (task_id,)).fetchone() or (None,)
        return None if owner is None else str(owner)

    def moment(self, moment: Moment, tool: str | None) -> None:
        """Something happened that makes a host change its mind."""
        if tool is None or self.calm:
            return
        intent = self._intent_of(tool)
        there = [process for process in self.processes if process.may_act]
        if intent.cancel is not None and intent.cancel.moment == moment and not intent.cancelling and there:
            intent.cancelling = True
            process = there[intent.cancel.process % len(there)]
            process.changes_its_mind(intent, intent.cancel.after_s if moment != "at" else 0.0)

    def _wants_quiet(self, arrival: Arrival) -> bool:
        """Whether a poll is the one to be told to come later, for a host to cancel meanwhile."""
        tool = self._tool_of(arrival.task_id) if arrival.method == "tasks/get" and not self.calm else None
        intent = self._intent_of(tool) if tool is not None else None
        return bool(intent and intent.cancel and intent.cancel.moment == "quiet" and not intent.cancelling)

    def _tool_of(self, task_id: str | None) -> str | None:
        tool = self.server.witness.created.get(task_id or "")
        return None if tool is None else str(tool)

    def _intent_of(self, tool: str) -> Intent:
        return next(intent for intent in self.plan.intents if intent.tool == tool)

    def told(self, intent: Intent, outcome: str) -> None:
        self.tell(f"{intent.tool} is told {outcome}")
        if intent.keyed and intent.tool not in self.forgotten_tools:
            query = "SELECT due_at, status FROM records WHERE idempotency_key = ?"
            due, status = self._reader.execute(query, (intent.key,)).fetchone() or (None, None)
            if status is None or due is not None or status == "calling":
                self.break_("told before it was journaled", f"{intent.tool}: {status}")
        if outcome[0].isdigit() and not outcome.startswith(f"{intent.number}: "):
            self.break_("another one's result", f"{intent.tool}: {outcome}")
        if intent.outcomes and intent.outcomes[0] != outcome:
            self.break_("two outcomes", f"{intent.tool}: {intent.outcomes[0]}, then {outcome}")
        intent.outcomes.append(outcome)

    def received(self, tool: str | None) -> None:
        """Some caller has its outcome."""
        if tool is not None:
            self._intent_of(tool).received = True

    def delivered(self, handle: TaskHandle, outcome: str) -> None:
        self.received(handle.tool)
        tool = self.server.witness.created.get(handle.task_id or "")
        intent = next((intent for intent in self.plan.intents if intent.tool == tool), None)
        if intent is not None and (not intent.keyed or intent.begun == 1):
            self.told(intent, outcome)

    def may_be_unknown(self, intent: Intent) -> bool:
        calls = [a for a in self.server.witness.log("tools/call") if a.tool == intent.tool]
        lost = any(arrival.fault is not None or arrival.answered_at is None for arrival in calls)
        unclear = any(process.killed or process.late for process in self.processes)
        return (
            lost or unclear or self.disk_failed or intent.timeout_s is not None or bool(self.plan.suspensions)
        )

    # ── what happens ──────────────────────────────────────────────────────────────────────────

    def _on_request(self, arrival: Arrival) -> Fault | None:
        what = arrival.task_id or arrival.tool
        found: Fault | None = None
        rate = self.plan.fault_rate * (2 if arrival.method == "tools/call" else 1)
        if not self.calm and self._faults.random() < rate:
            found = fault(self._faults, arrival.method)
        if self._wants_quiet(arrival):
            found = HttpError(503, retry_after_s=40.0)
        self.tell(f"{arrival.method} {what}" + (f": {found}" if found else ""))
        if arrival.method == "tools/call":
            self.moment("called", arrival.tool)
        elif getattr(found, "retry_after_s", None) is not None:
            self.moment("quiet", self._tool_of(arrival.task_id))
        return found

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for at, happen in self._happenings(tasks):
                await self.clock.pass_to(at, anyio.Event())
                happen()
            await self.clock.pass_to(CHAOS_S, anyio.Event())
            self.calm, self.calm_at = True, self.clock.now
            for process in list(self.processes):
                process.clock.go_on()
                (process.closing.set if self.plan.orderly else process.kill)()
            over = anyio.Event()
            tasks.start_soon(self._ended, over)
            await self.clock.pass_to(self.clock.now + 60.0, over)
            if not over.is_set():
                self.break_("no end", "processes that were closed")
                tasks.cancel_scope.cancel()
                return
            last = Process(self, -1, last=True)
            tasks.start_soon(last.live)
            await self.clock.pass_to(self.clock.now + CALM_S, last.ended)
            if not last.ended.is_set():
                self.break_("no end", f"the last process, after {CALM_S} s")
                last.kill()
                tasks.cancel_scope.cancel()

    async def _ended(self, over: anyio.Event) -> None:
        for process in list(self.processes):
            await process.ended.wait()
        over.set()

    def _happenings(self, tasks: Any) -> list[tuple[float, Callable[[], None]]]:
        plan = self.plan
        happenings: list[tuple[float, Callable[[], None]]] = []

        def start(number: int) -> None:
            tasks.start_soon(Process(self, number).live)

        def each(number: int, act: Callable[[Process], None]) -> None:
            for process in self.processes:
                if process.number == number and not process.ended.is_set():
                    act(process)

        def suspend(process: Process, seconds: float) -> None:
            self.tell(f"process {process.pid} is suspended")
            process.late |= seconds > 15 and plan.blind
            process.suspended_at = self.clock.now
            process.clock.suspend()

        def kill(process: Process) -> None:
            process.kill()
            tasks.start_soon(partial(self._again, process))

        def jump(seconds: float) -> None:
            self.tell(f"the wall clock jumps by {seconds} s")
            self.clock.offset += seconds
            for process in self.processes:
                process.late |= plan.blind  # its lease may seem to have run out

        for number, at in enumerate(plan.lives):
            happenings.append((at, partial(start, number)))
        for at, number in plan.kills:
            happenings.append((at, partial(each, number, kill)))
        for at, until, number in plan.suspensions:
            happenings.append((at, partial(each, number, partial(suspend, seconds=until - at))))
            happenings.append((until, partial(each, number, lambda process: process.clock.go_on())))
        for at, number in plan.prunes:
            happenings.append((at, partial(each, number, Process.prune)))
        happenings += [
            (intent.cancel.after_s, partial(self.moment, "at", intent.tool))
            for intent in plan.intents
            if intent.cancel is not None and intent.cancel.moment == "at"
        ]
        for at, seconds in plan.jumps:
            happenings.append((at, partial(jump, seconds)))
        return sorted(happenings, key=lambda happening: happening[0])

    async def _again(self, process: Process) -> None:
        """Start a process again that was killed."""
        await process.ended.wait()
        if not self.calm and self.random.random() < 0.7:
            await Process(self, process.number).live()

    # ── what must hold ────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        witness = self.server.witness
        for broken in witness.broken():
            if "too early" in broken and self._may_be_early(broken):
                continue
            self.break_("the witness", broken)
        for intent in self.plan.intents:
            ran = witness.calls[intent.tool]
            if ran > max(1, intent.begun):
                self.break_("ran twice", f"{intent.tool} ran {ran} times, with leave for {intent.begun}")
            if intent.keyed and not (intent.outcomes or intent.received or intent.unknown):
                self.break_("no outcome", f"{intent.tool}")
            self._check_outcomes(intent)
        for cancelled in self.wished:
            self._check_cancel(cancelled)
        rows = self._reader.execute(
            "SELECT task_id, status, pending, owner, idempotency_key, delivered_at FROM records"
        ).fetchall()
        for task_id, status, pending, owner, key, delivered_at in rows:
            if pending:
                self.break_("left over", f"{task_id} {status} {owner} {key} {delivered_at}")
        known = {row[0] for row in rows} | self.forgotten_tasks
        for arrival in witness.log("tools/call"):
            task_id = _created_by(self, arrival)
            if task_id is not None and arrival.answered_at is not None and arrival.fault is None:
                calm = not self.disk_failed and not any(p.killed and not p.last for p in self.processes)
                if calm and not self.plan.suspensions and task_id not in known:
                    self.break_("a task ID is lost", task_id)

    def _check_outcomes(self, intent: Intent) -> None:
        """What was told is how a task of that intent ended, at the server."""
        witness = self.server.witness
        ends = {"violated"}
        for task_id, tool in witness.created.items():
            if tool == intent.tool:
                ends |= _ends(self._timeline(task_id))
        calls = [arrival for arrival in witness.log("tools/call") if arrival.tool == intent.tool]
        ends |= {"result"} if intent.plain else set()
        ends |= {"TaskFailedError" for arrival in calls if isinstance(arrival.fault, ErrorReply)}
        for outcome in intent.outcomes:
            if ("result" if outcome[0].isdigit() else outcome) not in ends:
                self.break_("another end", f"{intent.tool} is told {outcome}, and it was {sorted(ends)}")

    def _check_cancel(self, task_id: str) -> None:
        """A journaled wish is told as long as the task is there to be cancelled."""
        witness, ended_at = self.server.witness, _ended_at(self._timeline(task_id))
        alive = [
            poll.at for poll in witness.log("tasks/get", task_id) if self.wished[task_id] < poll.at < ended_at
        ]
        cancels = witness.log("tasks/cancel", task_id)
        if alive and not cancels:
            self.break_("a cancel is never told", f"{task_id} was still there at {alive[0]:.3f}")
        if (
            not any(one.fault is None or one.fault.acted for one in cancels)
            and alive
            and alive[-1] > self.calm_at
        ):
            self.break_("a cancel never came", f"{task_id} was still there at {alive[-1]:.3f}")

    def _timeline(self, task_id: str) -> Timeline:
        return self.server._desk._tasks[task_id]

    def _may_be_early(self, broken: str) -> bool:
        """Whether a poll may come early though all is well.

        What is stored is stored by the wall clock. One that was suspended may still send the poll that it
        was about to send. And what a reply says is lost with the process that got it.
        """
        late = any(process.late for process in self.processes)
        return self.plan.clocks_jump or late or any(task in broken for task in self.lost_replies)

    def lose_replies(self, since: float = math.inf) -> None:
        """A process is stopped or its disk fails: what it was told just now it may forget."""
        since = min(since, self.clock.now)
        for arrival in self.server.witness.arrivals[-60:]:
            if arrival.answered_at is not None and arrival.answered_at >= since and arrival.task_id:
                self.lost_replies.add(arrival.task_id)

    def close(self) -> None:
        self._reader.close()
        for suffix in ("", "-wal", "-shm", "-journal"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


async def play(seed: int, folder: Path, empty: Path) -> World:
    """Play one history from its beginning to its end."""
    world = World(seed, folder, empty)
    # What nobody refers to any more is gone at once or at the end, and not at a moment of its own; in
    # some histories almost at once, whatever cycles it is part of.
    gc.disable()
    before = gc.get_threshold()
    if seed % 64 == 0:
        gc.collect()
        gc.set_threshold(50, 2, 1000)
        gc.enable()
    try:
        await world.run()
        world.check()
    finally:
        gc.set_threshold(*before)
        gc.enable()
        world.close()
    return world


def _created_by(world: World, arrival: Arrival) -> str | None:
    tasks = [task for task, tool in world.server.witness.created.items() if tool == arrival.tool]
    return tasks[0] if len(tasks) == 1 else None


def _ended_at(timeline: Timeline) -> float:
    """When a task ended, as far as the server has looked."""
    return min(timeline._since if timeline.over else math.inf, timeline._expires_at)


def _ends(timeline: Timeline) -> set[str]:
    """What callers may be told of a task."""
    gone = {"TaskNotFoundError", "TaskExpiredError"}
    match timeline.steps[timeline._index]:
        case Complete():
            end = {"result"}
        case Fail():
            end = {"TaskFailedError"}
        case Abort():
            end = {"TaskCancelledError"}
        case _:
            return gone
    return end | gone if timeline._expires_at < math.inf else end


def _answer(params: Any, number: int) -> Any:
    """An answer to a question of any kind, told from others by its number as far as there is room."""
    match params:
        case ElicitRequestFormParams():
            return ElicitResult(action="accept", content={"n": number})
        case ElicitRequestURLParams():
            return ElicitResult(action="accept" if number % 2 else "decline")
        case CreateMessageRequestParams():
            said = TextContent(type="text", text=str(number))
            return CreateMessageResult(role="assistant", content=said, model="none")
        case _:
            return ListRootsResult(roots=[Root(uri=FileUrl(f"file:///{number}"))])


def _violated(error: BaseException) -> bool:
    """Whether a task ended as no task may, which a replica that lags behind makes it look."""
    return isinstance(error, RemoteProtocolError) and "holds no result" in str(error)


def _me() -> int:
    return anyio.get_current_task().id


def _text(result: Any) -> str:
    return str(result.content[0].text)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]


class _Ignored:
    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        return kind is not None and issubclass(kind, self._kinds)
