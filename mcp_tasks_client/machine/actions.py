"""The actions that follow from an event. The machine only names them; the engine does them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..protocol import JSONObject
from ..protocol.task import Task


@dataclass(frozen=True, slots=True)
class Save:
    """Make the new state durable before going on."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the record of this call."""


@dataclass(frozen=True, slots=True)
class SendCall:
    """Send ``tools/call`` (again) with these answers and that state, after a wait."""

    input_responses: Mapping[str, JSONObject] = field(default_factory=dict, repr=False)
    request_state: str | None = None
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Wake:
    """Send ``Tick`` after so many seconds, in place of any earlier wish."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Poll:
    """Send ``tasks/get`` now."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Put a question to the host's callback."""

    key: str = field(repr=False)
    request: JSONObject
    refusals: int = 0
    """How many answers to it the server has refused."""


@dataclass(frozen=True, slots=True)
class StopAsking:
    """Withdraw the questions that are before the host."""


@dataclass(frozen=True, slots=True)
class SendAnswers:
    """Send ``tasks/update`` with these answers."""

    answers: Mapping[str, JSONObject] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Send ``tasks/cancel``."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Show a changed snapshot to the callers that follow the task."""

    task: Task


@dataclass(frozen=True, slots=True)
class Report:
    """Tell, once per kind, that the server broke the protocol, or did a thing that it hardly means."""

    said: str
    is_violation: bool = True


@dataclass(frozen=True, slots=True)
class Finish:
    """The call is over."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A question stands in the way."""

    keys: tuple[str, ...] = field(repr=False)
    why: str
    cause: BaseException | None = None
    declined: bool = False


@dataclass(frozen=True, slots=True)
class Park:
    """Stop driving. The task lives on and ``Resumed`` takes it up again."""

    reason: Unanswered | Exception


Action: TypeAlias = (
    Save
    | Forget
    | SendCall
    | Wake
    | Poll
    | Ask
    | StopAsking
    | SendAnswers
    | SendCancel
    | Publish
    | Report
    | Finish
    | Park
)
