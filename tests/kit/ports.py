"""Ports for programs that take the number of a port, and no socket."""

from __future__ import annotations

import random
import socket
from typing import Final

__all__ = ["unused_port"]

_PORTS: Final = range(20_000, 32_000)
"""Below the ports that a system gives to a client that connects, or to a server that asks for any port."""

_chance: Final = random.SystemRandom()  # hypothesis seeds the others


def unused_port() -> int:
    """A port of the loopback at which nobody listens.

    It is not one of those that the system gives away. A program needs seconds until it listens at the port
    that it was told, and the other tests of a run open hundreds of connections meanwhile.
    """
    while True:
        port = _chance.choice(_PORTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
