"""What happens in one history, all of it drawn from its seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, Literal, TypeAlias

from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.testing import (
    Delayed,
    ErrorReply,
    Fault,
    Garbled,
    HttpError,
    LostReply,
    LostRequest,
    Stale,
    Stalled,
    Step,
    Unheeded,
    Unreachable,
    abort,
    ask,
    ask_first,
    complete,
    fail,
    form,
    hint,
    reply,
    text_result,
    vanish,
    work,
)
from mcp_tasks_client.testing.steps import Ask, AskFirst, Reply

from .telling import Telling, draw_telling

__all__ = ["Answering", "Cancel", "Intent", "Moment", "Plan", "refusal", "result_of"]

OnAbandon: TypeAlias = Literal["detach", "cancel"]

_ON_ABANDON: Final[tuple[OnAbandon, ...]] = ("detach", "detach", "detach", "cancel")
_DISK: Final[tuple[Literal["full", "locked"], ...]] = ("full", "locked")
_MOMENTS: Final[tuple[Moment, ...]] = ("at", "called", "asked", "quiet")

CHAOS_S: Final = 80.0
"""Seconds of a history in which things go wrong."""


Moment: TypeAlias = Literal["at", "called", "asked", "quiet"]
"""What a host's change of mind comes after: the beginning, the first ``tools/call``, the first question,
the first ``Retry-After`` that the task is given."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A host that changes its mind."""

    moment: Moment
    after_s: float
    process: int
    """Which one says so, of those that are there, whoever drives the task."""


@dataclass(slots=True)
class Intent:
    """One thing that the host wants done, and what became of it."""

    number: int
    keyed: bool
    steps: tuple[Step, ...]
    may_resend: bool
    terms: dict[str, Any]
    at: float
    """Seconds from the start of its process at which it is begun."""

    timeout_s: float | None
    cancel: Cancel | None
    dropped_in: bool = False
    """Whether the host calls it by a client of its own, into which the library is dropped."""

    first: int | None = None
    """The process that begins it before the others; ``None``: whichever comes first."""

    begun: int = 0
    """How often it was begun with the consent that the tool may run."""

    outcomes: list[str] = field(default_factory=list)
    """What its callers were told, the same each time if all is well."""

    unknown: bool = False
    cancelling: bool = False
    forgotten: bool = False
    """Whether its record was forgotten when its task had expired, so that its key is new again."""

    received: bool = False
    """Whether some caller got its outcome, be it that it was killed before it could tell."""

    @property
    def tool(self) -> str:
        return f"tool-{self.number}"

    @property
    def first_keys(self) -> set[str]:
        """Keys of what it asks before it has a task."""
        return {key for step in self.steps if isinstance(step, AskFirst) for key in step.requests}

    @property
    def keys(self) -> set[str]:
        """Keys of all that it asks."""
        return {key for step in self.steps if isinstance(step, Ask | AskFirst) for key in step.requests}

    @property
    def plain(self) -> bool:
        """Whether it is answered without a task."""
        return isinstance(self.steps[-1], Reply)

    @property
    def key(self) -> str | None:
        return f"key-{self.number}" if self.keyed else None


@dataclass(frozen=True, slots=True)
class Answering:
    """Somebody who looks at all questions, and then answers some, by whichever process."""

    at: float
    process: int
    after_s: float
    """How long it takes, in which a task may move on."""

    share: float


