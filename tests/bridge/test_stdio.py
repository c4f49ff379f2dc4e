"""The lines of a host on stdin, as the bridge reads them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_types import PARSE_ERROR, JSONRPCRequest

from mcp_tasks_client.bridge import stdio

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


def read_all(content: bytes) -> list[bytes]:
    """The lines of a stdin that holds the content, and ends."""
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    found: list[bytes | None] = []
    try:
        stdio._read_lines(reading, found.append)
    finally:
        os.close(reading)
    assert found.pop() is None
    return [line for line in found if line is not None]


def accept(line: bytes) -> tuple[Any, list[tuple[Any, int, str]]]:
    """The message for the server, and the errors that the host is told."""
    told: list[tuple[Any, int, str]] = []
    writer: Any = SimpleNamespace(under_way=set(), refuse=lambda *error: told.append(error))
    return stdio._accept(line, writer), told


def test_a_line_that_is_too_long_is_answered_and_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio, "_LONGEST_LINE", len(PING))
    monkeypatch.setattr(stdio, "_CHUNK", 7)
    before, too_long, after = read_all(PING + b"\n" + 3 * PING + b"\n" + PING + b"\n")
    assert before == after == PING
    assert len(too_long) <= len(PING) + 2 * 7  # the rest is not kept
    message, [(request_id, code, text)] = accept(too_long)
    assert message is None
    assert (request_id, code) == (None, PARSE_ERROR)
    assert text == f"The message is longer than {len(PING)} bytes."


def test_a_blank_line_is_passed_over() -> None:
    blank, spaces, ping = read_all(b"\n \r\n" + PING + b"\n")
    assert accept(blank) == accept(spaces) == (None, [])
    message, told = accept(ping)
    assert isinstance(message, JSONRPCRequest)
    assert told == []
