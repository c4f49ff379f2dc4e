"""Hosts that can be stopped anywhere: small programs over one client, and the scene that they live in.

A *life* is one process of a host. Each scenario says what the server does, and what one life does about
it, or two at the same time. One of them is mortal. Whatever became of it, a later life then does what
every host does after a crash, :func:`recover`, over the same journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import anyio
import anyio.lowlevel
import httpx
from mcp_types import ElicitResult

from mcp_tasks_client import (
    AlreadyAnsweredError,
    ConnectionLostError,
    DrivenElsewhereError,
    Environment,
    InputUnansweredError,
    JournalError,
    Limits,
    MemoryJournal,
    Observer,
    OutcomeUnknownError,
    Point,
    PollPolicy,
    Question,
    QuestionWithdrawnError,
    Scope,
    SessionError,
    Task,
    TaskError,
    TaskHandle,
    TaskRecord,
    TaskReference,
    TasksClient,
    TasksClientError,
    ToolCall,
)
from mcp_tasks_client.machine.states import Completed, Finished, Observing
from mcp_tasks_client.questions.callbacks import NoAnswerError
from mcp_tasks_client.questions.question import question_id
from mcp_tasks_client.testing import (
    POINTS,
    Delayed,
    ErrorReply,
    Fault,
    FaultPlan,
    HttpError,
    KilledError,
    LostReply,
    Notifies,
    ScriptedServer,
    Step,
    ask,
    ask_first,
    complete,
    delay,
    fail,
    form,
    hint,
    reply,
    text_result,
    vanish,
    work,
)
from mcp_tasks_client.testing.probes import Moment

from ..shared_journal import ProcessJournal
from ..virtual_time import ProcessClock, VirtualProcess, WorldClock
from .as_host import HostCaller, HostWay, calling_as_host

__all__ = [
    "AS_HOST",
    "OLD",
    "SCENARIOS",
    "TOOL",
    "Fate",
    "How",
    "Life",
    "Scenario",
    "Scene",
    "result_of",
]

TOOL: Final = "tool"
KEY: Final = "key"
OLD: Final = "old"
OURS: Final = Scope("scripted")
THEIRS: Final = Scope("scripted", "somebody else")

LIMIT_S: Final = 600.0
"""Seconds of the scene after which a life that should have ended is taken for hanging."""

_ANSWERED: Final = ("commit: instruct", "commit: AnswerReady")
"""What the journal has an answer after."""

_ASKED: Final[tuple[Moment, Point]] = ("after", "commit: InputAsked")
"""Where others know of questions before the host that drives the call does, if that fails there. They may
have answered then before it asks."""

_ATTEMPTS: Final = 30
_PASSING: Final = (InputUnansweredError, JournalError, SessionError, DrivenElsewhereError)
"""What a host tries again after."""


# ── lives ─────────────────────────────────────────────────────────────────────────────────────


How = Literal["killed", "fails"]


class Fate(FaultPlan):
    """What stops a life.

    Args:
        how: Whether it is killed, or what it just does fails.
        number: At which of its points, from 0; ``None`` if nothing does.

    Attributes:
        stopped_at: The point, once it was stopped.
    """

    def __init__(self, how: How = "killed", number: int | None = None) -> None:
        super().__init__()
        self.how = how
        self.stopped_at: tuple[Moment, Point] | None = None
        if number is not None:
            self.at_number(number, self._stop)

    async def _stop(self) -> None:
        self.stopped_at = self.passed[-1]
        raise KilledError("killed here") if self.how == "killed" else failure(self.stopped_at[1])

    def failed_at(self, passed: tuple[Moment, Point]) -> bool:
        """Whether it was told there that it had failed."""
        return self.how == "fails" and self.stopped_at == passed

    def has(self, moment: Moment, point: Point) -> bool:
        return (moment, point) in self.passed


def failure(point: Point) -> Exception:
    """What goes wrong at a point, as the journal, the session or the host would say it."""
    match point:
        case "send: a question to the host":
            return NoAnswerError("nobody is there")
        case "send: tools/call" | "send: tasks/get" | "send: tasks/update":
            return ConnectionLostError("the connection broke", retryable=True)
        case "send: tasks/cancel":  # without a Retry-After it would be said again at once, in seconds of ours
            return SessionError("unavailable", retryable=True, http_status=503, retry_after_s=1.0)
        case _:
            return JournalError("the disk is full")


class Life(Observer):
    """One process of the host, and what it does with its clients.

    Attributes:
        plan: What happens to it at which point, and which it has passed.
        asked: Keys of questions that were put to it.
        returned: Keys of those that it answered, and that answer was returned.
        told: Whether it was told what became of its call.
        known: What the journal held of ours when it ended.
    """

    def __init__(self, scene: Scene, plan: Fate) -> None:
        self.scene = scene
        self.plan = plan
        self.pid = len(scene.lives) + 1
        self.clock = ProcessClock(scene.clock)
        self.journal = ProcessJournal(scene.journal, self.clock)
        self.ended = anyio.Event()
        self.asked: list[str] = []
        self.returned: list[str] = []
        self.told = False
        self.known: list[TaskRecord] = []
        scene.lives.append(self)
        scene.living.add(self.pid)

    async def live(self, program: Program) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.journal.write_now_and_then)
                await program(self)
                tasks.cancel_scope.cancel()
        except (Exception, KilledError, BaseExceptionGroup) as error:
            for one in _leaves(error):
                ends = KilledError | anyio.get_cancelled_exc_class()
                if not (isinstance(one, ends) or isinstance(one.__cause__, KilledError)):
                    self.scene.breaks(f"life {self.pid} ended with {one!r}")
        finally:
            self.clock.kill()
            self.scene.living.discard(self.pid)
            with anyio.CancelScope(shield=True):
                self.known = await self.scene.records()
            self.ended.set()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[TasksClient]:
        client = TasksClient(
            self.scene.server.session(limits=Limits(task_timeout_s=8.0, call_read_timeout_s=30.0)),
            elicitation="later" if self.scene.scenario.later else self._ask,
            **self._options,
        )
        async with client:
            yield client

    @asynccontextmanager
    async def caller(self, client: TasksClient | None = None) -> AsyncIterator[Caller]:
        """What makes the scenario's call: a client, the one that is there already, or a host."""
        way = self.scene.scenario.through
        if way != "client":
            async with calling_as_host(self.scene.server, self._ask, way, **self._options) as host:
                yield host
        elif client is not None:
            yield client
        else:
            async with self.client() as client:
                yield client

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "journal": self.journal,
            "poll": PollPolicy(wait_for_slot_s=self.scene.scenario.wait_for_slot_s),
            "on_abandon": self.scene.scenario.on_abandon,
            "environment": Environment(
                clock=self.clock,
                jitter=lambda: 0.0,  # so that no poll is late by chance where another would be early
                process=VirtualProcess.numbered(self.pid, self.scene.sees),
                observer=self,
            ),
        }

    # ── what a host does ──────────────────────────────────────────────────────────────────────

    async def call(self, client: Caller) -> None:
        """Make the scenario's call, and make it again after whatever passes."""
        scenario, consent = self.scene.scenario, False
        key = KEY if scenario.keyed else None
        for _ in range(_ATTEMPTS):
            try:
                result = await client.call_tool(
                    TOOL, idempotency_key=key, on_unknown="resend" if consent else "raise"
                )
                return await self._told(result.content[0].text)  # type: ignore[union-attr]  # a text
            except OutcomeUnknownError:
                self.scene.unknown.append(self)
                if not scenario.may_resend:
                    return None
                consent, self.scene.consents = True, self.scene.consents + 1
            except TaskError as error:
                if not _refused(error):
                    return await self._told(type(error).__name__)
            except _PASSING as error:
                consent = False
                if key is None:
                    return await self._see_of(error)
            await self.sleep(1.0)
        raise AssertionError("no end of attempts")

    async def start(self, client: TasksClient) -> TaskHandle | None:
        """A handle of the scenario's call; ``None`` if there is none to be had."""
        for _ in range(_ATTEMPTS):
            try:
                return await client.start_tool(TOOL, idempotency_key=KEY)
            except OutcomeUnknownError:
                self.scene.unknown.append(self)
                return None
            except _PASSING:
                await self.sleep(1.0)
        raise AssertionError("no end of attempts")

    async def see(self, handle: TaskHandle, *, in_a_block: bool = False) -> None:
        """Await a handle, as often as it takes; in a block that acknowledges the outcome, if told to."""
        for _ in range(_ATTEMPTS):
            try:
                if in_a_block:
                    async with handle.outcome() as result:
                        await self._told(result.content[0].text)  # type: ignore[union-attr]  # a text
                    return None
                result = await handle.result()
                return await self._told(result.content[0].text)  # type: ignore[union-attr]  # a text
            except OutcomeUnknownError:
                return self.scene.unknown.append(self)
            except TaskError as error:
                return await self._told(type(error).__name__)
            except _PASSING:
                await self.sleep(1.0)
        raise AssertionError("no end of attempts")

    async def _told(self, outcome: str) -> None:
        self.told = True
        await self.scene.told(outcome)

    async def _see_of(self, error: TasksClientError) -> None:
        if error.handle is not None and (
            error.handle.task_id is not None or isinstance(error, InputUnansweredError | JournalError)
        ):
            await self.see(error.handle)

    async def cancel(self, handle: TaskHandle) -> None:
        for _ in range(_ATTEMPTS):
            try:
                await handle.cancel()
            except JournalError:
                await self.sleep(1.0)
                continue
            except SessionError:
                pass  # it is journaled, and said again
            self.scene.wished = True
            return
        raise AssertionError("no end of attempts")

    async def abandon(self, client: Caller, after_s: float) -> None:
        """Make the scenario's call, and go away after some seconds."""
        async with anyio.create_task_group() as tasks:

            async def leave() -> None:
                await self.sleep(after_s)
                tasks.cancel_scope.cancel()

            tasks.start_soon(leave)
            await self.call(client)
            tasks.cancel_scope.cancel()

    async def abandon_natively(self, client: Caller, after_s: float) -> None:
        """The same by ``asyncio.Task.cancel()``, which knows no shield; by a scope on another event loop."""
        try:
            call = asyncio.get_running_loop().create_task(self.call(client))
        except RuntimeError:
            return await self.abandon(client, after_s)
        call.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # if this life is killed
        await self.sleep(after_s)
        call.cancel()
        await asyncio.wait([call])
        return None

    async def bring_home(self, client: TasksClient) -> None:
        """Resume what is pending until nothing is."""
        for _ in range(_ATTEMPTS):
            delivered = await self.scene.delivered()
            try:
                handles = await client.resume()
            except JournalError:
                handles = []
            async with anyio.create_task_group() as tasks:
                for handle in handles:
                    if handle.reference["record_id"] in delivered:
                        self.scene.breaks(f"life {self.pid}: resume() gave what was delivered before")
                    tasks.start_soon(self.see, handle)
            await self.sleep(5.0)
            if not any(record.pending for record in await client.records()):
                return
        raise AssertionError("no end of attempts")

    async def answer_all(self, client: TasksClient, over: anyio.Event) -> None:
        """Answer whatever any call asks, from outside, until something is over."""
        while not over.is_set():
            with suppress(JournalError):
                for question in await client.questions():
                    await self._answer(question)
            await self.sleep(0.7)

    async def _answer(self, question: Question) -> None:
        self.scene.answers += 1
        content = {"n": self.scene.answers}
        for _ in range(_ATTEMPTS):
            try:
                await question.accept(content)
            except JournalError:
                continue  # it may have been committed all the same
            except AlreadyAnsweredError as error:
                if not error.same:
                    return None
            except QuestionWithdrawnError:
                return None
            return self.scene.counts.append({"action": "accept", "content": content})
        raise AssertionError("no end of attempts")

    async def stand_still(self) -> None:
        """Be suspended, as a process may be, until somebody wakes it."""
        self.clock.suspend()
        await self.clock.awake.wait()

    async def sleep(self, seconds: float) -> None:
        await self.clock.wait(anyio.Event(), seconds)

    async def _ask(self, context: Any, params: Any) -> Any:
        key = context.key
        if key in self.scene.committed and not self.plan.failed_at(_ASKED):
            self.scene.breaks(f"life {self.pid} was asked {key} after its answer was committed")
        self.asked.append(key)
        if self.scene.scenario.answer_s:
            await self.sleep(self.scene.scenario.answer_s)
        self.scene.answers += 1  # so that each would be another one
        self.returned.append(key)
        return ElicitResult(action="accept", content={"n": self.scene.answers})

    # ── what it passes ────────────────────────────────────────────────────────────────────────

    async def before(self, point: Point, record: TaskRecord | None) -> None:
        if point not in POINTS:
            return  # nothing is committed or sent by that alone
        await self.clock.awake.wait()
        await self._pass(self.plan.before(point, record))

    async def after(self, point: Point, record: TaskRecord | None) -> None:
        if point not in POINTS:
            return
        await self.clock.awake.wait()
        answered = await self.scene.answered() if point in _ANSWERED else set()
        try:
            await self._pass(self.plan.after(point, record))
        except JournalError:  # as far as anybody here knows, it was not committed
            answered = set()
            raise
        finally:
            self.scene.committed |= answered

    async def _pass(self, passing: Awaitable[None]) -> None:
        """Once it is killed it begins nothing any more, as it might while it unwinds."""
        try:
            await passing
        except KilledError:
            self.clock.kill()
            raise


