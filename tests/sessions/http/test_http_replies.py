"""From an HTTP response to the reply in it. Reading is the same on both event loops."""

from __future__ import annotations

import gzip
import json
import math
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import httpx2
import pytest

from mcp_tasks_client import Limits, ToolCall
from mcp_tasks_client.errors import ConnectionLostError, RemoteProtocolError, SessionError
from mcp_tasks_client.protocol.replies import Created
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.sessions.oddities import note_oddity

from ..._requirements import requirement
from .scripted import (
    REF,
    TASK,
    TASK_ID,
    HttpAnswers,
    RawResponse,
    events,
    fail_to_get,
    result,
    rpc_id,
    send_call,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


REPLY = 'data: {"jsonrpc":"2.0","id":ID,"result":{"taskId":"t","status":"working"}}'


@pytest.mark.parametrize(
    "stream",
    [
        [REPLY, "\n\n"],
        ["event: message\r\n", REPLY, "\r\n\r\n"],
        [REPLY, "\n"],
        [REPLY],
        ["id: 1\nretry: 5\ndata:\n\n", ": ping\n\n", REPLY, "\n\n"],
        ['data: {"jsonrpc":"2.0","method":"notifications/tasks","params":{}}\n\n', REPLY, "\n\n"],
        ['data: {"jsonrpc":"2.0","id":ID,"method":"ping"}\n\n', REPLY, "\n\n"],
        ["event: ping\ndata: not json\n\n", REPLY, "\n\n"],
        ['data: {"jsonrpc":"2.0","id":ID,\n', 'data: "result":{"taskId":"t","status":"working"}}\n\n'],
        [REPLY, "\n\n", "data: garbage after the reply\n\n"],
    ],
)
async def test_the_response_is_found_in_an_event_stream(
    server: HttpAnswers, session: HttpSession, stream: list[str]
) -> None:
    server.answers("tasks/get", events(*stream))
    assert (await session.get(REF)).task.task_id == "t"


async def test_only_line_ends_end_a_line_of_an_event_stream(
    server: HttpAnswers, session: HttpSession
) -> None:
    """Python's ``splitlines`` knows more of them than the format does; JSON may hold those as they are."""
    said = "a\u2028b\u2029c\u0085d"
    reply = REPLY.replace('"working"', f'"working","statusMessage":"{said}"')
    server.answers("tasks/get", events(reply, "\n\n"))
    assert (await session.get(REF)).task.status_message == said


async def test_a_byte_order_mark_is_no_part_of_an_event_stream(
    server: HttpAnswers, session: HttpSession
) -> None:
    server.answers("tasks/get", events("\ufeff", REPLY, "\n\n"))
    assert (await session.get(REF)).task.task_id == "t"
    message = REPLY.replace('"working"', '"working","statusMessage":"\ufeffsic"')
    server.answers("tasks/get", events(message, "\n\n"))
    assert (await session.get(REF)).task.status_message == "\ufeffsic"


@pytest.mark.parametrize(
    "stream", ["", ": ping\n\n", 'data: {"jsonrpc":"2.0","method":"x"}\n\n', "data:\n\n", REPLY[:-9]]
)
async def test_a_stream_that_ends_before_the_response_has_lost_it(
    server: HttpAnswers, session: HttpSession, stream: str
) -> None:
    server.answers("tasks/get", events(stream))
    lost = await fail_to_get(session)
    assert type(lost) is ConnectionLostError
    assert lost.retryable
    assert not lost.not_executed


async def test_a_stream_with_something_else_than_json_in_it_is_malformed(
    server: HttpAnswers, session: HttpSession
) -> None:
    server.answers("tasks/get", events("data: {\n\n"))
    malformed = await fail_to_get(session)
    assert type(malformed) is RemoteProtocolError
    assert malformed.retryable


@pytest.mark.parametrize(
    "stray",
    [
        "null",
        "[]",
        "7",
        '{"jsonrpc":"2.0","id":"other","result":{}}',
        '{"jsonrpc":"2.0","id":99,"error":{"code":-32602,"message":"unknown"}}',
        '[{"jsonrpc":"2.0","id":"other","result":{}}]',
        '{"jsonrpc":"1.0","id":ID,"result":{}}',
    ],
)
async def test_a_message_of_nobody_on_a_stream_is_passed_over_and_told_once(
    server: HttpAnswers, session: HttpSession, stray: str, caplog: pytest.LogCaptureFixture
) -> None:
    note_oddity.cache_clear()
    server.answers("tasks/get", events(f"data: {stray}\n\n", REPLY, "\n\n"))
    for _ in range(2):
        assert (await session.get(REF)).task.task_id == "t"
    (told,) = caplog.messages
    assert session.endpoint in told
    server.answers("tasks/get", events(2 * f"data: {stray}\n\n"))
    assert type(await fail_to_get(session)) is ConnectionLostError


@requirement("law:14")
@pytest.mark.parametrize("reply_id", ['"ID"', "99", "null", "true", '"other"'])
async def test_an_unambiguous_reply_is_understood_whatever_its_id(
    server: HttpAnswers, session: HttpSession, reply_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    note_oddity.cache_clear()
    body = '{"jsonrpc":"2.0","id":REPLY_ID,"result":{"taskId":"t","status":"working"}}'

    def answer(request: httpx.Request) -> httpx.Response:
        own = reply_id.replace("ID", str(rpc_id(request)))
        return httpx.Response(200, content=body.replace("REPLY_ID", own))

    server.answers("tasks/get", answer)
    for _ in range(2):
        assert (await session.get(REF)).task.task_id == "t"
    (told,) = caplog.messages
    assert session.endpoint in told


@pytest.mark.parametrize("head", ['"id":null,', ""])
@pytest.mark.parametrize("code", [-32600, -32601, -32700, -32000])
async def test_an_error_that_names_no_request_is_no_reply_where_our_own_follows(
    server: HttpAnswers, session: HttpSession, head: str, code: int
) -> None:
    stray = '{"jsonrpc":"2.0",%s"error":{"code":%d,"message":"?"}}' % (head, code)  # noqa: UP031  # braces
    task = '{"jsonrpc":"2.0","id":ID,"result":{"resultType":"task","taskId":"t","status":"working"}}'
    server.answers("tools/call", events(f"data: {stray}\n\n", f"data: {task}\n\n"))
    reply = await send_call(session, ToolCall(name="t"))
    assert isinstance(reply, Created)
    assert reply.task.task_id == "t"
    server.answers("tools/call", events(f"data: {stray}\n\n"))
    with pytest.raises(SessionError) as caught:
        await send_call(session, ToolCall(name="t"))
    assert caught.value.code == code, "it is the only word of the server"


async def test_an_error_that_names_no_request_is_no_reply_where_the_stream_breaks(
    server: HttpAnswers, session: HttpSession
) -> None:
    """Our own reply may have been on its way, so that a tool may have run."""
    stray = 'data: {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"?"}}\n\n'

    class Breaks(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield stray.encode()
            raise httpx.ReadError("the connection broke")

    server.answers(
        "tools/call",
        lambda request: httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Breaks()),
    )
    with pytest.raises(ConnectionLostError) as caught:
        await send_call(session, ToolCall(name="t"))
    assert not caught.value.not_executed


async def test_of_an_error_under_another_id_the_status_counts(
    server: HttpAnswers, session: HttpSession, caplog: pytest.LogCaptureFixture
) -> None:
    note_oddity.cache_clear()
    said = {"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "Session not found"}}
    server.answers("tasks/get", lambda request: httpx.Response(404, json=said))
    failed = await fail_to_get(session)
    assert (failed.code, failed.http_status, failed.retryable) == (None, 404, True)
    assert not caplog.messages


async def test_a_number_may_come_back_as_text_on_a_stream(server: HttpAnswers, session: HttpSession) -> None:
    server.answers("tasks/get", events(REPLY.replace("ID", '"ID"'), "\n\n"))
    assert (await session.get(REF)).task.task_id == "t"


@pytest.mark.parametrize("as_events", [False, True])
async def test_a_batch_of_one_is_what_is_in_it(
    server: HttpAnswers, session: HttpSession, as_events: bool
) -> None:
    body = '[{"jsonrpc":"2.0","id":ID,"result":{"taskId":"t","status":"working"}}]'

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=body.replace("ID", str(rpc_id(request))))

    server.answers("tasks/get", events(f"data: {body}\n\n") if as_events else answer)
    assert (await session.get(REF)).task.task_id == "t"


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "text/plain", "Application/JSON", ""]
)
async def test_a_reply_is_read_whatever_its_content_type(
    server: HttpAnswers, session: HttpSession, media_type: str
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.dumps({"jsonrpc": "2.0", "id": rpc_id(request), "result": TASK}).encode()
        return httpx.Response(200, content=body, headers={"content-type": media_type})

    server.answers("tasks/get", answer)
    assert (await session.get(REF)).task.task_id == TASK_ID


@pytest.mark.parametrize("status", [200, 202, 400, 404, 500])
async def test_a_reply_is_read_whatever_the_status(
    server: HttpAnswers, session: HttpSession, status: int
) -> None:
    server.answers("tasks/get", result(TASK, status))
    assert (await session.get(REF)).task.task_id == TASK_ID


@pytest.mark.parametrize("as_events", [False, True])
async def test_an_integer_of_too_many_digits_costs_no_task_id_and_no_result(
    server: HttpAnswers, session: HttpSession, as_events: bool
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        numbers = b"[1,%s,-%s]" % (b"9" * 10_000, b"9" * 10_000)
        task = b'{"taskId":"t","status":"working","pollIntervalMs":%s,"x":%s}' % (b"9" * 10_000, numbers)
        body = b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (rpc_id(request), task)
        if as_events:
            return httpx.Response(
                200, content=b"data: %s\n\n" % body, headers={"content-type": "text/event-stream"}
            )
        return httpx.Response(200, content=body)

    server.answers("tasks/get", answer)
    task = (await session.get(REF)).task
    assert (task.model_extra or {})["x"] == [1, math.inf, -math.inf]
    assert task.poll_interval_ms == 2**53 - 1


async def test_a_reply_that_is_nested_too_deeply_is_not_asked_for_for_ever(
    server: HttpAnswers, session: HttpSession
) -> None:
    server.answers("tasks/get", lambda r: httpx.Response(200, content=b"[" * 100_000 + b"]" * 100_000))
    refused = await fail_to_get(session)
    assert type(refused) is RemoteProtocolError
    assert not refused.retryable
    assert "nested too deeply" in str(refused)


async def test_json_that_only_python_reads_is_read(server: HttpAnswers, session: HttpSession) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = '{"jsonrpc":"2.0","id":%d,"result":{"taskId":"t","status":"working","x":NaN,"y":"\\ud800"}}'
        return httpx.Response(200, content=(body % rpc_id(request)).encode())

    server.answers("tasks/get", answer)
    assert ((await session.get(REF)).task.model_extra or {})["y"] == "\ud800"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b"<html>Welcome to our hotel</html>",
        b'{"jsonrpc":"2.0","id":ID,"result":{"taskId"',
        b"null",
        b"[]",
        b'[{"jsonrpc":"2.0","id":ID,"result":{}},{"jsonrpc":"2.0","id":ID,"result":{}}]',
        b'"text"',
        b"{}",
        b'{"id":ID,"result":{"taskId":"t","status":"working"}}',
        b'{"jsonrpc":"2.0","id":ID}',
        b'{"jsonrpc":"2.0","id":ID,"result":null}',
        b'{"jsonrpc":"2.0","id":ID,"result":[]}',
        b'{"jsonrpc":"2.0","id":ID,"error":"no"}',
        b'{"jsonrpc":"2.0","id":ID,"error":"no","result":{"taskId":"t","status":"working"}}',
        b'{"jsonrpc":"2.0","method":"notifications/tasks","params":{}}',
        b"\xff\xfe\xff",
        b'{"jsonrpc":"2.0","id":ID,"result":{"status":"working"}}',
        b'{"jsonrpc":"2.0","id":ID,"result":{"taskId":"t"}}',
        b'{"jsonrpc":"2.0","id":ID,"result":{"taskId":"","status":"working"}}',
    ],
)
async def test_a_success_that_is_no_reply_is_malformed_and_may_pass(
    server: HttpAnswers, session: HttpSession, body: bytes
) -> None:
    server.answers("tasks/get", lambda r: httpx.Response(200, content=body.replace(b"ID", b"%d" % rpc_id(r))))
    malformed = await fail_to_get(session)
    assert type(malformed) is RemoteProtocolError
    assert malformed.retryable
    assert not malformed.not_executed
    assert "Try again" in str(malformed)
    assert ("empty body" in str(malformed)) == (not body.strip())


