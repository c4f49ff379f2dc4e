"""The strict server itself: that it refuses what it must, and that our own client is never refused.

A refusal that it leaves out would hide a defect of the library; of all else that it does, our client tells.

Each refusal is shown beside the same request untouched, which is accepted.
"""

from __future__ import annotations

import base64
import copy
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import anyio
import httpx
import mcp_types
import pytest
from mcp import Client, MCPError
from mcp.client import advertise
from pydantic import ConfigDict, FileUrl

from mcp_tasks_client import MemoryJournal
from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import (
    InputUnansweredError,
    MissingCapabilityError,
    TaskCancelledError,
    TaskExpiredError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClientError,
)

from ..strict_server import StrictProcess
from .strict_server import build_server

pytestmark = pytest.mark.anyio

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
TASKS = "io.modelcontextprotocol/tasks"
EVERYTHING: dict[str, Any] = {
    "elicitation": {"form": {}},
    "sampling": {},
    "roots": {},
    "extensions": {TASKS: {}},
}

HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32020, -32021, -32022
INVALID_PARAMS, METHOD_NOT_FOUND = -32602, -32601

request_ids = itertools.count(1)


# ── plain requests, one at a time ──


class Post:
    """One request, to be spoiled before it is sent."""

    def __init__(self, method: str, params: dict[str, Any], name: str | None) -> None:
        meta = {VERSION: "2026-07-28", CAPABILITIES: copy.deepcopy(EVERYTHING)}
        self.method = method
        self.params = {**params, "_meta": meta}
        self.headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": method,
        }
        if name is not None:
            self.headers["Mcp-Name"] = name

    @property
    def declared(self) -> dict[str, Any]:
        declared: dict[str, Any] = self.params["_meta"][CAPABILITIES]
        return declared


class Reply:
    """What came back: a result, or an error's code."""

    def __init__(self, response: httpx.Response) -> None:
        body = response.json()
        self.status = response.status_code
        self.result: dict[str, Any] = body.get("result") or {}
        self.error: dict[str, Any] = body.get("error") or {}

    @property
    def code(self) -> int | None:
        return self.error.get("code")


Spoil: TypeAlias = Callable[[Post], object]


class Plain:
    """A client that sends just what it is told."""

    def __init__(self, server: StrictProcess) -> None:
        self.server = server
        self.http = httpx.Client(trust_env=False, verify=False, timeout=30)

    def send(self, post: Post) -> Reply:
        body = {"jsonrpc": "2.0", "id": next(request_ids), "method": post.method, "params": post.params}
        return Reply(self.http.post(self.server.url, json=body, headers=post.headers))

    def call(self, tool: str, /, **arguments: Any) -> Post:
        return Post("tools/call", {"name": tool, "arguments": arguments}, tool)

    def create(self, tool: str, /, **arguments: Any) -> str:
        task_id = self.send(self.call(tool, **arguments)).result["taskId"]
        assert isinstance(task_id, str)
        return task_id

    def about(self, method: str, task_id: str, **params: Any) -> Post:
        return Post(method, {"taskId": task_id, **params}, header_form(task_id))

    def get(self, task_id: str) -> dict[str, Any]:
        return self.send(self.about("tasks/get", task_id)).result

    def update(self, task_id: str, **answers: Any) -> Reply:
        return self.send(self.about("tasks/update", task_id, inputResponses=answers))


def header_form(value: str) -> str:
    if value.isascii() and value == value.strip():
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


@pytest.fixture
def plain(strict_server: StrictProcess) -> Any:
    client = Plain(strict_server)
    with client.http:
        yield client


def without(header: str) -> Spoil:
    return lambda post: post.headers.pop(header)


def other(header: str, value: str) -> Spoil:
    return lambda post: post.headers.update({header: value})


def undeclared(capability: str) -> Spoil:
    return lambda post: post.declared.pop(capability)


def set_version(version: str) -> Spoil:
    def spoil(post: Post) -> None:
        post.headers["MCP-Protocol-Version"] = version
        post.params["_meta"][VERSION] = version

    return spoil


def drop_meta(key: str) -> Spoil:
    return lambda post: post.params["_meta"].pop(key)