Program = Callable[[Life], Awaitable[None]]

Caller: TypeAlias = TasksClient | HostCaller
"""What has ``call_tool``."""


async def recover(life: Life) -> None:
    """What a host does when it starts again: bring everything home, run the same code again."""
    over = anyio.Event()
    async with (
        life.client() as client,
        life.caller(client) as caller,
        anyio.create_task_group() as others,
    ):
        if life.scene.scenario.later:
            others.start_soon(life.answer_all, client, over)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(life.bring_home, client)
            if life.scene.scenario.keyed:
                tasks.start_soon(life.call, caller)
            elif life.scene.scenario.task_exists and not life.scene.outcomes:
                # Once it was delivered, nothing is known of it here, and so not when it was polled last.
                tasks.start_soon(attached, life, client)
        over.set()


# ── the scene ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What the server does, and what the host does about it.

    Attributes:
        programs: What lives at the same time.
        mortal: Which of them is stopped.
        through: What makes the call: a client, or a host through a transport of ours.
        ends: What the host may be told; by default only what the server's tool returned.
        wish: Whether a committed wish to cancel has to end in a cancellation.
        later: Whether no client has a callback that answers.
        stands_still: At which point the first life does, and until when, in seconds of the scene.
        late: Whether it stands still for longer than its lease, and may poll once without it.
    """

    programs: tuple[Program, ...]
    steps: tuple[Step, ...]
    through: Literal["client"] | HostWay = "client"
    keyed: bool = True
    wait_for_slot_s: float = 0.0
    mortal: int = 0
    terms: Mapping[str, Any] = field(default_factory=dict)
    faults: Mapping[str, tuple[Fault | None, ...]] = field(default_factory=dict)
    notifies: Notifies | None = None
    delays: tuple[Point, ...] = ()
    stands_still: tuple[Point, float] | None = None
    on_abandon: Literal["detach", "cancel"] = "detach"
    answer_s: float = 0.0
    may_resend: bool = False
    task_exists: bool = False
    blind: bool = False
    late: bool = False
    ends: frozenset[str] | None = None
    wish: bool = False
    later: bool = False
    has_old_outcome: bool = False


class Scene:
    """A server, a file, and the lives that are led over it.

    Attributes:
        broken: What did not hold, in sentences.
        outcomes: What hosts were told.
        unknown: Lives that were told that the outcome is unknown.
        consents: How often a host allowed the tool to run once more.
        committed: Keys of questions whose answer was committed.
        counts: Answers that were given from outside, and were told to count.
        wished: Whether a wish to cancel was told to be committed.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = WorldClock()
        self.journal = MemoryJournal()
        self.theirs_before: list[TaskRecord] = []
        self.lives: list[Life] = []
        self.living: set[int] = set()
        self.broken: list[str] = []
        self.outcomes: list[str] = []
        self.unknown: list[Life] = []
        self.consents = 0
        self.committed: set[str] = set()
        self.counts: list[dict[str, Any]] = []
        self.wished = False
        self.answers = 0
        self.server = ScriptedServer(clock=self.clock, identify=lambda tool, _: tool)
        self.server.notifies = scenario.notifies
        self.server.tool(TOOL, scenario.steps, **scenario.terms)
        for method, faults in scenario.faults.items():
            self.server.misbehave(method, *faults)

    def breaks(self, what: str) -> None:
        self.broken.append(what)

    def sees(self, pid: int) -> bool | None:
        return None if self.scenario.blind else pid in self.living

    async def told(self, outcome: str) -> None:
        if not all(record.finished for record in await self.records()):
            self.breaks(f"a host was told {outcome} before it was journaled")
        self.outcomes.append(outcome)

    async def play(self, plan: Fate, *later: Fate) -> None:
        """Lead the scenario's lives, the mortal one by a plan, and then later ones that recover."""
        await self.journal.open()  # and never closed, since it is the disk's place here
        for record in _there_before(self.scenario):
            await self.journal.save(record)
        self.theirs_before = await self.theirs()
        if self.scenario.task_exists:
            await self.server.session().call(ToolCall(name=TOOL), anyio.lowlevel.checkpoint)
            self.clock.now += 2.0  # somebody else's reply, and its hint is over
        for point in self.scenario.delays:
            plan.at(point, "before", delay(self.clock, 1.0))
        async with anyio.create_task_group() as tasks:
            plans = [Fate() for _ in self.scenario.programs]
            plans[self.scenario.mortal] = plan
            lives = [(Life(self, own), run) for own, run in zip(plans, self.scenario.programs, strict=True)]
            if self.scenario.stands_still is not None:
                point, until = self.scenario.stands_still
                lives[0][0].plan.at(point, "before", lives[0][0].stand_still)
                tasks.start_soon(self._wake, lives[0][0], until)
            if not await self._led(tasks, lives):
                return
            for own in later:
                if not await self._led(tasks, [(Life(self, own), recover)]):
                    return

    async def _led(self, tasks: Any, lives: list[tuple[Life, Program]]) -> bool:
        for life, program in lives:
            tasks.start_soon(life.live, program)
        for life, _ in lives:
            await self.clock.pass_to(self.clock.now + LIMIT_S, life.ended)
            if not life.ended.is_set():
                self.breaks(f"life {life.pid} has no end")
                life.plan.killed = True
                life.clock.kill()
                tasks.cancel_scope.cancel()
                return False
        return True

    async def _wake(self, life: Life, at: float) -> None:
        await self.clock.wait(anyio.Event(), at)
        life.clock.go_on()

    # ── what the journal holds ────────────────────────────────────────────────────────────────

    async def records(self) -> list[TaskRecord]:
        """Ours."""
        return await self.journal.records(OURS)

    async def answered(self) -> set[str]:
        """Keys of our questions that the journal has an answer to: in a state, or as an instruction."""
        answered = set()
        for record in await self.records():
            left = {one.name for one in await self.journal.instructions(record.record_id)}
            for question in getattr(record.state, "questions", ()):
                if not question.unanswered or question_id(record.record_id, question) in left:
                    answered.add(question.key)
        return answered

    async def theirs(self) -> list[TaskRecord]:
        """What nobody here may touch."""
        return await self.journal.records(THEIRS)

    async def delivered(self) -> set[str]:
        """The IDs of our records whose outcome was delivered."""
        return {one.record_id for one in await self.records() if one.delivered_at is not None}


