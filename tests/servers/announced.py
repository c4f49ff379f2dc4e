"""What the tests' servers over HTTP have in common: they say where they listen, and end with their parent.

It needs uvicorn alone, so that servers on another generation of the SDK can have it too.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import Message, Receive

__all__ = ["AnnouncedServer", "die_with_parent", "replayed", "whole_body"]


class AnnouncedServer(uvicorn.Server):
    """Says where it listens as soon as it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        print(json.dumps({"url": f"http://{host}:{port}/mcp"}), flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals keep their default: an orderly stop would first wait for every running task.
        yield


def die_with_parent() -> None:
    """End the process when stdin does."""
    # os.read, as a thread inside sys.stdin holds a lock that the interpreter wants at its exit.
    while os.read(0, 4096):
        pass
    os._exit(0)  # there is nothing to save, and running tasks would hold up an orderly exit


async def whole_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body.extend(message.get("body", b""))
        if not message.get("more_body", False):
            return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives the body once more, and then what follows it (the disconnect)."""
    unread = [body]

    async def again() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return again
