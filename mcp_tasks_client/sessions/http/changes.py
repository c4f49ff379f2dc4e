"""Changed lists, told on a ``subscriptions/listen`` stream that is kept open beside that of the tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from ...errors import SessionError
from ...policy import growing_delay
from ...protocol import JSONObject
from .subscription import (
    ACKNOWLEDGED,
    LONGEST_PAUSE_S,
    LONGEST_RETRY_AFTER_S,
    MOMENT_S,
    DeclinedError,
    is_final,
)

__all__ = ["Changes", "keep_told", "offered_changes"]

_FILTERS: Final = {
    "toolsListChanged": "tools",
    "promptsListChanged": "prompts",
    "resourcesListChanged": "resources",
}
"""The notifications that a stream can be asked for, and the capability whose ``listChanged`` offers it.

Source: MCP 2026-07-28, "Subscriptions"."""


def offered_changes(capabilities: Mapping[str, Any]) -> JSONObject:
    """The changed lists that a server of these capabilities tells of, as a stream is asked for them."""
    declared = {name: capabilities.get(capability) for name, capability in _FILTERS.items()}
    return {
        name: True
        for name, one in declared.items()
        if isinstance(one, dict) and one.get("listChanged") is True
    }


class Changes:
    """One stream.

    Attributes:
        acknowledged: Whether the server has agreed to tell of something that was asked for.
        told: Whether it has told anything.
    """

    def __init__(self, asked: JSONObject, tell: Callable[[JSONObject], None]) -> None:
        self.acknowledged = self.told = False
        self._asked = asked
        self._tell = tell

    def take(self, message: JSONObject) -> None:
        """Take a message of the stream.

        Raises:
            DeclinedError: The server acknowledges the subscription, and nothing that was asked for.
        """
        if message.get("method") != ACKNOWLEDGED:
            self.told = True
            self._tell(message)
        elif not self.acknowledged:
            params = message.get("params")
            agreed = params.get("notifications") if isinstance(params, dict) else None
            if not (isinstance(agreed, dict) and any(agreed.get(name) is True for name in self._asked)):
                raise DeclinedError
            self.acknowledged = True


async def keep_told(
    open_stream: Callable[[Changes], Awaitable[None]],
    begin: Callable[[], Changes],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Keep a stream open, one after another. Returns when the server refuses, which is final.

    A stream that breaks is opened again after a pause, which doubles up to a minute as long as streams are
    short and bring nothing. Changes during the pause are lost.
    """
    failures = 0
    while True:
        changes, began, asked_s = begin(), anyio.current_time(), 0.0
        try:
            await open_stream(changes)
        except SessionError as error:
            if is_final(error):
                return
            asked_s = min(error.retry_after_s or 0.0, LONGEST_RETRY_AFTER_S)
        was_useful = changes.told or anyio.current_time() - began > LONGEST_PAUSE_S
        failures = 1 if was_useful else failures + 1
        await sleep(max(growing_delay(MOMENT_S, failures, LONGEST_PAUSE_S), asked_s))
