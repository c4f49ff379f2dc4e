"""What we rely on inside the SDK and FastMCP. These tests fail first on a release that has changed it."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import anyio
import fastmcp
import mcp
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Request,
    Result,
    jsonrpc_message_adapter,
)
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from mcp_tasks_client.hosts.sdk import introspection
from mcp_tasks_client.protocol import EXTENSION_ID, JSONObject
from tests.kit.current_server import (
    LIMIT_S,
    NEVER,
    RESULT,
    WORKING,
    CurrentServer,
    Fault,
    Http,
    at_loopback,
    in_memory,
)

pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning")


class Extension(ClientExtension):
    """Claims tasks, and notes who asks for its claims."""

    identifier = EXTENSION_ID

    def __init__(self) -> None:
        self.asked_by: list[object] = []

    def claims(self) -> list[ResultClaim[Any]]:
        self.asked_by.append(introspection.client_being_made(self))
        return []


def raw_call(name: str = "tool") -> CallToolRequest:
    return CallToolRequest(params=CallToolRequestParams(name=name))


ANY: Final[TypeAdapter[Any]] = TypeAdapter(Any)

# ── the host's client ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [mcp.Client, fastmcp.Client])
def test_clients_and_sessions_of_both_packages_are_known_and_nothing_else_is(kind: Any) -> None:
    class Subclass(kind):  # type: ignore[misc]  # which of the two, is the test's parameter
        pass

    assert introspection.is_client(kind("http://127.0.0.1:1/mcp"))
    assert introspection.is_client(Subclass("http://127.0.0.1:1/mcp"))
    assert introspection.is_client(ClientSession.__new__(ClientSession))
    for other in ("http://127.0.0.1:1/mcp", None, object(), fastmcp.FastMCP("server")):
        assert not introspection.is_client(other)


def test_a_client_is_known_without_importing_either_package() -> None:
    script = """
