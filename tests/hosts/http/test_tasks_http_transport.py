"""A host's ``tools/call`` is made by the transport, and its result is the reply. All else passes as it is."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from types import ModuleType
from typing import Any, Final, cast

import anyio
import httpx
import httpx2
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import (
    Environment,
    MemoryJournal,
    OutcomeUnknownError,
    SqliteJournal,
    SystemClock,
    TasksClient,
    TasksHttpTransport,
)
from mcp_tasks_client.errors import JournalLockedError
from mcp_tasks_client.hosts.http.reply_stream import ReplyStream
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import RpcError
from mcp_tasks_client.testing import (
    ErrorReply,
    HttpError,
    ManualClock,
    ScriptedServer,
    complete,
    text_result,
    work,
)
from tests.kit.json_rpc_host import (
    CURRENT,
    LIMIT_S,
    OLDER,
    QUICK,
    URL,
    JsonRpcHost,
    asking_server,
    count,
    hosted,
    recorded,
    resume,
)
from tests.kit.older_server import OlderServer, refusal
from tests.kit.probed_journal import ProbedJournal

pytestmark = pytest.mark.anyio

SECRET: Final = "s3cr3t-token"


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> Any:
    """Each of the two."""
    return request.param


async def answer(context: Any, params: Any) -> ElicitResult:
    (name,) = params.requested_schema["properties"]
    return ElicitResult(action="accept", content={name: "Ada"})


# ── calls ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "form",
    [{}, {"event_stream": True}, {"event_stream": True, "ids_as_text": True, "sloppy": True}],
    ids=["json", "events", "IDs as text"],
)
@pytest.mark.parametrize("version", [CURRENT, OLDER, "2024-11-05"])
async def test_a_host_of_any_version_gets_what_its_call_comes_to(
    library: ModuleType, version: str, form: dict[str, bool]
) -> None:
    server = asking_server(**form)
    async with hosted(server, library=library, host_options={"version": version}, elicitation=answer) as host:
        assert await host.text("plain") == "plain"
        assert await host.text("slow") == "done"
        assert await host.text("asks") == "done"
        assert await host.text("asks_first") == "done"
        bad = await host.call("bad")
        assert bad["result"]["isError"]
        assert ("resultType" in bad["result"]) == (version == CURRENT)
        failed = await host.call("fails")
        assert failed["error"] == {"code": -32050, "message": "quota exceeded", "data": {"retryAfter": 7}}
        unknown = await host.call("no such tool")
        assert unknown["error"]["code"] == -32602
    server.witness.check()


@pytest.mark.parametrize(
    "accept", ["application/json", "text/event-stream", "application/json, text/event-stream"]
)
@pytest.mark.parametrize("meta", [{}, {"progressToken": "p"}])
async def test_the_reply_is_of_a_type_that_the_host_reads(accept: str, meta: JSONObject) -> None:
    async with hosted(asking_server(), host_options={"accept": accept}) as host:
        response = await host.post(host.body("slow", meta=meta))
        assert response.headers["content-type"] in accept
        assert host.read(response)["result"]["content"][0]["text"] == "done"


async def test_hundreds_of_calls_may_wait_at_once() -> None:
    server, all_wait = asking_server(), anyio.Event()
    said: list[str] = []

    class Gate(httpx2.ASGITransport):
        """Holds up all polls until every call waits for its task."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.headers.get("mcp-method") == "tasks/get":
                await all_wait.wait()
            response = await super().handle_async_request(request)
            if count(server, "tools/call") == 200 and not all_wait.is_set():
                assert said == []
                all_wait.set()
            return response

    async def call() -> None:
        said.append(await host.text("slow"))

    opened = hosted(
        server, inner=Gate(server.app), limit_s=3 * LIMIT_S
    )  # it is work, even for a busy machine
    async with opened as host, anyio.create_task_group() as calls:
        for _ in range(200):
            calls.start_soon(call)
    assert said == ["done"] * 200
    server.witness.check()
    assert count(server, "server/discover") == 1


