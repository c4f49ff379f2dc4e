"""A host that writes what no host should, or too much of it, or does not read, or goes away in between."""

from __future__ import annotations

import json
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.campaigns.torture.run import Servers, servers
from tests.kit.command import until
from tests.kit.piped_bridge import PipedBridge, piped_bridge

ENDS_S: Final = 10.0
"""Seconds in which a bridge has ended, on a machine that is busy. Otherwise it takes less than two."""

GROWTH_MB: Final = 150.0
"""What may stay of a flood: allocators keep some of it."""

BUSY: Final = -32000
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
INVALID_PARAMS: Final = -32602


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(0, tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.fixture
def hanging_url() -> Iterator[str]:
    """A server that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=2000) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"


@pytest.fixture(scope="module")
def bridge(server: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipedBridge]:
    """One that has to bear all that the tests of this module write."""
    journal = tmp_path_factory.mktemp("journal") / "journal.sqlite3"
    with piped_bridge(server.endpoint("fastmcp"), journal) as running:
        yield running


_probes = count(1)


def _is_alive(bridge: PipedBridge) -> list[dict[str, Any]]:
    """See that the next request is answered. Returns what the bridge has said before."""
    name, said = f"probe {next(_probes)}", list[dict[str, Any]]()
    bridge.write(json.dumps({"jsonrpc": "2.0", "id": name, "method": "ping"}).encode() + b"\n")
    while (message := bridge.next_message()).get("id") != name:
        said.append(message)
    assert message["result"] == {}
    return said


# ── odd lines ──

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
_METHODS: Final = (
    "tools/call",
    "tools/list",
    "initialize",
    "ping",
    "logging/setLevel",
    "completion/complete",
    "server/discover",
    "subscriptions/listen",
    "tasks/get",
    "notifications/cancelled",
    "notifications/initialized",
    "notifications/progress",
    "notifications/roots/list_changed",
    "notifications/what/ever",
    "no/such/method",
    "",
)
_messages = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | _json},
    optional={
        "id": st.integers() | st.text(max_size=5) | _json,
        "method": st.sampled_from(_METHODS) | st.text(max_size=8) | _json,
        "params": st.dictionaries(
            st.sampled_from(["name", "arguments", "_meta", "requestId", "cursor", "protocolVersion"]), _json
        )
        | _json,
        "result": _json,
        "error": _json,
    },
)
_lines = (
    st.binary(max_size=200).map(lambda raw: raw.replace(b"\n", b" "))
    | _json.map(lambda value: json.dumps(value).encode())
    | _messages.map(lambda value: json.dumps(value).encode())
    | st.lists(_messages, max_size=3).map(lambda value: json.dumps(value).encode())  # a batch
)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(line=_lines)
@example(line=b"")
@example(line=b"\r")
@example(line=b"\xff\xfe\x00{")
@example(line=b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}')
@example(line=b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"\\ud800","arguments":{}}}')
@example(
    line=b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"rest","arguments":{"a":"\\ud800"}}}'
)
@example(line=b"[" * 100_000)
@example(line=b'{"jsonrpc":"2.0","id":9,"method":"ping","params":{"a":' + b"[" * 190 + b"]" * 190 + b"}}")
@example(line=b'{"jsonrpc":"2.0","id":1e400,"method":"ping"}')
@example(line=b'{"jsonrpc":"2.0","id":' + b"9" * 500 + b',"method":"ping"}')
@example(line=b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}')
@example(line=b'{"jsonrpc":"2.0","id":null,"method":"ping"}')
@example(line=b'{"jsonrpc":"2.0","id":3,"result":{}}')
@example(line=b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{"a":[]}}}')
def test_the_next_request_is_answered_after_an_odd_line(bridge: PipedBridge, line: bytes) -> None:
    bridge.write(line + b"\n")
    _is_alive(bridge)


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"nonsense", PARSE_ERROR, None),
        (b"\xff\xfe", PARSE_ERROR, None),
        (b"[]", INVALID_REQUEST, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', INVALID_REQUEST, None),
        (b'{"id":"a","method":"ping"}', INVALID_REQUEST, "a"),
        (b'{"jsonrpc":"2.0","id":5,"method":7}', INVALID_REQUEST, 5),
        (b'{"jsonrpc":"2.0","id":' + b"[" * 3_000 + b"]" * 3_000 + b"}", PARSE_ERROR, None),
        *(
            (b'{"jsonrpc":"2.0","method":"ping","id":%b}' % name, INVALID_REQUEST, None)
            for name in (b"1.5", b"1e400", b"true", b"null", b"{}")
        ),
    ],
)
def test_a_line_that_is_no_message_is_answered_with_an_error(
    bridge: PipedBridge, line: bytes, code: int, request_id: Any
) -> None:
    _is_alive(bridge)
    bridge.write(line + b"\n")
    (error,) = _is_alive(bridge)
    assert (error["error"]["code"], error["id"]) == (code, request_id)


def test_a_meta_that_is_no_object_is_refused(bridge: PipedBridge) -> None:
    bridge.write(b'{"jsonrpc":"2.0","id":"meta","method":"tools/call","params":{"name":"rest","_meta":5}}\n')
    assert bridge.reply_to("meta")["error"]["code"] == INVALID_PARAMS


def test_an_empty_line_is_nothing(bridge: PipedBridge) -> None:
    _is_alive(bridge)
    bridge.write(b"\n\r\n  \n")
    assert _is_alive(bridge) == []


def test_a_message_may_come_in_pieces(bridge: PipedBridge) -> None:
    for part in (b'{"jsonrpc":"2.0",', b'"id":"in pieces","meth', b'od":"ping"}', b"\n"):
        bridge.write(part)
    assert bridge.reply_to("in pieces")["result"] == {}


def test_requests_of_one_id_harm_nobody(bridge: PipedBridge) -> None:
    bridge.write(b'{"jsonrpc":"2.0","id":"same","method":"ping"}\n' * 50)
    _is_alive(bridge)


def test_a_line_that_is_too_long_is_refused_and_leaves_no_memory(bridge: PipedBridge) -> None:
    _is_alive(bridge)
    before = bridge.resident_mb
    for _ in range(3):
        bridge.write(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"')
        for _ in range(40):
            bridge.write(b"x" * 1_000_000)
        bridge.write(b'"}}\n')
        assert bridge.next_message()["error"]["code"] == PARSE_ERROR
    _is_alive(bridge)
    assert bridge.resident_mb - before < GROWTH_MB


# ── too much ──


def test_each_of_ten_thousand_requests_has_a_reply(bridge: PipedBridge) -> None:
    _is_alive(bridge)
    before, most = bridge.resident_mb, 10_000
    lines = (f'{{"jsonrpc":"2.0","id":"many {one}","method":"ping"}}\n' for one in range(most))
    bridge.write("".join(lines).encode())
    replies = [bridge.next_message() for _ in range(most)]
    assert {one["id"] for one in replies} == {f"many {one}" for one in range(most)}
    assert {one["error"]["code"] for one in replies if "error" in one} <= {BUSY}
    assert _is_alive(bridge) == []
    assert bridge.resident_mb - before < GROWTH_MB


def test_a_request_that_is_given_up_makes_room_for_another(hanging_url: str, tmp_path: Path) -> None:
    with piped_bridge(hanging_url, tmp_path / "journal.sqlite3") as bridge:
        numbers = [bridge.request("prompts/get", {"name": "p"}) for _ in range(1_001)]
        assert bridge.reply_to(numbers[-1])["error"]["code"] == BUSY
        for number in numbers:
            bridge.tell("notifications/cancelled", {"requestId": number})
        _is_alive(bridge)


def test_a_host_that_does_not_read_costs_no_memory_and_holds_up_no_end(
    server: Servers, tmp_path: Path
) -> None:
    with piped_bridge(
        server.endpoint("fastmcp"), tmp_path / "journal.sqlite3", introduced=False, reading=False
    ) as bridge:
        line = b'{"jsonrpc":"2.0","id":"%d","method":"ping"}\n'
        bridge.write(b"".join(line % one for one in range(1000)))
        before = bridge.resident_mb
        flooding = threading.Thread(target=_flood, args=(bridge, line), daemon=True)
        flooding.start()
        flooding.join(60)
        assert not flooding.is_alive(), "the bridge does not read"
        assert bridge.resident_mb - before < GROWTH_MB
        bridge.close()
        assert bridge.time_to_end() < ENDS_S


def _flood(bridge: PipedBridge, line: bytes) -> None:
    with suppress(OSError):
        for number in range(25):
            bridge.write(b"".join(line % (number * 2000 + one) for one in range(2000)))


# ── the host answers ──


def test_an_error_of_the_host_is_the_reply_to_a_question(server: Servers, tmp_path: Path) -> None:
    with piped_bridge(
        server.endpoint("fastmcp"), tmp_path / "journal.sqlite3", capabilities={"elicitation": {}}
    ) as bridge:
        number = bridge.request("tools/call", {"name": "greet", "arguments": {"intent": "refused"}})
        asked = until(lambda: _elicited(bridge.next_message()))
        refusal = {"jsonrpc": "2.0", "id": asked, "error": {"code": -1, "message": "nobody is here"}}
        bridge.write(json.dumps(refusal).encode() + b"\n")
        reply = bridge.next_message()
        assert reply["id"] == number
        assert "mcp-tasks answer" in reply["result"]["content"][0]["text"]


def _elicited(message: dict[str, Any]) -> Any:
    return message["id"] if message.get("method") == "elicitation/create" else None


# ── the end ──


def _idle(bridge: PipedBridge) -> None:
    _is_alive(bridge)


def _in_flight(bridge: PipedBridge) -> None:
    for number in range(20):
        bridge.request("tools/call", {"name": "rest", "arguments": {"intent": f"{number}", "seconds": 30.0}})
    _is_alive(bridge)


def _asked(bridge: PipedBridge) -> None:
    bridge.request("tools/call", {"name": "greet", "arguments": {"intent": "asked"}})
    until(lambda: _elicited(bridge.next_message()))


def _half_a_line(bridge: PipedBridge) -> None:
    bridge.write(b'{"jsonrpc":"2.0","id":1,"meth')


@pytest.mark.parametrize("how", [PipedBridge.close, PipedBridge.stop], ids=["end of stdin", "SIGTERM"])
@pytest.mark.parametrize("state", [_idle, _in_flight, _asked, _half_a_line])
def test_it_ends(
    server: Servers,
    tmp_path: Path,
    state: Callable[[PipedBridge], None],
    how: Callable[[PipedBridge], None],
) -> None:
    with piped_bridge(
        server.endpoint("fastmcp"), tmp_path / "journal.sqlite3", capabilities={"elicitation": {}}
    ) as bridge:
        state(bridge)
        how(bridge)
        assert bridge.time_to_end() < ENDS_S
        bridge.rest()


@pytest.mark.parametrize("how", [PipedBridge.close, PipedBridge.stop], ids=["end of stdin", "SIGTERM"])
def test_it_ends_while_the_server_hangs(
    hanging_url: str, tmp_path: Path, how: Callable[[PipedBridge], None]
) -> None:
    with piped_bridge(hanging_url, tmp_path / "journal.sqlite3") as bridge:
        bridge.request("tools/call", {"name": "rest", "arguments": {}})
        _is_alive(bridge)
        how(bridge)
        assert bridge.time_to_end() < ENDS_S


@pytest.mark.parametrize("how", [PipedBridge.close, PipedBridge.stop], ids=["end of stdin", "SIGTERM"])
def test_it_ends_though_it_cannot_let_go_of_its_calls(
    server: Servers, tmp_path: Path, how: Callable[[PipedBridge], None]
) -> None:
    """Another program has the journal locked, which the end of a call waits for: some 20 s."""
    journal = tmp_path / "journal.sqlite3"
    with piped_bridge(server.endpoint("fastmcp"), journal) as bridge:
        bridge.request("tools/call", {"name": "rest", "arguments": {"intent": "locked", "seconds": 60.0}})
        with closing(sqlite3.connect(journal, isolation_level=None, timeout=ENDS_S)) as other:
            until(lambda: other.execute("SELECT 1 FROM records WHERE task_id IS NOT NULL").fetchone())
            other.execute("BEGIN IMMEDIATE")
            how(bridge)
            assert bridge.time_to_end() < ENDS_S


# ── stdout ──

_PRINTS: Final = """
import os, subprocess, sys, threading, time
from mcp_tasks_client.cli import main

def talk():
    while not os.path.samestat(os.fstat(1), os.fstat(2)):
        time.sleep(0.01)
    for number in range(100):
        print("a library prints", flush=True)
        os.write(1, b"C prints\\n")
        if not number % 20:
            subprocess.run(["echo", "a child prints"], stdin=0)
        time.sleep(0.005)

threading.Thread(target=talk, daemon=True).start()
main(sys.argv[1:])
"""


def test_nothing_but_messages_reaches_stdout(server: Servers, tmp_path: Path) -> None:
    with piped_bridge(
        server.endpoint("fastmcp"), tmp_path / "journal.sqlite3", program=["-c", _PRINTS]
    ) as bridge:
        for number in range(20):
            bridge.call("quick", {"intent": f"printed {number}"})
        bridge.close()
        bridge.rest()  # reads all, and sees that it is JSON-RPC


def test_a_reply_that_was_sent_is_written_before_the_end(server: Servers, tmp_path: Path) -> None:
    """A shell may send one request and close the pipe."""
    with piped_bridge(
        server.endpoint("fastmcp"), tmp_path / "journal.sqlite3", reading=False, introduced=False
    ) as bridge:
        bridge.write(b"nonsense\n" * 100)
        bridge.close()
        bridge.read_on()
        assert len(bridge.rest()) == 100
