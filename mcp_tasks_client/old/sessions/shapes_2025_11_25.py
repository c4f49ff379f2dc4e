"""What the core tasks of 2025-11-25 look like on the wire, and as the shapes that the rest knows. Pure.

There the client asks for a task, a snapshot holds no payload, and the result is fetched by itself; so what
``tasks/get`` of 2026-07-28 tells at once is put together here from two replies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from ..wire import JSONObject, MalformedError, RequestId, RpcError

__all__ = [
    "CORE_TASKS_VERSION",
    "HANDSHAKE_VERSIONS",
    "HOSTS_OWN",
    "RELATED_TASK",
    "Memo",
    "created_before",
    "created_task",
    "ended",
    "id_text",
    "lasting",
    "marked",
    "related_task",
    "request_id_of",
    "snapshot",
]

CORE_TASKS_VERSION: Final = "2025-11-25"
HANDSHAKE_VERSIONS: Final = frozenset({CORE_TASKS_VERSION, "2025-06-18", "2025-03-26", "2024-11-05"})
"""Those that begin with ``initialize``; only the newest has tasks."""

RELATED_TASK: Final = "io.modelcontextprotocol/related-task"

_VOLATILE: Final = frozenset({RELATED_TASK, "progressToken"})
_LARGEST_ID: Final = 2**63
_RENAMED: Final = {"ttl": "ttlMs", "pollInterval": "pollIntervalMs"}
_INTERNAL_ERROR: Final = -32603


def snapshot(raw: object) -> JSONObject:
    """A task under the names of 2026-07-28.

    Raises:
        MalformedError: It is no object.
    """
    if not isinstance(raw, dict):
        raise MalformedError(f"a task must be an object, not {type(raw).__name__}")
    return {_RENAMED.get(str(name), str(name)): value for name, value in raw.items()}


def created_task(result: JSONObject) -> JSONObject | None:
    """The task in the result of a ``tools/call``; ``None`` if it is a result.

    Its ``_meta`` is that of the whole reply, which may hold a text for the model.
    """
    task = result.get("task")
    if not isinstance(task, dict) or "taskId" not in task:
        return None
    meta, status = result.get("_meta"), task.get("status")
    # The ID must not be lost for want of a status; the first poll brings one.
    known = {} if isinstance(status, str) and status else {"status": "unknown"}
    return snapshot(task) | known | ({"_meta": meta} if isinstance(meta, dict) else {})


def created_before(created_at: str | None, seconds: float) -> bool:
    """Whether a task says that it was created before a time, in seconds since the epoch."""
    try:
        created = datetime.fromisoformat(created_at or "")
        return created.replace(tzinfo=created.tzinfo or UTC).timestamp() < seconds
    except ValueError:
        return False  # it says nothing


def ended(task: JSONObject, reply: JSONObject | RpcError) -> JSONObject:
    """A task that is over, with what ``tasks/result`` said of it.

    Whatever the tool returned is a result, with ``isError`` or without, though its task is called failed.

    Source: 2025-11-25, "Result Retrieval"; that a failed one may have none, and then tells why in its
    ``statusMessage``, is what servers do.
    """
    if isinstance(reply, RpcError):
        return {**task, "status": "failed", "error": _error(reply.code, reply.message, reply.data)}
    if task.get("status") == "failed" and not reply.keys() - {"_meta"}:
        said = task.get("statusMessage")
        message = said if isinstance(said, str) and said else "The task failed; the server does not say why."
        return {**task, "error": _error(_INTERNAL_ERROR, message, None)}
    return {**task, "status": "completed", "result": reply}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo:
    """What another process needs to go on with a task, which it finds in the task's ``requestState``."""

    session_id: str | None = None
    """The session that the task was made in."""

    ttl_ms: int | None = None
    """The time-to-live that was asked for, which no other call has asked for."""

    retrieval: RequestId | None = None
    """The ID of a ``tasks/result`` that waits, and takes the next question along until it is taken back."""

    asked: Mapping[str, Sequence[RequestId]] = field(default_factory=dict)
    """The IDs of the requests behind its questions, by key. The server does not send them again."""

    answered: Sequence[str] = ()
    """The keys of questions whose answers have arrived, though nobody has said so."""

    progress: str | int | None = None
    """The token by which the server says how far the task is."""

    def __str__(self) -> str:
        return json.dumps(
            {name: value for name, value in asdict(self).items() if value not in (None, {}, ())}
        )

    @classmethod
    def read(cls, text: str | None) -> Self:
        """The memo in a text; an empty one, where it is somebody else's."""
        try:
            raw = json.loads(text or "")
        except ValueError:
            return cls()
        if not isinstance(raw, dict):
            return cls()
        names = ("session_id", "ttl_ms", "retrieval", "asked", "answered", "progress")
        session_id, ttl_ms, retrieval, asked, answered, progress = (raw.get(name) for name in names)
        return cls(
            ttl_ms=ttl_ms if isinstance(ttl_ms, int) else None,
            session_id=session_id if isinstance(session_id, str) else None,
            retrieval=retrieval if isinstance(retrieval, str | int) else None,
            asked=asked if isinstance(asked, dict) else {},
            answered=tuple(map(str, answered)) if isinstance(answered, list) else (),
            progress=progress if isinstance(progress, str | int) else None,
        )


HOSTS_OWN: Final = "host-"
"""With what the name of a session begins that a host has, and whose ID cannot be seen."""


def id_text(request_id: RequestId) -> str:
    """A request ID as a name: 0 and "0" are two, and 1 and 1.0 are one."""
    return repr(request_id if isinstance(request_id, str) else float(request_id))


def request_id_of(message: JSONObject) -> RequestId | None:
    """The ID of a request, which may be 0 or empty; ``None`` if it has none that could be answered."""
    request_id = message.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int | float):
        return None
    return request_id if isinstance(request_id, str) or abs(request_id) < _LARGEST_ID else None


def related_task(params: object) -> str | None:
    """The ID of the task that a message belongs to; ``None`` if it says nothing of one."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    related = meta.get(RELATED_TASK) if isinstance(meta, dict) else None
    task_id = related.get("taskId") if isinstance(related, dict) else None
    return task_id if isinstance(task_id, str) and task_id else None


def marked(answer: Mapping[str, Any], task_id: str) -> JSONObject:
    """An answer that says which task it belongs to.

    Source: 2025-11-25, "Associating Task-Related Messages" (MUST).
    """
    return {**answer, "_meta": {**answer.get("_meta", {}), RELATED_TASK: {"taskId": task_id}}}


def lasting(method: str, params: JSONObject) -> JSONObject:
    """A question without what differs each time that it comes."""
    return {"method": method, "params": _lasting(params)}


def _lasting(params: JSONObject) -> JSONObject:
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        return params
    kept = {name: value for name, value in meta.items() if name not in _VOLATILE}
    rest = {name: value for name, value in params.items() if name != "_meta"}
    return {**rest, "_meta": kept} if kept else rest


def _error(code: int | None, message: str, data: Any) -> JSONObject:
    error: JSONObject = {"code": code, "message": message}
    return error if data is None else {**error, "data": data}
