"""A relay in front of a PostgreSQL server, whose connections a test leaves half open."""

from __future__ import annotations

import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

__all__ = ["Relay", "relayed"]


class Relay:
    """Passes on what both sides say.

    Attributes:
        dsn: How to connect to the server by it.
    """

    def __init__(self, folder: Path, server: str) -> None:
        given = conninfo_to_dict(server)
        self.dsn = f"host={folder} user={given['user']} dbname={given['dbname']}"
        self._server = f"{given['host']}/.s.PGSQL.5432"
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []  # of the client, and of the server
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / ".s.PGSQL.5432"))
        self._listening.listen()
        self._ends = self._is_deaf = False
        self._frozen: set[socket.socket] = set()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def freeze(self) -> None:
        """Pass nothing on any more of the connections that there are. Neither side is told."""
        with self._lock:
            self._frozen.update(one for pair in self._pairs for one in pair)

    def go_deaf(self) -> None:
        """Take connections and pass nothing on any more, also of those that are made later."""
        self._is_deaf = True
        self.freeze()

    def abandon(self) -> None:
        """End the connections towards the clients. The server is not told."""
        self.freeze()
        for client, _ in self._pairs:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._ends = True
        self._wake.close()
        self._thread.join()
        for one in (self._listening, self._woken, *(one for pair in self._pairs for one in pair)):
            one.close()

    def _serve(self) -> None:
        while not self._ends:
            with selectors.DefaultSelector() as selector, self._lock:
                for one in (self._listening, self._woken):
                    selector.register(one, selectors.EVENT_READ)
                for client, server in self._pairs:
                    for one, other in ((client, server), (server, client)):
                        if one not in self._frozen:
                            selector.register(one, selectors.EVENT_READ, other)
                ready = selector.select(0.02)
            for key, _ in ready:
                if key.fileobj is self._listening:
                    self._accept()
                elif key.data is not None:
                    self._pass_on(key.fileobj, key.data)  # type: ignore[arg-type]

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self._server)
        except OSError:  # it is down
            server.close()
            client.close()
            return
        with self._lock:
            self._pairs.append((client, server))
            if self._is_deaf:
                self._frozen.update((client, server))

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with self._lock:
            if one in self._frozen:
                return
            with suppress(OSError):
                said = one.recv(65536)
                if said:
                    other.sendall(said)
                    return
            with suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)
            self._frozen.update((one, other))


@contextmanager
def relayed(server: str) -> Iterator[Relay]:
    """A relay in front of a server that listens on a Unix socket."""
    folder = Path(tempfile.mkdtemp(prefix="mcp-relay-"))  # a short path, as sockets need
    relay = Relay(folder, server)
    try:
        yield relay
    finally:
        relay.close()
        shutil.rmtree(folder)
