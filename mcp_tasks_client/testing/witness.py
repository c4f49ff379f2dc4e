"""The log of the requests to a scripted server, and of the promises that they break."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mcp_types import INTERNAL_ERROR

from ..policy import hint_s
from ..protocol import JSONObject
from .faults import ErrorReply, Fault, HttpError, Reply, Unreachable

__all__ = ["Arrival", "EarlyPoll", "Ending", "Listening", "MissingHeader", "Notified", "Witness"]

Ending: TypeAlias = Literal["in order", "broken", "left"]
"""How a stream ended: with its result, without it, or because the client left."""


@dataclass(slots=True, kw_only=True, eq=False)
class Arrival:
    """One request. Times are seconds of the server's monotonic clock."""

    method: str
    params: JSONObject = field(repr=False)
    at: float
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    """By lower-case name; ``None`` in memory, where there are none."""

    fault: Fault | None = None
    """The fault that the test gave it."""

    answered_at: float | None = None
    """When the reply left; ``None`` if it has not yet, or was lost."""

    error: int | None = None
    """Code of the JSON-RPC error that answered it."""

    refused: bool = False
    """True if the server told the client that it has not taken it, by a JSON-RPC error other than -32603 or
    an HTTP status from 400 to 499."""

    @property
    def task_id(self) -> str | None:
        """The task that it names; ``None`` for ``tools/call``, which names none yet."""
        task_id = self.params.get("taskId")
        return task_id if isinstance(task_id, str) else None

    @property
    def tool(self) -> str | None:
        """The tool that a ``tools/call`` names."""
        name = self.params.get("name")
        return name if self.method == "tools/call" and isinstance(name, str) else None


@dataclass(frozen=True, slots=True)
class EarlyPoll:
    """A ``tasks/get`` that came before the server's pace allows it."""

    task_id: str
    at: float
    not_before: float

    def __str__(self) -> str:
        early_s = self.not_before - self.at
        return f"tasks/get of {self.task_id} at {self.at:.3f} s came {early_s:.3f} s too early"


