"""A real FastMCP server as a pytest fixture: one process for the whole session.

``conftest.py`` imports the fixture. The tools are those of ``servers/fastmcp_server.py``.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin

import httpx
import pytest

from ._forked import Program

__all__ = ["RealServer", "Witnessed", "fetch", "listening", "real_server", "running_server"]

SCRIPT = Path(__file__).parent / "servers" / "fastmcp_server.py"
START_LIMIT_S = 60.0
"""Importing FastMCP takes a second or two, and far longer on a busy machine with cold caches."""

STOP_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnessed:
    """One request, as the server saw it arrive.

    ``at`` and ``answered_at`` are ``time.monotonic()`` seconds of the same machine, so they
    compare with the test's own; ``answered_at`` is ``None`` while there is no answer.
    """

    method: str | None
    subject: str | None
    """The tool's name of a ``tools/call``, the task ID of a ``tasks/*``."""

    at: float
    answered_at: float | None
    mcp_method: str | None
    mcp_name: str | None
    mcp_params: Mapping[str, str] = field(default_factory=dict)
    """The ``Mcp-Param-*`` headers, by lower-case name."""

    meta: Mapping[str, Any] | None = None
    input_keys: list[str] = field(default_factory=list)
    http_status: int | None = None
    task_id: str | None = None
    """The task that a ``tools/call`` created."""


@dataclass(frozen=True, slots=True)
class RealServer:
    """A running server."""

    url: str
    pid: int

    def witness(
        self, task_id: str | None = None, method: str | None = None, *, since: int = 0
    ) -> list[Witnessed]:
        """What has arrived so far, oldest first.

        Args:
            task_id: Only what concerns this task, its ``tools/call`` included; ``None`` is everything.
            method: Only this JSON-RPC method, such as ``"tasks/get"``.
            since: Without the first so many requests, of whatever kind.
        """
        asked = {"task_id": task_id, "method": method, "since": since}
        given = {name: value for name, value in asked.items() if value is not None}
        return [Witnessed(**entry) for entry in fetch(self.url, "/witness", given)]

    def mark(self) -> int:
        """The ``since`` from which :meth:`witness` gives only what is yet to come."""
        count = fetch(self.url, "/witness/count")
        assert isinstance(count, int)
        return count


def fetch(url: str, path: str, params: Mapping[str, str | int] | None = None) -> Any:
    """What a server of the tests says at ``path``, as JSON. ``url`` is its MCP endpoint.

    Nothing is encrypted on loopback: reading the system's certificates would take longer than all the rest.
    """
    reply = httpx.get(urljoin(url, path), params=params, trust_env=False, verify=False, timeout=START_LIMIT_S)
    reply.raise_for_status()
    return reply.json()


@contextmanager
def running_server(log: Path, *options: str) -> Iterator[RealServer]:
    """A server of its own, for a test that must not share one.

    Args:
        log: File for the server's stderr; its end is shown if the server does not start.
        options: Command line options of ``servers/fastmcp_server.py``.
    """
    with listening(SCRIPT, log, *options) as (url, pid):
        yield RealServer(url=url, pid=pid)


@contextmanager
def listening(
    script: Path, log: Path, *options: str, interpreter: str | Path = sys.executable
) -> Iterator[tuple[str, int]]:
    """A script in a process of its own that says where it listens; gives its URL and process ID.

    Args:
        script: In whatever language.
        log: What the server writes as errors.
        options: The script's.
        interpreter: What runs it.
    """

    def start(stderr: IO[bytes]) -> Program | subprocess.Popen[bytes]:
        if script.suffix == ".py":
            return Program(script, *options, interpreter=interpreter, stderr=stderr)
        return subprocess.Popen(
            [str(interpreter), str(script), *options],
            stdin=subprocess.PIPE,  # its end tells the server that we are gone
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # a Ctrl-C in the terminal is for pytest alone
        )

    with log.open("wb") as stderr, start(stderr) as process:
        try:
            yield ready_url(process, log), process.pid
        finally:
            stop(process)


def ready_url(process: Program | subprocess.Popen[bytes], log: Path) -> str:
    """The address from the server's ready line."""
    assert process.stdout is not None
    line = first_line(process.stdout, START_LIMIT_S)
    if not line:
        pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-4000:]}")
    url = json.loads(line)["url"]
    assert isinstance(url, str)
    return url


def first_line(stream: IO[bytes], limit_s: float) -> bytes:
    """The first line of a pipe; empty if it ends, or if the time is over, before there is one."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # A thread, as a pipe cannot be read with a time limit on every platform.
    threading.Thread(target=lambda: lines.put(stream.readline()), daemon=True).start()
    try:
        return lines.get(timeout=limit_s)
    except queue.Empty:
        return b""


def stop(process: Program | subprocess.Popen[bytes]) -> None:
    """End the server, kindly if it listens, and wait until it is gone."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A FastMCP server with the Tasks extension on loopback, shared by the whole session."""
    with running_server(tmp_path_factory.mktemp("real_server") / "stderr.log") as server:
        yield server
