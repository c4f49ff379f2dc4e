"""The way of each replica to the database: a port on loopback whose connections can be broken on command.

A way is *open* until it is told otherwise, and again once it is mended:

- *refused*: connections are cut, and there is nobody at the port;
- *swallowed*: connections stand, also new ones, and nothing passes on them;
- *half-open*: connections that stand are dead, without a word to the replica; new ones work.

Two commands wait for a moment first: :meth:`Way.lose_reply` for a renewal of the lease, whose reply does not
come, and :meth:`Way.leave_open` for a transaction that writes, whose end does not go.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

__all__ = ["Way", "Ways"]

State: TypeAlias = Literal["open", "refused", "swallowed"]

CHUNK: Final = 65536
COMMITTED_S: Final = 0.1
"""Within so many seconds the server commits what it was sent."""

RENEWS: Final = b'"renewed_at":'
WRITES: Final = (RENEWS, b'"fence":')
"""Are in the values of a statement that renews a lease, and that writes a record."""

SYNC: Final = b"S\x00\x00\x00\x04"
"""The message of PostgreSQL's protocol that ends a pipeline, and with it a transaction that began in it."""


class Ways:
    """A thread in which the bytes of all ways pass, for the length of a block.

    Args:
        database: The socket of the database.
    """

    def __init__(self, database: Path) -> None:
        self.database = database
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ways", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def end_all() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def new(self) -> Way:
        """One more way, which is open."""
        return Way(self)

    def run(self, command: Coroutine[Any, Any, None]) -> None:
        """Have the thread carry a command out, and wait for that."""
        asyncio.run_coroutine_threadsafe(command, self._loop).result()


def _bound(port: int) -> socket.socket:
    """A socket at a port of loopback, which is shared only with others that are made by this."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection of a replica, and the one to the database that it goes on in."""

    replica: asyncio.StreamWriter
    database: asyncio.StreamWriter | None = None
    is_dead: bool = False  # nothing passes any more
    writes: bool = False  # since the last end of a transaction


class Way:
    """The way of one replica.

    Attributes:
        dsn: How the replica connects to the database.
    """

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._state: State = "open"
        self._connections: set[_Connection] = set()
        self._left_open: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self._at_write: Callable[[_Connection, bytes], bytes] | None = None
        self._has_come = threading.Event()
        self._kept = _bound(0)  # so that nobody else gets the port while it is refused
        self._port: int = self._kept.getsockname()[1]
        self._server: asyncio.Server | None = None
        ways.run(self._listen())
        self.dsn = f"host=127.0.0.1 port={self._port} user=postgres dbname=postgres sslmode=disable"

    # ── commands, from any thread ─────────────────────────────────────────────────────────────

    def refuse(self) -> None:
        """Cut all connections, and take no new ones."""
        self._ways.run(self._refuse())

    def swallow(self) -> None:
        """Let nothing pass, on any connection."""
        self._ways.run(self._swallow("swallowed"))

    def half_open(self) -> None:
        """Let nothing pass on the connections that there are; the database sees their ends."""
        self._ways.run(self._swallow("open"))

    def lose_reply(self, limit_s: float) -> bool:
        """Pass the next renewal on, lose its reply, and refuse connections from then on.

        Returns whether a renewal came within so many seconds.
        """
        return self._wait_for_write(self._lose_reply, limit_s)

    def leave_open(self, limit_s: float) -> bool:
        """Pass the next transaction that writes on without its end, and cut the connection at the replica.

        Returns whether one came within so many seconds. The database is left with the transaction until the
        way is mended, or something else ends it.
        """
        return self._wait_for_write(self._leave_open, limit_s)

    def mend(self) -> None:
        """Be open again. Connections on which nothing passes are cut."""
        self._ways.run(self._mend())

    def close(self) -> None:
        """Cut everything."""
        self._ways.run(self._refuse())
        self._ways.run(self._end_transactions())
        self._kept.close()

    def _wait_for_write(self, act: Callable[[_Connection, bytes], bytes], limit_s: float) -> bool:
        self._has_come.clear()
        self._at_write = act
        has_come = self._has_come.wait(limit_s)
        self._at_write = None
        return has_come

    # ── in the thread ─────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, sock=_bound(self._port))

    async def _refuse(self) -> None:
        self._state = "refused"
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            self._cut(connection)

    async def _swallow(self, state: State) -> None:
        self._state = state
        for connection in self._connections:
            connection.is_dead = True
            if connection.database is not None and state == "open":
                connection.database.transport.abort()

    async def _mend(self) -> None:
        for connection in list(self._connections):
            if connection.is_dead:
                self._cut(connection)
        await self._end_transactions()
        self._state = "open"
        if self._server is None:
            await self._listen()

    async def _end_transactions(self) -> None:
        for database in self._left_open:
            database.transport.abort()
        self._left_open.clear()

    def _cut(self, connection: _Connection) -> None:
        connection.is_dead = True
        connection.replica.transport.abort()
        if connection.database is not None and connection.database not in self._left_open:
            connection.database.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, replica: asyncio.StreamWriter) -> None:
        connection = _Connection(replica, is_dead=self._state == "swallowed")
        self._connections.add(connection)
        back: asyncio.Task[None] | None = None
        try:
            with suppress(OSError):
                if not connection.is_dead:
                    answers, connection.database = await asyncio.open_unix_connection(self._ways.database)
                    back = asyncio.create_task(self._pass_back(connection, answers))
                while data := await reader.read(CHUNK):
                    await self._pass_on(connection, data)
        except asyncio.CancelledError:
            pass  # asyncio's own callback would complain
        finally:
            self._connections.discard(connection)
            self._cut(connection)
            if back is not None:
                back.cancel()

    async def _pass_on(self, connection: _Connection, data: bytes) -> None:
        act = self._at_write
        connection.writes = connection.writes or any(value in data for value in WRITES)
        if act is not None and not connection.is_dead and connection.writes:
            data = act(connection, data)
        if data.endswith(SYNC):
            connection.writes = False
        if not connection.is_dead and connection.database is not None:
            connection.database.write(data)
            await connection.database.drain()

    async def _pass_back(self, connection: _Connection, answers: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await answers.read(CHUNK):
                if not connection.is_dead:
                    connection.replica.write(data)
                    await connection.replica.drain()
        if not connection.is_dead:
            connection.replica.transport.abort()

    def _lose_reply(self, connection: _Connection, data: bytes) -> bytes:
        database = connection.database
        if RENEWS not in data or database is None:
            return data
        self._at_write = None
        database.write(data)
        connection.is_dead = True

        async def refuse() -> None:
            await asyncio.sleep(COMMITTED_S)
            await self._refuse()
            self._has_come.set()

        task = asyncio.create_task(refuse())
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        return b""

    def _leave_open(self, connection: _Connection, data: bytes) -> bytes:
        database = connection.database
        if not data.endswith(SYNC) or database is None:
            return data
        self._at_write = None
        database.write(data.removesuffix(SYNC))
        self._left_open.add(database)
        self._cut(connection)
        self._has_come.set()
        return b""
