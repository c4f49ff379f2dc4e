"""The Tasks extension's shapes on the wire: lenient when reading, exact when writing.

Reading follows one rule: a defect in an optional field never costs the task ID. A hint or a
time-to-live that makes no sense counts as absent, a status that we do not know is kept as it
is, and every field that we do not name stays in ``Task.model_extra``. What is left over as
impossible raises :class:`MalformedError`, which a session turns into its own error.

MCP's own shapes (``CallToolResult``, the input requests and their answers) are those of
``mcp_types``; here is only what the extension adds. Pure: no clock, no I/O.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

__all__ = [
    "EXTENSION_ID",
    "PROTOCOL_VERSION",
    "TERMINAL_STATUSES",
    "CallReply",
    "Created",
    "InputRequired",
    "JSONObject",
    "MalformedError",
    "RequestId",
    "Returned",
    "RpcError",
    "Task",
    "TaskStatus",
    "digest",
    "header_value",
    "read_call_reply",
    "read_rpc_error",
    "read_task",
    "redact",
    "shorten",
]

JSONObject: TypeAlias = dict[str, Any]
RequestId: TypeAlias = str | int | float

PROTOCOL_VERSION: Final = "2026-07-28"
EXTENSION_ID: Final = "io.modelcontextprotocol/tasks"

TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "cancelled", "failed"]
"""The statuses of the specification, verbatim."""

TERMINAL_STATUSES: Final[frozenset[str]] = frozenset({"completed", "cancelled", "failed"})
_KNOWN_STATUSES: Final[frozenset[str]] = frozenset(get_args(TaskStatus))

_IMMEDIATE_RESPONSE: Final = "io.modelcontextprotocol/model-immediate-response"

# 2**53 - 1, the largest integer every JSON reader agrees on: 285,000 years in milliseconds.
# Larger hints are read as this, so that no arithmetic on them can overflow.
_LARGEST_MS: Final = 2**53 - 1


class MalformedError(ValueError):
    """A reply that cannot be read as what it should be. The message says why."""


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


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: object) -> JSONObject | None:
    return value if isinstance(value, dict) else None


_OPTIONAL: Final[Mapping[str, Callable[[object], Any]]] = {
    "statusMessage": _text,
    "createdAt": _text,
    "lastUpdatedAt": _text,
    "ttlMs": _milliseconds,
    "pollIntervalMs": _milliseconds,
    "inputRequests": _object,
    "result": _object,
    "error": _object,
    "requestState": _text,
}
"""How each optional field of a task is read; what the reader makes ``None`` of counts as absent."""


class Task(BaseModel):
    """One snapshot of a task, as the server described it.

    Unknown fields are kept in ``model_extra``; :meth:`to_wire` gives all of them back.
    ``repr`` shortens the task ID, because whoever knows it can act on the task.

    Source: Tasks extension, "Tasks" (``Task`` and ``DetailedTask``).
    """

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True)

    task_id: str = Field(min_length=1)
    """The server's identifier, compared byte for byte."""

    status: str = Field(min_length=1)
    """One of :data:`TaskStatus`, or whatever newer word the server used."""

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
    """The JSON-RPC error as it came, in ``failed``."""

    request_state: str | None = None
    """Opaque text of an earlier draft that some servers still send; echoed in later requests."""

    @property
    def terminal(self) -> bool:
        """Whether the status is one from which a task never moves again."""
        return self.status in TERMINAL_STATUSES

    @property
    def immediate_response(self) -> str | None:
        """What the server would have the model be told while the task goes on; ``None`` if nothing.

        Source: 2025-11-25, "Creating Tasks".
        """
        meta = (self.model_extra or {}).get("_meta")
        return _text(meta.get(_IMMEDIATE_RESPONSE)) if isinstance(meta, dict) else None

    @property
    def progress(self) -> JSONObject | None:
        """How far the task is: ``progress``, ``total`` and ``message`` as the server told them last.

        ``None`` if it told nothing. Source: 2025-11-25, "Task Progress Notifications".
        """
        return _object((self.model_extra or {}).get("progress"))

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
        return self._essence() == other._essence()

    def older_than(self, other: Task) -> bool:
        """Whether ``lastUpdatedAt`` says so. Where it says nothing that can be compared, it is not."""
        try:
            mine, other_s = (datetime.fromisoformat(one.last_updated_at or "") for one in (self, other))
            return mine < other_s
        except (ValueError, TypeError):  # no time, or one with a zone and one without
            return False

    def _essence(self) -> tuple[object, ...]:
        extra = {
            k: v for k, v in (self.model_extra or {}).items() if k not in ("_meta", "resultType", "content")
        }
        return (
            self.task_id,
            self.status,
            self.status_message,
            self.ttl_ms,
            self.poll_interval_ms,
            self.input_requests,
            self.result,
            self.error,
            self.request_state,
            extra,
        )

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        words = self.status_message
        message = [("status_message", redact(words, self.task_id))] if words is not None else []
        return [("task_id", shorten(self.task_id)), ("status", redact(self.status, self.task_id)), *message]


