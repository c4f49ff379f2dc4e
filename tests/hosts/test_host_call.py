"""A host's ``tools/call``, read and answered. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcp_tasks_client.hosts.host_call import (
    HostCall,
    encode_reply,
    questions_for,
    read_host_call,
    read_message,
    result_for,
)
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import RpcError
from tests.kit.json_rpc_host import CURRENT, OLDER

JSON_ONLY = "application/json"
BOTH = "application/json, text/event-stream"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"


def message(method: str = "tools/call", request_id: Any = 0, **params: Any) -> JSONObject:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {"name": "tool", **params}}


def read(version: str = "", accept: str = BOTH, **params: Any) -> HostCall:
    call = read_host_call(message(**params), version, accept)
    assert call is not None
    return call


@pytest.mark.parametrize(
    "other",
    [
        message("tools/list"),
        message(request_id=None),
        message(request_id=True),
        message(request_id=[1]),
        message(name=3),
        message(task={"ttl": 1}),
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": ["tool"]},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call"},
    ],
)
def test_what_is_no_call_that_can_be_seen_through_is_left_to_the_host(other: JSONObject) -> None:
    assert read_host_call(other, CURRENT, BOTH) is None


@pytest.mark.parametrize(
    "body", [b"", b"tools/call", b'["tools/call"]', b'{"id": 1}', b"[" * 100_000, b"\xff"]
)
def test_a_body_that_is_no_message_is_left_to_the_host(body: bytes) -> None:
    assert read_message(body) is None


def test_the_version_of_the_host_is_in_the_request_or_in_its_header() -> None:
    assert [read(version).is_current for version in ("", OLDER, CURRENT, "2027-01-01")] == [
        False,
        False,
        True,
        True,
    ]
    assert read(_meta={VERSION_KEY: CURRENT}).is_current
    assert not read(_meta={VERSION_KEY: 7}).is_current


CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


@pytest.mark.parametrize(
    ("params", "where"),
    [
        ({"arguments": [1]}, "params.arguments"),
        ({"arguments": "{}"}, "params.arguments"),
        ({"_meta": []}, "params._meta"),
        ({"_meta": {"progressToken": [1]}}, "params._meta.progressToken"),
        ({"requestState": 5}, "params.requestState"),
        ({"inputResponses": {"bad": 7}}, "params.inputResponses"),
        ({"inputResponses": [1]}, "params.inputResponses"),
        ({"_meta": {CAPABILITIES: 7}}, "the client's capabilities"),
        ({"_meta": {CAPABILITIES: {"extensions": []}}}, "the client's capabilities.extensions"),
        ({"_meta": {CAPABILITIES: {"elicitation": 7}}}, "the client's capabilities.elicitation"),
    ],
)
def test_a_call_is_read_as_strictly_as_a_server_reads_it(params: dict[str, Any], where: str) -> None:
    assert where in str(read(CURRENT, **params).fault)


@pytest.mark.parametrize("meta", [{}, {CAPABILITIES: {"elicitation": {}, "of another time": 3}}])
def test_what_a_server_takes_is_no_fault(meta: JSONObject) -> None:
    assert read(CURRENT, arguments=None, _meta=meta, more=1).fault is None


def test_what_the_protocol_says_in_meta_is_not_sent_for_a_second_time() -> None:
    meta = {
        VERSION_KEY: CURRENT,
        "progressToken": 7,
        "mcp-tasks-client/idempotency-key": "k",
        "traceparent": "00",
    }
    call = read(_meta=meta)
    assert call.tool_call.meta == {"traceparent": "00"}
    assert (call.key, call.progress_token) == ("k", 7)


@pytest.mark.parametrize(
    ("accept", "json_too", "events"),
    [
        (JSON_ONLY, True, False),
        (BOTH, True, True),
        ("", True, False),
        ("text/event-stream", False, True),
        ("*/*", True, False),
    ],
)
def test_the_reply_has_the_type_that_the_host_accepts(accept: str, json_too: bool, events: bool) -> None:
    call = read(accept=accept)
    assert (call.reads_json, call.reads_events) == (json_too, events)


def test_answers_to_a_question_of_ours_are_told_from_those_to_the_server() -> None:
    answers = {"k": {"action": "accept"}, "bad": 7}
    asked = questions_for({"k": {}}, state="the server's", record_id="ab12")
    ours = read(CURRENT, inputResponses=answers, requestState=asked["requestState"])
    assert (ours.record_id, ours.answers) == ("ab12", {"k": {"action": "accept"}})
    assert (ours.tool_call.input_responses, ours.tool_call.request_state) == ({}, None)
    asked = questions_for({"k": {}}, state="the server's", record_id=None)
    theirs = read(CURRENT, inputResponses=answers, requestState=asked["requestState"])
    assert theirs.record_id is None
    assert theirs.tool_call.request_state == "the server's"
    assert theirs.tool_call.input_responses == {"k": {"action": "accept"}}


def test_a_result_is_unchanged_but_for_what_the_host_s_version_lacks() -> None:
    result = {
        "content": [],
        "structuredContent": [1],
        "isError": True,
        "unknown": {"x": 1},
        "_meta": {"a": 1},
    }
    assert result_for(read(CURRENT), result) == {"resultType": "complete", **result}
    older = result_for(read(OLDER), {"resultType": "complete", **result})
    assert older == {name: value for name, value in result.items() if name != "structuredContent"}
    assert result_for(read(OLDER), {"structuredContent": {"n": 1}}) == {"structuredContent": {"n": 1}}


def test_half_of_a_character_survives() -> None:
    assert b"\\ud800" in encode_reply(1, {"content": "\ud800"})


@pytest.mark.parametrize("request_id", [0, 1, "0", ""])
def test_an_error_has_the_host_s_own_id(request_id: str | int) -> None:
    sent = json.loads(encode_reply(request_id, RpcError(-32050, "quota", {"after": 7})))
    assert sent == {
        "jsonrpc": "2.0",
        "id": request_id,
        "error": {"code": -32050, "message": "quota", "data": {"after": 7}},
    }
    assert "data" not in json.loads(encode_reply(0, RpcError(-32050, "quota", None)))["error"]