def _there_before(scenario: Scenario) -> list[TaskRecord]:
    """What the journal holds to begin with: another principal's task, and perhaps an old outcome."""
    now = WorldClock().time()
    stranger = TaskRecord(
        record_id="stranger",
        scope=THEIRS,
        tool=TOOL,
        idempotency_key=KEY,
        state=Observing(task=Task(task_id="task-of-theirs", status="working"), received_at=now, due_at=now),
        created_at=now,
        updated_at=now,
    )
    old = TaskRecord(
        record_id=OLD,
        scope=OURS,
        tool=OLD,
        idempotency_key=OLD,
        state=Finished(outcome=Completed(result=text_result(OLD))),
        created_at=now - 9 * 86_400,
        updated_at=now - 8 * 86_400,
        delivered_at=now - 8 * 86_400,
    )
    undelivered = replace(old, record_id="theirs", scope=THEIRS, delivered_at=None)
    return [stranger, undelivered, old] if scenario.has_old_outcome else [stranger]


def result_of(answers: Mapping[str, Any]) -> dict[str, Any]:
    """What the tool returns: it tells what it was answered."""
    return text_result(str({key: answer.get("content") for key, answer in sorted(answers.items())}))


def _refused(error: TaskError) -> bool:
    return getattr(error, "code", None) == -32602


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]