@dataclass(slots=True)
class Plan:
    """A history before it happens."""

    intents: list[Intent]
    lives: list[float]
    """When each process starts."""

    kills: list[tuple[float, int]]
    """When which process is killed."""

    point_kills: dict[int, int]
    """By process: at which of its points it is killed."""

    suspensions: list[tuple[float, float, int]]
    jumps: list[tuple[float, float]]
    disk: list[tuple[float, float, Literal["full", "locked"]]]
    """From when to when writes fail, and how."""

    fault_rate: float
    blind: bool
    """Whether the processes cannot see each other, and go by leases."""

    orderly: bool
    """Whether the processes that are left are closed, not killed, before the last one."""

    answer_s: float
    callback_fails: float
    on_abandon: OnAbandon
    deaf: str
    """The kind of question for which only the last process has a callback; empty for none."""

    prunes: list[tuple[float, int]]
    """When which process forgets all that it may."""

    retention_s: float | None
    telling: Telling
    later: float = 0.0
    """How often a callback leaves a question to whoever answers it later."""

    answers: list[Answering] = field(default_factory=list)

    outrun: float = 0.0
    """How often somebody at another process answers while a callback is about to."""

    hears_late: bool = False
    """Whether seconds pass until a process hears of what another one has left for it."""

    partings: list[tuple[float, float, int]] = field(default_factory=list)
    """From when to when which process reaches the server and not the journal."""

    adopt_limit: int | None = None
    """How many calls a process takes up at once that adopts."""

    refusal_rate: float = 0.0
    """How often an update is refused for no fault of its answers, as by a replica that lags behind."""

    refuses: bool = False
    """Whether some answers are refused for what they are."""

    gives_in: bool = False
    """Set at the end: what is refused, and may have been taken before, would be refused for ever."""

    applications: list[str | None] = field(default_factory=list)
    """What each process calls itself; and the last one, which goes by a name if any does."""

    @property
    def clocks_jump(self) -> bool:
        return bool(self.jumps)

    @property
    def forgets(self) -> bool:
        """Whether a key may come to be new again, so that hosts must not repeat what they have had."""
        return bool(self.prunes) or self.retention_s is not None


def plan(
    random: Random,
    tells: Random,
    drops: Random,
    outside: Random,
    adopts: Random,
    parts: Random,
    refuses: Random,
) -> Plan:
    """A history. Drawn apart are what the server tells by itself, which calls are dropped in, who answers
    from outside, who takes up what, who is parted from the journal, and which answers are refused.
    """
    drawn = _plan(random, draw_telling(tells, CHAOS_S))
    if parts.random() < 0.1:
        _part(parts, drawn)
    for intent in drawn.intents:
        if not (intent.keyed or intent.plain or intent.first_keys) and drops.random() < 0.5:
            intent.dropped_in, intent.cancel = True, None  # there is no handle to cancel it by
    if drawn.telling.anything:
        for intent in drawn.intents:
            if tells.random() < 0.7 and not intent.plain:
                _lengthen(tells, intent, len(drawn.lives))
    if outside.random() < 0.5:
        drawn.later = outside.choice([0.0, 0.5, 1.0])
        drawn.answers = _draw_answers(outside, len(drawn.lives))
        drawn.answer_s = max(drawn.answer_s, outside.choice([0.0, 0.0, 5.0]))
    drawn.outrun = adopts.choice([0.0, 0.0, 0.5]) if drawn.answer_s else 0.0
    drawn.hears_late = adopts.random() < 0.5
    drawn.adopt_limit = adopts.choice([1, 2, None])
    names = adopts.choice([(None,), (None,), (None, "a")])
    drawn.applications = [*(adopts.choice(names) for _ in drawn.lives), names[-1]]
    drawn.refusal_rate = refuses.choice([0.0, 0.0, 0.3])
    drawn.refuses = refuses.random() < 0.5
    if drawn.refuses:
        for intent in drawn.intents:
            intent.steps = tuple(_refusing(refuses, step, drawn) for step in intent.steps)
    return drawn


def _refusing(random: Random, step: Step, drawn: Plan) -> Step:
    """The same step, which may refuse the first answers to one of its questions."""
    keys = [key for key, request in getattr(step, "requests", {}).items() if "url" not in str(request)]
    if not (isinstance(step, Ask) and keys):
        return step
    key, most, refused = random.choice(keys), random.choice([1, 1, 2, 4]), list[JSONObject]()

    def refuse(answers: Mapping[str, JSONObject]) -> str | None:
        if drawn.gives_in:
            return None
        if key in answers and answers[key] not in refused and len(refused) < most:
            refused.append(answers[key])
        return f"not {answers[key]}" if answers.get(key) in refused else None

    return replace(step, refuse=refuse)


def _draw_answers(random: Random, processes: int) -> list[Answering]:
    """Often two at the same moment, of one process or of two."""
    found = []
    for _ in range(random.choice([3, 10, 30])):
        at = random.uniform(0, CHAOS_S)
        for _ in range(random.choice([1, 1, 2])):
            after_s = random.choice([0.0, 0.0, 0.1, 5.0, 30.0])
            found.append(Answering(at, random.randrange(processes), after_s, random.choice([0.5, 1.0])))
    return found


