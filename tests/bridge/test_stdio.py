"""The bridge at stdin and stdout ends when it is told to, and forgets requests that were taken back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks_client.bridge import stdio

from .memory_host import LIMIT_S, OLDER

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and pipes are those of POSIX")

HELLO = {
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": OLDER,
        "capabilities": {},
        "clientInfo": {"name": "a host", "version": "1"},
    },
}


def line(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


@contextmanager
def bridge(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A bridge before a server that is away."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
        command = [
            sys.executable,
            "-m",
            "mcp_tasks_client",
            "bridge",
            url,
            "--journal",
            str(tmp_path / "j.db"),
        ]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with process:
            try:
                yield process
            finally:
                process.kill()


def test_a_signal_ends_it_while_stdin_stands_open(tmp_path: Path) -> None:
    with bridge(tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line(HELLO))
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S / 2) == 128 + signal.SIGTERM


def test_it_ends_with_stdin_though_the_host_reads_nothing(tmp_path: Path) -> None:
    with bridge(tmp_path) as process:
        assert process.stdin is not None
        process.stdin.write(line(HELLO))
        for number in range(2, 3000):
            process.stdin.write(line({"id": number, "method": "ping"}))
        process.stdin.close()
        assert process.wait(LIMIT_S / 2) == 0


def test_a_descriptor_that_does_not_block_is_read_all_the_same() -> None:
    """Another program that has the same file open may have made it so."""
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    own = stdio._take(reads, os.O_RDONLY)
    assert os.get_blocking(own)
    for one in (reads, writes, own):
        os.close(one)