# ── programs ──────────────────────────────────────────────────────────────────────────────────


async def calls(life: Life) -> None:
    async with life.caller() as client:
        await life.call(client)


async def calls_a_little_later(life: Life) -> None:
    await life.sleep(0.6)
    await calls(life)


async def calls_and_leaves(life: Life) -> None:
    async with life.client() as client:
        await life.start(client)
        await life.sleep(1.3)


async def steps_in_for_a_while(life: Life) -> None:
    await life.sleep(32.0)  # until the lease of the other one has run out
    async with life.client() as client:
        await life.start(client)
        await life.sleep(9.0)


async def comes_back_after_the_lease(life: Life) -> None:
    await life.sleep(32.0)
    await recover(life)


async def cancels(life: Life) -> None:
    async with life.client() as client:
        handle = await life.start(client)
        if handle is not None:
            await life.sleep(1.5)
            await life.cancel(handle)
            await life.see(handle)


async def acknowledges(life: Life) -> None:
    async with life.client() as client:
        handle = await life.start(client)
        if handle is not None:
            await life.see(handle, in_a_block=True)


async def answers_from_outside(life: Life) -> None:
    async with life.client() as client:
        await life.answer_all(client, life.scene.lives[0].ended)


async def cancels_from_outside(life: Life) -> None:
    await life.sleep(1.5)
    async with life.client() as client:
        for record in await life.scene.records():
            reference = TaskReference(
                endpoint=record.scope.endpoint,
                principal=record.scope.principal,
                tool=record.tool,
                task_id=record.task_id,
                record_id=record.record_id,
            )
            handle = await client.attach(reference)
            await life.cancel(handle)


