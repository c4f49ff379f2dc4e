"""Calls that go again since they certainly did not run: a URL that was to be visited first, and HTTP 429."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpx
import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from mcp_types import ElicitRequestURLParams, ElicitResult

from mcp_tasks_client import (
    InputUnansweredError,
    MemoryJournal,
    PollPolicy,
    RemoteProtocolError,
    SessionError,
    TaskFailedError,
    TasksClient,
    TasksClientError,
    TasksExtension,
    TasksHttpTransport,
    TasksTransport,
)
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import RpcError
from mcp_tasks_client.testing import (
    ErrorReply,
    HttpError,
    ScriptedServer,
    ask_first,
    complete,
    form,
    reply,
    scripted_client,
    text_result,
    work,
)
from tests.kit.json_rpc_host import (
    ENDPOINT,
    LIMIT_S,
    OLDER,
    QUICK,
    URL,
    JsonRpcHost,
    OlderJsonRpcHost,
    count,
    hosted,
    recorded,
)
from tests.kit.older_server import OlderServer, refusal
from tests.kit.stream_host import over_streams
from tests.kit.ways import Way, around, beneath, by_client, by_url, by_wrapped_client, result_of

from .relay._host_session import connected

pytestmark = pytest.mark.anyio

KEY: Final = "k"
META: Final = {"mcp-tasks-client/idempotency-key": KEY}
ACCEPT: Final[JSONObject] = {"action": "accept"}
DECLINE: Final[JSONObject] = {"action": "decline"}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pauses. How long they are is stated by `tests/machine` and `tests/sessions`."""
    monkeypatch.setattr("mcp_tasks_client.machine.before_task._STATE_ONLY_DELAY_S", 0.01)
    monkeypatch.setattr("mcp_tasks_client.sessions.tool_catalogue._FIRST_PAUSE_S", 0.01)


def url_data(*names: str) -> JSONObject:
    """The data of the error, as AgentCore Gateway sends it."""
    return {
        "elicitations": [
            {
                "mode": "url",
                "message": f"Please authorize {name}.",
                "url": f"https://auth.test/{name}",
                "elicitationId": f"id-{name}",
            }
            for name in names
        ]
    }


def refused(*names: str) -> ErrorReply:
    return ErrorReply(-32042, "This request requires more information.", url_data(*names))


def gateway(*faults: ErrorReply | HttpError, **options: Any) -> ScriptedServer:
    """A server behind what refuses the first calls."""
    server = ScriptedServer(endpoint=ENDPOINT, **options)
    server.tool("tool", [work(0.01), complete(text_result("done"))], poll_interval_ms=1)
    server.tool("asks", [ask_first("name", form("Who?", name="string")), reply(text_result("done"))])
    server.misbehave("tools/call", *faults)
    return server


class UrlVisitor:
    """Is shown URLs, and says of each what it was told to say."""

    def __init__(self, *actions: str) -> None:
        self.shown: list[str] = []
        self._actions = list(actions)

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        await anyio.lowlevel.checkpoint()
        assert isinstance(params, ElicitRequestURLParams)
        assert params.message.startswith("Please authorize ")
        self.shown.append(params.url)
        action: Any = self._actions.pop(0) if self._actions else "accept"
        return ElicitResult(action=action)


# ── by every way in ───────────────────────────────────────────────────────────────────────────


def text_of(answer: JSONObject | RpcError) -> str:
    """The text of a result, of a JSON-RPC response, or of a reply that a host's session was given."""
    if isinstance(answer, RpcError):
        raise RemoteProtocolError(answer.message, code=answer.code, data=answer.data)
    result = answer if "content" in answer else result_of(answer)
    return str(result["content"][0]["text"])


async def make(way: Way, server: ScriptedServer, **options: Any) -> str:
    with anyio.fail_after(LIMIT_S):
        async with way(server, **{"journal": MemoryJournal(), "poll": QUICK, **options}) as call:
            try:
                return text_of(await call("tool", KEY))
            except Exception as raised:
                error = raised  # raised below, since the SDK's client would put it into a group
    raise error


each_way = pytest.mark.parametrize("way", [by_client, by_url, by_wrapped_client, beneath, around])
each_way_of_ours = pytest.mark.parametrize("way", [by_client, by_url, by_wrapped_client])
each_way_that_sees_a_status = pytest.mark.parametrize("way", [by_client, by_url, beneath])


# ── a URL that is to be visited first ─────────────────────────────────────────────────────────