@pytest.mark.parametrize("kept_s", [600.0, 0.0])
async def test_an_outcome_that_was_delivered_is_found_again_if_it_is_kept(
    library: ModuleType, kept_s: float
) -> None:
    server, journal = asking_server(), MemoryJournal(keep_delivered_s=kept_s)
    async with hosted(server, journal, library=library) as host:
        await host.call("slow")
        assert [record.tool for record in await recorded(journal)] == (["slow"] if kept_s else [])
        assert await recorded(journal, pending=True) == []
        assert await resume(server, journal) == [], "the host has it, as far as we know"
        found = await resume(server, journal, delivered_within_s=60.0)
        assert found == (["done"] if kept_s else [])
    assert count(server, "tools/call") == 1


async def test_a_transport_that_calls_every_failure_a_failed_connect_makes_no_call_run_twice(
    library: ModuleType,
) -> None:
    server, lib = asking_server(), cast("Any", library)

    class HangsUp(lib.AsyncBaseTransport):  # type: ignore[misc]  # of either library
        inner = lib.ASGITransport(server.app)

        async def handle_async_request(self, request: Any) -> Any:
            response = await self.inner.handle_async_request(request)
            if request.headers["mcp-method"] == "tools/call":
                raise lib.ConnectError("server disconnected")
            return response

    meta = {"mcp-tasks-client/idempotency-key": "beneath"}
    async with hosted(server, library=library, inner=HangsUp()) as host:
        for _ in range(2):
            failed = await host.call("slow", meta=meta)
            assert "may have" in failed["error"]["message"]
    async with (
        lib.AsyncClient(transport=HangsUp()) as client,
        TasksClient(URL, http_client=client, journal=MemoryJournal()) as ours,
    ):
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError):
                await ours.call_tool("slow", idempotency_key="by URL")
    assert count(server, "tools/call") == 2, "one for each way"


async def test_what_the_host_never_read_is_given_out_again(library: ModuleType) -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal, library=library) as host:
        request = host.client.build_request(
            "POST", URL, content=json.dumps(host.body("slow")), headers=host.headers
        )
        response = await host.client.send(request, stream=True)
        await response.aclose()
        assert await resume(server, journal) == ["done"]


async def test_closing_the_client_gives_up_what_it_owned() -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal) as host:
        request = host.client.build_request(
            "POST", URL, content=json.dumps(host.body("slow")), headers=host.headers
        )
        await host.client.send(request, stream=True)  # a host that forgets to close it
    assert [record.owner for record in await recorded(journal)] == [None]
    assert await resume(server, journal) == ["done"]


async def test_closing_the_client_journals_what_the_journal_had_refused() -> None:
    server, journal = (
        asking_server(),
        ProbedJournal("save", error=JournalLockedError("The disk is full. Make room.")),
    )
    async with hosted(server, journal) as host:
        failed = await host.call("slow")
        assert failed["error"]["message"] == "The disk is full. Make room."
        journal.refuses = ()
    assert [record.owner for record in await recorded(journal)] == [None]
    assert await resume(server, journal) == ["done"]


async def test_a_client_that_is_closed_ends_its_calls_and_their_tasks_go_on(library: ModuleType) -> None:
    server, journal = asking_server(), MemoryJournal()
    errors: list[Exception] = []

    async def call(host: JsonRpcHost, meta: JSONObject) -> None:
        try:
            body = host.body("for_ever", meta=meta)
            host.read(await host.post(body))
        except Exception as error:
            errors.append(error)

    async with anyio.create_task_group() as calls, hosted(server, journal, library=library) as host:
        for meta in ({}, {"progressToken": 1}):
            calls.start_soon(call, host, meta)
        while count(server, "tasks/get") < 2:
            await anyio.sleep(0.01)
    assert [type(error) for error in errors] == [library.ReadError] * 2
    assert "TasksClient(url).resume()" in str(errors[0])
    assert [record.owner for record in await recorded(journal, pending=True)] == [None, None]