async def abandons(life: Life) -> None:
    async with life.caller() as client:
        await life.abandon(client, 1.5)


async def abandons_and_joins(life: Life) -> None:
    async with life.caller() as client:
        await life.abandon(client, 1.5)
        await life.sleep(0.5)
        await life.call(client)


async def abandons_before_it_is_sent(life: Life) -> None:
    async with life.caller() as client:
        await life.abandon(client, 0.5)
        await life.sleep(2.0)
        await life.call(client)


async def abandons_natively(life: Life) -> None:
    async with life.caller() as client:
        await life.abandon_natively(client, 0.5)
        await life.sleep(2.0)
        await life.call(client)


async def attaches(life: Life) -> None:
    async with life.client() as client:
        await attached(life, client)


async def attached(life: Life, client: TasksClient) -> None:
    for _ in range(_ATTEMPTS):
        try:
            handle = await client.attach("task-1")
        except _PASSING:
            await life.sleep(1.0)
        else:
            return await life.see(handle)
    raise AssertionError("no end of attempts")


async def closes_and_resumes(life: Life) -> None:
    async with life.client() as client:
        await life.start(client)
        await life.sleep(1.5)
    await life.sleep(0.7)
    async with life.client() as client:
        await life.bring_home(client)


async def closes_under_a_call(life: Life) -> None:
    """Closes its HTTP client or transport while it waits for the result, and lets a client bring it home."""

    async def call(host: Caller) -> None:
        with suppress(httpx.ReadError, ConnectionError):
            await life.call(host)

    async with anyio.create_task_group() as tasks, life.caller() as host:
        tasks.start_soon(call, host)
        await life.sleep(1.5)
    await life.sleep(0.7)
    async with life.client() as client:
        await life.bring_home(client)


