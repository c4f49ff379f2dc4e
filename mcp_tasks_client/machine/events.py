"""The events of a tool call.

Events carry the time and the jitter, so that the machine needs neither a clock nor a random source.
Times are local wall clock in seconds since the epoch; ``jitter`` is a fraction from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..protocol import JSONObject
from ..protocol.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBegun:
    """The next round of ``tools/call`` is about to be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReturned:
    """``tools/call`` answered with a result."""

    result: JSONObject


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailed:
    """``tools/call`` answered with a JSON-RPC error after it may have started."""

    code: int | None
    message: str
    data: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRefused:
    """The server surely did not run this ``tools/call``. Its record is forgotten, with these exceptions.

    Where the host waits for a slot, the call goes again.
    An earlier send whose reply was lost stays of unknown outcome. A wanted cancellation ends the call. The
    answers of a later round are kept, unless the server will not have them at all (``for_good``).
    """

    for_good: bool = False
    limited: bool = False
    """Only for want of a slot (HTTP 429)."""

    why: str = ""
    retry_after_s: float | None = None
    now: float = 0.0
    jitter: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLost:
    """The reply to ``tools/call`` is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAgain:
    """The caller allowed a call of unknown outcome to be sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAsked:
    """``tools/call`` answered ``input_required``, or that URLs have to be visited first."""

    requests: JSONObject = field(repr=False)
    request_state: str | None
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCreated:
    """There is a task: ``tools/call`` was answered with it, or the host attached its ID."""

    task: Task
    now: float
    jitter: float
    session_data: str | None = field(default=None, repr=False)
    attached: bool = False
    """The caller gave the ID. No reply came with a hint, so nothing holds back the first poll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The wait that the last ``Wake`` asked for is over."""

    now: float
    jitter: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A poll brought a snapshot."""

    task: Task
    now: float
    jitter: float
    session_data: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """A snapshot came unasked. It may come late, twice, or out of order."""

    task: Task
    now: float
    session_data: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollFailed:
    """A poll failed in a way that may pass. Of the error it has the words, and no status or code."""

    why: str
    now: float
    jitter: float
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollCut:
    """A poll was cut off before its reply. The server may see the poll only now."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMissing:
    """The server does not know the task (-32602)."""

    message: str
    now: float
    jitter: float = 0.0

    denied: Exception | None = None
    """Given by a client of another application than the call's. Servers say the same to a credential that is
    not that of the task, so that such a client parks the call by this error, and ends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationRefused:
    """The server will not let us look: a credential, a capability, the protocol itself."""

    error: Exception
    now: float
    untaken: tuple[str, ...] = field(default=(), repr=False)
    """The keys of answers that went with the request. The server surely has not taken them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReady:
    """A callback returned an answer, already validated, in its form on the wire."""

    key: str = field(repr=False)
    answer: JSONObject
    now: float
    refusals: int = 0
    """How many answers the server had refused when the question was asked. An answer to an earlier asking
    comes too late."""

    held: bool = False
    """Whether the call is not driven now. The answer is sent when the call is resumed."""

    by_instruction: bool = False
    """Whether the answer was left in the journal, by a person who answered there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerUnavailable:
    """A question got no usable answer: no callback, an exception, the wrong type, a refusal."""

    key: str = field(repr=False)
    why: str
    cause: BaseException | None = None
    declined: bool = False
    """Whether a person was asked, and said no to a request to which the server takes no refusal."""

    refusals: int = 0
    """As in :class:`AnswerReady`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAcknowledged:
    """``tasks/update`` was acknowledged for these keys."""

    keys: tuple[str, ...] = field(repr=False)
    session_data: str | None = field(default=None, repr=False)
    """The ``session_data`` of the task from now on; ``None`` if it is unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFailed:
    """``tasks/update`` failed in a way that may pass; the same answers go again."""

    why: str
    keys: tuple[str, ...] = field(repr=False)
    now: float
    jitter: float
    retry_after_s: float | None = None
    untaken: bool = False
    """Whether the server surely has not taken the answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRefused:
    """The server refused ``tasks/update``: a wrong answer, a task that moved on, or one it does not know."""

    keys: tuple[str, ...] = field(repr=False)
    words: str
    """The words of the server's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """The host wants the task cancelled."""

    now: float
    by_instruction: bool = False
    """Whether it was left in the journal, and not said here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAcknowledged:
    """``tasks/cancel`` was acknowledged. The task may still end otherwise."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRejected:
    """The server answered -32602 to ``tasks/cancel``: the task is over, or the server does not know it."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelFailed:
    """``tasks/cancel`` failed in a way that may pass; it is said again."""

    why: str
    now: float
    jitter: float
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The drive starts again: after a park, or in another process."""

    now: float
    jitter: float
    due_is_exact: bool = True
    """False after a crash: unchanged polls are not journaled, so the last one may have been just now."""


Event: TypeAlias = (
    CallBegun
    | CallReturned
    | CallFailed
    | CallRefused
    | CallLost
    | CallAgain
    | InputAsked
    | TaskCreated
    | Tick
    | Observed
    | Notified
    | PollFailed
    | PollCut
    | TaskMissing
    | ObservationRefused
    | AnswerReady
    | AnswerUnavailable
    | UpdateAcknowledged
    | UpdateFailed
    | UpdateRefused
    | CancelRequested
    | CancelAcknowledged
    | CancelRejected
    | CancelFailed
    | Resumed
)