REQUESTS: dict[str, Callable[[Plain], Post]] = {
    "server/discover": lambda plain: Post("server/discover", {}, None),
    "tools/list": lambda plain: Post("tools/list", {}, None),
    "tools/call": lambda plain: plain.call("echo", text="hello"),
    "tools/call of a task": lambda plain: plain.call("slow"),
    "tasks/get": lambda plain: plain.about("tasks/get", plain.create("slow")),
    "tasks/update": lambda plain: plain.about("tasks/update", plain.create("ask"), inputResponses={}),
    "tasks/cancel": lambda plain: plain.about("tasks/cancel", plain.create("endless")),
}
NAMED = [name for name in REQUESTS if name.startswith("t") and name != "tools/list"]
ABOUT_TASKS = [name for name in REQUESTS if name.startswith("tasks/")]


def check_refusal(plain: Plain, make: Callable[[Plain], Post], spoil: Spoil, code: int) -> Reply:
    """The request is accepted; spoiled, the same one is refused, and the log has both."""
    before = plain.server.mark()
    post = make(plain)
    assert plain.send(post).error == {}
    spoil(post)
    reply = plain.send(post)
    assert (reply.code, reply.status) == (code, 400)
    good, bad = plain.server.log(before)[-2:]
    assert (good.method, good.refused, good.error, good.http_status) == (post.method, False, None, 200)
    assert (bad.method, bad.refused, bad.error, bad.http_status) == (post.method, True, code, 400)
    return reply


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("header", ["MCP-Protocol-Version", "Mcp-Method"])
def test_a_request_without_a_routing_header_is_refused(plain: Plain, request_name: str, header: str) -> None:
    check_refusal(plain, REQUESTS[request_name], without(header), HEADER_MISMATCH)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(other("Mcp-Method", "tools/cast"), id="another method"),
        pytest.param(other("Mcp-Method", ""), id="no method"),
        pytest.param(other("MCP-Protocol-Version", "2025-11-25"), id="an older version"),
        pytest.param(other("MCP-Protocol-Version", "2099-01-01"), id="a later version"),
    ],
)
def test_a_routing_header_unlike_the_body_is_refused(plain: Plain, request_name: str, spoil: Spoil) -> None:
    check_refusal(plain, REQUESTS[request_name], spoil, HEADER_MISMATCH)


@pytest.mark.parametrize("request_name", NAMED)
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(without("Mcp-Name"), id="absent"),
        pytest.param(other("Mcp-Name", ""), id="empty"),
        pytest.param(other("Mcp-Name", "another"), id="another"),
        pytest.param(other("Mcp-Name", "=?base64?YW5vdGhlcg==?="), id="another, encoded"),
        pytest.param(other("Mcp-Name", "=?base64?no base64?="), id="badly encoded"),
    ],
)
def test_a_missing_or_wrong_name_is_refused(plain: Plain, request_name: str, spoil: Spoil) -> None:
    check_refusal(plain, REQUESTS[request_name], spoil, HEADER_MISMATCH)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("version", ["2025-11-25", "2099-01-01"])
def test_another_version_is_refused_and_told_which_is_spoken(
    plain: Plain, request_name: str, version: str
) -> None:
    reply = check_refusal(plain, REQUESTS[request_name], set_version(version), UNSUPPORTED_VERSION)
    assert reply.error["data"] == {"supported": ["2026-07-28"], "requested": version}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("key", [VERSION, CAPABILITIES])
def test_an_incomplete_meta_is_refused(plain: Plain, request_name: str, key: str) -> None:
    check_refusal(plain, REQUESTS[request_name], drop_meta(key), INVALID_PARAMS)


@pytest.mark.parametrize("request_name", [*ABOUT_TASKS, "tools/call of a task"])
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(undeclared("extensions"), id="no extensions"),
        pytest.param(lambda post: post.declared["extensions"].pop(TASKS), id="another extension"),
    ],
)
def test_what_needs_the_extension_is_refused_to_a_client_that_does_not_declare_it(
    plain: Plain, request_name: str, spoil: Spoil
) -> None:
    reply = check_refusal(plain, REQUESTS[request_name], spoil, MISSING_CAPABILITY)
    assert reply.error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


def test_task_notifications_are_refused_to_a_client_without_the_extension(plain: Plain) -> None:
    post = Post("subscriptions/listen", {"notifications": {"taskIds": ["a"]}}, None)
    post.declared.clear()
    assert plain.send(post).code == MISSING_CAPABILITY


