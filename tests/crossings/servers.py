"""The servers of others behind the doors. Each checks all that arrives there."""

from __future__ import annotations

import socketserver
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
from mcp import StdioServerParameters
from mcp.server.stdio import stdio_server
from mcp.shared.inbound import decode_header_value

from mcp_tasks_client.protocol import EXTENSION_ID
from tests.kit.person import KNOWN
from tests.legacy_servers import LegacyServer
from tests.real_server import RealServer
from tests.servers.strict_log import Entry
from tests.servers.strict_server import StrictServer, build_server
from tests.strict_server import StrictProcess

from .axes import UNDER_HOST, Way

__all__ = ["LIMIT_S", "Case", "Older", "Real", "Refusals", "Strict", "WaysServer", "relayed"]

LIMIT_S: Final = 120.0
"""Bounds everything that is waited for between opening a way and closing it. Beside other test runs, one test
of several calls through a client in another process takes half a minute."""

CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"

Refusals: TypeAlias = list[int] | Set[int]
"""Codes of the errors to expect: these one after the other, or any number of each of these."""


@dataclass(frozen=True, slots=True)
class Case:
    """A call, the structured content of its result, and what it asks on the way."""

    tool: str
    arguments: Mapping[str, Any]
    expected: Any
    asks: Sequence[str] = ()


def declares(way: Way, method: str | None) -> bool:
    """Whether a request has to declare the extension. What a host sends that knows nothing of us does not."""
    return way not in UNDER_HOST or method == "tools/call" or str(method).startswith("tasks/")


class WaysServer(ABC):
    """A server that can be reached in some ways, with tools for every scenario.

    Attributes:
        plain: Calls that ask nothing, whether or not a task comes of them.
        asking: Calls that ask.
        slow: Takes some polls, with a status message at each.
        question: Asks for a name, once.
        refused_question: The same, where nobody answers the first time.
        tool_error: Its result is an error.
        rpc_failure: It fails with ``-32050``.
        failure: Code, message and data of that failure.
        endless: Until it is cancelled.
    """

    plain: Sequence[Case]
    asking: Sequence[Case]
    slow: Case
    question: Case
    refused_question: Case
    tool_error: Case
    rpc_failure: Case
    failure: tuple[int, str, Any] = -32050, "quota exceeded", {"retryAfter": 7}
    endless: str

    @abstractmethod
    def address(self, way: Way) -> Any:
        """What the way's client is given."""

    @abstractmethod
    @contextmanager
    def watched(self, way: Way, refusals: Refusals) -> Iterator[None]:
        """Look at what arrives, and find nothing in it that should not be there."""


def _accepted(*keys: str) -> dict[str, Any]:
    return {key: {"action": "accept", "content": {key: KNOWN[key]}} for key in keys}


_QUICK: Final = {"interval_ms": 5}
_SOON: Final = {"hint_ms": 20}
_NAMED: Final = {"answer": _accepted("name")["name"], "times": 1}
_SURE: Final = {"answer": _accepted("sure")["sure"]}


