"""HTTP over real sockets on loopback, with every connection counted.

A thread with an event loop of its own, so that the loop that is tested holds nothing but the client.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final

from mcp_tasks_client.protocol import JSONObject

__all__ = ["Loopback", "loopback"]

Handle = Callable[[str, Any], JSONObject]

_EVENT_STREAM: Final = frozenset({"tools/call", "tasks/update"})
"""Methods answered by an event stream, in pieces; the others get JSON."""


class Loopback:
    """Answers JSON-RPC over HTTP/1.1 with whatever the present ``handle`` makes of it.

    Attributes:
        url: Where it is.
    """

    def __init__(self) -> None:
        self.url = ""
        self._handle: Handle | None = None
        self._connections = 0
        self._requests = 0
        self._epoch = 0
        self._changed = threading.Condition()

    def begin(self, handle: Handle) -> None:
        """Serve somebody else from now on. What those before have left open does not count any more."""
        with self._changed:
            self._handle = handle
            self._epoch += 1
            self._connections = self._requests = 0

    def left_alone(self, limit_s: float) -> bool:
        """Wait until no connection is open.

        Returns:
            Whether that came to be.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._connections == 0, limit_s)

    def idle(self, limit_s: float) -> bool:
        """Wait until no request is being answered.

        Returns:
            Whether that came to be.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._requests == 0, limit_s)

    async def serve(self, ready: Callable[[Callable[[], None]], None]) -> None:
        """Serve until what ``ready`` was given is called, from whatever thread."""
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()

        def stop() -> None:
            loop.call_soon_threadsafe(stopped.set)

        server = await asyncio.start_server(self._connection, "127.0.0.1")
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        ready(stop)
        await stopped.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        epoch = self._epoch
        self._count(epoch, connections=1)
        try:
            while True:
                await self._answer(epoch, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()
            self._count(epoch, connections=-1)

    async def _answer(self, epoch: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        message = json.loads(await reader.readexactly(length))
        self._count(epoch, requests=1)
        try:
            assert self._handle is not None
            if message["method"] == "subscriptions/listen":
                answer: JSONObject = {"error": {"code": -32601, "message": "Method not found"}}
            else:
                answer = {"result": self._handle(message["method"], message["params"])}
            reply = json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode()
            if message["method"] not in _EVENT_STREAM:
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(reply), reply)
                )
                await writer.drain()
                return
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            for event in (b": priming\n\n", b"data: " + reply + b"\n\n"):
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            self._count(epoch, requests=-1)

    def _count(self, epoch: int, *, connections: int = 0, requests: int = 0) -> None:
        with self._changed:
            if epoch != self._epoch:
                return
            self._connections += connections
            self._requests += requests
            self._changed.notify_all()


@contextmanager
def loopback() -> Iterator[Loopback]:
    """A server for the length of the block."""
    served = Loopback()
    ready: SimpleQueue[Callable[[], None]] = SimpleQueue()
    # run() also ends the connections that are left.
    thread = threading.Thread(target=lambda: asyncio.run(served.serve(ready.put)), name="loopback")
    thread.start()
    stop = ready.get(timeout=10)
    try:
        yield served
    finally:
        stop()
        thread.join(10)
    assert not thread.is_alive()
