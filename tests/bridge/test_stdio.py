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

import anyio
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


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_request_that_was_taken_back_is_not_under_way(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no reply, by the protocol. A host that gives up often is not refused for that."""
    monkeypatch.setattr(stdio, "_MOST_AT_ONCE", 2)
    (reads, host_writes), (host_reads, writes) = os.pipe(), os.pipe()
    to_server, from_host = anyio.create_memory_object_stream[Any](100)
    writer = stdio._Writer(writes)
    for number in range(5):
        os.write(host_writes, line({"id": number, "method": "tools/call"}))
        cancelled = {"method": "notifications/cancelled", "params": {"requestId": number}}
        os.write(host_writes, line(cancelled))
    os.close(host_writes)
    with anyio.fail_after(LIMIT_S):
        await stdio._pump(stdio._Lines(reads), to_server, writer)
    assert from_host.statistics().current_buffer_used == 10
    from_host.close()
    await writer.aclose()
    for one in (reads, host_reads, writes):
        os.close(one)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_descriptor_that_does_not_block_is_read(anyio_backend: str) -> None:
    reads, host_writes = os.pipe()
    os.set_blocking(reads, False)
    own = stdio._own(reads)
    lines = stdio._Lines(own)
    await anyio.sleep(0.05)
    os.write(host_writes, b"a\n")
    with anyio.fail_after(LIMIT_S):
        assert await lines.next() == b"a"
    os.close(host_writes)
    assert await lines.next() is None
    os.close(reads)
    os.close(own)