class Strict(WaysServer):
    """The strict server: over HTTP in its own process, over stdio behind a relay, in this process."""

    plain = (
        Case("echo", {"text": "hi"}, {"text": "hi"}),
        Case("slow", {"polls": 0, **_QUICK}, {"polls": 0}),
        *(
            Case("odd_task", {"kind": kind, **_QUICK}, {"kind": kind})
            for kind in ("no_status", "unknown_status", "strange_id", "done_at_creation")
        ),
    )
    asking = (
        Case("ask", {"lag_polls": 2, **_QUICK}, _NAMED, ["What is your name?"]),
        Case(
            "ask_many",
            {"lag_polls": 1, **_QUICK},
            {
                "answers": {
                    **_accepted("colour", "size"),
                    "model": {"role": "assistant", "content": {"type": "text", "text": "4"}, "model": "m"},
                    "roots": {"roots": [{"uri": "file:///tmp"}]},
                },
                "times": dict.fromkeys(["colour", "size", "model", "roots"], 1),
            },
            ["Which colour?", "Which size?", "model", "roots"],
        ),
        Case("ask_first", _QUICK, _SURE, ["Are you sure?"]),
        Case("ask_first", {"then": "result"}, _SURE, ["Are you sure?"]),
    )
    slow = Case("slow", {"polls": 4, **_QUICK}, {"polls": 4})
    question = Case("ask", _QUICK, _NAMED, ["What is your name?"])
    # Refused before the first poll: of one that is given up then, nobody knows when the server sees it.
    refused_question = Case("ask", {"interval_ms": 200}, _NAMED, ["What is your name?"])
    tool_error, rpc_failure = Case("tool_error", _QUICK, None), Case("rpc_failure", _QUICK, None)
    endless = "endless"

    def __init__(self, process: StrictProcess, relay: Relay) -> None:
        self.process = process
        self.relay = relay
        self.local = build_server()

    def address(self, way: Way) -> Any:
        match way.kind:
            case "mcp-stdio":
                return self.relay.command
            case "mcp-in-process":
                return self.local
            case _:
                return self.process.url

    def log(self, way: Way, since: int = 0) -> list[Entry]:
        match way.kind:
            case "mcp-stdio":
                return self.relay.log[since:]
            case "mcp-in-process":
                return self.local.log[since:]
            case _:
                return self.process.log(since)

    @contextmanager
    def watched(self, way: Way, refusals: Refusals) -> Iterator[None]:
        before = self.process.mark() if way.over_http else len(self.log(way))
        yield
        # Over HTTP a request that is given up may be cut off between its head and its body.
        seen = [entry for entry in self.log(way, before) if entry.method is not None or not way.over_http]
        assert seen, "something arrived"
        assert [entry for entry in seen if entry.early] == []
        assert [entry for entry in seen if entry.ignored_keys] == []
        refused = [entry.error for entry in seen if entry.refused]
        assert (set(refused) if isinstance(refusals, Set) else refused) == refusals, seen
        for entry in seen:
            if entry.method == "notifications/cancelled":
                continue  # how the SDK gives up a request; over stdio it is said, over HTTP it is not
            assert entry.params is not None
            if declares(way, entry.method):
                assert entry.params["_meta"][CAPABILITIES]["extensions"][EXTENSION_ID] == {}
            if way.over_http:
                assert entry.headers["mcp-method"] == entry.method
                if entry.method is not None and entry.method.startswith("tasks/"):
                    assert decode_header_value(entry.headers["mcp-name"]) == entry.params["taskId"]


class Real(WaysServer):
    """FastMCP's tasks server, over HTTP."""

    plain = (
        Case("plain", {"x": 1}, {"result": 1}),
        Case("fast", {"x": 2}, {"result": 2}),
        Case("must_task", {"n": 3}, {"result": 3}),
        Case("typed", {"name": "Oslo"}, {"name": "Oslo", "inhabitants": 137_000}),
    )
    asking = (
        Case("ask_name", {}, {"result": "Hello, Ada"}, ["What is your name?"]),
        Case(
            "ask_many",
            {},
            {"result": "XL and red: yes"},
            ["Which colour?", "Which size?", "Really XL and red?"],
        ),
        Case("ask_model_and_roots", {}, {"result": "4 in file:///tmp"}, ["model", "roots"]),
        Case("ask_then_task", {"item": "tea"}, {"result": "tea, after a question"}, ["What is your name?"]),
    )
    slow = Case("slow", {"seconds": 0.5}, {"result": "rested"})
    question = refused_question = asking[0]
    tool_error, rpc_failure = Case("fail_tool", {}, None), Case("fail_rpc", {}, None)
    endless = "cancelable"

    def __init__(self, process: RealServer) -> None:
        self.process = process

    def address(self, way: Way) -> Any:
        return self.process.url

    @contextmanager
    def watched(self, way: Way, refusals: Refusals) -> Iterator[None]:
        before = self.process.mark()
        yield
        ready: dict[str, float] = {}
        for entry in self.process.witness(since=before):
            if entry.method is None and entry.mcp_method == "tasks/get":
                continue  # a poll that was cut off after its head, as when its call parks
            if declares(way, entry.method):
                assert entry.meta is not None
                assert entry.meta[CAPABILITIES]["extensions"][EXTENSION_ID] == {}
            if declares(way, entry.method) or not way.on_1:  # whose own requests are older than that header
                assert entry.meta is not None
                assert entry.mcp_method == entry.method
            if entry.method == "tasks/get":
                assert entry.at >= ready.get(entry.subject or "", 0.0), "an early poll"
            if entry.method is not None and entry.method.startswith("tasks/"):
                assert entry.mcp_name == entry.subject
            if entry.method == "tasks/update":
                # Its question may have cut off a poll, which the server answered all the same, to nobody.
                ready.pop(entry.subject or "", None)
            task_id = entry.task_id or (entry.subject if entry.method == "tasks/get" else None)
            if task_id is not None and entry.answered_at is not None:
                ready[task_id] = entry.answered_at + 0.05 - 0.002  # the answer is noted before it is sent


