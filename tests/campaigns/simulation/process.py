"""One life of one process of the host, and what it does of its own accord."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal

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
from mcp_tasks_client.old.drive import Drive
from mcp_tasks_client.old.journal.base import Lease
from mcp_tasks_client.old.owners import Place
from mcp_tasks_client.old.points import Point, Probe
from mcp_tasks_client.old.policy import PollPolicy
from mcp_tasks_client.old.sessions.base import TaskRef
from mcp_tasks_client.old.states import Observing
from mcp_tasks_client.old.testing import KilledError
from mcp_tasks_client.old.testing.session import ServerSession
from mcp_tasks_client.old.wire import JSONObject, Task

from .clock import ProcessClock
from .journal import InlineJournal, disk_trouble
from .plans import Intent

if TYPE_CHECKING:
    from .world import World

__all__ = ["Process", "Spot"]

FLOOR_S: Final = 0.2
"""Seconds between polls that the server wants at once. By default these are some 2,000 of a minute, and a
tenth of all the time went into looking on while nothing happened."""

LISTEN_AGAIN_S: Final = 0.999
"""Seconds from one attempt to listen to the next, at least."""


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

    async def listen(
        self, task_ids: Sequence[str], agreed: Callable[[frozenset[str]], None], heard: Callable[[Task], None]
    ) -> None:
        process, broken = self._process, None
        process.listens()

        def answered(granted: frozenset[str]) -> None:
            process.may_listen = bool(granted)
            agreed(granted)

        async with anyio.create_task_group() as late:
            hear = process.world.grapevine.passed_on(f"process {process.pid}", process.clock, heard, late)
            try:
                await super().listen(task_ids, answered, hear)
            except SessionError as error:
                broken = error  # which would leave the group in another
            late.cancel_scope.cancel()
        if broken is not None:
            raise broken


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
        self.cancelled_for_others: set[str] = set()
        self.may_listen = True
        """Whether the server has not refused that yet, as far as it has been asked."""

        self._listened_at = -math.inf
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
            poll=PollPolicy(call_grace_s=1.0, floor_s=FLOOR_S),
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
        await self._sleep(0.0 if self.last else intent.at + 2.0 * (intent.first not in (None, self.number)))
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
        await self.clock.awake.wait()
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
        await self.clock.awake.wait()
        with _Ignored(JournalError):
            self.world.tell(f"process {self.pid} has forgotten {await client.prune(0)}")

    def cancels(self, task_id: str) -> None:
        """It is about to tell the server."""
        world = self.world
        if world.owner_of(task_id) != self.owner:
            self.cancelled_for_others.add(task_id)
        elif task_id not in world.wished and task_id not in self.cancelled_for_others:
            world.break_("cancelled before it was journaled", f"{task_id} by process {self.pid}")

    def listens(self) -> None:
        """It is about to ask the server to tell of tasks."""
        if not self.may_listen:
            self.world.break_("listens again", f"process {self.pid}, after it was refused")
        if self.world.clock.now < self._listened_at + LISTEN_AGAIN_S:
            self.world.break_("listens too often", f"process {self.pid} since {self._listened_at:.3f}")
        self.may_listen, self._listened_at = False, self.world.clock.now

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