class Noted(httpx.AsyncBaseTransport):
    """Notes each request once it has its reply, which takes a while, and the closing."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self.inner = inner
        self.noted: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self.inner.handle_async_request(request)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        content = request.content or b"{}"
        self.noted.append(json.loads(content).get("method", request.method))
        return response

    async def aclose(self) -> None:
        self.noted.append("closed")


@pytest.mark.parametrize("fate", ["cancelled", "cancelled while it is read", "ended"])
@pytest.mark.parametrize("version", [CURRENT, OLDER])
@pytest.mark.parametrize("is_entered", [True, False], ids=["left", "closed"])
async def test_the_inner_transport_is_closed_when_all_was_sent(
    is_entered: bool, version: str, fate: str
) -> None:
    server, wire = asking_server(), OlderServer()
    wire.replies["server/discover"] = lambda arrived: refusal(-32600, "Unsupported protocol version", 400)
    if fate == "ended":
        wire.replies["tasks/get"] = lambda arrived: {**wire.task, "status": "completed"}
        wire.replies["tasks/result"] = lambda arrived: {"content": []}
    inner = Noted(httpx.ASGITransport(server.app) if version == CURRENT else httpx.MockTransport(wire))
    transport = TasksHttpTransport(
        inner,
        journal=MemoryJournal(),
        poll=QUICK,
        on_abandon="cancel",
        environment=Environment(clock=server.clock),
    )
    client: Any = httpx.AsyncClient(transport=transport)
    host = JsonRpcHost(client, version=version)
    tool = "slow" if version == OLDER or fate == "ended" else "for_ever"

    async def call() -> None:
        meta = {"progressToken": 1} if fate == "cancelled while it is read" else {}
        with suppress(httpx.HTTPError):
            await host.post(host.body(tool, meta=meta))

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as calls, AsyncExitStack() as leaving:
            if is_entered:
                await leaving.enter_async_context(client)
            else:
                leaving.push_async_callback(client.aclose)
            if fate == "ended":
                await call()
            else:
                calls.start_soon(call)
                while "tasks/get" not in inner.noted:
                    await anyio.lowlevel.checkpoint()
    assert inner.noted.index("closed") == len(inner.noted) - 1, inner.noted
    assert ("tasks/cancel" in inner.noted) == (fate != "ended")
    assert ("DELETE" in inner.noted) == (fate == "ended" and version == OLDER)


@pytest.mark.parametrize("on_abandon", ["detach", "cancel"])
async def test_a_host_that_gives_a_call_up_leaves_its_task_or_cancels_it(on_abandon: Any) -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal, on_abandon=on_abandon) as host:
        async with anyio.create_task_group() as calls:
            calls.start_soon(host.call, "for_ever")
            while not count(server, "tasks/get"):
                await anyio.sleep(0.01)
            calls.cancel_scope.cancel()
        assert [record.owner for record in await recorded(journal)] == [None]
    assert count(server, "tasks/cancel") == (on_abandon == "cancel")


async def test_a_host_of_an_older_version_gives_a_call_up_by_a_notification() -> None:
    server, journal = asking_server(), MemoryJournal()
    async with (
        hosted(server, journal, host_options={"version": OLDER}) as host,
        anyio.create_task_group() as calls,
    ):
        body = host.body("for_ever")
        gone: list[Any] = []

        async def call() -> None:
            gone.append(host.read(await host.post(body, **{"Mcp-Session-Id": "s1"})))

        calls.start_soon(call)
        while not count(server, "tasks/get"):
            await anyio.sleep(0.01)
        params = {"requestId": body["id"]}
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        response = await host.post(cancelled, **{"Mcp-Session-Id": "s1"})
        assert response.status_code == 202
        while not gone:
            await anyio.sleep(0.01)
        assert "given the call up" in gone[0]["error"]["message"]
        assert [record.owner for record in await recorded(journal)] == [None]
    assert not count(server, "notifications/cancelled")


@pytest.mark.parametrize("request_id", [[1], {}])
async def test_what_no_request_can_be_is_not_taken_back(request_id: Any) -> None:
    async with hosted(asking_server(), host_options={"version": OLDER}) as host:
        cancelled = {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": request_id},
        }
        await host.post(cancelled)  # which passes, as it is no business of ours
        assert await host.text("plain") == "plain"


# ── errors ────────────────────────────────────────────────────────────────────────────────────


async def test_an_error_of_ours_is_a_json_rpc_error_that_says_what_to_do() -> None:
    server = asking_server()
    locked = JournalLockedError("Another process holds the journal. End it, or wait.")
    async with hosted(server, ProbedJournal("open", error=locked)) as host:
        failed = await host.call("slow")
    assert failed["error"]["code"] == -32603
    assert failed["error"]["message"] == "Another process holds the journal. End it, or wait."
    assert not count(server, "tools/call"), "nothing is called that could not be journaled"


@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize("in_json_rpc", [False, True])
async def test_a_host_is_told_that_the_tool_may_still_run(status: int, in_json_rpc: bool) -> None:
    """A model reads the message, and decides by it whether to call again."""
    server = asking_server()
    said = ErrorReply(-32000, "Try again later.", http_status=status) if in_json_rpc else HttpError(status)
    server.misbehave("tools/call", said)
    async with hosted(server) as host:
        failed = await host.call("slow")
    assert "The tool may still be running" in failed["error"]["message"]


@pytest.mark.parametrize(
    ("params", "capabilities"),
    [
        ({"arguments": [1]}, {}),
        ({"arguments": "{}"}, {}),
        ({"requestState": 5}, {}),
        ({}, 7),
        ({}, {"elicitation": 7}),
    ],
)
async def test_a_call_that_a_server_would_refuse_is_refused_and_not_made(
    params: dict[str, Any], capabilities: Any
) -> None:
    server = asking_server()
    async with hosted(server, host_options={"capabilities": capabilities}) as host:
        failed = await host.call("slow", **params)
    assert failed["error"]["code"] == -32602
    assert "The request is not as MCP has it" in failed["error"]["message"]
    assert not count(server, "tools/call")


async def test_a_server_that_cannot_be_asked_for_its_version_gets_the_host_s_own_request() -> None:
    server = asking_server()
    server.misbehave("server/discover", *[HttpError(503)] * 3)
    async with hosted(server) as host:
        assert await host.text("plain") == "plain"
    (call,) = [one for one in server.witness.arrivals if one.method == "tools/call"]
    assert "io.modelcontextprotocol/tasks" not in json.dumps(call.params)


async def test_a_call_that_passes_leaves_its_label_here(library: ModuleType) -> None:
    server = asking_server()
    server.misbehave("server/discover", *[HttpError(503)] * 3)
    meta = {"mcp-tasks-client/label": "secret", "x": None}
    async with hosted(server, library=library) as host:
        assert await host.text("plain", {"emoji": "😀"}, meta=meta) == "plain"
        await host.call("plain", meta=meta, task={"ttl": 1})
    for call in server.witness.log("tools/call"):
        assert "mcp-tasks-client" not in json.dumps(call.params)
        assert call.params["_meta"]["x"] is None
        assert call.headers is not None
        assert call.headers["mcp-name"] == "plain"
    assert count(server, "tools/call") == 2


async def test_arguments_that_no_header_can_carry_are_refused_like_any_others() -> None:
    async with hosted(asking_server()) as host:
        failed = await host.call("\ud800")
    assert failed["error"]["code"] in (-32602, -32603)


# ── the host's own settings ───────────────────────────────────────────────────────────────────


async def test_the_host_s_headers_hooks_and_time_outs_count(library: ModuleType) -> None:
    seen: list[Any] = []
    server = asking_server()
    inner = library.ASGITransport(server.app)
    send = inner.handle_async_request

    async def watched(request: Any) -> Any:
        seen.append(request)
        return await send(request)

    inner.handle_async_request = watched
    hooked: list[Any] = []

    async def on_request(request: Any) -> None:
        hooked.append(request)
        request.headers["x-signed"] = "yes"

    options = {
        "headers": {"Authorization": f"Bearer {SECRET}", "X-Tenant": "t"},
        "cookies": {"sticky": "1"},
        "event_hooks": {"request": [on_request]},
        "timeout": 77.0,
    }
    async with hosted(server, library=library, inner=inner, client_options=options) as host:
        await host.call("slow", {"x": 1})
    assert len(hooked) == 1, "hooks see the host's own request"
    ours = [json.loads(request.content)["method"] for request in seen]
    assert ours[:3] == ["server/discover", "tools/list", "tools/call"]
    assert set(ours[3:]) == {"tasks/get"}
    for request in seen:
        assert request.headers["authorization"] == f"Bearer {SECRET}"
        assert (request.headers["x-tenant"], request.headers["x-signed"]) == ("t", "yes")
        assert request.headers["cookie"] == "sticky=1"
        assert request.headers["host"] == "server.test"
        assert request.headers.get_list("content-length") == [str(len(request.content))]
        assert request.extensions["timeout"]["read"] == 77.0


async def test_no_credential_is_in_the_journal(tmp_path: Any) -> None:
    server, path = asking_server(), tmp_path / "journal.sqlite3"
    options = {"headers": {"Authorization": f"Bearer {SECRET}"}, "cookies": {"session": SECRET}}
    async with hosted(server, SqliteJournal(path), client_options=options) as host:
        meta = {"mcp-tasks-client/idempotency-key": "k"}
        async with anyio.create_task_group() as calls:
            calls.start_soon(partial(host.call, "for_ever", {"password": SECRET}, meta=meta))
            while not count(server, "tasks/get"):
                await anyio.sleep(0.01)
            calls.cancel_scope.cancel()
        assert len(await recorded(SqliteJournal(path))) == 1
        stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"for_ever" in stored
    assert SECRET.encode() not in stored


class Refreshing:
    """An auth flow of either library that renews its token when it is refused."""

    def __init__(self, library: Any) -> None:
        self.tokens = 1
        flow = self._flow
        self.auth = type("Auth", (library.Auth,), {"auth_flow": lambda _, request: flow(request)})()

    def _flow(self, request: Any) -> Any:
        request.headers["Authorization"] = f"Bearer {self.tokens}"
        response = yield request
        if response.status_code == 401:
            assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'
            self.tokens += 1
            request.headers["Authorization"] = f"Bearer {self.tokens}"
            yield request


@pytest.mark.parametrize("refused", ["server/discover", "tools/call", "tasks/get", "tasks/update"])
async def test_a_credential_that_is_refused_is_renewed_by_the_host_s_auth_flow_and_the_task_goes_on(
    library: ModuleType, refused: str
) -> None:
    server, journal = asking_server(), MemoryJournal()
    inner = library.ASGITransport(server.app)
    send, valid = inner.handle_async_request, 1

    async def guarded(request: Any) -> Any:
        nonlocal valid
        method = json.loads(request.content)["method"]
        if method == refused:
            valid = 2
        if request.headers["authorization"] != f"Bearer {valid}":
            headers = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
            return library.Response(401, headers=headers, content=b"renew it")
        return await send(request)

    inner.handle_async_request = guarded
    auth = Refreshing(library)
    client_options = {"auth": auth.auth}
    async with hosted(
        server, journal, library=library, inner=inner, client_options=client_options, elicitation=answer
    ) as host:
        assert await host.text("asks") == "done"
        assert await recorded(journal, pending=True) == []
    assert auth.tokens == 2
    assert count(server, "tools/call") == 1


async def test_a_credential_that_expires_under_a_begun_stream_is_renewed_as_well(library: ModuleType) -> None:
    """The status has been sent by then. The host's session calls again, whose auth flow hears of it."""
    clock = ManualClock()
    server, journal = asking_server(clock=clock), MemoryJournal()
    inner = library.ASGITransport(server.app)
    send, valid = inner.handle_async_request, 1

    async def guarded(request: Any) -> Any:
        nonlocal valid
        if json.loads(request.content)["method"] == "tasks/get":
            await clock.advance(0.004)  # the task takes five polls, however slow they are
            valid = 2 if count(server, "tasks/get") == 2 else valid
        if request.headers["authorization"] != f"Bearer {valid}":
            headers = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
            return library.Response(401, headers=headers, content=b"renew it")
        return await send(request)

    inner.handle_async_request = guarded
    options = {"client_options": {"auth": Refreshing(library).auth}, "environment": Environment()}
    async with hosted(server, journal, library=library, inner=inner, **options) as host:
        asked = (await host.call("slow", meta={"progressToken": "p"}))["result"]
        assert host.notified, "the stream has begun"
        assert (asked["resultType"], asked["inputRequests"]) == ("input_required", {})
        assert await host.text("slow", requestState=asked["requestState"]) == "done"
    assert count(server, "tools/call") == 1


