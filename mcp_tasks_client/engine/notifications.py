"""Notifications of the server's, told to the host's callback as they come."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ..aio.host_code import describe, is_async
from ..protocol import JSONObject

__all__ = ["OnNotification", "tell_notifications"]

logger = logging.getLogger("mcp_tasks_client")

OnNotification: TypeAlias = Callable[[str, dict[str, Any]], None]
"""Takes the method and the params of a notification. A plain function, since nothing waits for it."""

_OURS: Final = frozenset(
    {
        "notifications/tasks",
        "notifications/tasks/status",
        "notifications/subscriptions/acknowledged",
        "notifications/cancelled",
    }
)
"""Of tasks, of streams that the client has asked for, and of requests of the server's to the client."""


def tell_notifications(callback: OnNotification) -> Callable[[JSONObject], None]:
    """Make a function that takes messages of a server, and tells the callback those that are the host's.

    The callback is called at once: nothing is kept, however many come.

    Raises:
        TypeError: The callback is no plain function.
    """
    if not callable(callback) or is_async(callback):
        raise TypeError(
            "on_notification must be a plain function of a method and its params. To await something there, "
            "have it put them into a queue of yours."
        )

    def tell(message: JSONObject) -> None:
        method, params = message.get("method"), message.get("params")
        if "id" in message or not isinstance(method, str) or method in _OURS:
            return
        try:
            callback(method, params if isinstance(params, dict) else {})
        except Exception as error:
            logger.warning("on_notification raised, and is told the next one: %s", describe(error))

    return tell
