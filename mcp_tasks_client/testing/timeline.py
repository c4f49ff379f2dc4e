"""One task of a scripted server, as a function of time.

Nothing runs in the background. Every request brings the time along, and the timeline catches up with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import mcp_types
from pydantic import BaseModel, ValidationError

from ..protocol import JSONObject
from ..protocol.json_schema import find_mismatch
from ..sessions.base import INVALID_PARAMS
from .faults import RefusedError
from .steps import Abort, Answers, Ask, Complete, Fail, Hint, Result, Step, Vanish, Work

__all__ = ["Timeline", "Traits", "check_answers", "make_result"]

_ANSWERS: Final[Mapping[str, tuple[type[BaseModel], ...]]] = {
    "elicitation/create": (mcp_types.ElicitResult,),
    "sampling/createMessage": (mcp_types.CreateMessageResult, mcp_types.CreateMessageResultWithTools),
    "roots/list": (mcp_types.ListRootsResult,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How the tasks of a tool behave besides their steps. ``ScriptedServer.tool`` documents each field."""

    poll_interval_ms: float | None
    ttl_ms: float | None
    settle_s: float
    cancellable: bool
    late_answers: bool
    request_state: bool


@dataclass(slots=True, kw_only=True)
class Timeline:
    """One task. Times are seconds of the server's monotonic clock."""

    task_id: str
    steps: Sequence[Step]
    created_at: float
    epoch: float
    """The difference of seconds since the epoch and the server's monotonic clock."""

    traits: Traits
    answers: dict[str, JSONObject] = field(default_factory=dict)
    """The accepted answer of each key, which is the first good one."""

    asked: set[str] = field(default_factory=set)
    """Every key that was ever asked."""

    states: set[str] = field(default_factory=set)
    """Every ``requestState`` that was handed out."""

    sent: list[JSONObject] = field(default_factory=list)
    """Every snapshot that was sent as a reply, oldest first."""

    _index: int = field(default=0, init=False)
    _since: float = field(init=False)
    _settles: dict[str, float] = field(default_factory=dict, init=False)
    _cancelled_at: float = field(default=math.inf, init=False)
    _poll_interval_ms: float | None = field(init=False)
    _ttl_ms: float | None = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.created_at
        self._poll_interval_ms, self._ttl_ms = self.traits.poll_interval_ms, self.traits.ttl_ms

    # ── time ──────────────────────────────────────────────────────────────────────────────────

    def catch_up(self, now: float) -> None:
        """Take the steps whose time has come. Every other method wants this called first.

        Raises:
            RefusedError: The server has forgotten the task.
        """
        while True:
            step, by = self.steps[self._index], min(now, self._expires_at)
            if isinstance(step, Ask):
                self.asked.update(step.requests)
            end = self._end_of(step)
            if self.over:
                break
            if self._cancelled_at < end and self._cancelled_at <= by:
                self.steps, self._index, self._since = (Abort(None),), 0, self._cancelled_at
            elif end <= by:
                self._index, self._since = self._index + 1, end
                if isinstance(step, Hint):
                    self._take(step)
            else:
                break
        if isinstance(step, Vanish):
            raise RefusedError(INVALID_PARAMS, "Failed to retrieve task: Task not found")
        if now >= self._expires_at:
            raise RefusedError(INVALID_PARAMS, "Failed to retrieve task: Task has expired")

    @property
    def _expires_at(self) -> float:
        return math.inf if self._ttl_ms is None else self.created_at + self._ttl_ms / 1000

    def _end_of(self, step: Step) -> float:
        """When the next step begins; infinity if there is none, or that is not known yet."""
        match step:
            case Hint():
                return self._since
            case Work(seconds):
                return self._since + seconds
            case Ask(requests):
                return max((self._settles.get(key, math.inf) for key in requests), default=self._since)
            case _:
                return math.inf

    def _take(self, step: Hint) -> None:
        if step.poll_interval_ms != "same":
            self._poll_interval_ms = step.poll_interval_ms
        if step.ttl_ms != "same":
            self._ttl_ms = step.ttl_ms

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    @property
    def over(self) -> bool:
        """Whether the task has come to its end."""
        return isinstance(self.steps[self._index], Complete | Fail | Abort | Vanish)

    def changes_at(self, now: float) -> float:
        """When the task will change next if no request changes it; infinity if never."""
        if self.over:
            return math.inf
        settling = (at for at in self._settles.values() if at > now)
        end = self._end_of(self.steps[self._index])
        return min(end, self._cancelled_at, self._expires_at, *settling)

    def outstanding(self, now: float) -> Mapping[str, JSONObject]:
        """The open questions. One whose answer has not settled yet is still open."""
        step = self.steps[self._index]
        if not isinstance(step, Ask):
            return {}
        return {k: request for k, request in step.requests.items() if self._settles.get(k, math.inf) > now}

    def answer(self, now: float, answers: Answers) -> None:
        """Take answers. Keys that are not asked are ignored, and so is a second answer to a key.

        Raises:
            RefusedError: The task has stopped waiting for these answers and takes no late ones, or an answer
                has the wrong shape. No answer was taken.
        """
        outstanding = self.outstanding(now)
        answered = self.asked - outstanding.keys()
        if not self.traits.late_answers and (not outstanding or (answers and answers.keys() <= answered)):
            raise RefusedError(INVALID_PARAMS, "The task does not wait for these answers")
        check_answers(outstanding, answers)
        step = self.steps[self._index]
        new = {key: answers[key] for key in (outstanding.keys() & answers.keys()) - self._settles.keys()}
        words = step.refuse(new) if isinstance(step, Ask) and step.refuse is not None and new else None
        if words is not None:
            raise RefusedError(INVALID_PARAMS, words)
        for key in (outstanding.keys() & answers.keys()) - self._settles.keys():
            self.answers[key], self._settles[key] = answers[key], now + self.traits.settle_s

    def cancel(self, now: float) -> None:
        """Have a cancellable task end in ``cancelled``, once its settling time has passed."""
        if self.traits.cancellable and not self.over:
            self._cancelled_at = min(self._cancelled_at, now + self.traits.settle_s)

    # ── snapshots ─────────────────────────────────────────────────────────────────────────────

    def visible(self, now: float) -> Hashable:
        """The content of a snapshot but for its times: while this is equal, there is nothing to notify of."""
        step = self.steps[self._index]
        message = getattr(step, "message", None)
        return type(step), message, frozenset(self.outstanding(now)), self._poll_interval_ms, self._ttl_ms

    def snapshot(self, now: float, *, created: bool = False) -> JSONObject:
        """A reply with the task as it is now. A creation has no result, no error and no questions."""
        fields = self.describe(now, created=created)
        self.sent.append(fields)
        return fields

    def describe(self, now: float, *, created: bool = False) -> JSONObject:
        """The task as it is now, for a reply or a notification."""
        step = self.steps[self._index]
        status, message, payload = self._status(step, now)
        fields: JSONObject = {
            "taskId": self.task_id,
            "status": status,
            "createdAt": _iso(self.epoch + self.created_at),
            "lastUpdatedAt": _iso(self.epoch + self._since),
            "ttlMs": self._ttl_ms,
        }
        if self._poll_interval_ms is not None:
            fields["pollIntervalMs"] = self._poll_interval_ms
        if message is not None:
            fields["statusMessage"] = message
        if self.traits.request_state:
            fields["requestState"] = f"{self.task_id}:{len(self.states)}"
            self.states.add(fields["requestState"])
        if not created:
            fields |= payload
        return fields

    def _status(self, step: Step, now: float) -> tuple[str, str | None, JSONObject]:
        match step:
            case Ask():
                return "input_required", None, {"inputRequests": dict(self.outstanding(now))}
            case Complete(result, message):
                return "completed", message, {"result": make_result(result, self.answers)}
            case Fail(code, text, data, message):
                error = {"code": code, "message": text} | ({} if data is None else {"data": data})
                return "failed", message, {"error": error}
            case Abort(message):
                return "cancelled", message, {}
            case Work(_, message):
                return "working", message, {}
            case _:
                raise AssertionError(f"no task stands still at {step}")


