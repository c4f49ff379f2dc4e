"""One history: processes that come and go over one journal, a server, and what must hold."""

from __future__ import annotations

import gc
import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

import anyio

from mcp_tasks_client import (
    Environment,
    Instruction,
    Lease,
    Scope,
    Taken,
    Task,
    TaskHandle,
    TaskRecord,
)
from mcp_tasks_client.machine.states import Calling, Gathering, Observing
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.questions.question import CANCEL, question_id
from mcp_tasks_client.testing import (
    Arrival,
    Delayed,
    EarlyPoll,
    ErrorReply,
    Fault,
    HttpError,
    Notifies,
    ScriptedServer,
    Stale,
    Unreachable,
)
from mcp_tasks_client.testing.samples import with_key
from mcp_tasks_client.testing.steps import Abort, Complete, Fail

from ..shared_journal import LOOK_S
from ..virtual_time import WorldClock
from .over_http import Gateway
from .parts import WHOLE, Parts
from .plans import CHAOS_S, Answering, Intent, Moment, Plan, fault, plan, refusal
from .process import Process
from .telling import Grapevine

__all__ = ["History", "play"]

CALM_S: Final = 1_500.0
"""Seconds at the end in which nothing goes wrong, and by which all must be over."""

REFUSING_S: Final = 300.0
"""Seconds of it in which answers are still refused for what they are."""

_LOOK_S: Final = 20.0
"""Seconds within which whoever adopts has looked for what is free."""

SPARED_S: Final = 60.0
"""Seconds after its delivery for which an outcome is kept in any case."""

LEASE_S: Final = Environment().lease_s
"""Seconds for which the lease of each process lasts."""

Happening = tuple[float, str]

_SCOPE: Final = Scope("scripted")