async def calls_and_prunes(life: Life) -> None:
    async with life.client() as client:
        await life.call(client)
        for _ in range(_ATTEMPTS):
            try:
                await client.prune()
            except JournalError:
                continue
            return
        raise AssertionError("no end of attempts")


# ── scenarios ─────────────────────────────────────────────────────────────────────────────────


def _question(key: str) -> dict[str, Any]:
    return {key: form(f"{key}?", n="integer")}


_END: Final = complete(result_of)
_SHORT: Final = (work(2.2), _END)
_ASKS: Final = (work(0.5), ask(_question("q")), work(0.5), _END)
_URLS: Final = ErrorReply(-32042, "no", {"elicitations": [{"message": "a", "url": "https://a.test"}]})
_GONE: Final = frozenset({"TaskCancelledError"})
_STALL: Final = Scenario(
    programs=(calls, steps_in_for_a_while),
    steps=(work(1.5, "a"), work(31.5, "b"), ask(_question("q")), work(8.0), _END),
    terms={"settle_s": 5.0, "poll_interval_ms": 2000},
    stands_still=("commit: Observed", 36.5),
    blind=True,
    late=True,
)
_TOLD: Final = Scenario(  # before the first poll that its hint allows
    programs=(calls,),
    steps=(work(2.0), _END),
    terms={"poll_interval_ms": 5000},
    notifies=Notifies(),
)
_FOLLOW_TO_THE_END: Final = Scenario(programs=(calls, calls_a_little_later), steps=_ASKS, answer_s=1.0)
_TAKE_OVER: Final = replace(_STALL, programs=(calls, comes_back_after_the_lease))
_ANSWERED_OUTSIDE: Final = Scenario(  # by two at the same moments
    programs=(calls, answers_from_outside, answers_from_outside),
    steps=(ask_first(_question("r1")), *_ASKS),
    later=True,
)
_CANCELLED_OUTSIDE: Final = Scenario(
    programs=(calls, cancels_from_outside), steps=(work(40.0), _END), wish=True
)
_CANCELLED_ASKING: Final = replace(_CANCELLED_OUTSIDE, steps=(ask(_question("q")), _END), later=True)
_FOLLOW: Final = Scenario(
    programs=(calls_and_leaves, calls_a_little_later),
    steps=(work(0.5), ask(_question("q")), work(2.0), _END),
)