@pytest.mark.parametrize(
    ("tool", "capability"),
    [
        ("ask", "elicitation"),
        ("ask_first", "elicitation"),
        ("ask_first", "extensions"),  # nobody answers a question only to be refused
        ("ask_many", "elicitation"),
        ("ask_many", "sampling"),
        ("ask_many", "roots"),
    ],
)
def test_nobody_is_asked_what_they_did_not_declare(plain: Plain, tool: str, capability: str) -> None:
    check_refusal(plain, lambda plain: plain.call(tool), undeclared(capability), MISSING_CAPABILITY)


def test_an_empty_elicitation_capability_means_forms_and_a_url_only_one_does_not(plain: Plain) -> None:
    post = plain.call("ask")
    post.declared["elicitation"] = {}
    assert plain.send(post).error == {}
    post.declared["elicitation"] = {"url": {}}
    assert plain.send(post).code == MISSING_CAPABILITY


@pytest.mark.parametrize("spoil", [without("Mcp-Param-Region"), other("Mcp-Param-Region", "us-east")])
def test_a_missing_or_wrong_parameter_header_is_refused(plain: Plain, spoil: Spoil) -> None:
    def make(plain: Plain) -> Post:
        post = plain.call("header_arg", region="eu-west")
        post.headers["Mcp-Param-Region"] = "eu-west"
        return post

    check_refusal(plain, make, spoil, HEADER_MISMATCH)


def test_a_task_id_that_no_header_can_carry_is_compared_decoded(plain: Plain) -> None:
    def make(plain: Plain) -> Post:
        return plain.about("tasks/get", plain.create("odd_task", kind="strange_id"))

    assert make(plain).headers["Mcp-Name"].startswith("=?base64?")
    check_refusal(plain, make, other("Mcp-Name", header_form(" Aufgabe ä/another")), HEADER_MISMATCH)


@pytest.mark.parametrize("method", ABOUT_TASKS)
def test_an_unknown_task_is_refused(plain: Plain, method: str) -> None:
    post = REQUESTS[method](plain)
    assert plain.send(post).error == {}
    post.params["taskId"] = post.headers["Mcp-Name"] = "no-such-task"
    assert plain.send(post).code == INVALID_PARAMS


def test_there_is_no_tasks_list(plain: Plain) -> None:
    reply = plain.send(Post("tasks/list", {}, None))
    assert (reply.code, reply.status) == (METHOD_NOT_FOUND, 404)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_only_post_is_allowed(plain: Plain, method: str) -> None:
    response = plain.http.request(method, plain.server.url, headers={"Accept": "text/event-stream"})
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")
    assert plain.server.log(-1)[0].refused


# ── what the scripts do ──


def test_a_poll_is_early_before_the_interval_is_over_and_only_then(plain: Plain) -> None:
    before = plain.server.mark()
    patient, hasty = plain.create("slow", interval_ms=0), plain.create("slow", interval_ms=60_000)
    for task_id in (patient, hasty):
        plain.get(task_id)
        plain.send(plain.about("tasks/cancel", task_id))
    log = plain.server.log(before)
    polls = {entry.task_id: entry for entry in log if entry.method == "tasks/get"}
    assert not polls[patient].early
    assert polls[hasty].early
    assert not any(entry.early for entry in log if entry.method != "tasks/get")


def test_the_first_answer_counts_and_later_ones_are_only_counted(plain: Plain) -> None:
    first, second = ({"action": "accept", "content": {"name": name}} for name in ("Ada", "Bea"))
    task_id = plain.create("ask", lag_polls=1)
    plain.update(task_id, name=first)  # never asked yet
    assert plain.get(task_id)["status"] == "input_required"
    plain.update(task_id, name=first)
    assert plain.get(task_id)["inputRequests"].keys() == {"name"}  # the lag
    plain.update(task_id, name=second)
    end = plain.get(task_id)["result"]["structuredContent"]
    assert end == {"answer": first, "times": 2}
    updates = [e for e in plain.server.log() if (e.task_id, e.method) == (task_id, "tasks/update")]
    assert [entry.ignored_keys for entry in updates] == [["name"], [], ["name"]]


