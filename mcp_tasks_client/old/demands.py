"""What a server of 2025-11-25 asks of the tasks that it has us run. Pure."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from .sessions.shapes_2025_11_25 import related_task
from .wire import JSONObject, RequestId, RpcError, digest

__all__ = [
    "INVALID_PARAMS",
    "Allowance",
    "AskedCancel",
    "AskedGet",
    "AskedList",
    "AskedResult",
    "AskedTask",
    "Position",
    "RefusedError",
    "answerable",
    "concerns",
    "cursor",
    "offered",
    "read_request",
]

INVALID_PARAMS: Final = -32602

_CALLBACKS: Final = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling"}
_OFFERED: Final[JSONObject] = {"elicitation": {"create": {}}, "sampling": {"createMessage": {}}}
_LONGEST_CURSOR: Final = 256
_AT_ONCE_S: Final = 10.0

Position: TypeAlias = tuple[float, str]
"""Where a task is among others: when it was made, and its record."""


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = RpcError(code, message, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTask:
    """An elicitation or a sampling as a task."""

    request_id: RequestId
    method: str
    request: JSONObject = field(repr=False)
    """What the host is to be asked."""

    ttl_ms: float | None
    """As the server wishes; infinite for as long as possible, ``None`` if it does not say."""

    related: str | None = field(repr=False)
    """The server's own task that it is needed for."""

    digest: str
    """Of all of it and of its ID in the session: equal for a request that comes twice."""


@dataclass(frozen=True, slots=True)
class AskedGet:
    """``tasks/get``."""

    task_id: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AskedResult:
    """``tasks/result``."""

    task_id: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AskedCancel:
    """``tasks/cancel``."""

    task_id: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AskedList:
    """``tasks/list``, from a place on."""

    after: Position | None


class Allowance:
    """How many requests may still come: so many in a second, and ten seconds' worth of them at once.

    Args:
        rate: Requests in a second.
        now: Time, in seconds.
    """

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._left = _AT_ONCE_S * rate
        self._at = now

    def take(self, now: float) -> bool:
        """Whether there is one more; the clock may go back."""
        self._left = min(self._left + max(now - self._at, 0.0) * self.rate, _AT_ONCE_S * self.rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


Asked: TypeAlias = AskedTask | AskedGet | AskedResult | AskedCancel | AskedList

_ABOUT_ONE: Final[Mapping[str, type[AskedGet | AskedResult | AskedCancel]]] = {
    "tasks/get": AskedGet,
    "tasks/result": AskedResult,
    "tasks/cancel": AskedCancel,
}


def offered(capabilities: JSONObject) -> JSONObject:
    """The capability to declare: nothing, where nobody could be asked.

    Args:
        capabilities: Those of a client that can be asked plainly.

    Source: 2025-11-25, "Capabilities"; the set of request types is exhaustive.
    """
    requests = {name: kinds for name, kinds in _OFFERED.items() if name in capabilities}
    return {"tasks": {"list": {}, "cancel": {}, "requests": requests}} if requests else {}


def concerns(message: JSONObject, capabilities: JSONObject) -> bool:
    """Whether a request is about tasks of ours: one of ``tasks/*``, or a question as a task.

    A question of a kind that tasks were not declared for is a plain one, whatever its params say.

    Source: 2025-11-25, "Task Support and Handling", rule 1 (MUST).
    """
    if not offered(capabilities):
        return False
    method, params = message.get("method"), message.get("params")
    if method in _ABOUT_ONE or method == "tasks/list":
        return True
    as_task = isinstance(params, dict) and params.get("task") is not None
    return as_task and answerable(str(method), capabilities)


def answerable(method: str, capabilities: JSONObject) -> bool:
    """Whether there is somebody to ask it."""
    return _CALLBACKS.get(method) in capabilities


def read_request(request_id: RequestId, message: JSONObject) -> Asked:
    """What a request that concerns us asks for.

    The task's ID is that of the params, whatever other marks a request may bear.

    Raises:
        RefusedError: It is malformed.
    """
    method, params = str(message.get("method")), message.get("params")
    params = params if isinstance(params, dict) else {}
    if method in _CALLBACKS:
        question = {name: value for name, value in params.items() if name != "task"}
        return AskedTask(
            request_id=request_id,
            method=method,
            request={"method": method, "params": question},
            ttl_ms=_wish(params.get("task")),
            related=related_task(params),
            digest=digest([request_id, method, params]),
        )
    if method == "tasks/list":
        return AskedList(_place(params.get("cursor")))
    task_id = params.get("taskId")
    if not isinstance(task_id, str) or not task_id:
        raise RefusedError(INVALID_PARAMS, f"Invalid params: {method} needs the taskId, a string")
    return _ABOUT_ONE[method](task_id)


def _wish(task: object) -> float | None:
    if not isinstance(task, dict):
        raise RefusedError(INVALID_PARAMS, "Invalid params: task must be an object")
    ttl = task.get("ttl", 0.0)
    if ttl is None:
        return math.inf
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not ttl >= 0:
        raise RefusedError(INVALID_PARAMS, "Invalid params: task.ttl must be a number of milliseconds")
    return ttl or None


def cursor(place: Position) -> str:
    """The place from which the next page goes on, as a word that means nothing to the server."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode("ascii")


def _place(word: object) -> Position | None:
    if word is None:
        return None
    try:
        text = base64.b64decode(str(word)[:_LONGEST_CURSOR], altchars=b"-_", validate=True)
        created_at, record_id = json.loads(text)
        usable = isinstance(created_at, float) and math.isfinite(created_at) and isinstance(record_id, str)
        if usable and cursor((created_at, record_id)) == word:
            return created_at, record_id
    except (ValueError, TypeError):  # of whichever part of it
        pass
    raise RefusedError(INVALID_PARAMS, "Invalid params: there is no such cursor")
