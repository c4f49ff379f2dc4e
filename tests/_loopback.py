"""HTTP over real sockets on loopback, with every connection counted.

A thread with an event loop of its own, so that the loop that is tested holds nothing but the client.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from mcp_tasks_client.wire import JSONObject

__all__ = ["Loopback", "loopback"]

Handle = Callable[[str, Any], JSONObject]

_EVENT_STREAM: Final = frozenset({"tools/call", "tasks/update"})
"""Methods answered by an event stream, in pieces; the others get JSON."""


class Loopback:
    """Answers JSON-RPC over HTTP/1.1 with whatever ``handle`` makes of it.

    Attributes:
        url: Where it is.
        handle: Makes the result of a method and its params; set it anew for each client.
    """

    def __init__(self) -> None:
        self.url = ""
        self.handle: Handle | None = None
        self._connections = 0
        self._requests = 0
        self._changed = threading.Condition()

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

    async def serve(self, ready: Callable[[], object]) -> None:
        """Serve until cancelled."""
        server = await asyncio.start_server(self._connection, "127.0.0.1")
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        ready()
        async with server:
            await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count(connections=1)
        try:
            while True:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()
            self._count(connections=-1)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        message = json.loads(await reader.readexactly(length))
        self._count(requests=1)
        try:
            assert self.handle is not None
            result = self.handle(message["method"], message["params"])
            reply = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
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
            self._count(requests=-1)

    def _count(self, *, connections: int = 0, requests: int = 0) -> None:
        with self._changed:
            self._connections += connections
            self._requests += requests
            self._changed.notify_all()


@contextmanager
def loopback() -> Iterator[Loopback]:
    """A server for the length of the block."""
    served = Loopback()
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    main = loop.create_task(served.serve(ready.set))

    def run() -> None:
        try:
            loop.run_until_complete(main)
        except asyncio.CancelledError:
            pass
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.close()

    thread = threading.Thread(target=run, name="loopback")
    thread.start()
    try:
        assert ready.wait(10)
        yield served
    finally:
        loop.call_soon_threadsafe(main.cancel)
        thread.join(10)
    assert not thread.is_alive()