async def test_a_credential_that_is_refused_after_it_was_renewed_is_told_to_the_host(
    library: ModuleType,
) -> None:
    class Renewing(library.Auth):  # type: ignore[misc]
        def auth_flow(self, request: Any) -> Any:
            response = yield request
            if response.status_code == 401:
                yield request

    server, journal = asking_server(), MemoryJournal()
    server.on_request = lambda arrival: HttpError(401) if arrival.method == "tasks/get" else None
    async with hosted(server, journal, library=library, client_options={"auth": Renewing()}) as host:
        assert (await host.post(host.body("slow"))).status_code == 401
    assert count(server, "tools/call") == 1
    assert count(server, "tasks/get") == 2


async def test_without_an_auth_flow_the_host_learns_that_its_credential_is_refused() -> None:
    server, journal = asking_server(), MemoryJournal()
    server.misbehave("tasks/get", HttpError(401))
    async with hosted(server, journal) as host:
        response = await host.post(host.body("slow"))
        assert response.status_code == 401
        assert "refused the credential" in response.json()["error"]["message"]
        assert await resume(server, journal) == ["done"]


# ── all other traffic ─────────────────────────────────────────────────────────────────────────


class Recorder:
    """A transport that notes what reaches it."""

    def __init__(self, library: Any, respond: Callable[[Any], Any]) -> None:
        self.seen: list[Any] = []
        seen = self.seen

        async def handle(_: Any, request: Any) -> Any:
            seen.append(request)
            return respond(request)

        self.transport = type("Recorder", (library.AsyncBaseTransport,), {"handle_async_request": handle})()