import sys
from mcp_tasks_client.hosts.sdk.introspection import is_client
assert not is_client(object())
assert not {"mcp", "fastmcp"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_address_of_a_client_is_its_url_or_its_command() -> None:
    url = "https://User:Secret@Host.example:443/mcp?key=1"
    command = StdioServerParameters(command="/usr/bin/python", args=["-m", "server"])
    stdio = fastmcp.client.transports.StdioTransport("/usr/bin/python", ["-m", "server"])
    urls = {introspection.address_of(made(url)) for made in (mcp.Client, fastmcp.Client)}
    commands = {introspection.address_of(c) for c in (mcp.Client(command), fastmcp.Client(stdio))}
    (by_url,), (by_command,) = urls, commands
    assert by_url is not None
    assert by_command is not None
    assert by_url.endpoint.startswith("https://host.example/mcp?sha256=")
    assert (by_url.ephemeral, by_command.ephemeral) == (False, True)
    assert by_command.endpoint.startswith("stdio:python?sha256=")
    server = fastmcp.FastMCP("here")
    for nowhere in (mcp.Client(in_memory(CurrentServer())), fastmcp.Client(server), None):
        assert introspection.address_of(nowhere) is None


@pytest.mark.parametrize("kind", [mcp.Client, fastmcp.Client])
def test_an_extension_finds_the_client_that_is_being_made_and_later_the_client_finds_it(kind: Any) -> None:
    extension = Extension()
    client = kind("http://127.0.0.1:1/mcp", extensions=[extension])
    assert extension.asked_by == [client]
    assert introspection.extensions_of(client) == [extension]
    if kind is fastmcp.Client:
        clone = client.new()
        assert extension.asked_by == [client, clone]
        assert introspection.extensions_of(clone) == [extension]


def test_claims_that_a_host_asks_for_itself_are_no_clients() -> None:
    class OtherClient(mcp.Client):
        def claims_for_another(self, extension: Extension) -> None:
            extension.claims()

    extension = Extension()
    OtherClient("http://127.0.0.1:1/mcp").claims_for_another(extension)
    assert extension.asked_by == [None]


def test_fastmcps_model_of_a_task_is_found_once_its_package_is_loaded() -> None:
    script = """
import fastmcp
from mcp_tasks_client.hosts.sdk.introspection import fastmcp_created_task
assert fastmcp_created_task() is None
import fastmcp_tasks.client
assert fastmcp_created_task() is fastmcp_tasks.client.ClientCreateTaskResult
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# ── a session ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.anyio
async def test_a_request_declares_more_than_its_session_and_leaves_the_session_as_it_is() -> None:
    class Declaring(Request[dict[str, Any], str]):
        def model_dump(self, **_: Any) -> JSONObject:
            return {"method": self.method, "params": self.params}

    server, declared = CurrentServer(), list[Any]()
    params = {"taskId": "t", "_meta": introspection.DeclaringMeta({"a/b": 1}, {"sampling": {}})}

    async def elicit(context: Any, params: Any) -> Any:
        raise AssertionError

    async with mcp.Client(in_memory(server), elicitation_callback=elicit) as client:
        for request in (Declaring(method="tasks/get", params=params), raw_call()):
            await client.session.send_request(request, ANY)
            declared.append(server.received[-1][1]["_meta"])
    ours, theirs = (meta["io.modelcontextprotocol/clientCapabilities"] for meta in declared)
    assert ours == {**theirs, "sampling": {}, "extensions": {EXTENSION_ID: {}}}
    assert "elicitation" in theirs
    assert EXTENSION_ID not in theirs.get("extensions", {})
    assert declared[0]["a/b"] == 1


@pytest.mark.anyio
async def test_the_extension_is_found_by_the_resolver_of_a_sessions_claims() -> None:
    class WithResolver(Extension):
        def claims(self) -> list[ResultClaim[Any]]:
            return [ResultClaim(result_type="task", model=Model, resolve=Resolver(self))]

    class Model(Result):
        result_type: Literal["task"] = "task"

    class Resolver:
        def __init__(self, extension: Extension) -> None:
            self.extension = extension

        async def __call__(self, *_: Any) -> CallToolResult:
            raise AssertionError

    extension = WithResolver()
    async with mcp.Client(in_memory(CurrentServer()), extensions=[extension]) as client:
        assert introspection.extensions_of(client.session) == [extension]


@pytest.mark.anyio
async def test_a_connection_that_is_closed_is_told_from_a_server_that_says_so() -> None:
    server = CurrentServer(gets=[Fault(-32000, "Connection closed")])
    request = Request[dict[str, Any], str](method="tasks/get", params={"taskId": "t"})

    async def fail(session: ClientSession) -> MCPError:
        with pytest.raises(MCPError) as caught:
            await session.send_request(request, ANY)
        return caught.value

    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(in_memory(server)) as client:
            session = client.session
            error = await fail(session)
            assert not introspection.is_closed(session, error.code, error.message)
        error = await fail(session)
        assert introspection.is_closed(session, error.code, error.message)


EVENTS: Final = ["Content-Type: text/event-stream"]
JSON: Final = ["Content-Type: application/json"]
MADE_UP: Final[dict[str, JSONObject | Exception]] = {
    "a status without a JSON-RPC reply": Http("503 Service Unavailable", headers=["Retry-After: 1"]),
    "404 without a body": Http("404 Not Found"),
    "a page of HTML": Http("200 OK", b"<html>", ["Content-Type: text/html"]),
    "JSON that ends early": Http("200 OK", b'{"jsonrpc": "2.0", "id"', JSON),
    "an event stream that ends early": Http("200 OK", b": hello\n\n", EVENTS),
    "an event that is no reply": Http("200 OK", b"data: {\n\n", EVENTS),
    "202 Accepted": Http("202 Accepted"),
    "a redirect that is not followed": Http("303 See Other", headers=["Location: http://127.0.0.1:9/"]),
    "no reply in time": NEVER,
}


@pytest.mark.anyio
@pytest.mark.parametrize("fault", MADE_UP.values(), ids=MADE_UP)
async def test_an_error_that_the_sdk_made_up_is_known_by_its_words(fault: Any) -> None:
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(CurrentServer(calls=[fault])) as url, mcp.Client(url) as client:
            with pytest.raises(MCPError) as caught:
                await client.session.send_request(raw_call(), ANY, request_read_timeout_seconds=0.25)
    assert introspection.was_made_up(caught.value.code, caught.value.message), caught.value


@pytest.mark.anyio
@pytest.mark.parametrize("events", [False, True], ids=["JSON", "events"])
@pytest.mark.parametrize(
    "value", ['"\\ud800"', '"\\ud800\\n"', '"\\udc00"', "9" * 5000, "[" * 300 + "]" * 300]
)
async def test_json_that_the_sdk_alone_does_not_read_is_known_by_its_words(value: str, events: bool) -> None:
    body = f'{{"jsonrpc": "2.0", "id": 0, "result": {value}}}'
    unread = Http(
        "200 OK", f"data: {body}\n\n".encode() if events else body.encode(), EVENTS if events else JSON
    )
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(CurrentServer(calls=[unread])) as url, mcp.Client(url) as client:
            with pytest.raises(MCPError) as caught:
                await client.session.send_request(raw_call(), ANY)
    assert introspection.unread_in(caught.value.message), caught.value


@pytest.mark.parametrize("text", ["", "<html>", '{"id"', '"abc', "[1]", '"\\x"'])
def test_what_no_parser_reads_is_not_taken_for_json_that_the_sdk_alone_does_not_read(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        jsonrpc_message_adapter.validate_json(text)
    assert introspection.unread_in(str(caught.value)) is None


@pytest.mark.parametrize(
    ("code", "message"), [(-32601, "Method not found"), (-32603, "Boom"), (-32000, "Busy"), (7, "Not Found")]
)
def test_an_error_of_a_server_is_not_taken_for_the_sdks(code: int, message: str) -> None:
    assert not introspection.was_made_up(code, message)


# ── a reply ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.anyio
@pytest.mark.parametrize("changes", [{"_meta": "x", "content": []}, {"requestState": 5}], ids=str)
async def test_a_reply_that_the_sdk_takes_for_broken_is_still_found_whole(changes: JSONObject) -> None:
    reply = {**WORKING, **changes}
    async with mcp.Client(in_memory(CurrentServer(calls=[reply]))) as client:
        with pytest.raises(ValidationError) as caught:
            await client.session.send_request(raw_call(), ANY)
    assert introspection.result_of_invalid_reply(caught.value) == reply
    assert introspection.result_of_invalid_reply(ValueError()) is None


@pytest.mark.anyio
@pytest.mark.parametrize("instrumented", ["not", "by a decorator", "by a descriptor"])
async def test_the_progress_callback_of_a_call_is_found_while_its_reply_is_read(
    instrumented: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = ClientSession.send_request

    class Traced:
        def __get__(self, session: Any, owner: Any) -> Any:
            return partial(send, session)

    @functools.wraps(send)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        return await send(*args, **kwargs)

    if instrumented != "not":
        replacement = traced if instrumented == "by a decorator" else Traced()
        monkeypatch.setattr(ClientSession, "send_request", replacement)
    found: list[object] = []

    def read(value: Any) -> Any:
        found.append(introspection.progress_callback_of_reply())
        return value

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        raise AssertionError

    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[Any, BeforeValidator(read)])
    result = {**RESULT, "resultType": "complete"}
    async with mcp.Client(in_memory(CurrentServer(calls=[result]))) as client:
        for callback in (progress, None):
            await client.session.send_request(raw_call(), adapter, progress_callback=callback)
    assert found == [progress, None]
    assert introspection.progress_callback_of_reply() is None


def test_nothing_else_that_is_private_is_used_outside_of_the_module() -> None:
    """Every attribute of the SDK that begins with an underscore stands in ``introspection.py``."""
    folder = Path(introspection.__file__).parent
    private = re.compile(r"\b(?!self\b|cls\b|claimed\b)\w+\._[a-z]\w*|_getframe|f_locals|f_back")
    for module in ("sdk_session", "extension", "over_client"):
        assert private.findall((folder / f"{module}.py").read_text()) == [], module