class Older(WaysServer):
    """A server of 2025-11-25, on the official SDK's last 1.x. What arrives over stdio nobody sees."""

    plain = (Case("plain", {}, "plain"), Case("must", {"n": 3, **_SOON}, {"n": 3}))
    asking = (
        Case("asks", _SOON, "Hello, Ada", ["What is your name?"]),
        Case(
            "asks_twice",
            {"together": False, **_SOON},
            "Ada and Ada",
            ["What is the name of your cat?", "What is the name of your dog?"],
        ),
        Case("samples", _SOON, "4", ["model"]),
    )
    slow = Case("slow", {"duration_ms": 500, **_SOON}, "rested")
    question = refused_question = asking[0]
    tool_error, rpc_failure = Case("fails", {"how": "result"}, None), Case("fails", {}, None)
    failure = -32603, "quota exceeded", None

    def __init__(self, process: LegacyServer, command: Sequence[str]) -> None:
        self.process = process
        self.command = command

    def address(self, way: Way) -> Any:
        if way.over_http:
            return self.process.url
        command, *arguments = self.command
        return StdioServerParameters(command=command, args=arguments)

    @contextmanager
    def watched(self, way: Way, refusals: Refusals) -> Iterator[None]:
        before = len(self.process.witness())
        yield
        ready: dict[str, float] = {}
        polls = set[str | int | None]()
        for entry in self.process.witness()[before:]:
            assert entry.session_id is not None or entry.method in ("initialize", "server/discover")
            # On trio the SDK 1.x may send the later of two requests in place of the earlier, and so twice:
            # the function that its `post_writer` starts for each of them reads the loop's variable.
            if entry.method == "tasks/get" and not (way.on_1 and entry.id in polls):
                polls.add(entry.id)
                assert entry.params is not None
                task_id = entry.params["taskId"]
                assert entry.at >= ready.get(task_id, 0.0), "an early poll"
                ready[task_id] = entry.at + _SOON["hint_ms"] / 1000


class Relay:
    """Strict servers behind ``stdio_relay.py``, one for each process of it, in a thread of ours.

    Attributes:
        command: How a client starts one.
        servers: All so far.
    """

    def __init__(self, port: int) -> None:
        script = Path(__file__).parents[1] / "servers" / "stdio_relay.py"
        self.command = StdioServerParameters(
            command=sys.executable, args=["-I", "-S", str(script), str(port)]
        )
        self.servers: list[StrictServer] = []

    @property
    def log(self) -> list[Entry]:
        return [entry for server in self.servers for entry in server.log]


@contextmanager
def relayed() -> Iterator[Relay]:
    """A relay for the length of the block."""

    class Handler(socketserver.StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            server = build_server()
            relay.servers.append(server)
            anyio.run(self.serve, server)

        async def serve(self, server: StrictServer) -> None:
            lines_in = anyio.wrap_file(TextIOWrapper(self.rfile, "utf-8"))  # type: ignore[type-var]  # a buffered reader
            lines_out = anyio.wrap_file(TextIOWrapper(self.wfile, "utf-8"))  # type: ignore[type-var]  # a raw writer
            async with stdio_server(lines_in, lines_out) as (read, write):
                await server.run(read, write, server.create_initialization_options())

    with listening(Handler) as port:
        relay = Relay(port)
        yield relay


@contextmanager
def listening(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """A thread for each connection to a loopback port, which is yielded."""

    class Listener(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Listener(("127.0.0.1", 0), handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield listener.server_address[1]
        finally:
            listener.shutdown()
            thread.join(LIMIT_S)