ANSWERS = {
    "colour": {"action": "accept", "content": {"colour": "red"}},
    "size": {"action": "decline"},
    "model": {"role": "assistant", "content": {"type": "text", "text": "4"}, "model": "m"},
    "roots": {"roots": [{"uri": "file:///tmp"}]},
}


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("colour", {"action": "accept", "content": {"colour": 7}}),
        ("colour", {"action": "accept"}),
        ("size", {"action": "perhaps"}),
        ("model", {"role": "assistant"}),
        ("roots", ANSWERS["model"]),
        ("roots", None),
    ],
)
def test_an_answer_of_the_wrong_shape_is_refused_and_leaves_all_questions_open(
    plain: Plain, key: str, answer: Any
) -> None:
    task_id = plain.create("ask_many")
    plain.get(task_id)
    reply = plain.update(task_id, **{**ANSWERS, key: answer})
    assert (reply.code, reply.status) == (INVALID_PARAMS, 400)
    assert plain.get(task_id)["inputRequests"].keys() == ANSWERS.keys()
    assert plain.update(task_id, **ANSWERS).result["resultType"] == "complete"
    assert plain.get(task_id)["status"] == "completed"


SURE = {"sure": {"action": "accept", "content": {"sure": "yes"}}}


@pytest.mark.parametrize("then", ["task", "result"])
def test_a_second_round_needs_the_state_the_arguments_and_the_answer_of_the_first(
    plain: Plain, then: str
) -> None:
    def second_round(**changes: Any) -> Post:
        post = plain.call("ask_first", then=then)
        first = plain.send(post).result
        assert (first["resultType"], list(first["inputRequests"])) == ("input_required", ["sure"])
        post.params |= {"requestState": first["requestState"], "inputResponses": SURE, **changes}
        return post

    good = second_round()
    assert plain.send(good).result["resultType"] == ("task" if then == "task" else "complete")
    assert plain.send(good).code == INVALID_PARAMS, "a round is answered once"
    spoilt_rounds: list[dict[str, Any]] = [
        {"requestState": "made up"},
        {"inputResponses": {}},
        {"inputResponses": {"other": SURE["sure"]}},
        {"inputResponses": {"sure": {"action": "accept", "content": {"sure": 1}}}},
        {"arguments": {"then": then, "interval_ms": 1}},
    ]
    for spoilt in spoilt_rounds:
        assert plain.send(second_round(**spoilt)).code == INVALID_PARAMS, spoilt


# ── our own client ──


async def elicit(context: Any, params: Any) -> mcp_types.ElicitResult:
    (field,) = params.requested_schema["properties"]
    return mcp_types.ElicitResult(action="accept", content={field: f"my {field}"})


async def sample(context: Any, params: Any) -> mcp_types.CreateMessageResult:
    text = mcp_types.TextContent(type="text", text="4")
    return mcp_types.CreateMessageResult(role="assistant", content=text, model="m")


async def roots(context: Any) -> mcp_types.ListRootsResult:
    return mcp_types.ListRootsResult(roots=[mcp_types.Root(uri=FileUrl("file:///tmp"))])


@asynccontextmanager
async def opened(server: StrictProcess, **options: Any) -> AsyncIterator[TasksClient]:
    callbacks: dict[str, Any] = {"elicitation": elicit, "sampling": sample, "roots": roots}
    with anyio.fail_after(30):
        async with TasksClient(server.url, journal=MemoryJournal(), **callbacks | options) as client:
            yield client


@asynccontextmanager
async def blameless(
    server: StrictProcess, refusals: tuple[int, ...] = (), **options: Any
) -> AsyncIterator[TasksClient]:
    """Our client, of which the log then shows no early poll, no idle answer, and just these refusals."""
    before = server.mark()
    async with opened(server, **options) as client:
        yield client
    seen = server.log(before)
    assert seen
    assert [entry for entry in seen if entry.early] == []
    assert [entry for entry in seen if entry.ignored_keys] == []
    assert tuple(entry.error for entry in seen if entry.refused) == refusals
    assert "notifications/cancelled" not in {entry.method for entry in seen}


async def test_our_client_gets_an_immediate_result(strict_server: StrictProcess) -> None:
    async with blameless(strict_server) as client:
        assert (await client.call_tool("echo", {"text": "hi"})).structured_content == {"text": "hi"}


@pytest.mark.parametrize("interval_ms", [1, 20, 100])
async def test_our_client_keeps_the_pace(strict_server: StrictProcess, interval_ms: int) -> None:
    async with blameless(strict_server) as client:
        result = await client.call_tool("slow", {"polls": 4, "interval_ms": interval_ms})
        assert result.structured_content == {"polls": 4}


@pytest.mark.parametrize("lag_polls", [0, 3])
async def test_our_client_answers_once(strict_server: StrictProcess, lag_polls: int) -> None:
    async with blameless(strict_server) as client:
        result = await client.call_tool("ask", {"lag_polls": lag_polls})
    answer = {"action": "accept", "content": {"name": "my name"}}
    assert result.structured_content == {"answer": answer, "times": 1}