@each_way
async def test_each_url_is_put_to_the_host_and_then_the_same_call_goes_again(way: Way) -> None:
    server, person = gateway(refused("a", "b")), UrlVisitor()
    assert await make(way, server, elicitation=person) == "done"
    assert person.shown == ["https://auth.test/a", "https://auth.test/b"]
    first, second = server.witness.log("tools/call")
    assert "inputResponses" not in second.params, "the server has asked for none"
    assert second.params.get("arguments") == first.params.get("arguments")


@each_way
async def test_a_server_that_refuses_again_is_put_to_the_host_again(way: Way) -> None:
    server, person = gateway(refused("a"), refused("a"), refused("b")), UrlVisitor()
    assert await make(way, server, elicitation=person) == "done"
    assert [url[-1] for url in person.shown] == ["a", "a", "b"]


@each_way_of_ours
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_what_is_declined_parks_the_call_and_the_key_stays_usable(way: Way, action: str) -> None:
    server, person = gateway(refused("a", "b")), UrlVisitor("accept", action)
    journal = MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with way(server, journal=journal, poll=QUICK, elicitation=person) as call:
            with pytest.raises(InputUnansweredError, match=action) as raised:
                await call("tool", KEY)
            assert raised.value.declined
            assert count(server, "tools/call") == 1
            assert text_of(await call("tool", KEY)) == "done"
    assert [url[-1] for url in person.shown] == ["a", "b"], "the server decides whether to ask again"
    assert count(server, "tools/call") == 2


@each_way_of_ours
async def test_without_a_callback_the_call_parks_and_another_client_goes_on_with_the_key(way: Way) -> None:
    server, journal, person = gateway(refused("stale"), refused("fresh")), MemoryJournal(), UrlVisitor()
    with pytest.raises(InputUnansweredError, match="elicitation") as raised:
        await make(way, server, journal=journal)
    assert not raised.value.declined
    assert "auth.test" not in str(raised.value)
    assert await make(way, server, journal=journal, elicitation=person) == "done"
    assert person.shown == ["https://auth.test/fresh"], "a URL that was handed out earlier may have expired"
    assert count(server, "tools/call") == 3


async def test_a_server_that_refuses_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tasks_client.machine.before_task._LONGEST_VISIT_S", 0.0)  # the pauses grow
    server, person, journal = gateway(*[refused("a")] * 33), UrlVisitor(), MemoryJournal()
    with pytest.raises(InputUnansweredError, match="though they were, 32 times"):
        await make(by_client, server, journal=journal, elicitation=person)
    assert len(person.shown) == 32
    assert await make(by_client, server, journal=journal, elicitation=person) == "done"


async def test_what_the_server_was_told_before_goes_with_the_call_again() -> None:
    server, urls = gateway(None, refused("a")), list[str]()  # type: ignore[arg-type]  # the first is no fault

    async def answer(context: Any, params: Any) -> ElicitResult:
        if isinstance(params, ElicitRequestURLParams):
            urls.append(params.url)
            return ElicitResult(action="accept")
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with scripted_client(server.session(), journal=MemoryJournal(), elicitation=answer) as client:
        await client.call_tool("asks")
    _, refused_one, again = server.witness.log("tools/call")
    assert again.params == refused_one.params
    assert again.params["inputResponses"].keys() == {"name"}
    assert urls == ["https://auth.test/a"]


async def test_an_error_without_urls_is_the_error_of_the_call() -> None:
    data = {"elicitations": [{"mode": "form", "message": "Name?"}]}
    with pytest.raises(TaskFailedError) as raised:
        await make(by_client, gateway(ErrorReply(-32042, "no", data)), elicitation=UrlVisitor())
    assert (raised.value.code, raised.value.data) == (-32042, data)


async def test_a_call_that_waits_for_a_person_can_be_cancelled() -> None:
    server = gateway(refused("a"))
    shown = anyio.Event()

    async def never(context: Any, params: Any) -> ElicitResult:
        shown.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with scripted_client(server.session(), journal=MemoryJournal(), elicitation=never) as client:
        with anyio.fail_after(LIMIT_S), anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "tool")
                await shown.wait()
                scope.cancel()
    assert count(server, "tools/call") == 1


