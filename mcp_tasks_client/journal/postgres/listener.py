"""Listens to the notifications of other processes, and renews leases, over a connection of its own."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Collection
from contextlib import closing
from typing import Final

import psycopg

from ...errors import JournalError
from .database import Backend, Connection, end_backend

__all__ = ["Listener"]

logger = logging.getLogger("mcp_tasks_client")

_FIRST_PAUSE_S: Final = 0.1
_PAUSE_S: Final = 2.0
"""Seconds between attempts to connect; the first one comes sooner. Meanwhile the journal looks by itself."""

_TELLING: Final = 2
"""Failures in a row of which the second one is logged: a connection that is lost is often there again."""

_END_S: Final = 2.0
"""Seconds to wait for the end of the thread. Making a connection may last longer."""


class Listener:
    """A thread that listens and renews leases, from now on.

    Args:
        connect: Makes a connection.
        channel: The channel to listen to.
        hear: Told the payloads of notifications; none of them where some may have been missed.
        renew: Renews the leases that are due, over this connection.
        tick_s: Seconds after which it looks which leases are due.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        channel: str,
        hear: Callable[[Collection[str]], object],
        renew: Callable[[Connection], object],
        tick_s: float,
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._hear = hear
        self._renew = renew
        self._tick_s = tick_s
        self._backend: Backend | None = None  # of the last connection
        self._failed = 0  # how often in a row
        self._stopped, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="mcp-tasks-listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait until it has ended, or connects."""
        self._stop.close()
        self._thread.join(_END_S)

    def _serve(self) -> None:
        pause_s = 0.0
        try:
            while not self._waits_for(None, pause_s):
                pause_s = _PAUSE_S
                try:
                    with closing(self._connect()) as connection:
                        if self._failed < _TELLING:
                            pause_s = _FIRST_PAUSE_S
                        # It may hold the row of a lease.
                        end_backend(connection, self._backend)
                        self._backend = connection.backend
                        self._listen(connection)
                        return
                except (psycopg.Error, JournalError) as error:
                    self._failed += 1
                    if self._failed == _TELLING:
                        logger.warning(
                            "The lease of this process in %s cannot be renewed. When it runs out, others "
                            "take its calls: %s",
                            self._channel,
                            str(error).partition("\n")[0],
                        )
        finally:
            self._stopped.close()

    def _listen(self, connection: Connection) -> None:
        connection.execute(f'LISTEN "{self._channel}"'.encode())
        self._hear(())  # of notifications that were sent before
        pause_s = 0.0
        while not self._waits_for(connection, pause_s):
            self._renew(connection)
            self._failed = 0
            # Also of those that came with the reply to a renewal.
            heard = {notice.payload for notice in connection.notifies(timeout=0)}
            if heard:
                self._hear(heard)
            pause_s = self._tick_s

    def _waits_for(self, connection: Connection | None, timeout_s: float) -> bool:
        """Wait until the connection has data to read. True if the thread is to end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            if connection is not None:
                selector.register(connection, selectors.EVENT_READ)
            return any(key.fileobj is self._stopped for key, _ in selector.select(timeout_s))