def make_result(result: Result, answers: Answers) -> JSONObject:
    """A step's result. A function is called with the answers."""
    return result(answers) if callable(result) else result


def check_answers(requests: Mapping[str, JSONObject], answers: Answers) -> None:
    """Refuse answers that do not fit their questions. Keys that were not asked do not matter.

    Raises:
        RefusedError: An answer does not fit. The message names its key, and says why.
    """
    for key in requests.keys() & answers.keys():
        problem = _problem(requests[key], answers[key])
        if problem is not None:
            raise RefusedError(INVALID_PARAMS, f"The answer to {key} cannot be used: {problem}")


def _problem(request: JSONObject, answer: object) -> str | None:
    method = request.get("method")
    if isinstance(method, str) and method in _ANSWERS:
        for kind in _ANSWERS[method]:
            try:
                read = kind.model_validate(answer, by_name=False)
            except ValidationError:
                continue
            form = request.get("params", {}).get("requestedSchema")
            if isinstance(read, mcp_types.ElicitResult) and read.action == "accept" and form is not None:
                return _mismatch(json.dumps(read.content or {}), json.dumps(form))
            return None
    return f"it is no answer to {method}"


@lru_cache(maxsize=1024)  # checking a schema takes longer than the rest of a request
def _mismatch(content: str, form: str) -> str | None:
    return find_mismatch(json.loads(content), json.loads(form))


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
