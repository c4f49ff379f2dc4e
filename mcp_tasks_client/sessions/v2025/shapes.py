"""The core tasks of 2025-11-25 on the wire, and how they are read as tasks of 2026-07-28. Pure.

In 2025-11-25 the client asks for a task, a snapshot holds no payload, and the result is fetched by a request
of its own. A snapshot of 2026-07-28 is put together here from ``tasks/get`` and ``tasks/result``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp_types import INTERNAL_ERROR

from ...protocol import OLDER_VERSION, JSONObject, MalformedError, RequestId
from ...protocol.replies import Reply, RpcError, id_in
from ...protocol.text import is_encodable

__all__ = [
    "CORE_TASKS_VERSION",
    "HANDSHAKE_VERSIONS",
    "declares_tasks",
    "inline_result",
    "is_own_token",
    "make_progress_token",
    "mark_answer",
    "read_created_task",
    "read_progress_token",
    "read_related_task",
    "read_request_id",
    "rename_task_fields",
    "strip_volatile",
]

CORE_TASKS_VERSION: Final = OLDER_VERSION
HANDSHAKE_VERSIONS: Final = frozenset({CORE_TASKS_VERSION, "2025-06-18", "2025-03-26", "2024-11-05"})
"""The versions that begin with ``initialize``. Only the newest has tasks."""

_RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
_FASTMCP_2_TASK: Final = "modelcontextprotocol.io/task"
"""The entry of ``_meta`` in which FastMCP 2.14 puts the task of a ``tools/call``, beside empty content."""

_VOLATILE: Final = frozenset({_RELATED_TASK, "progressToken"})
_LARGEST_ID: Final = 2**63
_RENAMED: Final = {"ttl": "ttlMs", "pollInterval": "pollIntervalMs"}


def declares_tasks(introduction: JSONObject | None, *path: str) -> bool:
    """Whether a server's answer to ``initialize`` declares this path below its capability ``tasks``."""
    found: object = introduction
    for name in ("capabilities", "tasks", *path):
        found = found.get(name) if isinstance(found, dict) else None
    return found is not None


def rename_task_fields(raw: object) -> JSONObject:
    """A task under the field names of 2026-07-28.

    Raises:
        MalformedError: ``raw`` is no object.
    """
    if not isinstance(raw, dict):
        raise MalformedError(f"a task must be an object, not {type(raw).__name__}")
    return {_RENAMED.get(str(name), str(name)): value for name, value in raw.items()}


def read_created_task(result: JSONObject) -> JSONObject | None:
    """The task in the result of a ``tools/call``; ``None`` if the call has returned.

    The ``_meta`` of the reply becomes that of the task: it may hold an immediate response for the model.
    """
    meta = result.get("_meta")
    task = result.get("task")
    if task is None and isinstance(meta, dict) and not result.get("content"):
        task = meta.get(_FASTMCP_2_TASK)
    if not isinstance(task, dict) or not task.get("taskId"):
        return None
    status = task.get("status")
    # The ID must not be lost for want of a status; the first poll brings one.
    usable = isinstance(status, str) and status != "" and is_encodable(status)
    return {
        **rename_task_fields(task),
        **({} if usable else {"status": "unknown"}),
        **({"_meta": meta} if isinstance(meta, dict) else {}),
    }


def inline_result(task: JSONObject, reply: Reply) -> JSONObject:
    """A task that is over, with the answer to ``tasks/result``.

    The tool's return value is the result, with ``isError`` or without, although 2025-11-25 calls the task
    of an ``isError`` result failed. Some servers answer ``tasks/result`` of a failed task with nothing but
    ``_meta``. The reason is then in ``statusMessage``.
    """
    if isinstance(reply, RpcError):
        data = {} if reply.data is None else {"data": reply.data}
        return {**task, "status": "failed", "error": {"code": reply.code, "message": reply.message, **data}}
    if task.get("status") == "failed" and not reply.keys() - {"_meta"}:
        said = task.get("statusMessage")
        message = said if isinstance(said, str) and said else "The task failed; the server does not say why."
        return {**task, "error": {"code": INTERNAL_ERROR, "message": message}}
    return {**task, "status": "completed", "result": reply}


def read_request_id(message: JSONObject) -> RequestId | None:
    """The ID of a request, which may be 0 or empty; ``None`` if there is none that could be answered."""
    request_id = message.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int | float):
        return None
    return request_id if isinstance(request_id, str) or abs(request_id) < _LARGEST_ID else None


def read_related_task(params: JSONObject) -> str | None:
    """The ID of the task that a message is marked with; ``None`` if it has no mark."""
    meta = params.get("_meta")
    related = meta.get(_RELATED_TASK) if isinstance(meta, dict) else None
    task_id = related.get("taskId") if isinstance(related, dict) else None
    return task_id if isinstance(task_id, str) and task_id else None


_OWN_TOKENS: Final = "mcp-tasks-client/"


def make_progress_token(unique: str) -> str:
    """A progress token for a call whose host wants none."""
    return _OWN_TOKENS + unique


def is_own_token(token: object) -> bool:
    """Whether a progress token is one of :func:`make_progress_token`, in any process."""
    return isinstance(token, str) and token.startswith(_OWN_TOKENS)


def read_progress_token(params: Mapping[str, Any]) -> str | int | None:
    """The ``progressToken`` in the ``_meta`` of a request; ``None`` if there is none."""
    return id_in(params.get("_meta"), "progressToken")


def mark_answer(answer: JSONObject, task_id: str) -> JSONObject:
    """An answer with the mark of its task, which the server requires.

    Source: 2025-11-25, "Associating Task-Related Messages".
    """
    meta = answer.get("_meta")
    return {
        **answer,
        "_meta": {**(meta if isinstance(meta, dict) else {}), _RELATED_TASK: {"taskId": task_id}},
    }


def strip_volatile(method: str, params: JSONObject) -> JSONObject:
    """A question as ``{method, params}``, without the metadata that differs each time the server sends it."""
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        return {"method": method, "params": params}
    lasting = {name: value for name, value in meta.items() if name not in _VOLATILE}
    rest = {name: value for name, value in params.items() if name != "_meta"}
    return {"method": method, "params": {**rest, "_meta": lasting} if lasting else rest}
