"""What a status, a JSON-RPC error and a ``Retry-After`` stand for."""

from __future__ import annotations

import base64
import datetime
import email.utils
import json
import time
from collections.abc import Iterator

import httpx
import pytest

from mcp_tasks_client import Limits, TaskRef, ToolCall
from mcp_tasks_client.errors import (
    CredentialRefusedError,
    MissingCapabilityError,
    RemoteProtocolError,
    SessionError,
)
from mcp_tasks_client.sessions.http.http_errors import read_retry_after
from mcp_tasks_client.sessions.http.http_session import HttpSession

from .scripted import (
    REF,
    TASK,
    TASK_ID,
    HttpAnswers,
    error,
    events,
    fail_to_get,
    http,
    result,
    rpc_id,
    send_call,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("status", "kind", "retryable", "not_executed"),
    [
        (400, SessionError, False, False),
        (401, CredentialRefusedError, False, True),
        (403, CredentialRefusedError, False, True),
        (404, SessionError, True, False),
        (405, SessionError, False, False),
        (408, SessionError, True, False),
        (409, SessionError, True, False),
        (410, SessionError, False, False),
        (413, SessionError, False, False),
        (425, SessionError, True, False),
        (429, SessionError, True, True),
        (451, SessionError, False, False),
        (500, SessionError, True, False),
        (502, SessionError, True, False),
        (503, SessionError, True, False),
        (504, SessionError, True, False),
        (599, SessionError, True, False),
    ],
)
async def test_a_status_counts_where_there_is_no_reply(
    server: HttpAnswers, status: int, kind: type[SessionError], retryable: bool, not_executed: bool
) -> None:
    no_replies = [b"", b"<html>", b'{"error": {"code": -32602, "message": "?"}}', b"x" * 5000, b"{", b"[]"]
    session = server.session(limits=Limits(max_response_bytes=4000))
    for body in no_replies:
        server.answers("tasks/get", http(status, body, "application/json", **{"retry-after": "7"}))
        failed = await fail_to_get(session)
        assert type(failed) is kind
        assert (failed.retryable, failed.not_executed) == (retryable, not_executed)
        assert (failed.http_status, failed.retry_after_s, failed.code) == (status, 7.0, None)
        assert str(status) in str(failed)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        *((status, "") for status in (408, 500, 502, 503, 504)),
        # The error of a gateway; with other statuses the server itself has answered.
        *(
            (status, '{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"busy"}}')
            for status in (502, 503, 504)
        ),
    ],
)
async def test_a_call_that_may_have_run_is_never_said_to_be_harmless(
    server: HttpAnswers, session: HttpSession, status: int, body: str
) -> None:
    server.answers("tools/call", lambda r: httpx.Response(status, content=body.replace("ID", str(rpc_id(r)))))
    with pytest.raises(SessionError, match="The tool may still be running") as caught:
        await send_call(session, ToolCall(name="t"))
    assert "again later" not in str(caught.value)
    assert not caught.value.not_executed
    server.answers("tasks/get", http(status, ""))
    assert "Try again later" in str(await fail_to_get(session))


async def test_a_reply_to_a_call_that_cannot_be_read_leaves_open_what_became_of_it(
    server: HttpAnswers, session: HttpSession
) -> None:
    server.answers("tools/call", http(200, "<html>"))
    with pytest.raises(RemoteProtocolError, match="The tool may still be running"):
        await send_call(session, ToolCall(name="t"))


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_credential_is_that_whatever_the_body(
    server: HttpAnswers, session: HttpSession, status: int
) -> None:
    server.answers("tasks/get", error(-32603, status), result(TASK, status))
    assert type(await fail_to_get(session)) is CredentialRefusedError
    assert type(await fail_to_get(session)) is CredentialRefusedError


@pytest.mark.parametrize("stream", ["", "data: {\n\n"])
async def test_a_status_counts_where_an_event_stream_holds_no_reply(
    server: HttpAnswers, session: HttpSession, stream: str
) -> None:
    server.answers("tasks/get", events(stream, status=429))
    failed = await fail_to_get(session)
    assert (type(failed), failed.http_status, failed.not_executed) == (SessionError, 429, True)


@pytest.mark.parametrize(
    ("code", "kind", "retryable", "not_executed"),
    [
        (-32700, SessionError, False, True),
        (-32600, SessionError, False, True),
        (-32601, SessionError, False, True),
        (-32602, SessionError, False, True),
        (-32603, SessionError, True, False),
        (-32000, SessionError, True, False),
        (-32003, MissingCapabilityError, False, True),
        (-32021, MissingCapabilityError, False, True),
        (-32020, RemoteProtocolError, False, True),
        (-32022, RemoteProtocolError, False, True),
        (7, SessionError, True, False),
        ("text", SessionError, True, False),
    ],
)
async def test_a_json_rpc_error_keeps_all_the_server_said(
    server: HttpAnswers,
    session: HttpSession,
    code: object,
    kind: type[SessionError],
    retryable: bool,
    not_executed: bool,
) -> None:
    for status in (200, 400, 404, 500):
        server.answers("tasks/get", error(code, status, f"about {TASK_ID}!", {"id": TASK_ID}))
        failed = await fail_to_get(session)
        assert type(failed) is kind
        assert (failed.retryable, failed.not_executed) == (retryable, not_executed)
        assert failed.code == (code if isinstance(code, int) else None)
        assert (failed.remote_message, failed.data) == (f"about {TASK_ID}!", {"id": TASK_ID})
        assert failed.http_status == status
        assert "about 786512e2…!" in str(failed)