class History:
    """A history as it happens.

    Attributes:
        broken: What did not hold, in sentences.
        log: What happened, when.
    """

    def __init__(self, seed: int, journal: Any = None, parts: Parts = WHOLE) -> None:
        self.seed = seed
        self.parts = parts
        self.random = Random(seed)
        tells = Random(f"what is told in {seed}")
        self.plan: Plan = plan(
            self.random,
            tells,
            Random(f"what is dropped in in {seed}"),
            Random(f"what comes from outside in {seed}"),
            Random(f"what is taken up in {seed}"),
            Random(f"who is parted from the journal in {seed}"),
            Random(f"what is refused in {seed}"),
        )
        self.clock = WorldClock()
        self.journal = journal or parts.disk()
        self.fences: dict[str, int] = {}
        self.log: list[Happening] = []
        self.broken: list[str] = []
        self.processes: list[Process] = []
        self.living: set[int] = set()
        self.prompts: dict[str, Process] = {}
        self.given: set[str] = set()
        """The questions that a callback has answered, or somebody outside."""

        self.counts: list[tuple[str, JSONObject]] = []
        """Answers from outside that were told to count, and to which questions."""

        self.first: defaultdict[str, list[JSONObject]] = defaultdict(list)
        """The answers of which the journal had none before, by the server's key."""

        self.left: dict[str, float] = {}
        """Since when the journal has an answer to a question, for whoever drives its call."""

        self.asked_at_once: set[str] = set()
        """What was asked, answered and asked anew in one moment, as it only can be in virtual time: the two
        are told apart by when they were asked."""

        self.askings: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        """Under which names a question of a record was put to a callback."""

        self.refused: dict[tuple[str, str], list[JSONObject]] = {}
        """By record and key: the answers that were refused for good. The question opened again after each."""

        self.committed: dict[str, float] = {}
        """Since when an answer to a question is part of the state in the journal."""

        self.told_to_cancel: dict[str, float] = {}
        """Since when the journal has it that a record's driver is to cancel it."""

        self.journaled: set[str] = set()
        """The task IDs that the journal has, or had."""

        self.answers = 0
        self.disk_failed = False
        self.calm = False
        self.lost_replies: set[str] = set()
        self.wished: dict[str, float] = {}
        """Since when the journal has it that a task is to be cancelled."""

        self.calm_at = math.inf
        self.forgotten_tools: set[str] = set()
        self._wished_calls: set[str] = set()
        self._leases: dict[str, Process] = {}
        self._owners: dict[str, str | None] = {}
        self._task_ids: dict[str, str] = {}
        self._questions: dict[str, str] = {}
        self._after_cancel: set[str] = set()
        """The questions with an answer that was left after the wish to cancel their call."""

        self._to_be_heeded: set[tuple[str, str | None]] = set()
        """Record and name of each answer that the journal has, and that is not part of the state yet."""

        self._free: dict[str, tuple[TaskRecord, float]] = {}
        """Tasks that wait for nobody's answer, as the journal has them, and since when."""

        self._observed: set[str] = set()
        """The IDs of the tasks that have not ended, by the journal."""

        self._alive: defaultdict[str, list[float]] = defaultdict(list)
        """When a poll of a task was answered, and it had not ended."""

        self._faults = Random(seed + 1)
        self._refusals = Random(f"which updates are refused in {seed}")
        self._outrunning = Random(f"who is faster in {seed}")
        self._tokens = Random(f"when a credential expires in {seed}")
        self._expiry_rate = 0.03 if self._tokens.random() < 0.3 else 0.0
        cut_off = Random(f"how answers are cut off in {seed}").random() < 0.05
        self.cut_off_s = 3.0 if cut_off else 0.0
        """Seconds for which who answers is cut off from the journal: right before the commit, or after."""

        self.grapevine = Grapevine(tells, self.plan.telling, self.tell)
        sloppy = Random(f"how replies look in {seed}").random() < 0.3
        self.server = ScriptedServer(clock=self.clock, identify=lambda tool, _: tool, sloppy=sloppy)
        travels = Random(f"how requests travel in {seed}")
        self.gateway = Gateway(self.server, travels, parts) if travels.random() < 0.2 else None
        """What requests pass on their way over HTTP; ``None`` where the server is in memory."""

        self.server.on_request = self._on_request
        for intent in self.plan.intents:
            self.server.tool(intent.tool, intent.steps, **intent.terms)

    @property
    def expires(self) -> bool:
        """Whether credentials expire."""
        return self._expiry_rate > 0

    # ── telling ───────────────────────────────────────────────────────────────────────────────

    def tell(self, what: str) -> None:
        self.log.append((self.clock.now, what))

    def break_(self, law: str, how: str, error: BaseException | None = None) -> None:
        self.tell(f"BROKEN, {law}: {how}")
        self.broken.append(f"{law}: {how}")

    def sees(self, pid: int) -> bool | None:
        """Whether a process lives, as far as others can see."""
        return None if self.plan.blind else pid in self.living

    async def record_of(self, tool: str) -> TaskRecord | None:
        """The newest record of a tool, as the journal has it."""
        found = [one for one in await self.journal.records(_SCOPE) if one.tool == tool]
        return found[-1] if found else None

    def process_of(self, owner: str | None) -> Process | None:
        """The process of an owner."""
        return None if owner is None else self._leases.get(owner.rpartition("/")[0])

    def owner_of(self, task_id: str) -> Process | None:
        """Who drives a task, by the journal."""
        return self.process_of(self._owners.get(task_id))

    # ── what is watched ───────────────────────────────────────────────────────────────────────

    def enrolled(self, lease: Lease) -> None:
        """A process stored its lease."""
        self._leases[lease.lease_id] = next(one for one in self.processes if one.pid == lease.pid)

    def saved(self, record: TaskRecord, fence: int | None, heeded: Instruction | None = None) -> None:
        """A record was stored, over one with that fence."""
        self._to_be_heeded.discard((record.record_id, heeded.name if heeded is not None else None))
        if fence not in (None, record.fence):
            self.break_("a late owner writes", f"{record!r} over fence {fence}")
        self.note_questions(record)
        self._note_refusals(record)
        for question in getattr(record.state, "questions", ()):
            if not question.unanswered:
                self.committed.setdefault(question.key, self.clock.now)
        asks = any(question.unanswered for question in getattr(record.state, "questions", ()))
        if isinstance(record.state, Observing) and not asks:
            self._free[record.record_id] = record, self.clock.now
        else:
            self._free.pop(record.record_id, None)
        if record.task_id is not None:
            self._task_ids[record.record_id] = record.task_id
            self.journaled.add(record.task_id)
            self._owners[record.task_id] = record.owner
            self._observed.discard(record.task_id)
        for question in getattr(record.state, "questions", ()):
            name = question_id(record.record_id, question)
            if (record.record_id, name) in self._to_be_heeded and not question.unanswered:
                self.break_("an answer stays in the journal", question.key)
        match record.state:
            case Observing(task=task, cancel=cancel):
                self._observed.add(task.task_id)
                if cancel != "no":
                    self.wished.setdefault(task.task_id, self.clock.now)
                elif task.task_id in self.wished or record.record_id in self._wished_calls:
                    self.break_("the wish to cancel is forgotten", task.task_id)
            case Calling(cancel_wanted=True):
                self._wished_calls.add(record.record_id)
            case Calling(again=True, gathered=None):
                # It is a new call, and may ask what the lost one had asked before it had a task.
                self._may_ask_anew(record)
                self._wished_calls.discard(record.record_id)
                self.told_to_cancel.pop(record.record_id, None)

    def _note_refusals(self, record: TaskRecord) -> None:
        """Only what the server has refused twice, and cannot have taken, opens its question again."""
        for question in getattr(record.state, "questions", ()):
            before = self.refused.setdefault((record.record_id, question.key), [])
            if question.refusals <= len(before):
                continue
            sends = [
                one
                for one in self.server.witness.log("tasks/update", record.task_id)
                if one.params["inputResponses"].get(question.key, before) not in [before, *before]
            ]
            said = [one.answered_at for one in sends if one.refused and one.answered_at is not None]
            if any(not (one.refused or isinstance(one.fault, Unreachable)) for one in sends):
                self.break_("opened though it may have been taken", question.key)
            polls = self.server.witness.log("tasks/get", record.task_id)
            if len(said) < 2 or sum(one.at >= said[0] and one.answered_at is not None for one in polls) < 2:
                self.break_("opened too soon", question.key)
            if not sends:
                self.break_("opened without a refusal", question.key)
                continue
            self.tell(f"{question.key} is open again")
            before.append(sends[-1].params["inputResponses"][question.key])
            self._forget_answers({question.key})

    def removed(self, record: TaskRecord) -> None:
        """A call was refused, not run. It may be made again, from its first question on."""
        self._may_ask_anew(record)

    def _may_ask_anew(self, record: TaskRecord) -> None:
        for intent in self.plan.intents:
            if intent.keyed and intent.key == record.idempotency_key:
                self._forget_answers(intent.first_keys)

    def _forget_answers(self, keys: set[str]) -> None:
        """They are asked anew, as if they had not been asked before."""
        for key in keys:
            self.committed.pop(key, None)
            if self.left.pop(key, None) == self.clock.now:
                self.asked_at_once.add(key)
            self.counts = [(asked, answer) for asked, answer in self.counts if asked != key]

    def instructed(self, record_id: str, instruction: Instruction) -> None:
        """Something was left for whoever drives a call."""
        if instruction.name == CANCEL:
            self.told_to_cancel[record_id] = self.clock.now
        else:
            key = self._questions[instruction.name]
            self.first[key].append(json.loads(instruction.body))
            self.left[key] = self.clock.now
            if record_id in self.told_to_cancel or self.task_of(record_id) in self.wished:
                self._after_cancel.add(key)
            self._to_be_heeded.add((record_id, instruction.name))

    def answered(self, tool: str | None) -> None:
        """Somebody answers. While that one is cut off, a call that is to be cancelled at all is cancelled."""
        if tool is None or self.calm or not self.cut_off_s:
            return
        intent = self._intent_of(tool)
        there = [process for process in self.processes if process.may_act]
        if intent.cancel is not None and not intent.cancelling and there:
            intent.cancelling = True
            there[intent.cancel.process % len(there)].changes_its_mind(intent, self.cut_off_s / 2)

    def told_to_count(self, key: str, answer: JSONObject) -> None:
        """Somebody was told that an answer counts: perhaps late, and the server has refused it meanwhile."""
        if not any(answer in refused for (_, asked), refused in self.refused.items() if asked == key):
            self.counts.append((key, answer))
        if key in self._after_cancel and answer in self.first[key]:
            self.break_("told to count after a cancel", f"{answer} to {key}")

    def told_to_be_late(self, key: str, answer: JSONObject, same: bool) -> None:
        """Somebody was told that there is an answer already, and whether it is the same."""
        if (
            key not in self.asked_at_once
            and len(self.first[key]) == 1
            and same != (answer in self.first[key])
        ):
            self.break_("told whose answer it is not", f"{answer} to {key}, which has {self.first[key]}")

    def note_questions(self, record: TaskRecord) -> None:
        """Remember what the server calls the questions of a call."""
        for question in getattr(record.state, "questions", ()):
            self._questions[question_id(record.record_id, question)] = question.key

    def task_of(self, record_id: str) -> str | None:
        """The ID of a record's task, by the journal."""
        return self._task_ids.get(record_id)

    def key_of(self, question_id: str) -> str | None:
        """The server's key of a question; ``None`` if no journal has had it."""
        return self._questions.get(question_id)

    def taken(self, taken: Taken, *, pending: bool) -> None:
        """A record changed its owner."""
        self._free.pop(taken.record.record_id, None)
        now = self.process_of(taken.record.owner)
        had = self.process_of(taken.before)
        if taken.record.task_id is not None:
            self._owners[taken.record.task_id] = taken.record.owner
        if pending and now is not None and taken.record.application not in (None, now.application):
            self.break_("taken from another application", f"{taken.record!r} by process {now.pid}")
        there = had is not None and had is not now and had.pid in self.living and not had.late
        if there and taken.before is not None and not taken.before.endswith("/left"):
            assert had is not None
            assert now is not None
            self.break_("taken from one who is there", f"from {had.pid} by {now.pid}")

    def forgotten(self, record: TaskRecord) -> None:
        """A record was pruned."""
        assert record.tool is not None
        intent, now = self._intent_of(record.tool), self.clock.time()
        self.tell(f"{intent.tool} is forgotten")
        self._observed.discard(record.task_id or "")
        self._free.pop(record.record_id, None)
        self.forgotten_tools.add(intent.tool)
        if record.delivered_at is None and record.expires_at is not None:
            # Its task has been gone for long. What is asked and called under its key is new.
            intent.forgotten = True
            intent.begun += 1
            self._forget_answers(intent.keys)
            if now - record.expires_at < SPARED_S and not self.plan.clocks_jump:
                self.break_("forgotten before it had expired", f"{intent.tool} {record.task_id}")
        elif isinstance(record.state, Gathering) and not record.state.questions:
            pass  # it waited for a slot, and nobody went on with it
        elif record.delivered_at is None or not intent.received:
            self.break_("forgotten before anybody had it", f"{intent.tool} {record.task_id}")
        elif now - record.delivered_at < SPARED_S and not self.plan.clocks_jump:
            self.break_("forgotten while others look for it", f"{intent.tool} {record.task_id}")

    def polled(self, task: Task) -> None:
        """A poll was answered."""
        if not task.terminal:
            self._alive[task.task_id].append(self.clock.now)
        self.grapevine.note_reply(task.model_dump(mode="json", by_alias=True, exclude_unset=True))

    def hears_of(self, task_id: str) -> bool:
        """Whether the wish to cancel it is journaled, or has come to the server."""
        cancels = self.server.witness.log("tasks/cancel", task_id)
        left = any(self._task_ids.get(record_id) == task_id for record_id in self.told_to_cancel)
        return left or task_id in self.wished or any(one.fault is None or one.fault.acted for one in cancels)

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

    def outrun(self, asking: Process) -> None:
        """A callback is about to answer. Somebody at another process may be faster."""
        others = [one for one in self.processes if one.may_act and one is not asking]
        if others and self._outrunning.random() < self.plan.outrun:
            after_s = self.plan.answer_s * self._outrunning.random()
            other = self._outrunning.choice(others)
            other.answer(Answering(self.clock.now, other.number, after_s, share=1.0))

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

    async def told(self, intent: Intent, outcome: str) -> None:
        """A host was told what became of an intent."""
        self.tell(f"{intent.tool} is told {outcome}")
        if intent.key is not None and intent.tool not in self.forgotten_tools:
            record = await with_key(self.journal, _SCOPE, intent.key)
            if record is None or not record.finished:
                self.break_("told before it was journaled", f"{intent.tool}: {record!r}")
        if outcome[0].isdigit() and not self._was_said(intent, outcome):
            self.break_("another result", f"{intent.tool}: {outcome}")
        if intent.outcomes and intent.outcomes[0] != outcome and not intent.forgotten:
            self.break_("two outcomes", f"{intent.tool}: {intent.outcomes[0]}, then {outcome}")
        intent.outcomes.append(outcome)

    def _was_said(self, intent: Intent, text: str) -> bool:
        """Whether the server has said just that."""
        if intent.plain:
            return text.startswith(f"{intent.number}: ")
        tasks = [task_id for task_id, tool in self.server.witness.created.items() if tool == intent.tool]
        said = [result for task_id in tasks for result in self.grapevine.results(task_id)]
        return any(result["content"][0]["text"] == text for result in said)

    def received(self, tool: str | None) -> None:
        """Some caller has its outcome."""
        if tool is not None:
            self._intent_of(tool).received = True

    async def delivered(self, handle: TaskHandle, outcome: str) -> None:
        """A host was told what became of a handle."""
        self.received(handle.tool)
        tool = self.server.witness.created.get(handle.task_id or "")
        intent = next((intent for intent in self.plan.intents if intent.tool == tool), None)
        if intent is not None and (not intent.keyed or intent.begun == 1):
            await self.told(intent, outcome)

    def may_be_unknown(self, intent: Intent) -> bool:
        calls = [a for a in self.server.witness.log("tools/call") if a.tool == intent.tool]
        lost = any(not isinstance(arrival.fault, Delayed | None) for arrival in calls)
        unclear = any(process.killed or process.late for process in self.processes)
        return lost or unclear or self.disk_failed or bool(self.plan.suspensions)

    # ── what happens ──────────────────────────────────────────────────────────────────────────

    def _on_request(self, arrival: Arrival) -> Fault | None:
        what = arrival.task_id or arrival.tool
        found: Fault | None = None
        rate = self.plan.fault_rate * (2 if arrival.method in ("tools/call", "tasks/cancel") else 1)
        if not self.calm and self._faults.random() < rate:
            found = fault(self._faults, arrival.method)
        if found is None and not self.calm and self._tokens.random() < self._expiry_rate:
            found = HttpError(401)  # a host then renews it, and goes on with the call
        if found is None and not self.calm and arrival.method == "tasks/update":
            found = refusal(self._refusals) if self._refusals.random() < self.plan.refusal_rate else None
        if self._wants_quiet(arrival):
            found = HttpError(503, retry_after_s=40.0)
        if self.plan.telling.is_down(self.clock.now):
            found = Unreachable()
        self.tell(f"{arrival.method} {what}" + (f": {found}" if found else ""))
        if arrival.method == "tools/call":
            self.moment("called", arrival.tool)
        elif getattr(found, "retry_after_s", None) is not None:
            self.moment("quiet", self._tool_of(arrival.task_id))
        return found

    async def run(self) -> None:
        await self.journal.open()  # and never closed, since it is the disk's place here
        async with anyio.create_task_group() as tasks:
            for at, happen in self._happenings(tasks):
                await self.clock.pass_to(at, anyio.Event())
                self._check_drivers()
                self._check_adopted()
                happen()
            await self.clock.pass_to(CHAOS_S, anyio.Event())
            self._check_drivers()
            self._check_adopted()
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
            await self.clock.pass_to(self.clock.now + REFUSING_S, last.ended)
            self.plan.gives_in = True
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
            process.suspended_at, process.wakes_at = self.clock.now, self.clock.now + seconds
            process.clock.suspend()

        def kill(process: Process) -> None:
            process.kill()
            tasks.start_soon(partial(self._again, process))

        def jump(seconds: float) -> None:
            self.tell(f"the wall clock jumps by {seconds} s")
            self.clock.offset += seconds
            for process in self.processes:
                process.late |= plan.blind  # its lease may seem to have run out

        def offer(notifies: Notifies | None) -> None:
            self.tell(f"the server begins, and offers {notifies}")
            self.server.notifies = notifies and replace(notifies, distort=self.grapevine.distort)
            for process in self.processes:
                process.line.cut()

        happenings += [(at, partial(offer, notifies)) for at, notifies in plan.telling.offers]
        for number, at in enumerate(plan.lives):
            happenings.append((at, partial(start, number)))
        for at, number in plan.kills:
            happenings.append((at, partial(each, number, kill)))
        for at, until, number in plan.suspensions:
            happenings.append((at, partial(each, number, partial(suspend, seconds=until - at))))
            happenings.append((until, partial(each, number, lambda process: process.clock.go_on())))
        for one in plan.answers:
            happenings.append((one.at, partial(each, one.process, partial(Process.answer, one=one))))
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

    async def check(self) -> None:
        witness = self.server.witness
        excused = {str(poll) for poll in witness.early_polls if self._may_be_early(poll)}
        for broken in witness.broken():
            if broken not in excused:
                self.break_("the witness", broken)
        for key in {key for _, key in witness.answers} - self.given:
            self.break_("answered by nobody", key)
        for intent in self.plan.intents:
            ran = witness.calls[intent.tool]
            if ran > max(1, intent.begun):
                self.break_("ran twice", f"{intent.tool} ran {ran} times, with leave for {intent.begun}")
            if intent.keyed and not (intent.outcomes or intent.received or intent.unknown):
                self.break_("no outcome", f"{intent.tool}")
            self._check_outcomes(intent)
        self._check_answers()
        for cancelled, since in self.wished.items():
            self._check_cancel(cancelled, since)
        for record_id, since in self.told_to_cancel.items():
            if record_id in self._task_ids:
                self._check_cancel(self._task_ids[record_id], since)
        for record in await self.journal.records(_SCOPE):
            if record.pending:
                self.break_("left over", f"{record!r}, owned by {record.owner}")
        failed_last = max((until for _, until, _ in self.plan.disk), default=0.0)
        for process in self.processes:
            # What could not be committed is committed when the client closes.
            if not (process.killed_early or process.late or failed_last > self.calm_at):
                for task_id in process.tasks - self.journaled:
                    self.break_("a task ID is lost", f"{task_id} by process {process.pid}")

    def _check_drivers(self) -> None:
        """Whoever owns a task and does not drive it keeps it from all others. Now everything waits."""
        for process in self.processes:
            if not self.disk_failed and process.suspended_at is None:
                owned = {task_id for task_id in self._observed if self.owner_of(task_id) is process}
                for task_id in owned - process.driven if process.may_act else ():
                    self.break_("owned and not driven", f"{task_id} by process {process.pid}")

    def _check_adopted(self) -> None:
        """What comes free is taken up by whoever adopts, and has room, within two lease times."""
        for record, since in () if self.disk_failed or self.plan.clocks_jump else self._free.values():
            owner = self.process_of(record.owner)
            if owner is not None:
                since = max(since, owner.killed_at)
            limit_s = _LOOK_S if record.owner is None or not self.plan.blind else 2 * LEASE_S
            for process in self.processes:
                may_take = record.application in (None, process.application) and process.has_room
                if may_take and max(since, process.adopts_since) + limit_s < self.clock.now:
                    self.break_(
                        "not adopted", f"{record!r}, free since {since:.3f}, by process {process.pid}"
                    )

    def _check_outcomes(self, intent: Intent) -> None:
        """What was told is how a task of that intent can have ended at the server."""
        witness = self.server.witness
        gone = {"TaskNotFoundError", "TaskExpiredError"}
        tasks = [task_id for task_id, tool in witness.created.items() if tool == intent.tool]
        ends: set[str] = {"result"} if intent.plain else set()
        if tasks:
            match intent.steps[-1]:
                case Complete():
                    ends.add("result")
                case Fail():
                    ends.add("TaskFailedError")
                case Abort():
                    ends.add("TaskCancelledError")
                case _:
                    ends |= gone
            if intent.terms["ttl_ms"] is not None:
                ends |= gone
        for task_id in tasks:
            if any(one.fault is None or one.fault.acted for one in witness.log("tasks/cancel", task_id)):
                ends.add("TaskCancelledError")
            if any(isinstance(poll.fault, Stale) for poll in witness.log("tasks/get", task_id)):
                ends.add("violated")  # as an end looks in the reply to a creation
        calls = [arrival for arrival in witness.log("tools/call") if arrival.tool == intent.tool]
        waited = any(isinstance(one.fault, HttpError) and one.fault.status == 429 for one in calls)
        waited |= self.gateway is not None  # for the list of tools
        if (intent.first_keys or waited) and (intent.cancelling or self.plan.on_abandon == "cancel"):
            ends.add("TaskCancelledError")  # before there was a task
        ends |= {"TaskFailedError" for arrival in calls if isinstance(arrival.fault, ErrorReply)}
        for outcome in intent.outcomes:
            if ("result" if outcome[0].isdigit() else outcome) not in ends:
                self.break_("another end", f"{intent.tool} is told {outcome}, and it was {sorted(ends)}")

    def _check_answers(self) -> None:
        """The server gets the first answer that anybody has left, and who was told so has given that one."""
        sent: defaultdict[str, list[JSONObject]] = defaultdict(list)
        for (_, key), answers in self.server.witness.answers.items():
            sent[key] += answers
        for key, answers in sent.items():
            first = [] if key in self.asked_at_once else self.first[key]
            if first and any(answer not in first for answer in answers):
                self.break_("not the first answer", f"{key} is {first}, and {answers} is sent")
        taken: defaultdict[str, list[JSONObject]] = defaultdict(list)
        for update in self.server.witness.log("tasks/update"):
            if not (update.refused or isinstance(update.fault, Unreachable)):
                for key, answer in update.params["inputResponses"].items():
                    taken[key].append(answer)
        for key, answer in self.counts:  # or a cancel came before it was sent
            if taken[key] and answer not in taken[key]:
                self.break_("told to count", f"{answer} to {key}, and {taken[key]} is sent")

    def _check_cancel(self, task_id: str, since: float) -> None:
        """A journaled wish is told as long as the task is there to be cancelled."""
        heard_at = since + (LOOK_S if self.plan.hears_late else 0.0)
        alive = [at for at in self._alive[task_id] if at > heard_at]
        cancels = self.server.witness.log("tasks/cancel", task_id)
        came = any(one.fault is None or one.fault.acted for one in cancels)
        if alive and not cancels:
            self.break_("a cancel is never told", f"{task_id} was still there at {alive[0]:.3f}")
        if alive and not came and alive[-1] > self.calm_at:
            self.break_("a cancel never came", f"{task_id} was still there at {alive[-1]:.3f}")

    def _may_be_early(self, poll: EarlyPoll) -> bool:
        """Whether a poll may come early though all is well.

        A cancellation that was acknowledged, and a time-to-live that has passed, make a look due soon. What
        is stored is stored by the wall clock. A process that was suspended may still send the poll that it
        was about to send. What a reply says is lost with the process that got it.
        """
        return (
            (self.plan.clocks_jump and not self.plan.blind)
            or any(process.wakes_at == poll.at for process in self.processes)
            or poll.task_id in self.lost_replies
            or self._was_just_cancelled(poll)
            or poll.at >= self._expires_at(poll.task_id)
        )

    def _was_just_cancelled(self, poll: EarlyPoll) -> bool:
        """Whether it is the first poll since a cancellation was acknowledged."""
        witness = self.server.witness
        polls = [one.at for one in witness.log("tasks/get", poll.task_id) if one.at < poll.at]
        since = max(polls, default=-math.inf)
        cancels = witness.log("tasks/cancel", poll.task_id)
        return any(one.answered_at is not None and since <= one.answered_at <= poll.at for one in cancels)

    def _expires_at(self, task_id: str) -> float:
        """When the time-to-live of a task has passed at the server."""
        tool = self.server.witness.created[task_id]
        ttl_ms = self._intent_of(str(tool)).terms["ttl_ms"]
        calls = [one.at for one in self.server.witness.log("tools/call") if one.tool == tool]
        return math.inf if ttl_ms is None else max(calls) + ttl_ms / 1000

    def lose_replies(self, since: float = math.inf) -> None:
        """A process is stopped or its disk fails: what it was told just now it may forget."""
        since = min(since, self.clock.now)
        for arrival in self.server.witness.arrivals[-60:]:
            if arrival.answered_at is not None and arrival.answered_at >= since and arrival.task_id:
                self.lost_replies.add(arrival.task_id)


async def play(seed: int, journal: Any = None, parts: Parts = WHOLE) -> History:
    """Play one history from its beginning to its end.

    Args:
        seed: Decides about everything.
        journal: Keeps the records in memory's place. It has to be empty.
        parts: What its processes are made of.
    """
    with parts.patched():
        return await _play(History(seed, journal, parts))


async def _play(history: History) -> History:
    # What nobody refers to any more is gone at once or at the end, and not at a moment of its own; in
    # some histories almost at once, whatever cycles it is part of.
    gc.disable()
    before = gc.get_threshold()
    if history.seed % 64 == 0:
        gc.collect()
        gc.set_threshold(50, 2, 1000)
        gc.enable()
    try:
        await history.run()
        await history.check()
    finally:
        gc.set_threshold(*before)
        gc.enable()
    return history
