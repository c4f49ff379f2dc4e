"""The lines of a host on stdin, as the bridge reads them."""

from __future__ import annotations

import os

import pytest
from mcp_types import PARSE_ERROR, JSONRPCError, JSONRPCRequest

from mcp_tasks_client.bridge import stdio

pytestmark = pytest.mark.anyio

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


async def read_all(content: bytes) -> list[bytes | JSONRPCError]:
    """The lines of a stdin that holds the content, and ends."""
    reading, writing = os.pipe()
    try:
        lines = stdio._Lines(reading)
        os.write(writing, content)
        os.close(writing)
        found: list[bytes | JSONRPCError] = []
        while (line := await lines.next()) is not None:
            found.append(line)
        return found
    finally:
        os.close(reading)


async def test_a_line_that_is_too_long_is_answered_and_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio, "_LONGEST_LINE", len(PING))
    before, too_long, after = await read_all(PING + b"\n" + PING + b" \n" + PING + b"\n")
    assert before == after == PING
    assert isinstance(too_long, JSONRPCError)
    assert too_long.error.code == PARSE_ERROR
    assert too_long.error.message == "The message is too long."


async def test_a_line_of_several_reads_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_CHUNK", 7)
    assert await read_all(PING + b"\n" + PING + b"\n") == [PING, PING]


async def test_a_blank_line_is_passed_over() -> None:
    blank, spaces, ping = await read_all(b"\n \r\n" + PING + b"\n")
    assert isinstance(blank, bytes)
    assert isinstance(spaces, bytes)
    assert stdio._read(blank) is None
    assert stdio._read(spaces) is None
    assert isinstance(ping, bytes)
    assert isinstance(stdio._read(ping), JSONRPCRequest)