def bare_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", bare_deflate),
        ("identity", bytes),
        ("Identity, gzip", gzip.compress),
    ],
)
async def test_the_compressions_that_were_offered_are_read(
    server: HttpAnswers, session: HttpSession, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.dumps({"jsonrpc": "2.0", "id": rpc_id(request), "result": TASK}).encode()
        return httpx.Response(200, content=pack(body), headers={"content-encoding": encoding})

    server.answers("tasks/get", answer)
    assert (await session.get(REF)).task.task_id == TASK_ID


def two_members(data: bytes) -> bytes:
    """A gzip file of more than one part, as ``cat`` makes of two."""
    return gzip.compress(data[:20]) + gzip.compress(data[20:])


@pytest.mark.parametrize("size", [1, 2, 7, 1_000_000])
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("x-gzip", gzip.compress),
        ("gzip", two_members),
        ("deflate", zlib.compress),
        ("deflate", bare_deflate),
    ],
)
async def test_a_compressed_reply_is_read_in_whatever_pieces_it_comes(
    server: HttpAnswers, session: HttpSession, encoding: str, pack: Callable[[bytes], bytes], size: int
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = pack(json.dumps({"jsonrpc": "2.0", "id": rpc_id(request), "result": TASK}).encode())
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        return RawResponse(200, *pieces, content_encoding=encoding)

    server.answers("tasks/get", answer)
    assert (await session.get(REF)).task.task_id == TASK_ID


@pytest.mark.parametrize("first", [10, 1001], ids=["first part small", "first part as large as allowed"])
async def test_a_bomb_in_a_later_part_of_a_gzip_file_does_not_go_off(server: HttpAnswers, first: int) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    server.answers(
        "tasks/get", lambda _: RawResponse(200, gzip.compress(b" " * first) + bomb, content_encoding="gzip")
    )
    tracemalloc.start()
    try:
        refused = await fail_to_get(server.session(limits=Limits(max_response_bytes=1000)))
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert "larger than 1000 bytes" in str(refused)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "gzip, br", "compress", "gzip, gzip, gzip"])
async def test_no_other_compression_is_read(server: HttpAnswers, session: HttpSession, encoding: str) -> None:
    server.answers("tasks/get", lambda _: RawResponse(200, b"\x00", content_encoding=encoding))
    refused = await fail_to_get(session)
    assert type(refused) is RemoteProtocolError
    assert not refused.retryable
    assert "Content-Encoding" in str(refused)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", b"no gzip"), ("gzip", b"\x1f\x8b\x08\x00" + b"\xff" * 99), ("deflate", b"\xff" * 99)],
)
async def test_damaged_compression_is_malformed(
    server: HttpAnswers, session: HttpSession, encoding: str, body: bytes
) -> None:
    server.answers("tasks/get", lambda _: RawResponse(200, body, content_encoding=encoding))
    malformed = await fail_to_get(session)
    assert type(malformed) is RemoteProtocolError
    assert malformed.retryable