_BY_CLIENT: Final[Mapping[str, Scenario]] = {
    "answered at once": Scenario(programs=(calls,), steps=(reply(result_of),)),
    "error at once": Scenario(
        programs=(calls,),
        steps=(reply(result_of),),
        faults={"tools/call": (ErrorReply(-32000, "no", acted=True),)},
        ends=frozenset({"TaskFailedError"}),
    ),
    "refused with 429": Scenario(
        programs=(calls,),
        steps=(reply(result_of),),
        faults={"tools/call": (HttpError(429, retry_after_s=2.0),)},
    ),
    "refused with 429, and waiting for a slot": Scenario(
        programs=(calls,),
        steps=_SHORT,
        faults={"tools/call": (HttpError(429, retry_after_s=12.0), HttpError(429))},
        wait_for_slot_s=60.0,
    ),
    "a round refused with 429, and waiting for a slot": Scenario(
        programs=(calls,),
        steps=(ask_first(_question("r1")), reply(result_of)),
        faults={"tools/call": (None, HttpError(429, retry_after_s=2.0))},
        wait_for_slot_s=60.0,
    ),
    "URLs to visit before the task": Scenario(
        programs=(calls,), steps=_SHORT, faults={"tools/call": (_URLS,)}, answer_s=0.5
    ),
    "a round refused until URLs are visited": Scenario(
        programs=(calls,),
        steps=(ask_first(_question("r1")), reply(result_of)),
        faults={"tools/call": (None, _URLS)},
    ),
    "refused with -32602": Scenario(
        programs=(calls,), steps=_SHORT, faults={"tools/call": (ErrorReply(-32602, "not yet"),)}
    ),
    "task without a key": Scenario(programs=(calls,), steps=_SHORT, keyed=False),
    "task with a question, without a key": Scenario(programs=(calls,), steps=_ASKS, keyed=False),
    "changing status and hint": Scenario(
        programs=(calls,),
        steps=(work(0.5, "a"), work(0.8, "b"), hint(poll_interval_ms=3000), work(2.0, "c"), _END),
    ),
    "failed task": Scenario(
        programs=(calls,), steps=(work(1.2), fail(-32000, "no")), ends=frozenset({"TaskFailedError"})
    ),
    "one question": Scenario(programs=(calls,), steps=_ASKS, answer_s=1.5),
    "two questions in one snapshot": Scenario(
        programs=(calls,), steps=(ask(_question("q1") | _question("q2")), _END)
    ),
    "rounds before the task": Scenario(
        programs=(calls,),
        steps=(ask_first(_question("r1")), ask_first({}), ask_first(_question("r2")), *_SHORT),
    ),
    "rounds before a result": Scenario(
        programs=(calls,), steps=(ask_first(_question("r1")), reply(result_of)), answer_s=0.5
    ),
    "a round refused with 429": Scenario(
        programs=(calls,),
        steps=(ask_first(_question("r1")), reply(result_of)),
        faults={"tools/call": (None, HttpError(429, retry_after_s=2.0))},
    ),
    "questions before the task and in it": Scenario(
        programs=(calls,), steps=(ask_first(_question("r1")), work(0.5), ask(_question("q")), _END)
    ),
    "answer rejected, then accepted": Scenario(
        programs=(calls,), steps=_ASKS, faults={"tasks/update": (ErrorReply(-32602, "no good"),)}
    ),
    "answer rejected, the task moved on": Scenario(
        programs=(calls,), steps=_ASKS, faults={"tasks/update": (LostReply(),)}, terms={"settle_s": 2.0}
    ),
    # Silences so long that the lease is renewed in them, or there would be no point to stop at.
    "update refused with 503": Scenario(
        programs=(calls,), steps=_ASKS, faults={"tasks/update": (HttpError(503, retry_after_s=12.0),)}
    ),
    "poll refused with 429": Scenario(
        programs=(calls,), steps=_ASKS, faults={"tasks/get": (None, HttpError(429, retry_after_s=12.0))}
    ),
    "cancelled": Scenario(programs=(cancels,), steps=(work(40.0), _END), wish=True),
    "cancelled, at first refused with 503": Scenario(
        programs=(cancels,),
        steps=(work(40.0), _END),
        faults={"tasks/cancel": (HttpError(503, retry_after_s=12.0),)},
        wish=True,
    ),
    "cancelled, at first refused with -32602": Scenario(
        programs=(cancels,),
        steps=(work(40.0), _END),
        faults={"tasks/cancel": (ErrorReply(-32602, "not yet"),)},
        wish=True,
    ),
    "cancelled with a question open": Scenario(
        programs=(cancels,), steps=(ask(_question("q")), _END), answer_s=30.0, wish=True
    ),
    "read in a block": Scenario(programs=(acknowledges,), steps=_ASKS),
    "reply lost, then resent": Scenario(
        programs=(calls,), steps=_SHORT, faults={"tools/call": (LostReply(),)}, may_resend=True
    ),
    "abandoned and cancelled": Scenario(
        programs=(abandons,), steps=(work(40.0), _END), on_abandon="cancel", wish=True
    ),
    "abandoned and cancelled, at first refused with 503": Scenario(
        programs=(abandons,),
        steps=(work(40.0), _END),
        faults={"tasks/cancel": (HttpError(503, retry_after_s=12.0),)},
        on_abandon="cancel",
        wish=True,
    ),
    "abandoned and joined again": Scenario(programs=(abandons_and_joins,), steps=_ASKS),
    "abandoned before it was sent": Scenario(
        programs=(abandons_before_it_is_sent,), steps=_SHORT, delays=("commit: claim",)
    ),
    "abandoned by a native cancellation before it was sent": Scenario(
        programs=(abandons_natively,), steps=_SHORT, delays=("commit: claim",)
    ),
    "attached by its ID": Scenario(programs=(attaches,), steps=_ASKS, keyed=False, task_exists=True),
    "missing task": Scenario(
        programs=(calls,), steps=(work(1.5), vanish()), ends=frozenset({"TaskNotFoundError"})
    ),
    "expired task": Scenario(
        programs=(calls,),
        steps=(work(60.0), _END),
        terms={"ttl_ms": 8000, "poll_interval_ms": 4000},
        ends=frozenset({"TaskExpiredError"}),
    ),
    "closed and resumed": Scenario(programs=(closes_and_resumes,), steps=(work(3.0), _END)),
    "finished, closed, and resumed": Scenario(programs=(closes_and_resumes,), steps=(work(0.5), _END)),
    "left to one that follows": _FOLLOW,
    "following one that leaves": replace(_FOLLOW, mortal=1),
    "followed to the end": _FOLLOW_TO_THE_END,
    "following to the end": replace(_FOLLOW_TO_THE_END, mortal=1),
    "stands still and is taken over": _TAKE_OVER,
    "takes over from one that stands still": replace(_TAKE_OVER, mortal=1),
    "stands still for longer than its lease": _STALL,
    "steps in for one that stands still": replace(_STALL, mortal=1),
    "nobody sees that it has ended": Scenario(programs=(calls,), steps=_ASKS, blind=True),
    "slow replies": Scenario(
        programs=(calls,),
        steps=_ASKS,
        faults={"tools/call": (Delayed(1.0),), "tasks/get": (Delayed(0.5),), "tasks/update": (Delayed(1.5),)},
        answer_s=0.2,
    ),
    "an old outcome is forgotten": Scenario(
        programs=(calls_and_prunes,), steps=(reply(result_of),), has_old_outcome=True
    ),
    "its end is told": _TOLD,
    "its end is told, without a key": replace(_TOLD, keyed=False),
    "its end is told last of all": replace(_TOLD, notifies=Notifies(ends_after=1)),
    "its question is told": replace(_TOLD, steps=(work(2.0), *_ASKS), answer_s=0.5),
    "everything is told twice": replace(
        _TOLD,
        steps=(work(2.0, "a"), work(1.0, "b"), ask(_question("q1")), work(0.5), ask(_question("q2")), _END),
        notifies=Notifies(distort=lambda params: (params, params)),
    ),
    "its question is told, and then nothing": replace(
        _TOLD, steps=(work(2.0), *_ASKS), notifies=Notifies(breaks_after=1)
    ),
    "answered from outside": _ANSWERED_OUTSIDE,
    "answers from outside": replace(_ANSWERED_OUTSIDE, mortal=1),
    "answered from outside, without a key": replace(_ANSWERED_OUTSIDE, steps=_ASKS, keyed=False),
    "answered from outside while it asks": replace(_ANSWERED_OUTSIDE, later=False, answer_s=2.0),
    "answers from outside while it asks": replace(_ANSWERED_OUTSIDE, later=False, answer_s=2.0, mortal=1),
    "answered from outside as it answers": replace(_ANSWERED_OUTSIDE, later=False, answer_s=0.2),
    "cancelled from outside": _CANCELLED_OUTSIDE,
    "cancels from outside": replace(_CANCELLED_OUTSIDE, mortal=1),
    "cancelled from outside with a question open": _CANCELLED_ASKING,
    "cancelled from outside before the task": replace(
        _CANCELLED_ASKING, steps=(ask_first(_question("r1")), _END)
    ),
    "its cancellation is told": replace(_TOLD, programs=(cancels,), steps=(work(40.0), _END), wish=True),
}

