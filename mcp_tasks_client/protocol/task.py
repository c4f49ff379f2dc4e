"""A task as a server describes it: its status, and how each field is read.

Reading follows one rule: a defect in an optional field never costs the task ID. A hint or a
time-to-live that makes no sense counts as absent, a status that we do not know is kept as it
is, and every field that we do not name stays in ``Task.model_extra``. A task that is unusable even
so raises :class:`MalformedError`, which a session turns into its own error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from . import JSONObject, MalformedError
from .text import excerpt, is_encodable, quote, shorten

__all__ = [
    "LONGEST_STATE",
    "TERMINAL_STATUSES",
    "UNKNOWN",
    "Task",
    "TaskStatus",
    "read_state",
    "read_task",
    "share_shape",
]

TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "cancelled", "failed"]
"""The statuses of the specification, verbatim."""

TERMINAL_STATUSES: Final[frozenset[str]] = frozenset({"completed", "cancelled", "failed"})
UNKNOWN: Final = "unknown"
"""Our word for the status of a task that no reply has shown yet."""

_KNOWN_STATUSES: Final[frozenset[str]] = frozenset(get_args(TaskStatus))

_IMMEDIATE_RESPONSE: Final = "io.modelcontextprotocol/model-immediate-response"

# 2**53 - 1, the largest integer every JSON reader agrees on: 285,000 years in milliseconds.
# Larger hints are read as this, so that no arithmetic on them can overflow.
_LARGEST_MS: Final = 2**53 - 1


def _milliseconds(value: object) -> float | None:
    """A duration as servers really send it: an integer, a float or digits in a string.

    Anything else (absent, negative, NaN, a boolean, a word) counts as absent.
    """
    if isinstance(value, str):
        # Polling faster than meant, because a number came in quotes, would break the pace.
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    return min(value, _LARGEST_MS) if value >= 0 else None


_LONGEST_WORD: Final = 256
_LONGEST_TEXT: Final = 16_384
"""Characters that are kept of a status or a time, and of ``statusMessage``: a snapshot is journaled."""


LONGEST_STATE: Final = 2**20
"""Characters of a ``requestState``, which is journaled and goes back with each request."""


def read_state(value: object) -> str | None:
    """A ``requestState``. A longer one counts as absent, since half of it means nothing to the server."""
    return value if isinstance(value, str) and len(value) <= LONGEST_STATE else None


def _word(value: object) -> str | None:
    return value[:_LONGEST_WORD] if isinstance(value, str) else None


def _text(value: object) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else None


def _object(value: object) -> JSONObject | None:
    return value if isinstance(value, dict) else None


_OPTIONAL: Final[Mapping[str, Callable[[object], Any]]] = {
    "statusMessage": _text,
    "createdAt": _word,
    "lastUpdatedAt": _word,
    "ttlMs": _milliseconds,
    "pollIntervalMs": _milliseconds,
    "inputRequests": _object,
    "result": _object,
    "error": lambda value: value if isinstance(value, dict) else {"message": excerpt(value)},
    "requestState": read_state,
}
"""How each optional field of a task is read; a field that is read as ``None`` counts as absent."""


class Task(BaseModel):
    """One snapshot of a task, as the server described it.

    Unknown fields are kept in ``model_extra``; :meth:`to_wire` gives all of them back.
    ``repr`` shortens the task ID, because it is all that is needed to act on the task.

    Source: Tasks extension, "Tasks" (``Task`` and ``DetailedTask``).
    """

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True)

    task_id: str = Field(min_length=1)
    """The server's identifier, compared byte for byte."""

    status: str = Field(min_length=1)
    """One of :data:`TaskStatus`, or a newer word of the server's."""

    status_message: str | None = None
    """The server's words about the current state; may be shown to a person or a model."""

    created_at: str | None = None
    """ISO 8601 as the server wrote it, by the server's clock."""

    last_updated_at: str | None = None
    """ISO 8601 as the server wrote it. On some servers simply the time of the poll."""

    ttl_ms: float | None = None
    """Milliseconds from creation after which the server may drop the task; ``None`` is unlimited."""

    poll_interval_ms: float | None = None
    """Milliseconds to wait between polls, as the server wishes; ``None`` if it said nothing usable."""

    input_requests: JSONObject | None = None
    """Open questions by key, as they came, in ``input_required``."""

    result: JSONObject | None = None
    """The final result as it came, in ``completed``."""

    error: JSONObject | None = None
    """The JSON-RPC error as it came, in ``failed``. If it is no object, its beginning is the message."""

    request_state: str | None = None
    """Opaque text of an earlier draft that some servers still send; echoed in later requests."""

    @property
    def terminal(self) -> bool:
        """Whether the status is one from which a task never moves again."""
        return self.status in TERMINAL_STATUSES

    @property
    def immediate_response(self) -> str | None:
        """The server's words for the model while the task goes on; ``None`` if there are none."""
        meta = (self.model_extra or {}).get("_meta")
        return _text(meta.get(_IMMEDIATE_RESPONSE)) if isinstance(meta, dict) else None

    @property
    def progress(self) -> JSONObject | None:
        """``progress``, ``total`` and ``message``, as a server of the older generation told them last.

        ``None`` if it told nothing. The tasks of 2026-07-28 have no numbers, only a ``status_message``.
        """
        return _object((self.model_extra or {}).get("progress"))

    @property
    def age_s(self) -> float | None:
        """Seconds from ``createdAt`` to ``lastUpdatedAt``, by the server's clock; ``None`` without both."""
        made, changed = _time(self.created_at), _time(self.last_updated_at)
        return None if made is None or changed is None else (changed - made).total_seconds()

    @property
    def known_status(self) -> bool:
        """Whether the status is one of the specification's five."""
        return self.status in _KNOWN_STATUSES

    def to_wire(self) -> JSONObject:
        """The snapshot under its names on the wire, unknown fields included."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def same_as(self, other: Task) -> bool:
        """Whether nothing but the times and metadata of the reply differs.

        ``lastUpdatedAt`` is left out because some servers stamp it on every poll.
        """
        return _essence(self) == _essence(other) and _lasting_extra(self) == _lasting_extra(other)

    def older_than(self, other: Task) -> bool:
        """Whether ``lastUpdatedAt`` is earlier than the other's; false if the two cannot be compared."""
        mine, theirs = _time(self.last_updated_at), _time(other.last_updated_at)
        return mine is not None and theirs is not None and mine < theirs

    def created_with(self, other: Task) -> bool:
        """Whether ``createdAt`` is within a second of the other's, or one of them has none to compare.

        Servers write one instant in several ways (``.215Z``, ``.215000Z``), and some find it anew each time.
        """
        mine, theirs = _time(self.created_at), _time(other.created_at)
        return mine is None or theirs is None or abs(mine - theirs) < timedelta(seconds=1)

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        words = self.status_message
        message = [("status_message", quote(words, self.task_id))] if words is not None else []
        return [("task_id", shorten(self.task_id)), ("status", quote(self.status, self.task_id)), *message]


