"""Hears at once what other processes have left: LISTEN, over a connection of its own."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Collection
from typing import Final

import psycopg

from ...errors import JournalError
from .database import Connection

__all__ = ["Listener"]

logger = logging.getLogger("mcp_tasks_client")

_PAUSE_S: Final = 2.0
"""Seconds between attempts to connect. Meanwhile the journal looks by itself."""

_END_S: Final = 2.0
"""Seconds that its end is waited for. Making a connection may last longer."""


class Listener:
    """A thread that listens, from now on.

    Args:
        connect: Makes a connection.
        channel: The channel to listen to.
        hear: Told the payloads of notifications; told none of them where some may have been missed.
    """

    def __init__(
        self, connect: Callable[[], Connection], channel: str, hear: Callable[[Collection[str]], object]
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._hear = hear
        self._stopped, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="mcp-tasks-listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait until it has ended, or connects."""
        self._stop.close()
        self._thread.join(_END_S)

    def _serve(self) -> None:
        try:
            while not self._waits_for(None, 0):
                try:
                    with self._connect() as connection:
                        self._listen(connection)
                except (psycopg.Error, JournalError) as error:
                    logger.debug("nothing is heard of other processes for a while: %s", error)
                    if self._waits_for(None, _PAUSE_S):
                        return
        finally:
            self._stopped.close()

    def _listen(self, connection: Connection) -> None:
        connection.execute(f"LISTEN {self._channel}".encode())
        self._hear(())  # of notifications that were sent before
        while not self._waits_for(connection, None):
            heard = {notice.payload for notice in connection.notifies(timeout=0)}
            if heard:
                self._hear(heard)

    def _waits_for(self, connection: Connection | None, timeout_s: float | None) -> bool:
        """Wait until the connection has something to say. True if the thread is to end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            if connection is not None:
                selector.register(connection, selectors.EVENT_READ)
            return any(key.fileobj is self._stopped for key, _ in selector.select(timeout_s))