def _lengthen(random: Random, intent: Intent, processes: int) -> None:
    """Have it live long enough, between polls far enough apart, for something to be told of it."""
    steps: list[Step] = []
    for step in intent.steps:
        if not isinstance(step, AskFirst):
            words = random.choice([None, "busy", f"before step {len(steps)}"])
            steps.append(work(random.choice([0.3, 4.0, 15.0]), words))
        steps.append(step)
    intent.steps = tuple(steps)
    intent.terms["poll_interval_ms"] = random.choice([5000, 10_000, 10_000, 60_000])
    intent.first = random.randrange(processes)


def _part(random: Random, drawn: Plan) -> None:
    """Have the first process lose the journal for longer than a lease, and let little else happen."""
    drawn.blind, drawn.fault_rate = True, 0.0
    drawn.kills, drawn.point_kills, drawn.suspensions, drawn.jumps, drawn.disk = [], {}, [], [], []
    at = random.uniform(2.0, 10.0)
    drawn.partings = [(at, at + random.uniform(35.0, 60.0), 0)]
    drawn.lives = [0.0, at + random.uniform(1.0, 30.0)]
    drawn.answer_s = random.choice([0.0, 20.0, 60.0])
    for intent in drawn.intents:
        if not intent.plain:
            *before, last = intent.steps
            intent.steps = (*before, work(random.choice([20.0, 60.0])), last)
            intent.terms["poll_interval_ms"] = random.choice([3000, 5000])
            intent.first = 0


def _plan(random: Random, told: Telling) -> Plan:
    processes = random.choice([1, 1, 1, 2, 2, 3])
    on_abandon: OnAbandon = random.choice(_ON_ABANDON)
    rough = random.random()
    suspended = random.random() < 0.3
    if suspended:
        processes = max(2, processes)
    return Plan(
        intents=[
            _intent(random, number, processes, on_abandon) for number in range(random.choice([1, 1, 2, 3]))
        ],
        lives=[0.0, *sorted(_start(random) for _ in range(processes - 1))],
        kills=[
            (random.uniform(0, CHAOS_S), random.randrange(processes))
            for _ in range(random.choice([0, 0, 1, 1, 2]))
        ],
        point_kills={p: random.randrange(60) for p in range(processes) if random.random() < 0.5},
        suspensions=[
            (
                at := random.uniform(0, CHAOS_S * 0.6),
                at + random.choice([5.0, 45.0, 45.0]),
                random.randrange(processes),
            )
            for _ in range(suspended)
        ],
        jumps=[
            (random.uniform(0, CHAOS_S), random.choice([-200.0, -30.0, 20.0, 7200.0]))
            for _ in range(random.choice([0, 0, 0, 0, 1]))
        ],
        disk=[
            (
                at := random.uniform(0, CHAOS_S),
                at + random.uniform(0, 40.0),
                random.choice(_DISK),
            )
            for _ in range(random.choice([0, 0, 0, 1]))
        ],
        fault_rate=random.choice([0.0, 0.05, 0.3]) if rough > 0.3 else 0.0,
        blind=random.random() < (0.8 if suspended else 0.4),
        orderly=random.random() < 0.4,
        answer_s=random.choice([0.0, 0.0, 0.5, 20.0]),
        callback_fails=random.choice([0.0, 0.0, 0.2]),
        on_abandon=on_abandon,
        deaf=random.choice([*[""] * 9, "elicitation", "sampling", "roots"]),
        prunes=[
            (random.uniform(0, CHAOS_S), random.randrange(processes))
            for _ in range(random.choice([0, 0, 0, 1, 2]))
        ],
        retention_s=random.choice([None, None, None, None, 0.0, 30.0]),
        telling=told,
    )


def _start(random: Random) -> float:
    return random.choice([0.0, 0.5, random.uniform(0, CHAOS_S * 0.7), random.uniform(0, CHAOS_S * 0.7)])


