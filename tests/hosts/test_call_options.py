"""A key for a call, given where code of others makes the call."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any, Final

import anyio
import httpx
import httpx2
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import Environment, JournalError, MemoryJournal, TasksHttpTransport, idempotency_key
from mcp_tasks_client.hosts.call_options import read_options
from mcp_tasks_client.testing import (
    FaultPlan,
    HttpError,
    LostReply,
    ask,
    complete,
    form,
    raising,
    text_result,
    work,
)
from tests.kit.json_rpc_host import CURRENT, OLDER, URL, JsonRpcHost, asking_server, count, hosted, recorded
from tests.kit.ways import streamed

pytestmark = pytest.mark.anyio

META: Final = "mcp-tasks-client/idempotency-key"


async def with_meta(host: JsonRpcHost, tool: str, key: str, arguments: Any = None) -> Any:
    return await host.call(tool, arguments, meta={META: key})


async def in_block(host: JsonRpcHost, tool: str, key: str, arguments: Any = None) -> Any:
    with idempotency_key(key):
        return await host.call(tool, arguments)


WAYS: Final = [with_meta, in_block]


async def test_those_who_share_a_call_do_not_poll_and_ask_each_for_itself() -> None:
    asked: list[str] = []
    said: list[str] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        await anyio.sleep(0.05)
        return ElicitResult(action="accept", content={"name": "Ada"})

    server = asking_server()
    question = ask("name", form("Who?", name="string"))
    server.tool("steady", [work(0.1), question, complete(text_result("done"))], poll_interval_ms=50)
    async with hosted(server, elicitation=elicit) as host, anyio.create_task_group() as calls:

        async def call() -> None:
            said.append((await in_block(host, "steady", "k"))["result"]["content"][0]["text"])

        calls.start_soon(call)
        while not asked:
            await anyio.sleep(0.001)
        for _ in range(2):
            calls.start_soon(call)
    assert (said, asked) == (["done"] * 3, ["Who?"])
    server.witness.check()


class Used(MemoryJournal):
    """Counts its users."""

    users = 0

    async def open(self) -> None:
        self.users += 1
        await super().open()

    async def aclose(self) -> None:
        self.users -= 1
        await super().aclose()

    def aclose_soon(self) -> None:
        self.users -= 1
        super().aclose_soon()


@pytest.mark.parametrize("reads", [[True, True], [False, True], [True, False], [False, False]])
async def test_each_of_those_who_share_a_call_reads_its_outcome_or_does_not(reads: list[bool]) -> None:
    server, journal = asking_server(), Used()
    async with hosted(server, journal) as host:
        replies: list[Any] = []

        async def make() -> None:
            body = json.dumps(host.body("slow", meta={META: "order-42"}))
            request = host.client.build_request("POST", URL, content=body, headers=host.headers)
            replies.append(await host.client.send(request, stream=True))

        async with anyio.create_task_group() as calls:
            for _ in reads:
                calls.start_soon(make)
        for reply, is_read in zip(replies, reads, strict=True):
            if is_read:
                await reply.aread()
            await reply.aclose()
        assert journal.users == 0
        (record,) = await recorded(journal)
        assert (record.delivered_at is not None) == any(reads)
    assert count(server, "tools/call") == 1


async def test_a_call_whose_reply_was_lost_is_sent_again_only_if_the_host_allows_it() -> None:
    server = asking_server()
    server.misbehave("tools/call", LostReply())
    async with hosted(server) as host:
        for _ in range(2):
            failed = await in_block(host, "plain", "k")
            assert 'on_unknown="resend"' in failed["error"]["message"]
        with idempotency_key("another", on_unknown="resend"):
            failed = await with_meta(host, "plain", "k")
            assert 'on_unknown="resend"' in failed["error"]["message"], "that is said of another key"
        with idempotency_key("k", on_unknown="resend"):
            assert await host.text("plain") == "plain"
    assert count(server, "tools/call") == 2


async def test_a_keyed_call_is_not_made_without_the_journal() -> None:
    server = asking_server()
    server.misbehave("server/discover", *[HttpError(503)] * 3)
    async with hosted(server) as host:
        failed = await in_block(host, "plain", "k")
        assert failed["error"]["code"] == -32603
        assert not count(server, "tools/call")


@pytest.mark.parametrize("tool", ["plain", "slow"])
async def test_a_reply_that_the_journal_refused_is_given_to_the_next_call_under_the_key(tool: str) -> None:
    server, plan = asking_server(), FaultPlan()
    reply = "commit: CallReturned" if tool == "plain" else "commit: TaskCreated"
    plan.at(reply, "before", raising(JournalError("the disk is full")))
    async with hosted(server, environment=Environment(clock=server.clock, observer=plan)) as host:
        assert (await with_meta(host, tool, "k"))["error"]["message"] == "the disk is full"
        said = [(await with_meta(host, tool, "k")).get("result", {}).get("content") for _ in range(2)]
    assert said == [[{"type": "text", "text": "plain" if tool == "plain" else "done"}]] * 2
    assert count(server, "tools/call") == 1


async def test_a_call_that_the_server_refused_is_sent_by_the_next_one_though_the_journal_failed() -> None:
    server, plan = asking_server(), FaultPlan()
    server.misbehave("tools/call", HttpError(429))
    plan.at("commit: CallRefused", "before", raising(JournalError("the disk is full")))
    async with hosted(server, environment=Environment(clock=server.clock, observer=plan)) as host:
        assert (await with_meta(host, "plain", "k"))["error"]["message"] == "the disk is full"
        assert "result" in await with_meta(host, "plain", "k")
    assert count(server, "tools/call") == 2


# ── a key that cannot be kept ─────────────────────────────────────────────────────────────────


def with_id(request_id: Any) -> Any:
    return lambda body: {**body, "id": request_id}


def with_params(**params: Any) -> Any:
    return lambda body: {**body, "params": {**body["params"], **params}}


NOT_TAKEN: Final[dict[str, tuple[Any, str]]] = {
    "a task of the host's": (with_params(task={"ttl": 1}), "a task that the host follows itself"),
    "no tool": (with_params(name=7), "name no tool"),
    "ID 1.5": (with_id(1.5), "id is neither a text nor an integer"),
    "ID true": (with_id(True), "id is neither a text nor an integer"),
    "ID []": (with_id([]), "id is neither a text nor an integer"),
    "no ID": (with_id(None), "id is neither a text nor an integer"),
    "another JSON-RPC": (lambda body: {**body, "jsonrpc": "1.0"}, "not one JSON-RPC 2.0 message"),
    "several messages": (lambda body: [body, body], "not one JSON-RPC 2.0 message"),
}


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("version", [CURRENT, OLDER])
@pytest.mark.parametrize("way", ["meta", "block"])
@pytest.mark.parametrize("fault", NOT_TAKEN)
async def test_a_keyed_call_that_is_not_taken_is_refused(
    library: Any, fault: str, way: str, version: str, accept: str
) -> None:
    server, (change, why) = asking_server(), NOT_TAKEN[fault]
    async with hosted(server, library=library, host_options={"accept": accept, "version": version}) as host:
        body = change(host.body("plain", meta={META: "k"} if way == "meta" else {}))
        headers = {**host.headers, "Mcp-Method": "tools/call", "Mcp-Name": "plain"}
        for _ in range(2):
            with idempotency_key("k") if way == "block" else nullcontext():
                response = await host.client.post(URL, content=json.dumps(body), headers=headers)
            answer = host.read(response)
            assert response.headers["content-type"] == accept
            assert answer["error"]["code"] == -32602
            assert why in answer["error"]["message"]
            assert json.dumps(answer["id"]) == json.dumps(body["id"] if isinstance(body, dict) else None)
    assert count(server, "tools/call") == 0


async def test_a_keyed_call_in_a_body_that_is_not_declared_as_json_is_refused(library: Any) -> None:
    server = asking_server()
    async with hosted(server, library=library) as host:
        content = json.dumps(host.body("plain", meta={META: "k"}))
        for encoded in (content.encode(), content.encode("utf-16"), b"\n" + content.encode()):
            headers = {**host.headers, "Content-Type": "text/plain"}
            answer = host.read(await host.client.post(URL, content=encoded, headers=headers))
            assert answer["error"]["code"] == -32602
            assert "not declared as JSON" in answer["error"]["message"]
    assert server.witness.arrivals == []


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.replace("tools/call", "tools\\/call").encode(),
        lambda text: text.replace("tools/call", "\\u0074ools/call").encode(),
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-32-be"),
        lambda text: text.encode("utf-8-sig"),
    ],
    ids=["escaped", "escaped letter", "utf-16", "utf-32", "utf-8 with a mark"],
)
async def test_a_keyed_call_is_taken_in_whichever_way_its_json_is_written(library: Any, encode: Any) -> None:
    server = asking_server()
    async with hosted(server, library=library) as host:
        for _ in range(2):
            content = encode(json.dumps(host.body("plain", meta={META: "k"})))
            response = await host.client.post(URL, content=content, headers=host.headers)
            assert "result" in host.read(response)
    assert count(server, "tools/call") == 1


async def test_a_body_without_a_key_passes_as_it_is(library: Any) -> None:
    sent: list[bytes] = []

    def answer(request: Any) -> Any:
        sent.append(request.content)
        return library.Response(202)

    transport = TasksHttpTransport(library.MockTransport(answer), journal=MemoryJournal())
    bodies = [
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"method": "tools/call"}',
        b'[{"method": "tools/call"}, 1]',
        b"\xff",
    ]
    async with library.AsyncClient(transport=transport) as client:
        for kind in ("application/json", "text/plain"):
            for body in bodies:
                await client.post(URL, content=body, headers={"Content-Type": kind})
    assert sent == bodies * 2


async def test_a_keyed_call_through_a_client_that_closes_is_not_made() -> None:
    server = asking_server()
    async with hosted(server) as host:
        await host.client._transport._calls.aclose()
        answer = await host.call("plain", meta={META: "k"})
    assert "the client is closed" in answer["error"]["message"]
    assert count(server, "tools/call") == 0


async def test_a_keyed_call_of_a_session_that_is_not_taken_is_refused() -> None:
    server = asking_server()
    async with streamed(server, journal=MemoryJournal()) as host:
        answer = await host.call("plain", meta={META: "k"}, task={"ttl": 1})
        assert answer["error"]["code"] == -32602
        assert "a task that the host follows itself" in answer["error"]["message"]
        host.version = "2025-06-18"
        answer = await host.call("plain", meta={META: "k"})
        assert answer["error"]["code"] == -32602
        assert "at a version without tasks" in answer["error"]["message"]
    assert count(server, "tools/call") == 0


def test_a_block_ends_where_it_ends() -> None:
    with idempotency_key("a"):
        with idempotency_key("b", on_unknown="resend"):
            assert read_options(None, "raise") == ("b", "resend", None, {})
        assert read_options(None, "resend") == ("a", "raise", None, {})
    assert read_options(None, "resend") == (None, "resend", None, {})


@pytest.mark.parametrize(("key", "options"), [("", {}), ("k", {"on_unknown": "ignore"})])
def test_keys_that_make_no_sense_are_refused(key: str, options: Any) -> None:
    with pytest.raises(ValueError, match=r"empty|on_unknown"), idempotency_key(key, **options):
        pass