@dataclass(frozen=True, slots=True)
class MissingHeader:
    """A header, or an entry of ``_meta``, that was missing or wrong."""

    method: str
    name: str
    expected: str
    found: str | None

    def __str__(self) -> str:
        found = "was missing" if self.found is None else f"was {self.found!r}"
        return f"{self.name} of {self.method} {found}, and should have been {self.expected!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """One notification of a task, as it was sent."""

    at: float
    params: JSONObject = field(repr=False)

    @property
    def task_id(self) -> str:
        """The task that it names."""
        task_id: str = self.params["taskId"]
        return task_id

    @property
    def status(self) -> str:
        """The status that it tells."""
        status: str = self.params["status"]
        return status


@dataclass(slots=True, kw_only=True, eq=False)
class Listening:
    """One ``subscriptions/listen`` that was answered with a stream. Times as in :class:`Arrival`."""

    task_ids: tuple[str, ...] = field(repr=False)
    """The tasks that were asked for."""

    agreed: tuple[str, ...]
    """The tasks that were acknowledged."""

    began_at: float
    ended_at: float | None = None
    ending: Ending | None = None
    """``None`` while the stream is open."""

    sent: list[Notified] = field(default_factory=list)
    """Every notification of a task, in order."""


@dataclass(slots=True, kw_only=True)
class Witness:
    """The log of one server, and the promises that it shows broken.

    A lost request is in the log too, since the client has sent it.
    """

    tolerance_s: float = 0.001
    """Seconds by which a poll may come early. Over a network, allow for the time that a packet takes."""

    arrivals: list[Arrival] = field(default_factory=list)
    """Every request, in order."""

    listenings: list[Listening] = field(default_factory=list)
    """Every stream of notifications that began, in order. A refused one is only an arrival."""

    early_polls: list[EarlyPoll] = field(default_factory=list)
    """Polls that came before the interval of the task's last reply, or a ``Retry-After``, had passed.

    The first poll after an acknowledged ``tasks/cancel``, or after a poll that had HTTP 401, is none of them.
    Those of ``PollPolicy.eager()`` and of a short ``longest_wait_s`` are."""

    missing_headers: list[MissingHeader] = field(default_factory=list)
    """The headers and entries that requests lacked. Always empty in memory, where there are no headers."""

    answers: dict[tuple[str, str], list[JSONObject]] = field(default_factory=dict)
    """The different answers to each question, refused ones too. The key of a question is the task ID, or the
    ``requestState`` before there is a task, and its key there."""

    questions_answered: set[tuple[str, str]] = field(default_factory=set)
    """The questions whose answer was accepted, under the same keys as :attr:`answers`."""

    unasked: set[tuple[str, str]] = field(default_factory=set)
    """Task ID and key of each answer to a question that was never asked."""

    lost_states: list[str] = field(default_factory=list)
    """A task ID for each request without a ``requestState`` that the task had handed out."""

    calls: Counter[Hashable] = field(default_factory=Counter)
    """How often each tool ran, by intent, which the server's ``identify`` makes of tool and arguments."""

    created: dict[str, Hashable] = field(default_factory=dict)
    """The intent of each task, by its ID."""

    _hints: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _due: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _refused: set[str] = field(default_factory=set, init=False, repr=False)
    _quiet: dict[str, tuple[float, float]] = field(default_factory=dict, init=False, repr=False)

    def log(self, method: str, task_id: str | None = None) -> list[Arrival]:
        """The requests of one method, oldest first; of one task, if it is given."""
        return [
            arrival
            for arrival in self.arrivals
            if arrival.method == method and task_id in (None, arrival.task_id)
        ]

    def broken(self, *, at_most_once: bool = False) -> list[str]:
        """The promises that were broken, one sentence each.

        Args:
            at_most_once: Whether a tool that ran twice for one intent counts.
        """
        broken = [str(one) for one in (*self.early_polls, *self.missing_headers)]
        broken += [
            f"the question {key!r} of {subject} was answered in {len(payloads)} ways: {payloads}"
            for (subject, key), payloads in self._unrefused().items()
            if len(payloads) > 1
        ]
        broken += [
            f"{task_id} never asked {key!r}, and got an answer" for task_id, key in sorted(self.unasked)
        ]
        broken += [f"a request for {task_id} came without its requestState" for task_id in self.lost_states]
        if at_most_once:
            broken += [f"{_words(one)} ran {times} times" for one, times in self.calls.items() if times > 1]
        return broken

    def check(self, *, at_most_once: bool = False) -> None:
        """Fail if the client has broken a promise.

        Args:
            at_most_once: Whether a tool that ran twice for one intent counts.

        Raises:
            AssertionError: With the broken promises, one sentence a line.
        """
        broken = self.broken(at_most_once=at_most_once)
        if broken:
            raise AssertionError("\n".join(["the client broke its promises:", *broken]))

    # ── for the server ────────────────────────────────────────────────────────────────────────

    def note_arrival(self, arrival: Arrival) -> None:
        """Note a request that came, or was lost on its way."""
        self.arrivals.append(arrival)
        task_id = arrival.task_id
        if arrival.method == "tasks/get" and task_id is not None:
            not_before = max(self._due.get(task_id, -math.inf), self._silence(task_id, arrival.at))
            if arrival.at < not_before - self.tolerance_s:
                self.early_polls.append(EarlyPoll(task_id, arrival.at, not_before))
            # If the reply never arrives, the last interval counts from this request.
            self._due[task_id] = max(not_before, arrival.at + self._hints.get(task_id, 0.0))
        _add_answers(arrival, self.answers)

    def note_reply(self, arrival: Arrival, reply: Reply, now: float) -> None:
        """Note a reply that leaves for the client and will arrive."""
        arrival.answered_at = now
        if isinstance(reply, ErrorReply):
            arrival.error = reply.code
            arrival.refused = reply.code != INTERNAL_ERROR and reply.http_status < 500
        elif isinstance(reply, HttpError):
            arrival.refused = reply.status < 500
        if isinstance(reply, ErrorReply | HttpError):
            if reply.retry_after_s is not None and arrival.task_id is not None:
                self._quieten(arrival, arrival.task_id, now, reply.retry_after_s)
            elif reply == HttpError(401) and arrival.method == "tasks/get" and arrival.task_id is not None:
                if arrival.task_id not in self._refused:
                    self._due[arrival.task_id] = now  # the client may repeat it once with another credential
                self._refused ^= {arrival.task_id}  # refused again, the repetition is not repeated
        elif isinstance(reply, dict) and (arrival.method == "tasks/get" or reply.get("resultType") == "task"):
            task_id, hint = reply["taskId"], hint_s(reply.get("pollIntervalMs"))
            self._hints[task_id] = hint or 0.0
            self._due[task_id] = now + self._hints[task_id]
            self._refused.discard(task_id)
        elif isinstance(reply, dict) and arrival.method == "tasks/cancel" and arrival.task_id is not None:
            self._due[arrival.task_id] = now  # the client may look at once whether the task has ended

    def note_notification(self, listening: Listening, params: JSONObject, now: float) -> None:
        """Note a notification that leaves for the client, and may arrive."""
        listening.sent.append(Notified(at=now, params=params))
        task_id, hint = params["taskId"], hint_s(params.get("pollIntervalMs"))
        if task_id in self._due:
            # If its interval is another one, the client may keep to either.
            self._hints[task_id] = min(self._hints.get(task_id, 0.0), hint or 0.0)
            self._due[task_id] = min(self._due[task_id], now + (hint or 0.0))

    def _unrefused(self) -> dict[tuple[str, str], list[JSONObject]]:
        """The different answers to each question that the server may have taken, as far as a client knows."""
        found: dict[tuple[str, str], list[JSONObject]] = {}
        for arrival in self.arrivals:
            unsent = (
                isinstance(arrival.fault, Unreachable) and arrival.headers is None
            )  # in memory it is known
            if not (arrival.method == "tasks/update" and (arrival.refused or unsent)):
                _add_answers(arrival, found)
        return found

    def _quieten(self, arrival: Arrival, task_id: str, now: float, seconds: float) -> None:
        # A poll may have been under way while the request was answered that this Retry-After belongs to.
        grace = 0.0 if arrival.method == "tasks/get" else self.tolerance_s
        since, until = self._quiet.get(task_id, (math.inf, -math.inf))
        self._quiet[task_id] = (min(since, now + grace), max(until, now + seconds))

    def _silence(self, task_id: str, at: float) -> float:
        since, until = self._quiet.get(task_id, (math.inf, -math.inf))
        if at >= until - self.tolerance_s:
            self._quiet.pop(task_id, None)
        return until if since <= at else -math.inf


def _add_answers(arrival: Arrival, found: dict[tuple[str, str], list[JSONObject]]) -> None:
    answers = arrival.params.get("inputResponses")
    subject = arrival.task_id or arrival.params.get("requestState")
    if isinstance(answers, Mapping) and isinstance(subject, str):
        for key, answer in answers.items():
            payloads = found.setdefault((subject, key), [])
            if answer not in payloads:
                payloads.append(answer)


def _words(intent: Hashable) -> str:
    return " ".join(map(str, intent)) if isinstance(intent, tuple) else repr(intent)