def _intent(random: Random, number: int, processes: int, on_abandon: OnAbandon) -> Intent:
    intent = Intent(
        number=number,
        keyed=random.random() < 0.7,
        steps=_steps(random, number),
        may_resend=random.random() < 0.5,
        terms={
            "poll_interval_ms": random.choice([None, 0, -5, 500, 2000, 5000, 5000, 10_000, 10_000, 60_000]),
            "ttl_ms": random.choice([None, None, None, 3_600_000, 60_000]),
            "settle_s": random.choice([0.0, 0.1, 3.0]),
            "late_answers": random.random() < 0.5,
            "request_state": random.random() < 0.2,
            "cancellable": random.random() < 0.8,
        },
        at=random.choice([0.0, random.uniform(0, 60.0)]),
        timeout_s=random.choice([None, None, 0.2, 3.0, 30.0]),
        cancel=_cancel(random, processes) if random.random() < 0.3 else None,
    )
    if (intent.cancel or on_abandon == "cancel") and not intent.terms["cancellable"]:
        intent.terms["ttl_ms"] = 60_000  # or it might wait for ever for an answer that nobody is asked for
    return intent


def _cancel(random: Random, processes: int) -> Cancel:
    moment = random.choice(_MOMENTS)
    after_s = random.uniform(0, CHAOS_S) if moment == "at" else random.choice([0.0, 0.0, 0.1, 3.0])
    return Cancel(moment, after_s, random.randrange(processes))


def _steps(random: Random, number: int) -> tuple[Step, ...]:
    keys = iter(range(100))

    def questions() -> dict[str, Any]:
        some = [f"q-{number}-{next(keys)}" for _ in range(random.choice([1, 1, 2]))]
        return {key: _question(random, key) for key in some}

    first: list[Step] = [ask_first(questions()) for _ in range(random.choice([0, 0, 0, 0, 1, 2]))]
    if random.random() < 0.12:
        return (*first, reply(lambda answers: result_of(number, answers)))
    middle: list[Step] = []
    for _ in range(random.randint(0, 3)):
        kind = random.random()
        if kind < 0.45:
            middle.append(work(random.choice([0.0, 0.3, 4.0, 15.0]), random.choice([None, "busy"])))
        elif kind < 0.85:
            middle.append(ask(questions()))
        else:
            middle.append(hint(poll_interval_ms=random.choice([None, 0, 200, 10_000])))
    ends: list[Step] = [
        complete(lambda answers: result_of(number, answers)),
        fail(-32000, f"no {number}"),
        abort(),
        vanish(),
    ]
    (end,) = random.choices(ends, [20, 2, 1, 1])
    if end == vanish():
        middle.append(work(5.0))  # or the call itself would be refused
    return (*first, *middle, end)


def _question(random: Random, key: str) -> dict[str, Any]:
    kind = random.random()
    if kind < 0.55:
        return form(f"{key}?", n="integer")
    if kind < 0.7:
        url = {"mode": "url", "message": f"{key}?", "url": f"https://example.com/{key}", "elicitationId": key}
        return {"method": "elicitation/create", "params": url}
    if kind < 0.85:
        message = {"role": "user", "content": {"type": "text", "text": f"{key}?"}}
        return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 5}}
    return {"method": "roots/list", "params": {}} if random.random() < 0.5 else {"method": "roots/list"}


def result_of(number: int, answers: Any) -> dict[str, Any]:
    """What a tool returns: it tells what it was answered."""
    told = dict(sorted(answers.items()))
    return text_result(f"{number}: {told}")


def refusal(random: Random) -> Fault:
    """A refusal of ``tasks/update`` that says nothing of its answers."""
    unknown = ErrorReply(-32602, "Task not found")
    said = [ErrorReply(-32600, "no"), ErrorReply(-32000, "not now"), *map(HttpError, (400, 403, 422))]
    return random.choice([unknown, unknown, *said])


def fault(random: Random, method: str) -> Fault:
    """Something that goes wrong with one request."""
    after_s = random.choice([0.5, 5.0, 40.0])
    faults: list[Fault] = [
        LostRequest(),
        LostReply(),
        LostReply(),
        Unreachable(),
        HttpError(500),
        HttpError(503, retry_after_s=after_s),
        HttpError(429, retry_after_s=after_s),
        ErrorReply(-32603),
        Garbled(),
        Delayed(random.choice([0.2, 3.0])),
        Stalled(),
    ]
    if method == "tasks/get":
        faults += [Stale(random.choice([1, 2])), Stale(1)]
    if method == "tasks/update":
        faults += [Unheeded()] * 3
    if method == "tools/call":
        faults += [Delayed(20.0), ErrorReply(-32602), HttpError(502)]
        faults += [LostReply(), Unreachable(), HttpError(429)] * 3  # and so a refusal after a loss
    return random.choice(faults)
