"""One life of one process of the host, and what it does of its own accord."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from weakref import ref

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
    Tool,
)
from pydantic import FileUrl

from mcp_tasks_client import (
    AlreadyAnsweredError,
    DrivenElsewhereError,
    Environment,
    InputUnansweredError,
    JournalError,
    JournalLockedError,
    Limits,
    ObservedTasks,
    Observer,
    OutcomeUnknownError,
    Point,
    PollPolicy,
    QuestionWithdrawnError,
    RemoteProtocolError,
    Session,
    SessionError,
    Snapshot,
    TaskError,
    TaskHandle,
    TaskRecord,
    TaskRef,
    TaskReference,
    TasksClient,
    TasksClientError,
    ToolCall,
    WaitTimeoutError,
)
from mcp_tasks_client.engine.observer import DRIVE
from mcp_tasks_client.machine.states import Calling, Observing
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import CallReply, Created
from mcp_tasks_client.questions.question import to_wire
from mcp_tasks_client.sessions.base import BeforeSend
from mcp_tasks_client.testing import POINTS, KilledError

from ..shared_journal import CUT_OFF_S, LOOK_S
from ..virtual_time import ProcessClock, VirtualProcess
from .plans import Answering, Intent
from .seams import DroppedIn

if TYPE_CHECKING:
    from .history import History

__all__ = ["ANSWERING", "Line", "Process"]

FLOOR_S: Final = 0.2
"""Seconds between polls that the server wants at once. By default these are some 2,000 of a minute, and a
tenth of all the time went into looking on while nothing happened."""

ANSWERING: Final[ContextVar[str | None]] = ContextVar("answering", default=None)
"""The question whose callback has returned, for the commit of its answer."""


T = TypeVar("T")


class Line(Session):
    """A process's connection to the server. What it says and hears is held against the laws.

    Requests go over HTTP in some histories. What the server tells unasked always comes in memory, since
    ``httpx.ASGITransport`` passes on no stream before its end.
    """

    def __init__(self, process: Process) -> None:
        limits = Limits(task_timeout_s=8.0, call_read_timeout_s=30.0)
        self._inner = process.history.server.session(limits=limits)
        gateway = process.history.gateway
        self._requests = self._inner if gateway is None else gateway.session(limits, process.clock)
        self._process = process
        self._listening = anyio.CancelScope()
        self._quiet: dict[str, float] = {}
        """Until when the server wants to be left alone about a task that is driven here."""

        self._closed = False

    @property
    def endpoint(self) -> str:
        return self._inner.endpoint

    @property
    def limits(self) -> Limits:
        return self._inner.limits

    async def tool(self, name: str, *, fresh: bool = False, context: object = None) -> Tool | None:
        return await self._while_it_lives(partial(self._requests.tool, name, fresh=fresh))

    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        reply = await self._while_it_lives(partial(self._requests.call, call, before_send))
        if isinstance(reply, Created):
            self._process.tasks.add(reply.task.task_id)
        return reply

    async def get(self, ref: TaskRef) -> Snapshot:
        history = self._process.history
        if history.clock.now < self._quiet.get(ref.task_id, 0.0) - 0.001 and not history.plan.clocks_jump:
            history.break_("polled though told to wait", f"{ref.task_id} by process {self._process.pid}")
        snapshot = await self._while_it_lives(partial(self._requests.get, ref))
        self._process.history.polled(snapshot.task)
        return snapshot

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        self._process.not_after_a_cancel(ref.task_id, f"answers {', '.join(answers)}")
        self._process.sends(ref.task_id, "an answer")
        self._process.answers(ref.task_id, answers)
        await self._while_it_lives(partial(self._heed, ref, partial(self._requests.update, ref, answers)))

    async def cancel(self, ref: TaskRef) -> None:
        self._process.cancels(ref.task_id)
        await self._while_it_lives(partial(self._heed, ref, partial(self._requests.cancel, ref)))

    async def run(self, observed: ObservedTasks) -> None:
        while not self._closed:
            with anyio.CancelScope() as self._listening:
                await self._while_it_lives(partial(self._inner.run, observed))
                return
            await self._process.clock.sleep(1.0)

    def cut(self) -> None:
        """Break the stream of notifications."""
        self._listening.cancel()

    async def aclose(self) -> None:
        self._closed = True
        await self._requests.aclose()
        await self._inner.aclose()

    async def _heed(self, ref: TaskRef, request: Callable[[], Awaitable[None]]) -> None:
        try:
            await request()
        except SessionError as error:
            history = self._process.history
            if error.retry_after_s is not None and history.owner_of(ref.task_id) is self._process:
                self._quiet[ref.task_id] = history.clock.now + error.retry_after_s
            raise

    async def _while_it_lives(self, request: Callable[[], Awaitable[T]]) -> T:
        return await self._process.clock.until_killed(request)


class Process(Observer):
    """One life of one process of the host."""

    def __init__(self, history: History, number: int, *, last: bool = False) -> None:
        self.history = history
        self.number = number
        self.last = last
        self.pid = len(history.processes) + 1
        self.application = history.plan.applications[number]  # the last one has the number -1
        self.clock = ProcessClock(history.clock)
        self.killed = False
        self.killed_early = False
        """Whether it was killed before everything was over."""

        self.killed_at = math.inf
        self.adopts_since = math.inf
        self._adopted: dict[str, TaskHandle] = {}
        """By ``record_id``: what was adopted, and has not parked."""

        self.points = 0
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.closing = anyio.Event()
        self.suspended_at: float | None = None
        self.wakes_at = -math.inf
        self.late = False
        """Whether it was suspended for so long that others may think it gone."""

        self.journal = history.parts.journal(
            history.journal,
            self.clock,
            self._trouble,
            history,
            history.fences,
            away=self._is_parted,
            hears_late=history.plan.hears_late,
            shown=history.clock.true_time if history.plan.blind else None,
        )
        if history.plan.retention_s is not None:
            self.journal.retention_s = history.plan.retention_s
        self.line = history.parts.line(self)
        self.random = Random(history.random.random())
        self._laters = Random(f"what process {self.pid} leaves in {history.seed}")
        self.tasks: set[str] = set()
        """The IDs of the tasks that it was told of by ``tools/call``."""

        self._waiting: Counter[str | None] = Counter()
        """How many callers wait for the call of a tool."""

        self._forms: Counter[str | None] = Counter()
        """How many forms of a tool's call are before somebody."""

        self._task_ids: dict[int, int] = {}
        self._client: TasksClient | None = None
        self._dropped_in: DroppedIn
        self._driving: Counter[str] = Counter()
        """The calls that are driven here, by ``record_id``."""

        self._life: TaskGroup
        self._tasks: TaskGroup | None = None
        history.processes.append(self)
        history.living.add(self.pid)

    # ── how it lives ──────────────────────────────────────────────────────────────────────────

    async def live(self) -> None:
        history = self.history
        history.tell(f"process {self.pid} starts")
        deaf = "" if self.last else history.plan.deaf
        slot_s = 60.0 if self.pid % 2 else 0.0  # some wait for a slot, others go on where they have waited
        options: dict[str, Any] = {
            **{kind: self.ask for kind in ("elicitation", "sampling", "roots") if kind != deaf},
            "poll": PollPolicy(call_grace_s=1.0, floor_s=FLOOR_S, wait_for_slot_s=slot_s),
            "journal": self.journal,
            "on_abandon": history.plan.on_abandon,
            "application": self.application,
            "environment": Environment(
                clock=self.clock,
                jitter=self.random.random,
                process=VirtualProcess.numbered(self.pid, partial(_look, ref(history))),
                observer=self,
            ),
        }
        options = history.parts.options(self, options)
        self._client = client = history.parts.client(self.line, **options)
        self._dropped_in = history.parts.dropped_in(self.line, **options)
        try:
            with self.scope:
                async with anyio.create_task_group() as tasks:
                    self._life = tasks
                    tasks.start_soon(self.journal.write_now_and_then)
                    await self._open(client)
                    tasks.cancel_scope.cancel()
        except BaseException as error:
            for one in _leaves(error):
                if not isinstance(one, KilledError | anyio.get_cancelled_exc_class()):
                    if isinstance(one, JournalError) and history.disk_failed:
                        continue
                    history.break_("an unexpected end", f"process {self.pid}: {one!r}", one)
        finally:
            self._die()

    @property
    def sleeps(self) -> bool:
        """Whether it is suspended."""
        return not self.clock.awake.is_set()

    @property
    def wakes(self) -> bool:
        """Whether it goes on at this moment after a suspension: in the middle of any line."""
        return self.history.clock.now == self.wakes_at

    def begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Begin something that lasts no longer than the process."""
        self._life.start_soon(work)

    async def _open(self, client: TasksClient) -> None:
        async with client:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                if self.last and (self.history.plan.later or self.history.plan.refuses):
                    tasks.start_soon(self._answer_on, client)
                async with anyio.create_task_group() as until_it_ends:
                    # Every other life adopts what comes free. The last one has to know when nothing is left.
                    bring_home = self._bring_home if self.last or self.pid % 2 else self._adopt
                    until_it_ends.start_soon(bring_home, client)
                    for intent in self.history.plan.intents:
                        if intent.keyed or (self.pid == 1 and not intent.begun):
                            until_it_ends.start_soon(self._do, client, intent)
                    if not self.last:
                        await self.closing.wait()
                        until_it_ends.cancel_scope.cancel()
                tasks.cancel_scope.cancel()
            self._tasks = None

    def kill(self) -> None:
        if not self.ended.is_set():
            self.history.tell(f"process {self.pid} is killed")
            self.history.lose_replies(since=self.suspended_at if self.suspended_at is not None else math.inf)
            self.killed = self.killed_early = True
            self.killed_at = self.history.clock.now
            self.history.living.discard(self.pid)
            self.clock.kill()
            self.scope.cancel()

    @property
    def driven(self) -> set[str | None]:
        """The IDs of the tasks that it sees to, by the journal."""
        return {self.history.task_of(record_id) for record_id in +self._driving}

    def _die(self) -> None:
        history = self.history
        history.tell(f"process {self.pid} has ended")
        self.killed = True
        self.clock.kill()
        history.living.discard(self.pid)
        for key in [key for key, asking in history.prompts.items() if asking is self]:
            del history.prompts[key]
        self.ended.set()

    # ── what it does ──────────────────────────────────────────────────────────────────────────

    async def _bring_home(self, client: TasksClient) -> None:
        for _ in range(100):
            try:
                had = {one.record_id for one in await client.records() if one.delivered_at is not None}
                handles = await client.resume()
            except TasksClientError as error:
                self.history.tell(f"process {self.pid}: resume: {error!r}")
                await self._sleep(5.0)
                continue
            async with anyio.create_task_group() as tasks:
                for handle in handles:
                    if handle.reference["record_id"] in had:
                        self.history.break_("delivered twice", f"{handle!r} by resume()")
                    tasks.start_soon(self._await, handle)
            if not self.last or not await self._anything_left(client):
                return
            await self._sleep(5.0)

    async def _adopt(self, client: TasksClient) -> None:
        async with anyio.create_task_group() as tasks:
            adopted = client.adopt(self.history.plan.adopt_limit)
            self.adopts_since = self.history.clock.now
            while not self.killed:
                try:
                    async for handle in adopted:
                        self._note_adopted(handle)
                        tasks.start_soon(self._await, handle)
                    return
                except TasksClientError as error:
                    self.history.tell(f"process {self.pid}: adopt: {error!r}")
                    await self._sleep(5.0)

    def _note_adopted(self, handle: TaskHandle) -> None:
        record_id = handle.reference["record_id"]
        if self.late or self.history.disk_failed:
            return  # others may have had them meanwhile
        if record_id in self._adopted:
            self.history.break_("adopted twice", f"{handle!r} by process {self.pid}")
        # A call that waits for a person does not count. Once it is answered, there may be more than the
        # limit, and nothing is adopted until there are fewer.
        unfinished = [one for one in self._adopted.values() if not (one.done or _asks(one))]
        self._adopted[record_id] = handle
        limit = self.history.plan.adopt_limit
        if limit is not None and len(unfinished) >= limit and not handle.done:
            self.history.break_("adopted too many", f"{unfinished!r} by process {self.pid}")

    @property
    def has_room(self) -> bool:
        """Whether it takes up whatever comes free."""
        limit = self.history.plan.adopt_limit
        enough = limit is None or limit >= len(self.history.plan.intents)
        return enough and self.may_act and self.suspended_at is None

    async def _anything_left(self, client: TasksClient) -> bool:
        return any(record.pending for record in await client.records())

    async def _await(self, handle: TaskHandle) -> None:
        for _ in range(40):
            try:
                with self._waits_for(handle.tool):
                    result = await handle.result()
                await self.history.delivered(handle, _text(result))
                return
            except TaskError as error:
                await self.history.delivered(handle, type(error).__name__)
                return
            except OutcomeUnknownError:
                return  # of a reply that could not be committed before; whoever has made the call is told
            except (InputUnansweredError, JournalError, SessionError, DrivenElsewhereError) as error:
                self._check_doubt(error)
                if _violated(error):
                    self.history.received(handle.tool)
                self.history.tell(f"process {self.pid}: {handle!r}: {error!r}")
                self._adopted.pop(handle.reference["record_id"], None)
                await self._sleep(9.0)

    async def _do(self, client: TasksClient, intent: Intent) -> None:
        await self._sleep(0.0 if self.last else intent.at + 2.0 * (intent.first not in (None, self.number)))
        if not intent.keyed:
            if not intent.begun:
                await self._do_once(client, intent)
            return
        resend = False
        for _ in range(40):
            if intent.received and self.history.plan.forgets:
                return
            if resend or not intent.begun:
                intent.begun += 1
            try:
                result = await self._within(
                    None if self.last else intent.timeout_s,
                    intent.tool,
                    partial(self._call, client, intent, "resend" if resend else "raise"),
                )
                await self.history.told(intent, _text(result))
                return
            except OutcomeUnknownError:
                if not self.history.may_be_unknown(intent):
                    self.history.break_("unknown without a reason", f"{intent.tool}")
                intent.unknown = True
                if not intent.may_resend:
                    return
                resend = True
            except TaskError as error:
                self.history.tell(f"process {self.pid}: {intent.tool}: {error!r}")
                if getattr(error, "code", None) == -32602:
                    # Refused, not run: the same call may be made again.
                    intent.begun -= resend
                    await self._sleep(9.0)
                    continue
                await self.history.told(intent, type(error).__name__)
                return
            except (WaitTimeoutError, InputUnansweredError, JournalError, SessionError) as error:
                self._check_doubt(error)
                if _violated(error):
                    await self.history.told(intent, "violated")  # so a replica that lags behind makes it look
                    return
                self.history.tell(f"process {self.pid}: {intent.tool}: {error!r}")
                has_task = error.handle is not None and error.handle.task_id is not None
                refused = isinstance(error, SessionError) and error.not_executed and not has_task
                if isinstance(error, RemoteProtocolError) and not refused:
                    raise
                if refused and not intent.first_keys:
                    intent.begun -= resend  # in a later round, the leave that was given still counts
                resend = False
                await self._sleep(9.0)
            except DrivenElsewhereError as error:
                self.history.tell(f"process {self.pid}: {intent.tool}: {error!r}")

    def _check_doubt(self, error: TasksClientError) -> None:
        """A call parks for an answer that may have been taken only if a send of it was not refused."""
        handle, history = error.handle, self.history
        if handle is None or handle.task_id is None or "may have taken before" not in str(error):
            return
        cut = any(one.killed or one.late for one in history.processes) or history.disk_failed
        cut |= history.expires or any(one.timeout_s is not None for one in history.plan.intents)
        updates = history.server.witness.log("tasks/update", handle.task_id)
        if not cut and self.pid == 1 and all(one.refused for one in updates):
            history.break_("parked though each send was refused", f"{handle.task_id} by process {self.pid}")

    async def _call(self, client: TasksClient, intent: Intent, on_unknown: Literal["raise", "resend"]) -> Any:
        try:
            with self._waits_for(intent.tool):
                result = await client.call_tool(
                    intent.tool,
                    {"intent": intent.number},
                    idempotency_key=intent.key,
                    on_unknown=on_unknown,
                )
        except (TaskError, RemoteProtocolError) as error:
            # What was refused is not journaled, and may be called again.
            refused = getattr(error, "code", None) == -32602 or getattr(error, "not_executed", False)
            intent.received |= _violated(error) or not refused
            raise
        intent.received = True
        return result

    async def _drop_in(self, intent: Intent) -> Any:
        """Call a tool as a client of the SDK does that was given the extension."""
        reply = await self.line.call(
            ToolCall(name=intent.tool, arguments={"intent": intent.number}), checkpoint
        )
        assert isinstance(reply, Created)
        try:
            with self._waits_for(intent.tool):
                created = Snapshot(reply.task, reply.session_data)
                result = await self._dropped_in.see_through(created, intent.tool)
        except JournalError:
            self.tasks.discard(reply.task.task_id)  # only the next dropped-in call would commit it
            raise
        except (TaskError, RemoteProtocolError):
            intent.received = True
            raise
        intent.received = True
        return result

    async def _do_once(self, client: TasksClient, intent: Intent) -> None:
        intent.begun = 1
        call = (
            partial(self._drop_in, intent)
            if intent.dropped_in
            else partial(self._call, client, intent, "raise")
        )
        try:
            result = await self._within(intent.timeout_s, intent.tool, call)
            await self.history.told(intent, _text(result))
        except TasksClientError as error:
            if isinstance(error, TaskError):
                await self.history.told(intent, type(error).__name__)
            elif not intent.dropped_in and error.handle is not None and error.handle.task_id is not None:
                with suppress(TasksClientError):
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
        await self.clock.pass_on()
        with suppress(TasksClientError, ValueError):
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
                self.history.tell(f"process {self.pid} cancels {handle!r}")
                task_id, was_over = handle.task_id, handle.done
                await handle.cancel()
                if task_id is not None and not (was_over or handle.done or self.history.hears_of(task_id)):
                    self.history.break_("cancelled to no effect", f"{task_id} by process {self.pid}")
                now = await self.history.journal.by_id(record.record_id)
                left = record.record_id in self.history.told_to_cancel
                if (
                    now is not None
                    and isinstance(now.state, Calling)
                    and not (now.state.cancel_wanted or left)
                ):
                    self.history.break_("cancelled to no effect", f"{intent.tool} by process {self.pid}")
                if self.random.random() < 0.5:
                    await self._await(handle)

    def answer(self, one: Answering) -> None:
        """Have somebody answer questions, whoever drives their calls."""
        if self.may_act:
            assert self._tasks is not None
            self._tasks.start_soon(self._answer, self._client, one.after_s, one.share)

    async def _answer(self, client: TasksClient | None, after_s: float, share: float) -> None:
        assert client is not None
        history = self.history
        await self.clock.pass_on()
        with suppress(JournalError):
            questions = await client.questions()
            await self._sleep(after_s)
            for question in questions:
                if self._laters.random() > share:
                    continue
                history.answers += 1
                answer = _answer(question.params, history.answers)
                key = history.key_of(question.question_id)
                if key is None:
                    continue  # of a call without a key, which is over by now
                history.given.add(key)
                history.tell(f"somebody answers {key} by process {self.pid}: {answer!r}")
                history.answered(question.tool)
                cut_off_s = history.cut_off_s
                CUT_OFF_S.set((cut_off_s, 0.0) if history.answers % 2 else (0.0, cut_off_s))
                by_name = partial(client.answer, question.question_id)
                try:
                    await (question.answer if history.answers % 2 else by_name)(answer)
                except AlreadyAnsweredError as error:
                    history.told_to_be_late(key, to_wire(answer), error.same)
                    if not error.same:
                        continue
                except QuestionWithdrawnError:
                    continue
                history.told_to_count(key, to_wire(answer))

    async def _answer_on(self, client: TasksClient) -> None:
        """What nobody has answered before the end, since callbacks may leave it to others."""
        while True:
            await self._answer(client, 0.0, 1.0)
            await self._sleep(5.0)

    def prune(self) -> None:
        """Forget all that may be forgotten."""
        if self._tasks is not None and not self.killed:
            self._tasks.start_soon(self._prune, self._client)

    async def _prune(self, client: TasksClient | None) -> None:
        assert client is not None
        await self.clock.pass_on()
        with suppress(JournalError):
            self.history.tell(f"process {self.pid} has forgotten {await client.prune(0)}")

    def cancels(self, task_id: str) -> None:
        """It is about to tell the server."""
        self.sends(task_id, "a cancellation")
        if task_id not in self.history.wished:
            self.history.break_("cancelled before it was journaled", f"{task_id} by process {self.pid}")

    def sends(self, task_id: str, what: str) -> None:
        """It is about to send something of a task, which only its owner may."""
        owner = self.history.owner_of(task_id)
        if owner is not self:
            self.history.break_("sent by another", f"{what} to {task_id} by process {self.pid}, not {owner}")

    def answers(self, task_id: str, answers: Mapping[str, JSONObject]) -> None:
        """It is about to send answers."""
        history = self.history
        for (record_id, key), refused in history.refused.items():
            answer = answers.get(key, {})
            told_apart = answer.get("action") is None or "content" in answer  # else it may be said anew
            again = told_apart and history.task_of(record_id) == task_id and answer in refused
            if again and history.clock.now != self.wakes_at:
                history.break_("a refused answer is sent again", f"{key} by process {self.pid}")

    def not_after_a_cancel(self, task_id: str | None, what: str) -> None:
        """It is about to do something that nobody wants of a cancelled task.

        A process that was suspended may still do what it was about to do.
        """
        wished_at = self.history.wished.get(task_id or "", math.inf)
        if self.history.clock.now > wished_at and not self.wakes:
            self.history.break_("on after a cancel", f"process {self.pid} {what} of {task_id}")

    async def ask(self, context: Any, params: Any) -> Any:
        key, history = context.key, self.history
        task_id = context.task.task_id if context.task is not None else None
        self.not_after_a_cancel(task_id, f"asks {key}")
        history.moment("asked", context.tool)
        if task_id is not None:
            names = history.askings[context.question.record_id, key]
            names.add(context.question.question_id)
            if len(names) > 3:
                history.break_("asked without end", f"{key} by process {self.pid}")
            if len(names) > 1 and context.question.refused is None:
                history.break_("asked again without a word", f"{key} by process {self.pid}")
        # What was answered while it was suspended, it has not heard of when it wakes.
        wakes = self.wakes and key in history.left
        if key in history.committed and not wakes:
            history.break_("asked twice", f"{key} by process {self.pid}, after its answer was committed")
        heard_at = history.left.get(key, math.inf) + (LOOK_S if history.plan.hears_late else 0.0)
        if heard_at < history.clock.now and not wakes:
            history.break_("asked twice", f"{key} by process {self.pid}, after an answer was left")
        other = history.prompts.get(key)
        if other is self:
            history.break_("asked twice at once", f"{key} by process {self.pid}")
        if other not in (None, self) and not (other.sleeps or other.wakes or self.wakes):
            history.break_("asked by two at once", f"{key} by {other.pid} and {self.pid}")
        history.prompts[key] = self
        history.tell(f"process {self.pid} asks {key}")
        is_form = isinstance(params, ElicitRequestFormParams | ElicitRequestURLParams)
        if is_form and self._forms[context.tool]:
            history.break_("two forms at once", f"{key} by process {self.pid}")
        try:
            self._forms[context.tool] += is_form
            history.outrun(self)
            await self._sleep(history.plan.answer_s)
            self.not_after_a_cancel(task_id, f"goes on asking {key}")
            if history.committed.get(key, math.inf) < history.clock.now and not self.wakes:
                history.break_(
                    "not withdrawn", f"{key} by process {self.pid}, after it was answered elsewhere"
                )
            if self._laters.random() < history.plan.later:
                history.tell(f"process {self.pid} leaves {key} to others")
                return None
            if not self.last and self.random.random() < history.plan.callback_fails:
                raise RuntimeError("nobody is there")
        finally:
            self._forms[context.tool] -= is_form
            if history.prompts.get(key) is self:
                del history.prompts[key]
        history.answers += 1
        history.given.add(key)
        ANSWERING.set(key)
        return _answer(params, history.answers)

    @contextmanager
    def _waits_for(self, tool: str | None) -> Iterator[None]:
        self._waiting[tool] += 1
        try:
            yield
        finally:
            self._waiting[tool] -= 1

    async def _is_abandoned(self, tool: str) -> bool:
        """Whether one who goes away now is the last who waits for a task that is driven here."""
        record = await self.history.record_of(tool)
        return (
            self._waiting[tool] == 1
            and record is not None
            and isinstance(record.state, Observing)
            and self.history.process_of(record.owner) is self
        )

    async def _is_cancelled(self, tool: str) -> None:
        """What became of a task whose only caller went away, should that mean to cancel it."""
        history = self.history
        if history.plan.on_abandon != "cancel" or self.killed or self.late or history.disk_failed:
            return
        record = await history.record_of(tool)
        if record is not None and not record.finished and record.task_id not in history.wished:
            history.break_("abandoned, and not cancelled", f"{record.task_id} by process {self.pid}")

    async def _within(self, seconds: float | None, tool: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Wait for so many seconds of virtual time, and then go away, as a time-out does."""
        if seconds is None:
            return await work()
        result: list[Any] = []
        abandoned = False
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                nonlocal abandoned
                await self._sleep(seconds)
                abandoned = await self._is_abandoned(tool)
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait)
            try:
                result.append(await work())
            except TasksClientError as error:
                result.append(error)
            tasks.cancel_scope.cancel()
        if not result:
            if abandoned:
                await self._is_cancelled(tool)
            raise WaitTimeoutError("It took too long.")
        if isinstance(result[0], TasksClientError):
            raise result[0]
        return result[0]

    async def _sleep(self, seconds: float) -> None:
        if seconds:
            await self.clock.sleep(seconds)

    # ── what happens to it ────────────────────────────────────────────────────────────────────

    async def before(self, point: Point, record: TaskRecord | None) -> None:
        if record is not None:
            self.history.note_questions(record)  # the journal has none of a call without a key or a task
        if point == DRIVE:
            assert record is not None
            self._driving[record.record_id] += 1
        await self._pass(point)
        if point == "commit: TaskCreated":
            self._task_ids[_me()] = len(self.history.journaled)

    async def after(self, point: Point, record: TaskRecord | None) -> None:
        if point == DRIVE:
            self._end_driving(record)
            return
        if point == "commit: TaskCreated" and len(self.history.journaled) == self._task_ids.pop(_me(), -1):
            self.history.break_("a task ID is not journaled", f"by process {self.pid}")
        key = ANSWERING.get()
        if point == "commit: AnswerReady" and key is not None:
            self.history.committed.setdefault(key, self.history.clock.now)
        await self._pass(point)

    def failed(self, point: Point, record: TaskRecord | None, error: BaseException) -> None:
        if point == DRIVE:
            self._end_driving(record)

    def _end_driving(self, record: TaskRecord | None) -> None:
        assert record is not None
        self._driving[record.record_id] -= 1

    async def _pass(self, point: Point) -> None:
        if point not in POINTS:
            return  # nothing is committed or sent by that alone
        await self.clock.pass_on()
        self.points += 1
        if not self.last and self.history.plan.point_kills.get(self.pid - 1) == self.points:
            self.kill()
            raise KilledError(point)

    def _is_parted(self) -> JournalError | None:
        for start, end, number in self.history.plan.partings:
            if number == self.number and start <= self.history.clock.now < end:
                self.history.disk_failed = self.late = True
                self.history.lose_replies()
                return JournalError("the database cannot be reached")
        return None

    def _trouble(self) -> JournalError | None:
        for start, end, what in self.history.plan.disk:
            if not self.last and start <= self.history.clock.now < end:
                self.history.disk_failed = True
                self.late |= self.history.plan.blind and end - start > 15  # it cannot renew its lease
                self.history.lose_replies()
                return JournalError("the disk is full") if what == "full" else JournalLockedError("locked")
        return None


def _look(history: ref[History], pid: int) -> bool | None:
    """Whether a process lives. A program keeps the processes of leases, which must not keep the history."""
    there = history()
    return None if there is None else there.sees(pid)


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


def _asks(handle: TaskHandle) -> bool:
    return handle.task is not None and handle.task.status == "input_required"


def _text(result: Any) -> str:
    return str(result.content[0].text)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