async def test_a_server_of_the_official_sdk_is_understood() -> None:
    server, person, calls = MCPServer("s"), UrlVisitor(), 0

    @server.tool()
    def deploy() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            message, url = "Please authorize a.", "https://auth.test/a"
            wanted = ElicitRequestURLParams(message=message, url=url, elicitation_id="id-a")
            raise mcp.UrlElicitationRequiredError([wanted])
        return "done"

    options: Any = {"endpoint": ENDPOINT, "journal": MemoryJournal(), "elicitation": person}
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(server) as sdk, TasksClient(sdk, **options) as client:
            result = await client.call_tool("deploy", idempotency_key=KEY)
    assert text_of(result.model_dump(by_alias=True)) == "done"
    assert (calls, person.shown) == (2, ["https://auth.test/a"])


# ── a URL, where the host's own session asks ──────────────────────────────────────────────────

BY_URL: Final[JSONObject] = {"elicitation": {"form": {}, "url": {}}}


@asynccontextmanager
async def beneath_host(
    server: ScriptedServer, journal: MemoryJournal, **options: Any
) -> AsyncIterator[JsonRpcHost]:
    async with hosted(server, journal, host_options={"capabilities": BY_URL, **options}) as host:
        yield host


@asynccontextmanager
async def around_host(
    server: ScriptedServer, journal: MemoryJournal, **options: Any
) -> AsyncIterator[JsonRpcHost]:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app)) as http:
        inner = streamable_http_client(URL, http_client=http)
        transport = TasksTransport(inner, endpoint=ENDPOINT, journal=journal, poll=QUICK)
        async with over_streams(transport) as host:
            host.capabilities = options.get("capabilities", BY_URL)
            yield host


each_host = pytest.mark.parametrize("as_host", [beneath_host, around_host])
keyed_or_not = pytest.mark.parametrize("meta", [{}, META], ids=["no key", "key"])


async def answer_all(
    host: JsonRpcHost, asked: JSONObject, answer: JSONObject, meta: Mapping[str, Any]
) -> JSONObject:
    state = {"requestState": asked["requestState"]} if "requestState" in asked else {}
    answers = dict.fromkeys(asked["inputRequests"], answer)
    return await host.call("tool", inputResponses=answers, meta=meta, **state)


@each_host
@keyed_or_not
async def test_a_host_at_2026_07_28_is_asked_by_the_reply_to_its_call(as_host: Any, meta: Any) -> None:
    server, journal = gateway(refused("a", "b")), MemoryJournal()
    async with as_host(server, journal) as host:
        asked = (await host.call("tool", meta=meta))["result"]
        assert asked["resultType"] == "input_required"
        params = [request["params"] for request in asked["inputRequests"].values()]
        assert params == url_data("a", "b")["elicitations"]
        assert text_of(await answer_all(host, asked, ACCEPT, meta)) == "done"
    _, again = server.witness.log("tools/call")
    assert "inputResponses" not in again.params
    assert "requestState" not in again.params


@each_host
@keyed_or_not
async def test_a_host_that_declines_is_told_so_and_asked_no_more(as_host: Any, meta: Any) -> None:
    server, journal = gateway(refused("a")), MemoryJournal()
    async with as_host(server, journal) as host:
        asked = (await host.call("tool", meta=meta))["result"]
        with pytest.raises(RemoteProtocolError, match="decline") as raised:
            text_of(await answer_all(host, asked, DECLINE, meta))
        assert raised.value.code == -32603
        assert count(server, "tools/call") == 1
        assert [record.owner for record in await recorded(journal)] == [None] * len(meta)
        assert text_of(await host.call("tool", meta=meta)) == "done"


@each_host
@keyed_or_not
@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {}}, {"elicitation": {"form": {}}}])
async def test_a_host_that_cannot_be_asked_gets_the_server_s_error_with_the_urls(
    as_host: Any, meta: Any, capabilities: JSONObject
) -> None:
    """Hosts that know the error show the URLs themselves, and call again."""
    server, journal = gateway(refused("a")), MemoryJournal()
    async with as_host(server, journal, capabilities=capabilities) as host:
        with pytest.raises(RemoteProtocolError) as raised:
            text_of(await host.call("tool", meta=meta))
        assert (raised.value.code, raised.value.data) == (-32042, url_data("a"))
        assert [record.owner for record in await recorded(journal)] == [None] * len(meta)
        assert text_of(await host.call("tool", meta=meta)) == "done"


