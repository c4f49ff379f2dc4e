"""How far tasks are, as a server says it: by the token of the call that made each, until its end."""

from __future__ import annotations

import secrets
from typing import Final, TypeAlias

from ..wire import JSONObject

__all__ = ["Progress", "Token"]

Token: TypeAlias = str | int
_Name: TypeAlias = tuple[str | None, Token | None]
"""The session, and its token: two sessions may have the same one."""

_PAUSE_S: Final = 0.1
"""Seconds between two tellings of one task: each of them is journaled."""


class Progress:
    """What was said last of each task."""

    def __init__(self) -> None:
        self._said: dict[_Name, JSONObject] = {}
        self._tasks: dict[_Name, str] = {}
        self._names: dict[str, _Name] = {}
        self._told_at: dict[str, float] = {}

    def announce(self, params: JSONObject, session_id: str | None, *, ours: bool) -> Token | None:
        """The token of a call that is about to be made: the caller's own, or a new one.

        Args:
            params: Of the call, to which a new one is added.
            session_id: Of the session that the call is made in.
            ours: Whether one may be added.
        """
        meta = params.get("_meta") or {}
        token = meta.get("progressToken")
        if token is None and ours:
            token = secrets.token_hex(8)
            params["_meta"] = {**meta, "progressToken": token}
        if isinstance(token, bool) or not isinstance(token, str | int):
            return None
        self._said.setdefault((session_id, token), {})
        return token

    def expect(self, token: Token | None, task_id: str, session_id: str | None) -> None:
        """Note which task a token belongs to, which may have been another process's call.

        One that is another task's already, by a host that gives it twice, tells nothing of this one. A task
        keeps its token, and what was said, in a session that is begun in place of its own.
        """
        name, before = (session_id, token), self._names.get(task_id)
        if token is None or name in self._tasks or (before is not None and before[1] != token):
            return
        said: JSONObject = {}
        if before is not None:
            said = self._said.pop(before)
            del self._tasks[before]
        self._said.setdefault(name, said)
        self._tasks[name], self._names[task_id] = task_id, name

    def drop(self, token: Token | None, session_id: str | None) -> None:
        """Forget a token, if its call has become no task."""
        if (session_id, token) not in self._tasks:
            self._said.pop((session_id, token), None)

    def token_of(self, task_id: str) -> Token | None:
        """The token of a task, if it has one."""
        name = self._names.get(task_id)
        return name[1] if name is not None else None

    def of(self, task_id: str) -> JSONObject:
        """What was said last of a task; empty if nothing was."""
        name = self._names.get(task_id)
        return {} if name is None else self._said[name]

    def take(self, params: JSONObject, now: float, session_id: str | None) -> str | None:
        """Take a notification.

        Returns:
            The task that is to be told of now; ``None`` if there is none, or it was told of just before.
        """
        token = params.get("progressToken")
        name = session_id, token
        if not isinstance(token, str | int) or name not in self._said:
            return None
        self._said[name] = {k: params[k] for k in ("progress", "total", "message") if k in params}
        task_id = self._tasks.get(name)
        if task_id is None or now - self._told_at.get(task_id, -_PAUSE_S) < _PAUSE_S:
            return None
        self._told_at[task_id] = now
        return task_id

    def forget(self, task_id: str) -> None:
        """Forget a task."""
        self._told_at.pop(task_id, None)
        name = self._names.pop(task_id, None)
        if name is not None:
            del self._tasks[name], self._said[name]
