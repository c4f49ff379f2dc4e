"""Replies to ``tools/call``, and JSON-RPC errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mcp_types import INTERNAL_ERROR

from . import JSONObject, MalformedError
from .integers import read_integer
from .task import LONGEST_STATE, UNKNOWN, Task, read_state, read_task
from .text import excerpt, is_encodable

__all__ = [
    "CallReply",
    "Created",
    "InputRequired",
    "Reply",
    "Returned",
    "RpcError",
    "id_in",
    "is_url_key",
    "read_call_reply",
    "read_rpc_error",
    "read_url_requests",
    "reply_fields",
]


_URL_KEY: Final = "mcp-tasks-client/url:"


@dataclass(frozen=True, slots=True)
class Returned:
    """``tools/call`` was answered with its result."""

    result: JSONObject


@dataclass(frozen=True, slots=True)
class InputRequired:
    """``tools/call`` needs answers before it starts (multi round-trip). The call is sent again with them."""

    requests: JSONObject
    request_state: str | None


@dataclass(frozen=True, slots=True)
class Created:
    """``tools/call`` was answered with a task."""

    task: Task
    session_data: str | None = None
    """The session's own data to reach this task again, beyond its ID. Opaque to the caller."""


CallReply: TypeAlias = Returned | InputRequired | Created


def read_call_reply(raw: object) -> CallReply:
    """The reply in a ``tools/call`` result. ``resultType`` alone decides.

    Some servers add ``content: []`` to a task. An unknown ``resultType`` is read as a result,
    whose own validation then decides.

    Raises:
        MalformedError: Not an object, a task without an ID, or a round without anything to answer.
    """
    if not isinstance(raw, dict):
        raise MalformedError(f"the result of tools/call must be an object, not {type(raw).__name__}")
    match raw.get("resultType"):
        case "task":
            # As in older versions, which some servers mix up with this one.
            nested = raw.get("task")
            if "taskId" not in raw and isinstance(nested, dict):
                raw = {**{name: raw[name] for name in ("_meta",) if name in raw}, **nested}
            # The ID must not be lost for want of a status; the first poll brings one.
            status = raw.get("status")
            usable = isinstance(status, str) and status != "" and is_encodable(status)
            task = read_task(raw if usable else {**raw, "status": UNKNOWN})
            return Created(task, task.request_state)
        case "input_required":
            requests, state = raw.get("inputRequests"), raw.get("requestState")
            requests = requests if isinstance(requests, dict) else {}
            if isinstance(state, str) and read_state(state) is None:
                raise MalformedError(f"a requestState of more than {LONGEST_STATE} characters")
            state = read_state(state)
            if not requests and state is None:
                raise MalformedError("input_required without inputRequests and without requestState")
            return InputRequired(requests, state)
        case _:
            return Returned(raw)


@dataclass(frozen=True, slots=True)
class RpcError:
    """A JSON-RPC error object."""

    code: int | None
    message: str
    data: Any


Reply: TypeAlias = JSONObject | RpcError
"""The result or the error of a request."""


def reply_fields(reply: Reply) -> JSONObject:
    """``result`` or ``error`` of a JSON-RPC response. An error without a code has that of a fault of ours."""
    if not isinstance(reply, RpcError):
        return {"result": reply}
    code = INTERNAL_ERROR if reply.code is None else reply.code
    data = {} if reply.data is None else {"data": reply.data}
    return {"error": {"code": code, "message": reply.message, **data}}


def read_rpc_error(raw: object) -> RpcError:
    """The JSON-RPC error in ``raw``. Parts that are missing or of another type become empty.

    Where there is no message, the value in its place is the message, bounded.
    """
    error: JSONObject = raw if isinstance(raw, dict) else {}
    message = error.get("message")
    return RpcError(
        code=read_integer(error.get("code")),
        message=message if isinstance(message, str) else _reason_in(raw),
        data=error.get("data"),
    )


def _reason_in(raw: object) -> str:
    if isinstance(raw, dict):
        is_kept = {"data", "code"} if isinstance(raw.get("code"), int | float) else {"data"}
        raw = {name: value for name, value in raw.items() if name not in is_kept}
    return excerpt(raw) if raw else ""


def read_url_requests(data: object) -> JSONObject | None:
    """The URLs that have to be visited before a call, as input requests under keys of ours.

    ``data`` is that of the error ``-32042`` (URL elicitation required). The answer is ``None`` if its
    ``elicitations`` are empty, or if one of them asks for anything but a URL.
    """
    entries = data.get("elicitations") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not all(map(_is_by_url, entries)):
        return None
    requests = [{"method": "elicitation/create", "params": {**entry, "mode": "url"}} for entry in entries]
    return {f"{_URL_KEY}{number}": request for number, request in enumerate(requests, 1)} or None


def _is_by_url(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("mode", "url") == "url" and isinstance(entry.get("url"), str)


def is_url_key(key: str) -> bool:
    """Whether a key is one of :func:`read_url_requests`. The server takes no answer under it."""
    return key.startswith(_URL_KEY)


def id_in(fields: object, name: str) -> str | int | None:
    """The JSON-RPC ID or progress token in a field of an object; ``None`` if there is none."""
    value: Any = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, str) else read_integer(value)