@pytest.mark.parametrize("place", ["beneath", "around"])
async def test_the_sdk_s_own_session_asks_its_callback(place: str) -> None:
    server, person = gateway(refused("a", "b")), UrlVisitor()
    options: Any = {"journal": MemoryJournal(), "poll": QUICK, "endpoint": ENDPOINT}
    inner = httpx2.ASGITransport(server.app)
    over = TasksHttpTransport(inner, **options) if place == "beneath" else inner
    with anyio.fail_after(LIMIT_S):
        async with httpx2.AsyncClient(transport=over) as http:
            streams: Any = streamable_http_client(URL, http_client=http)
            if place == "around":
                streams = TasksTransport(streams, **options)
            async with mcp.Client(streams, elicitation_callback=person) as client:
                result = await client.call_tool("tool")
    assert text_of(result.model_dump(by_alias=True)) == "done"
    assert sorted(person.shown) == ["https://auth.test/a", "https://auth.test/b"]


async def test_where_the_sdk_sends_the_call_the_error_is_the_host_s() -> None:
    """The extension sees replies only, as its documentation says."""
    server = gateway(refused("a"))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app)) as http:
        extension = TasksExtension(journal=MemoryJournal(), endpoint=ENDPOINT, elicitation=UrlVisitor())
        streams = streamable_http_client(URL, http_client=http)
        async with mcp.Client(streams, extensions=[extension]) as client:
            with pytest.raises(mcp.MCPError) as raised:
                await client.call_tool("tool")
    assert (raised.value.code, raised.value.data) == (-32042, url_data("a"))


# ── a URL, at 2025-11-25 ──────────────────────────────────────────────────────────────────────


def older_gateway(*refusals: JSONObject) -> OlderServer:
    server, left = OlderServer(), list(refusals)
    server.replies["server/discover"] = lambda arrived: refusal(-32601, "Method not found")
    takes = server.replies["tools/call"]

    def call(arrived: Any) -> Any:
        if not left:
            return takes(arrived)
        error = {"code": -32042, "message": "no", "data": left.pop(0)}
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": arrived.message["id"], "error": error})

    server.replies["tools/call"] = call
    server.task["status"] = "completed"
    return server


async def test_at_2025_11_25_a_client_by_url_asks_and_calls_again() -> None:
    server, person = older_gateway(url_data("a", "b")), UrlVisitor()
    options: Any = {"journal": MemoryJournal(), "poll": QUICK, "elicitation": person}
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as http,
        TasksClient(URL, http_client=http, **options) as client,
    ):
        with anyio.fail_after(LIMIT_S):
            result = await client.call_tool("slow", idempotency_key=KEY)
    assert text_of(result.model_dump(by_alias=True)) == "done"
    assert person.shown == ["https://auth.test/a", "https://auth.test/b"]
    first, second = server.of("tools/call")
    assert first.params.keys() == second.params.keys()


@pytest.mark.parametrize("action", ["accept", "decline"])
@pytest.mark.parametrize("at", ["2026-07-28", "2025-11-25"])
async def test_a_host_of_an_older_version_is_asked_on_the_stream_of_its_call(at: str, action: str) -> None:
    newer, older = gateway(refused("a", "b")), older_gateway(url_data("a", "b"))
    inner = httpx.ASGITransport(newer.app) if at == "2026-07-28" else httpx.MockTransport(older)
    async with hosted(newer, library=httpx, inner=inner, host_options={"version": OLDER}) as host:
        session = OlderJsonRpcHost(host, {"elicitation/create": {"result": {"action": action}}}, BY_URL)
        await session.initialize()
        answer = await session.call("tool" if at == "2026-07-28" else "slow")
    shown = [one["params"] for one in session.asked]
    if action == "accept":
        assert text_of(answer) == "done"
        assert shown == url_data("a", "b")["elicitations"]
    else:
        assert answer["error"]["code"] == -32603
        assert "decline" in answer["error"]["message"]
        assert shown == url_data("a")["elicitations"]


async def test_at_2025_11_25_a_session_of_a_host_is_asked() -> None:
    server, left = OlderServer(), [url_data("a", "b")]
    takes = server.replies["tools/call"]
    server.replies["tools/call"] = lambda arrived: (
        RpcError(-32042, "no", left.pop()) if left else takes(arrived)
    )
    server.task["status"] = "completed"
    async with connected(server, BY_URL) as session:
        call = await session.send("tools/call", {"name": "slow", "arguments": {}})
        for entry in url_data("a", "b")["elicitations"]:
            asked = await session.hears("elicitation/create")
            assert asked["params"] == entry
            await session.say({"id": asked["id"], "result": ACCEPT})
        assert text_of(await session.reply_to(call)) == "done"
    assert len(server.of("tools/call")) == 2