@pytest.mark.parametrize("head", ['"id":null,', ""])
@pytest.mark.parametrize("as_events", [False, True])
async def test_an_error_may_come_without_our_id(
    server: HttpAnswers, session: HttpSession, head: str, as_events: bool
) -> None:
    body = '{"jsonrpc":"2.0",' + head + '"error":{"code":-32602,"message":"unknown"}}'
    server.answers("tasks/get", events(f"data: {body}\n\n") if as_events else http(400, body))
    assert (await fail_to_get(session)).code == -32602


@pytest.mark.parametrize("status", [408, 500, 503])
@pytest.mark.parametrize("code", [-32600, -32603])
async def test_an_error_of_the_servers_that_names_no_request_says_nothing_of_what_became_of_ours(
    server: HttpAnswers, session: HttpSession, status: int, code: int
) -> None:
    said = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "Internal server error"}}
    server.answers("tools/call", http(status, json.dumps(said)))
    with pytest.raises(SessionError) as raised:
        await send_call(session, ToolCall(name="t"))
    failed = raised.value
    assert (failed.code, failed.http_status, failed.retryable) == (None, status, True)
    assert not failed.not_executed
    server.answers("tasks/get", http(status, json.dumps(said)))
    assert (await fail_to_get(session)).code == code, "what can be asked again does no harm"


async def test_an_error_beside_an_empty_result_is_an_error(server: HttpAnswers, session: HttpSession) -> None:
    body = '{"jsonrpc":"2.0","id":%d,"result":null,"error":{"code":-32602,"message":"unknown"}}'
    server.answers("tasks/get", lambda r: httpx.Response(200, content=body % rpc_id(r)))
    assert (await fail_to_get(session)).code == -32602
    body = '{"jsonrpc":"2.0","id":%d,"error":null,"result":{"taskId":"t","status":"working"}}'
    assert (await session.get(REF)).task.task_id == "t"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("code", [-32000, -32600, -32601, -32602, -32003, -32020, -32022])
async def test_a_limited_request_may_be_repeated_whatever_its_code(
    server: HttpAnswers, session: HttpSession, status: int, code: int
) -> None:
    server.answers("tasks/get", error(code, status, **{"retry-after": "12"}))
    failed = await fail_to_get(session)
    assert type(failed) is SessionError
    assert (failed.retryable, failed.retry_after_s, failed.code) == (True, 12.0, code)
    assert "Try again later." in str(failed), "the server itself has said nothing of the task"
    assert failed.not_executed == (status == 429), "a gateway cannot know what became of the request"


async def test_an_id_that_the_server_quotes_as_a_header_is_shortened(
    server: HttpAnswers, session: HttpSession
) -> None:
    task_id = "tâche-0123456789-0123456789"
    quoted = f"=?base64?{base64.b64encode(task_id.encode()).decode()}?="
    server.answers("tasks/get", error(-32020, 400, f"Mcp-Name {quoted} is not {task_id}"))
    failed = await fail_to_get(session, TaskRef(task_id))
    assert "Mcp-Name tâche-01… is not tâche-01…" in str(failed)


async def test_a_long_text_of_the_servers_is_cut_in_the_message_alone(
    server: HttpAnswers, session: HttpSession
) -> None:
    server.answers("tasks/get", error(-32603, 200, "x" * 9999))
    failed = await fail_to_get(session)
    assert len(str(failed)) < 600
    assert failed.remote_message == "x" * 9999


async def test_words_of_the_servers_are_escaped_in_the_message_alone(
    server: HttpAnswers, session: HttpSession
) -> None:
    said = "\x1b[2Jgone\nTraceback: \u202e"
    server.answers("tasks/get", error(-32603, 200, said))
    failed = await fail_to_get(session)
    assert "'[2Jgone Traceback:'" in str(failed)
    assert failed.remote_message == said


@pytest.fixture
def somewhere_else(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone in which a local time cannot be taken for GMT."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XYZ+7")
        time.tzset()
        yield
    time.tzset()


NOW = datetime.datetime.now(datetime.UTC)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("0", 0, 0),
        ("120", 120, 120),
        (" 1.5 ", 1.5, 1.5),
        ("-5", 0, 0),
        (email.utils.format_datetime(NOW + datetime.timedelta(hours=1), usegmt=True), 600, 3600),
        (email.utils.format_datetime(NOW - datetime.timedelta(hours=1), usegmt=True), 0, 0),
        (time.strftime("%A, %d-%b-%y %H:%M:%S GMT", time.gmtime(NOW.timestamp() + 3600)), 600, 3600),
        (time.asctime(time.gmtime(NOW.timestamp() + 3600)), 600, 3600),
    ],
    ids=["none", "whole", "fraction", "negative", "in an hour", "an hour ago", "older form", "oldest form"],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(
    value: str, low: float, high: float, somewhere_else: None
) -> None:
    seconds = read_retry_after(value)
    assert seconds is not None
    assert low <= seconds <= high


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "nan",
        "inf",
        "1e9",
        "9" * 400,
        "Thu, 99 Foo 2026 00:00:00 GMT",
        "1 2",
        "0x10",
        f"{10**30} Jan 2026 00:00:00 GMT",
    ],
)
def test_a_retry_after_that_makes_no_sense_counts_as_absent(value: str) -> None:
    assert read_retry_after(value) is None
    assert read_retry_after("") is None
