"""``mcp-tasks bridge`` in a process of its own, and a host that writes and reads its pipes as it likes."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import psutil

from tests._forked import Program

from .current_server import LIMIT_S

__all__ = ["CURRENT", "OLDER", "PipedBridge", "piped_bridge"]

CURRENT: Final = "2026-07-28"
OLDER: Final = "2025-11-25"
_OURS: Final = "io.modelcontextprotocol"


class PipedBridge:
    """A bridge and its host.

    Attributes:
        process: Of the bridge.
        version: That the host speaks.
        lines: What the bridge has written that nobody has taken, line by line; ``None`` at its end.
    """

    def __init__(self, process: Program, version: str, capabilities: Mapping[str, Any], name: str) -> None:
        self.process = process
        self.version = version
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self._stdin = process.stdin
        self._capabilities = capabilities
        self._name = name
        self._ids = count(1)
        self._reading: threading.Thread | None = None

    def read_on(self) -> None:
        """Read what the bridge writes, from now on."""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def introduce(self) -> dict[str, Any]:
        """Say who the host is. Returns what the bridge says of the server."""
        if self.version == CURRENT:
            return self.ask("server/discover")
        info = {"name": self._name, "version": "1"}
        said = self.ask(
            "initialize",
            {"protocolVersion": self.version, "capabilities": self._capabilities, "clientInfo": info},
        )
        self.tell("notifications/initialized")
        return said

    def write(self, content: bytes) -> None:
        """Write bytes to its stdin."""
        self._stdin.write(content)
        self._stdin.flush()

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self.write(_line({"method": method, **({} if params is None else {"params": params})}))

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a request. Returns its ID."""
        number, sent = next(self._ids), dict(params or {})
        if self.version == CURRENT:
            sent["_meta"] = {
                **sent.get("_meta", {}),
                f"{_OURS}/protocolVersion": CURRENT,
                f"{_OURS}/clientInfo": {"name": self._name, "version": "1"},
                f"{_OURS}/clientCapabilities": self._capabilities,
            }
        self.write(_line({"id": number, "method": method, "params": sent}))
        return number

    def reply_to(self, number: Any) -> dict[str, Any]:
        """The reply to a request. What comes before it is dropped."""
        while True:
            said = self.next_message()
            if said.get("id") == number and "method" not in said:
                return said

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The result of a request."""
        reply = self.reply_to(self.request(method, params))
        assert "result" in reply, reply
        return dict(reply["result"])

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """The result of a ``tools/call``."""
        return self.ask("tools/call", {"name": tool, "arguments": dict(arguments or {}), **params})

    def next_message(self) -> dict[str, Any]:
        """What the bridge says next. It is JSON-RPC, or the test fails."""
        line = self.lines.get(timeout=LIMIT_S)
        assert line is not None, "the bridge has ended"
        return parse(line)

    def rest(self) -> list[dict[str, Any]]:
        """All that it says until its end."""
        said = []
        while (line := self.lines.get(timeout=LIMIT_S)) is not None:
            said.append(parse(line))
        return said

    @property
    def resident_mb(self) -> float:
        """The memory of the bridge's process, in MB."""
        return float(psutil.Process(self.process.pid).memory_info().rss / 1e6)

    def close(self) -> None:
        """Close its stdin."""
        with suppress(BrokenPipeError):
            self._stdin.close()

    def stop(self) -> None:
        """Tell it to end."""
        self.process.send_signal(signal.SIGTERM)

    def time_to_end(self) -> float:
        """Seconds until it has ended."""
        began = time.monotonic()
        self.process.wait(LIMIT_S)
        return time.monotonic() - began

    def end(self) -> None:
        """Kill it, and wait for its end."""
        self.process.kill()
        self.process.wait()
        self.close()
        if self._reading is not None:
            self._reading.join()
        self.process.stdout.close()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)


def parse(line: bytes) -> dict[str, Any]:
    """A line of stdout. Anything but JSON-RPC fails the test."""
    message = json.loads(line)
    assert isinstance(message, dict), line
    assert message.get("jsonrpc") == "2.0", line
    return message


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


@contextmanager
def piped_bridge(
    url: str,
    journal: Path,
    *options: object,
    version: str = OLDER,
    capabilities: Mapping[str, Any] | None = None,
    name: str = "host",
    program: Sequence[str] = ("-m", "mcp_tasks_client"),
    introduced: bool = True,
    reading: bool = True,
) -> Iterator[PipedBridge]:
    """A bridge for the length of the block, in a process that begins with everything imported.

    Args:
        url: Of the server.
        journal: The file.
        options: Further ones of the verb.
        version: That the host speaks.
        capabilities: Of the host.
        name: Of the host.
        program: What runs the command, after ``python``.
        introduced: Whether the host introduces itself.
        reading: Whether the host reads, from the beginning.
    """
    command = [*program, "bridge", url, "--journal", journal, *options]
    with Path(os.devnull).open("wb") as nothing:
        bridge = PipedBridge(Program(*command, stderr=nothing), version, capabilities or {}, name)
    try:
        if reading:
            bridge.read_on()
        if introduced:
            bridge.introduce()
        yield bridge
    finally:
        bridge.end()
