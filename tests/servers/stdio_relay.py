"""Passes stdin and stdout on to a loopback port: ``stdio_relay.py PORT``.

A stdio server that starts in milliseconds, as all that takes time to import is in the process that
listens. It imports nothing beyond the standard library and runs under ``python -I -S``.
"""

from __future__ import annotations

import os
import socket
import sys
import threading


def main(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=answers, args=[server], daemon=True).start()
        while data := os.read(0, 65536):
            server.sendall(data)
    os._exit(0)


def answers(server: socket.socket) -> None:
    with open(1, "wb", buffering=0, closefd=False) as out:
        while data := server.recv(65536):
            while data:
                data = data[out.write(data) :]
    os._exit(0)  # the server's end is ours


if __name__ == "__main__":
    main(int(sys.argv[1]))