_essence: Final = attrgetter(
    *(name for name in Task.model_fields if name not in ("created_at", "last_updated_at"))
)


def _lasting_extra(task: Task) -> JSONObject:
    extra = task.model_extra or {}
    return {name: value for name, value in extra.items() if name not in ("_meta", "resultType", "content")}


def _time(text: str | None) -> datetime | None:
    """An instant, in UTC where no zone is given; ``None`` if ``text`` is none."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


# One object for each, where every reply brings another.
_STATUSES: Final = {status: status for status in _KNOWN_STATUSES}


def read_task(raw: object) -> Task:
    """The task in ``raw``, a ``tasks/get`` result, a creation result or a notification's params.

    Discriminates by ``status`` alone, as servers disagree on ``resultType``.

    Raises:
        MalformedError: There is no usable ``taskId`` or ``status``.
    """
    if not isinstance(raw, dict):
        raise MalformedError(f"a task must be an object, not {type(raw).__name__}")
    try:
        task = Task.model_validate(dict(_usable(raw)), by_alias=True, by_name=False)
    except ValidationError as error:
        fields = ", ".join(str(e["loc"][0]) for e in error.errors(include_input=False, include_url=False))
        raise MalformedError(f"a task without a usable {fields}") from None
    share_shape(task)
    return task


_SHAPES: Final[dict[frozenset[str], set[str]]] = {}
_SHARED_NAMES: Final = frozenset(
    {"result_type", *Task.model_fields, *(field.alias or "" for field in Task.model_fields.values())}
)


def share_shape(model: BaseModel) -> None:
    """Have a model share the set of its field names with all models that have the same ones.

    A set of its own would be 0.7 KB of each call that waits. Models with names that a server made up keep it.
    """
    shape = frozenset(model.model_fields_set)
    if shape <= _SHARED_NAMES:
        shared = _SHAPES.setdefault(shape, model.model_fields_set)
        object.__setattr__(model, "__pydantic_fields_set__", shared)


def _usable(raw: JSONObject) -> Iterator[tuple[str, Any]]:
    """The fields of a task without those that make no sense. An explicit null does: it says *none*."""
    for name, value in raw.items():
        if name == "resultType":
            continue  # says what kind of reply it came in
        if name == "status" and isinstance(value, str):
            value = _STATUSES.get(value, value[:_LONGEST_WORD])
        elif name == "lastUpdatedAt" and value == raw.get("createdAt"):
            value = raw.get("createdAt")  # one object for both
        if name in _OPTIONAL and value is not None:
            value = _OPTIONAL[name](value)
            if value is not None:
                yield name, value
        elif name.isascii() or is_encodable(name):  # pydantic takes the others for no name
            yield name, value
