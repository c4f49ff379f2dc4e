"""The event-stream parser: bytes in, events out, wherever the bytes were split."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mcp_tasks_client.sessions.http.sse import EventParser, EventTooLargeError


def parse(pieces: Iterable[bytes], max_bytes: int = 1000) -> list[str]:
    """The data of all events, the last of which may lack its blank line."""
    parser = EventParser(max_bytes)
    return [data for piece in pieces for data in parser.feed(piece)] + list(parser.flush())


STREAM = (
    b"\xef\xbb\xbfdata:first\n\n: ping\n\nretry: 5\n\n"
    + b'data: {"a":\ndata\ndata:  1}\nid: 7\n\n'
    + b"event: message\ndata: "
    + "größer 🐢\u2028\u0085\x0b\ufeff".encode()
    + b"\n\nevent: chat\ndata: of another kind\n\nid: 8\ndata:\n\ndata: last"
)
EVENTS = ["first", '{"a":\n\n 1}', "größer 🐢\u2028\u0085\x0b\ufeff", "last"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_stream_means_the_same_wherever_it_is_split(line_end: bytes) -> None:
    stream = STREAM.replace(b"\n", line_end)
    assert parse([stream]) == EVENTS
    assert parse(stream[i : i + 1] for i in range(len(stream))) == EVENTS
    assert parse(piece for i in range(len(stream)) for piece in (stream[i : i + 1], b"")) == EVENTS
    for i in range(1, len(stream)):
        assert parse([stream[:i], stream[i:]]) == EVENTS, f"split at {i}"


@pytest.mark.parametrize(
    ("lines", "retry_s"),
    [
        (b"", None),
        (b"retry: 1500\n", 1.5),
        (b"retry: soon\n", None),
        (b"retry: " + b"9" * 99 + b"\n", 999999.999),
    ],
)
def test_retry_is_told_in_seconds(lines: bytes, retry_s: float | None) -> None:
    parser = EventParser(1000)
    assert not list(parser.feed(lines))
    assert parser.retry_s == retry_s


def test_a_line_that_ends_is_told_of_whatever_is_in_it() -> None:
    parser = EventParser(1000)
    told = []
    for chunk in (b": pi", b"ng\n", b"data: x", b"\r", b"\n", b"\n", b""):
        assert not [data for data in parser.feed(chunk) if data != "x"]
        told.append(parser.line_ended)
    assert told == [False, True, False, True, False, True, False]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: ", b"x" * 600, b"x" * 600],
        [b": ", b"x" * 600, b"x" * 600],
        [b"data: " + b"x" * 600 + b"\n"] * 2,
        [b"data\n" * 1200],
    ],
)
def test_an_event_that_is_too_large_is_refused_before_it_ends(pieces: list[bytes]) -> None:
    with pytest.raises(EventTooLargeError, match="1000 bytes"):
        parse(pieces)


def test_a_stream_may_be_longer_than_any_one_event() -> None:
    assert len(parse([b"data: " + b"x" * 900 + b"\n\n"] * 50 + [b": " + b"x" * 900 + b"\n"] * 50)) == 50
