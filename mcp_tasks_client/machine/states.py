"""The states of one tool call, and the ways in which it can end.

All of it is plain, frozen data that a journal can write down and read back; ``kind`` tells the
members of a union apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from ..protocol import JSONObject
from ..protocol.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """One of the server's input requests, from first sight to acknowledgement."""

    key: str = field(repr=False)  # may contain the task ID
    digest: str
    """The digest of the request as first seen: the same key must never mean something else."""

    asked_at: float = 0.0
    """Local wall clock, seconds, when it was first seen; 0 in the records of earlier versions."""

    waits_from: float = 0.0
    """Local wall clock, seconds, when the server began to wait for the answer, perhaps unseen; 0 likewise."""

    answered_at: float = 0.0
    """Local wall clock, seconds, when it was answered last; 0 while it was not, and likewise."""

    stage: Literal[
        "open", "asking", "answered", "sending", "unsent", "acknowledged", "rejected", "disputed"
    ] = "open"
    """``unsent``: the answer did not get through and goes again, unchanged, with the next poll. The other
    stages are told in :mod:`mcp_tasks_client.machine.input_requests`."""

    request: JSONObject | None = field(default=None, repr=False)
    """As the server sent it; dropped once the answer is acknowledged, since it may be private."""

    answer: JSONObject | None = field(default=None, repr=False)
    """As the host gave it. Kept until the task ends, since a server may lose it."""

    listed: int = 0
    """Snapshots since the first acknowledgement that show the server still asking."""

    earlier: Literal["none", "refused", "unknown"] = "unknown"
    """The fate of the sends of the answer before the last one. ``unknown``: the server may have taken the
    answer, so that no other one is ever sent. Records of earlier versions do not say."""

    refusals: int = 0
    """How many answers the server has refused for good. The question opened again after each."""

    refusal: str = ""
    """The server's words when it last refused an answer."""

    @property
    def unanswered(self) -> bool:
        """Whether it has no answer yet."""
        return self.stage in ("open", "asking")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastFailure:
    """Why a task is not seen, or a call not begun: the requests that have failed since one got through."""

    message: str
    """The error of the last of them."""

    count: int
    """How many have failed, one after the other."""

    since: float
    """Local wall clock, seconds since the epoch, when the first of them failed."""

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).isoformat(timespec="seconds")
        return f"since {since}, requests fail ({self.count} so far). The last one: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """The call has not begun. It goes again with answers that are collected, or when there is a slot."""

    kind: Literal["gathering"] = "gathering"
    round: int
    request_state: str | None
    questions: tuple[AskedQuestion, ...]
    again: bool = False
    failure: LastFailure | None = None
    """The refusals for want of a slot, one after the other."""

    waited_s: float = 0.0
    """Seconds of waiting for a slot in all, up to ``due_at``."""

    due_at: float = 0.0
    """Local wall clock, seconds, before which the call does not go again for want of a slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """``tools/call`` is on its way, or will be in a moment."""

    kind: Literal["calling"] = "calling"
    round: int = 0
    gathered: Gathering | None = None
    """From where this round was sent, to go on there should the server refuse it unread."""

    again: bool = False
    """The reply to an earlier one was lost: the tool may have run, also if this one is refused."""

    cancel_wanted: bool = False
    """The host wants the call cancelled. ``tasks/cancel`` is sent as soon as there is a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeUnknown:
    """``tools/call`` was sent and its reply is lost: the tool may have run."""

    kind: Literal["outcome_unknown"] = "outcome_unknown"
    cancel_wanted: bool = False
    """As in :class:`Calling`: the reply may still come, and with it a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observing:
    """There is a task. It is polled until it ends."""

    kind: Literal["observing"] = "observing"
    task: Task
    received_at: float
    """Local wall clock, seconds, when we first heard of the task. Its time-to-live counts from here."""

    due_at: float
    """Local wall clock, seconds, before which no poll is sent."""

    wait_s: float = 0.0
    """Seconds of the wait that ends at ``due_at``; bounds it when the clock was set back meanwhile."""

    quiet_until: float = 0.0
    """Local wall clock, seconds, before which nothing is sent, because of a ``Retry-After``."""

    quiet_s: float = 0.0
    """Seconds of that silence; bounds it likewise."""

    poll_interval_ms: float | None = None
    """The last usable hint; a reply without one does not take it back."""

    ttl_ms: float | None = None
    session_data: str | None = field(default=None, repr=False)
    """The session's own data to reach the task, beyond its ID. Opaque here; it may be a credential."""

    unchanged: int = 0
    """Unchanged snapshots in a row. Without a hint the waits grow with them."""
    failure: LastFailure | None = None
    """The failure that keeps the task from being seen. Each one more doubles the wait."""
    missing: bool = False
    """Whether the last poll was answered as if the server did not know the task. A second one decides."""

    looks: int = 0
    """Early looks since the task began; see :meth:`PollPolicy.eager`."""
    questions: tuple[AskedQuestion, ...] = ()
    cancel: Literal["no", "requested", "sending", "acknowledged"] = "no"
    reported: tuple[str, ...] = ()
    """Kinds of protocol violations already reported."""

    @property
    def outstanding(self) -> JSONObject:
        """The requests that the server waits for, by their keys, in the latest snapshot."""
        return (self.task.input_requests or {}) if self.task.status == "input_required" else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The call returned, ``isError`` or not. The result is the server's, unchanged."""

    kind: Literal["completed"] = "completed"
    result: JSONObject
    took_s: float | None = None
    """Seconds for which the task ran; ``None`` without a task, for an error of the tool, and if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The call ended in a JSON-RPC error."""

    kind: Literal["failed"] = "failed"
    code: int | None
    message: str
    data: Any = None
    status_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The task was cancelled."""

    kind: Literal["cancelled"] = "cancelled"
    status_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The server no longer knows the task: ``expired`` if its time-to-live had passed."""

    kind: Literal["gone"] = "gone"
    why: Literal["not_found", "expired"]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Violated:
    """The call ended in a way that the protocol does not allow, such as a task without a result."""

    kind: Literal["violated"] = "violated"
    message: str


Outcome: TypeAlias = Completed | Failed | Cancelled | Gone | Violated


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end. ``task`` is the last snapshot without its payload, which is in ``outcome``."""

    kind: Literal["finished"] = "finished"
    outcome: Outcome
    task: Task | None = None


State: TypeAlias = Calling | Gathering | OutcomeUnknown | Observing | Finished


def questions_of(state: State) -> tuple[AskedQuestion, ...]:
    """The server's questions that a call knows of, answered or not."""
    return state.questions if isinstance(state, Gathering | Observing) else ()