# One object for each, where every reply brings another.
_STATUSES: Final = {status: status for status in _KNOWN_STATUSES}
_FIELD_SETS: Final[dict[frozenset[str], set[str]]] = {}


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
    # Which fields are set is the same for nearly all tasks, and takes more memory than what is in them.
    named = task.model_fields_set
    if Task.model_fields.keys() >= named:  # or a server that makes up names could have us keep them for ever
        object.__setattr__(task, "__pydantic_fields_set__", _FIELD_SETS.setdefault(frozenset(named), named))
    return task


def _usable(raw: JSONObject) -> Iterator[tuple[str, Any]]:
    """The fields of a task without those that make no sense. An explicit null does: it says *none*."""
    for name, value in raw.items():
        if name == "resultType":
            continue  # says what kind of reply it came in
        if name == "status" and isinstance(value, str):
            value = _STATUSES.get(value, value)
        elif name == "lastUpdatedAt" and value == raw.get("createdAt"):
            value = raw.get("createdAt")  # one object for both
        if name in _OPTIONAL and value is not None:
            value = _OPTIONAL[name](value)
            if value is not None:
                yield name, value
        elif name.isascii() or _encodable(name):
            yield name, value


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which pydantic takes for no name
        return False
    return True


@dataclass(frozen=True, slots=True)
class Returned:
    """``tools/call`` answered with its result at once."""

    result: JSONObject


@dataclass(frozen=True, slots=True)
class InputRequired:
    """``tools/call`` wants answers before it starts (multi round-trip); call again with them."""

    requests: JSONObject
    request_state: str | None


@dataclass(frozen=True, slots=True)
class Created:
    """``tools/call`` answered with a task."""

    task: Task
    generation: str = PROTOCOL_VERSION
    """The protocol version whose task it is."""


CallReply: TypeAlias = Returned | InputRequired | Created


def read_call_reply(raw: object) -> CallReply:
    """What a ``tools/call`` result is. Discriminates on ``resultType`` alone.

    Some servers add ``content: []`` to a task; an unknown ``resultType`` is read as a result,
    whose own validation then decides.

    Raises:
        MalformedError: Not an object, a task without an ID, or a round without anything to answer.
    """
    if not isinstance(raw, dict):
        raise MalformedError(f"the result of tools/call must be an object, not {type(raw).__name__}")
    match raw.get("resultType"):
        case "task":
            # The ID must not be lost for want of a status; the first poll brings one.
            status = _text(raw.get("status"))
            usable = status is not None and status != "" and _encodable(status)
            return Created(read_task(raw if usable else {**raw, "status": "unknown"}))
        case "input_required":
            requests, state = _object(raw.get("inputRequests")), _text(raw.get("requestState"))
            if not requests and state is None:
                raise MalformedError("input_required without inputRequests and without requestState")
            return InputRequired(requests or {}, state)
        case _:
            return Returned(raw)


@dataclass(frozen=True, slots=True)
class RpcError:
    """A JSON-RPC error object."""

    code: int | None
    message: str
    data: Any


def read_rpc_error(raw: object) -> RpcError:
    """The JSON-RPC error in ``raw``; parts that are missing or of another type become empty."""
    error = _object(raw) or {}
    code = error.get("code")
    return RpcError(
        code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        message=_text(error.get("message")) or "",
        data=error.get("data"),
    )


_HEADER_SAFE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_LOOKS_ENCODED: Final = re.compile(r"=\?base64\?.*\?=", re.DOTALL)


def header_value(value: str) -> str:
    """``value`` as an HTTP header can carry it, byte for byte.

    Printable ASCII without outer blanks goes as it is; everything else, and whatever already
    looks encoded, goes as ``=?base64?…?=`` over UTF-8.

    Raises:
        MalformedError: The text has no UTF-8 form (a lone surrogate), so no header can carry it.
    """
    if _HEADER_SAFE.fullmatch(value) and not _LOOKS_ENCODED.fullmatch(value):
        return value
    try:
        encoded = base64.b64encode(value.encode()).decode("ascii")
    except UnicodeEncodeError as error:
        raise MalformedError(
            f"{shorten(value)!a} has no UTF-8 form, so no HTTP header can carry it"
        ) from error
    return f"=?base64?{encoded}?="


def shorten(task_id: str) -> str:
    """Enough of a task ID to recognise it in a log, too little to use it."""
    return f"{task_id[: min(8, len(task_id) // 3)]}…"


def redact(text: str, task_id: str | None) -> str:
    """A server's words as a message may quote them: the task ID in them shortened."""
    return text.replace(task_id, shorten(task_id)) if task_id else text


_SORTED_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def digest(value: object) -> str:
    """SHA-256, in hex, of ``value`` as JSON with sorted keys: equal for equal JSON.

    Raises:
        TypeError: ``value`` holds something that has no JSON form.
    """
    return hashlib.sha256(_SORTED_JSON.encode(value).encode()).hexdigest()