async def test_our_client_answers_many_questions_of_all_kinds(strict_server: StrictProcess) -> None:
    async with blameless(strict_server) as client:
        result = await client.call_tool("ask_many", {"lag_polls": 1})
    assert result.structured_content is not None
    assert result.structured_content["times"] == dict.fromkeys(ANSWERS, 1)


async def test_our_client_declares_what_it_can_answer_and_parks_what_it_cannot(
    strict_server: StrictProcess,
) -> None:
    async with blameless(strict_server, (MISSING_CAPABILITY,), elicitation=None) as client:
        with pytest.raises(MissingCapabilityError):
            await client.call_tool("ask")
        with pytest.raises(InputUnansweredError):
            await client.call_tool("ask", {"undeclared": True})


@pytest.mark.parametrize("then", ["task", "result"])
async def test_our_client_goes_through_a_round_first(strict_server: StrictProcess, then: str) -> None:
    async with blameless(strict_server) as client:
        result = await client.call_tool("ask_first", {"then": then})
    assert result.structured_content == {"answer": {"action": "accept", "content": {"sure": "my sure"}}}


async def test_our_client_tells_tool_errors_failures_and_broken_promises_apart(
    strict_server: StrictProcess,
) -> None:
    async with blameless(strict_server) as client:
        assert (await client.call_tool("tool_error")).is_error
        with pytest.raises(TaskFailedError) as caught:
            await client.call_tool("rpc_failure")
        with pytest.raises(TasksClientError, match="polls"):
            await client.call_tool("bad_result")
    error = caught.value
    assert (error.code, error.message, error.data) == (-32050, "quota exceeded", {"retryAfter": 7})


async def test_our_client_cancels(strict_server: StrictProcess) -> None:
    async with blameless(strict_server) as client:
        handle = await client.start_tool("endless")
        await handle.refresh()
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()


@pytest.mark.parametrize("kind", ["no_status", "unknown_status", "strange_id", "done_at_creation"])
async def test_our_client_bears_with_odd_tasks(strict_server: StrictProcess, kind: str) -> None:
    async with blameless(strict_server) as client:
        assert (await client.call_tool("odd_task", {"kind": kind})).structured_content == {"kind": kind}


@pytest.mark.parametrize("region", ["eu-west", "Tōkyō", " =?base64?", ""])
async def test_our_client_sends_parameter_headers(strict_server: StrictProcess, region: str) -> None:
    async with blameless(strict_server) as client:
        result = await client.call_tool("header_arg", {"region": region, "load": 2})
    assert result.structured_content == {"region": region}


async def test_our_client_tells_unknown_and_expired_tasks(strict_server: StrictProcess) -> None:
    async with blameless(strict_server, (INVALID_PARAMS, INVALID_PARAMS)) as client:
        with pytest.raises(TaskNotFoundError):
            await (await client.attach("no-such-task")).result()
        with pytest.raises(TaskExpiredError):
            await client.call_tool("endless", {"ttl_ms": 0})


async def test_our_client_keeps_the_pace_of_many_tasks_at_once(strict_server: StrictProcess) -> None:
    async with blameless(strict_server) as client, anyio.create_task_group() as group:
        for n in range(20):
            group.start_soon(client.call_tool, "slow", {"polls": n % 5, "interval_ms": 20 + n})
            group.start_soon(client.call_tool, "ask", {"lag_polls": n % 3})


# ── in-process, over the SDK's own client ──


class OneTask(mcp_types.RequestParams):
    task_id: str


class Get(mcp_types.Request[OneTask, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: OneTask
    name_param = "taskId"


class Snapshot(mcp_types.Result):
    model_config = ConfigDict(extra="allow")

    status: str
    result: dict[str, Any] | None = None


async def test_the_extension_is_required_without_http_too() -> None:
    server = build_server()
    async with Client(server, extensions=[advertise("org.example/other")]) as client:
        assert not (await client.call_tool("echo", {"text": "hi"})).is_error
        with pytest.raises(MCPError) as call:
            await client.call_tool("slow")
        with pytest.raises(MCPError) as get:
            await client.session.send_request(Get(params=OneTask(task_id="any")), Snapshot)
    assert (call.value.code, get.value.code) == (MISSING_CAPABILITY, MISSING_CAPABILITY)
    assert [entry.error for entry in server.log if entry.refused] == [MISSING_CAPABILITY] * 2