@pytest.mark.parametrize(
    ("verb", "headers", "content"),
    [
        ("GET", {}, b""),
        ("POST", {"content-type": "application/json"}, b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'),
        ("POST", {"content-type": "application/json"}, b'[{"jsonrpc":"2.0","id":1,"method":"tools/call"}]'),
        ("POST", {"content-type": "application/json"}, b'"tools/call"'),
        ("POST", {"content-type": "text/plain"}, b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}'),
        (
            "POST",
            {"content-type": "application/json", "content-encoding": "gzip"},
            gzip.compress(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}', mtime=0),
        ),
    ],
)
async def test_other_traffic_passes_as_it_is(
    library: ModuleType, verb: str, headers: dict[str, str], content: bytes
) -> None:
    given = library.Response(
        207, headers={"x-own": "1", "content-encoding": "gzip"}, content=gzip.compress(b"body", mtime=0)
    )
    recorder = Recorder(library, lambda _: given)
    async with library.AsyncClient(
        transport=TasksHttpTransport(recorder.transport, journal=MemoryJournal())
    ) as client:
        response = await client.request(verb, URL, headers=headers, content=content)
    assert (response.status_code, response.headers["x-own"], response.text) == (207, "1", "body")
    (seen,) = recorder.seen
    assert seen is response.request
    assert await seen.aread() == content


async def test_a_stream_passes_while_it_goes_on(library: ModuleType) -> None:
    proceed, closed = anyio.Event(), anyio.Event()

    class Endless(library.AsyncByteStream):  # type: ignore[misc, name-defined]  # of either library
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b": one\n\n"
            await proceed.wait()
            yield b": two\n\n"

        async def aclose(self) -> None:
            closed.set()

    events = {"content-type": "text/event-stream"}
    recorder = Recorder(library, lambda _: library.Response(200, headers=events, stream=Endless()))
    with anyio.fail_after(LIMIT_S):
        async with (
            library.AsyncClient(
                transport=TasksHttpTransport(recorder.transport, journal=MemoryJournal())
            ) as client,
            client.stream("GET", URL) as response,
        ):
            chunks = response.aiter_raw()
            assert await anext(chunks) == b": one\n\n"
            proceed.set()
            assert [chunk async for chunk in chunks] == [b": two\n\n"]
    assert closed.is_set()


async def test_a_body_that_is_streamed_up_is_not_read_before_its_time(library: ModuleType) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"tools/call"

    recorder = Recorder(library, lambda request: library.Response(200))
    async with library.AsyncClient(
        transport=TasksHttpTransport(recorder.transport, journal=MemoryJournal())
    ) as client:
        await client.post(URL, content=parts(), headers={"content-type": "application/octet-stream"})
    with pytest.raises(library.RequestNotRead):
        _ = recorder.seen[0].content


# ── progress and silence ──────────────────────────────────────────────────────────────────────


async def test_the_host_is_told_of_progress_if_it_asks_for_it() -> None:
    server = asking_server()
    steps = [work(0.3, "half way"), work(0.3, "nearly"), complete(text_result("done"))]
    server.tool("slow", steps, poll_interval_ms=1)
    async with hosted(server) as host:
        assert await host.text("slow", meta={"progressToken": "p"}) == "done"
        said = [one["params"] for one in host.notified if one["method"] == "notifications/progress"]
    assert [one["message"] for one in said] == ["half way", "nearly"]
    assert {one["progressToken"] for one in said} == {"p"}
    numbers = [one["progress"] for one in said]
    assert numbers == sorted(set(numbers))


async def test_a_stream_is_never_silent_for_long() -> None:
    clock = ManualClock()
    server = ScriptedServer(clock=clock)
    server.tool("slow", [work(1, "begun"), work(60), complete(text_result("done"))], poll_interval_ms=30_000)
    async with hosted(server, poll=None) as host:
        request = host.client.build_request(
            "POST",
            URL,
            content=json.dumps(host.body("slow", meta={"progressToken": 1})),
            headers=host.headers,
        )
        chunks: list[bytes] = []

        async def read() -> None:
            response = await host.client.send(request, stream=True)
            chunks.extend([chunk async for chunk in response.aiter_raw()])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            for _ in range(20):
                await clock.advance(5)
    comments = [chunk for chunk in chunks if chunk.startswith(b":")]
    assert len(comments) > 8
    assert b"done" in b"".join(chunks[-2:])


async def test_a_reply_that_is_there_before_any_event_is_json_though_progress_was_asked_for() -> None:
    async with hosted(asking_server()) as host:
        response = await host.post(host.body("plain", meta={"progressToken": 1}))
        assert response.headers["content-type"] == "application/json"


async def test_a_stream_that_the_host_closes_ends_the_call() -> None:
    server, journal = asking_server(), MemoryJournal()
    server.tool("chatty", [work(0.01, "one"), work(math.inf, "two")], poll_interval_ms=1)
    async with hosted(server, journal) as host:
        body = host.body("chatty", meta={"progressToken": 1})
        async with (
            host.client.stream("POST", URL, content=json.dumps(body), headers=host.headers) as response,
            aclosing(response.aiter_raw()) as chunks,
        ):
            await anext(chunks)
        polls = count(server, "tasks/get")
        assert [record.owner for record in await recorded(journal)] == [None]
        await anyio.sleep(0.05)
        assert count(server, "tasks/get") == polls


async def test_a_question_is_asked_however_much_progress_waits_to_be_read() -> None:
    async def work() -> None:
        for number in range(3000):
            stream.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"n": number}})
        stream.send({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create"})

    stream, read = ReplyStream(work, Environment().clock), list[bytes]()
    await stream.start()
    while (event := await stream.next()) is not None:
        read.append(event)
    assert len(read) <= 1001
    assert b"elicitation/create" in read[-1]


# ── making one ────────────────────────────────────────────────────────────────────────────────


def test_it_is_a_transport_of_the_library_of_the_inner_one(library: ModuleType) -> None:
    lib: Any = library
    transport = TasksHttpTransport(lib.MockTransport(lambda _: lib.Response(200)), journal=MemoryJournal())
    assert isinstance(transport, lib.AsyncBaseTransport)
    assert isinstance(transport, TasksHttpTransport)


@pytest.mark.parametrize("wrong", [None, object(), httpx.HTTPTransport(), "http://server.test"])
def test_any_other_transport_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="asynchronous transport of httpx or httpx2"):
        TasksHttpTransport(wrong)


def test_options_that_make_no_sense_are_refused() -> None:
    inner = httpx.MockTransport(lambda _: httpx.Response(200))
    with pytest.raises(ValueError, match="on_abandon"):
        TasksHttpTransport(inner, journal=MemoryJournal(), on_abandon="ignore")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="journal"):
        TasksHttpTransport(inner, journal=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("ends", ["before", "while it waits"])
async def test_a_question_to_a_host_whose_request_is_over_has_no_answer(ends: str) -> None:
    over = anyio.Event()
    stream, replies = ReplyStream(over.wait, SystemClock()), list[Any]()

    async def ask() -> None:
        replies.append(await stream.ask({"method": "roots/list"}))

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.start)
            if ends == "while it waits":
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert replies == []
            over.set()
            await stream.wait()
            if ends == "before":
                tasks.start_soon(ask)
    assert replies == [RpcError(-32603, "the host's request has ended", None)]