async def test_a_body_that_a_hook_of_the_callers_has_read_is_read_all_the_same(
    server: HttpAnswers,
) -> None:
    async def read(response: httpx.Response) -> None:
        await response.aread()

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.dumps({"jsonrpc": "2.0", "id": rpc_id(request), "result": TASK}).encode()
        return RawResponse(200, gzip.compress(body), content_encoding="gzip")

    server.answers("tasks/get", answer)
    async with server.client(event_hooks={"response": [read]}) as client:
        assert (await server.session(http_client=client).get(REF)).task.task_id == TASK_ID
        refused = await fail_to_get(server.session(http_client=client, limits=Limits(max_response_bytes=40)))
        assert "have the server answer with less" in str(refused)


@requirement("law:11")
@pytest.mark.parametrize("as_events", [False, True])
async def test_a_servers_reply_is_bounded_and_a_larger_one_is_a_typed_error(
    server: HttpAnswers, as_events: bool
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        head = b'{"jsonrpc":"2.0","id":%d,"result":{"taskId":"t","status":"working","x":"' % rpc_id(request)
        lead = b"data: " if as_events else b""
        body = lead + head + b"x" * (2000 - len(lead) - len(head) - 3) + b'"}}'
        kind = "text/event-stream" if as_events else "application/json"
        return httpx.Response(200, content=body, headers={"content-type": kind})

    server.answers("tasks/get", answer)
    assert (await server.session(limits=Limits(max_response_bytes=2000)).get(REF)).task.task_id == "t"
    refused = await fail_to_get(server.session(limits=Limits(max_response_bytes=1999)))
    assert type(refused) is RemoteProtocolError
    assert not refused.retryable
    assert "larger than 1999 bytes; have the server answer with less" in str(refused)


async def test_zeros_after_a_gzip_file_are_padding(server: HttpAnswers, session: HttpSession) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.dumps({"jsonrpc": "2.0", "id": rpc_id(request), "result": TASK}).encode()
        return RawResponse(200, gzip.compress(body), b"\0" * 100, b"\0", content_encoding="gzip")

    server.answers("tasks/get", answer)
    assert (await session.get(REF)).task.task_id == TASK_ID


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_other_tasks_get_their_turn_between_chunks_that_are_there_already(
    library: Any, kind: str
) -> None:
    """A server may send a body byte by byte: each byte takes httpx some microseconds, and it never waits."""
    turns = [0]

    class Body(library.AsyncByteStream):  # type: ignore[misc]  # of either library
        def __init__(self, request: Any) -> None:
            reply = json.dumps({"jsonrpc": "2.0", "id": rpc_id(request), "result": TASK}).encode()
            is_stream = kind == "text/event-stream"
            self.before = b":" if is_stream else b" "
            self.reply = b"\ndata: " + reply + b"\n\n" if is_stream else reply

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(20_000):
                yield self.before
            yield self.reply

    async def respond(request: Any) -> Any:
        return library.Response(200, headers={"content-type": kind}, stream=Body(request))

    async def take_turns() -> None:
        while True:
            turns[0] += 1
            await anyio.lowlevel.checkpoint()

    async with library.AsyncClient(transport=library.MockTransport(respond)) as client:
        session = HttpSession("https://server.example/mcp", http_client=client)
        async with anyio.create_task_group() as group:
            group.start_soon(take_turns)
            await anyio.lowlevel.checkpoint()
            before = turns[0]
            assert (await session.get(REF)).task.task_id == TASK_ID
            taken = turns[0] - before
            group.cancel_scope.cancel()
    assert taken >= 20
