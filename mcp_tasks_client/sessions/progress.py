"""How far tasks are, as a server says it: by the token of the call that made each, until its end."""

from __future__ import annotations

import secrets
from typing import Final, TypeAlias

from ..wire import JSONObject

__all__ = ["Progress", "Token"]

Token: TypeAlias = str | int

_PAUSE_S: Final = 0.1
"""Seconds between two tellings of one task: each of them is journaled."""


class Progress:
    """What was said last of each task."""

    def __init__(self) -> None:
        self._said: dict[Token, JSONObject] = {}
        self._tasks: dict[Token, str] = {}
        self._tokens: dict[str, Token] = {}
        self._told_at: dict[str, float] = {}

    def announce(self, params: JSONObject, *, ours: bool) -> Token | None:
        """The token of a call that is about to be made: the caller's own, or a new one.

        Args:
            params: Of the call, to which a new one is added.
            ours: Whether one may be added.
        """
        meta = params.get("_meta") or {}
        token = meta.get("progressToken")
        if token is None and ours:
            token = secrets.token_hex(8)
            params["_meta"] = {**meta, "progressToken": token}
        if isinstance(token, bool) or not isinstance(token, str | int):
            return None
        self._said[token] = {}
        return token

    def expect(self, token: Token | None, task_id: str) -> None:
        """Note which task a token belongs to, which may have been another process's call."""
        if token is not None and task_id not in self._tokens:
            self._said.setdefault(token, {})
            self._tasks[token], self._tokens[task_id] = task_id, token

    def drop(self, token: Token | None) -> None:
        """Forget a token, if its call has become no task."""
        if token is not None and token not in self._tasks:
            self._said.pop(token, None)

    def token_of(self, task_id: str) -> Token | None:
        """The token of a task, if it has one."""
        return self._tokens.get(task_id)

    def of(self, task_id: str) -> JSONObject:
        """What was said last of a task; empty if nothing was."""
        token = self._tokens.get(task_id)
        return {} if token is None else self._said[token]

    def take(self, params: JSONObject, now: float) -> str | None:
        """Take a notification.

        Returns:
            The task that is to be told of now; ``None`` if there is none, or it was told of just before.
        """
        token = params.get("progressToken")
        if not isinstance(token, str | int) or token not in self._said:
            return None
        self._said[token] = {k: params[k] for k in ("progress", "total", "message") if k in params}
        task_id = self._tasks.get(token)
        if task_id is None or now - self._told_at.get(task_id, -_PAUSE_S) < _PAUSE_S:
            return None
        self._told_at[task_id] = now
        return task_id

    def forget(self, task_id: str) -> None:
        """Forget a task."""
        self._told_at.pop(task_id, None)
        token = self._tokens.pop(task_id, None)
        if token is not None:
            del self._tasks[token], self._said[token]