_BOTH: Final = (
    "answered at once",
    "error at once",
    "refused with -32602",
    "task without a key",
    "task with a question, without a key",
    "failed task",
    "one question",
    "questions before the task and in it",
    "answer rejected, then accepted",
    "abandoned and cancelled",
    "abandoned and joined again",
    "abandoned before it was sent",
    "abandoned by a native cancellation before it was sent",
    "expired task",
    "followed to the end",
    "nobody sees that it has ended",
)

_HOST_WAYS: Final[Mapping[HostWay, tuple[str, ...]]] = {
    "http": (
        *_BOTH,
        "refused with 429",
        "refused with 429, and waiting for a slot",
        "URLs to visit before the task",
        "update refused with 503",
        "poll refused with 429",
        "reply lost, then resent",
        "abandoned and cancelled, at first refused with 503",
    ),
    "http, streamed": (
        "URLs to visit before the task",
        "task without a key",
        "one question",
        "abandoned and joined again",
    ),
    "http, asked itself": ("rounds before the task", "URLs to visit before the task", "one question"),
    "transport": (*_BOTH, "URLs to visit before the task", "missing task"),
    "transport, asked itself": ("rounds before the task", "URLs to visit before the task", "one question"),
}

_CLOSED: Final = Scenario(programs=(closes_under_a_call,), steps=(work(3.0), _END), through="http")

AS_HOST: Final[Mapping[str, Scenario]] = {
    "closed under a call, through http": _CLOSED,
    "closed under a call without a key, through http, streamed": replace(
        _CLOSED, keyed=False, through="http, streamed"
    ),
    "closed under a call, through transport": replace(_CLOSED, through="transport"),
    "closed under a call without a key, through transport": replace(
        _CLOSED, keyed=False, through="transport"
    ),
    **{
        f"{name}, through {way}": replace(_BY_CLIENT[name], through=way)
        for way, names in _HOST_WAYS.items()
        for name in names
    },
}
"""Those that a host can play whose calls pass through a transport of ours."""

SCENARIOS: Final[Mapping[str, Scenario]] = {**_BY_CLIENT, **AS_HOST}