async def test_at_2025_11_25_a_session_that_declines_is_told_so() -> None:
    server = OlderServer()
    server.replies["tools/call"] = lambda arrived: RpcError(-32042, "no", url_data("a"))
    async with connected(server, BY_URL) as session:
        call = await session.send("tools/call", {"name": "slow", "arguments": {}})
        asked = await session.hears("elicitation/create")
        await session.say({"id": asked["id"], "result": DECLINE})
        said = await session.reply_to(call)
    assert said.code == -32603
    assert "decline" in said.message


async def test_at_2025_11_25_a_session_that_cannot_be_asked_gets_the_server_s_error_with_the_urls() -> None:
    server = OlderServer()
    server.replies["tools/call"] = lambda arrived: RpcError(-32042, "no", url_data("a"))
    async with connected(server) as session:
        call = await session.send("tools/call", {"name": "slow", "arguments": {}})
        asked = await session.hears("elicitation/create")
        await session.say({"id": asked["id"], "error": {"code": -32601, "message": "Method not found"}})
        said = await session.reply_to(call)
    assert (said.code, said.data) == (-32042, url_data("a"))


# ── HTTP 429 ──────────────────────────────────────────────────────────────────────────────────

PATIENT: Final = PollPolicy(
    floor_s=0.001, ceiling_s=0.001, jitter=0.0, backoff_floor_s=0.01, wait_for_slot_s=1.0
)


@each_way_that_sees_a_status
@pytest.mark.parametrize(
    "busy",
    [HttpError(429), HttpError(429, 0.02), ErrorReply(-32000, "Busy", http_status=429)],
    ids=["no header", "Retry-After", "JSON-RPC"],
)
async def test_a_call_may_wait_for_its_turn(way: Way, busy: HttpError | ErrorReply) -> None:
    server = gateway(busy, busy)
    assert await make(way, server, poll=PATIENT) == "done"
    assert count(server, "tools/call") == 3


@each_way_that_sees_a_status
async def test_by_default_nothing_is_waited_for(way: Way) -> None:
    server = gateway(HttpError(429, 0.02))
    with pytest.raises(SessionError, match="429"):
        await make(way, server)
    assert count(server, "tools/call") == 1


@each_way_that_sees_a_status
async def test_what_a_503_may_have_begun_does_not_go_again(way: Way) -> None:
    server = gateway(HttpError(503, 0.02))
    with pytest.raises(TasksClientError, match=r"may have run|may still be running"):
        await make(way, server, poll=PATIENT)
    assert count(server, "tools/call") == 1


@pytest.mark.parametrize(
    ("way", "method"), [(by_url, "server/discover"), (by_url, "tools/list"), (beneath, "tools/list")]
)
async def test_a_server_that_has_no_slot_for_what_goes_before_the_call_is_waited_for(
    way: Way, method: str
) -> None:
    server = gateway()
    server.misbehave(method, *[HttpError(429, 0.02)] * 4)  # the first three are repeated in any case
    assert await make(way, server, poll=PATIENT) == "done"
    assert count(server, "tools/call") == 1


def busy_older_server() -> OlderServer:
    server = older_gateway()
    takes, busy = server.replies["tools/call"], [{"retry-after": "0.02"}, {}]
    server.replies["tools/call"] = lambda arrived: (
        httpx.Response(429, headers=busy.pop()) if busy else takes(arrived)
    )
    return server


async def test_at_2025_11_25_a_call_may_wait_for_its_turn_by_url() -> None:
    server = busy_older_server()
    options: Any = {"journal": MemoryJournal(), "poll": PATIENT}
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as http,
        TasksClient(URL, http_client=http, **options) as client,
    ):
        with anyio.fail_after(LIMIT_S):
            result = await client.call_tool("slow", idempotency_key=KEY)
    assert text_of(result.model_dump(by_alias=True)) == "done"
    assert len(server.of("tools/call")) == 3


async def test_at_2025_11_25_a_call_may_wait_for_its_turn_beneath_a_host() -> None:
    server = busy_older_server()
    inner, host_options = httpx.MockTransport(server), {"version": OLDER}
    options: Any = {"library": httpx, "inner": inner, "host_options": host_options, "poll": PATIENT}
    async with hosted(gateway(), **options) as host:
        assert text_of(await host.call("slow", meta=META)) == "done"
    assert len(server.of("tools/call")) == 3
