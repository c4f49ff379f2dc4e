"""Replies to ``tools/call``, and JSON-RPC errors, as servers really send them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import INTERNAL_ERROR

from mcp_tasks_client.protocol import JSONObject, MalformedError, RequestId
from mcp_tasks_client.protocol.replies import (
    Created,
    InputRequired,
    Returned,
    RpcError,
    id_in,
    is_url_key,
    read_call_reply,
    read_rpc_error,
    read_url_requests,
    reply_fields,
)
from mcp_tasks_client.protocol.task import read_task

from .._requirements import requirement

TASK_ID = "hfWcnM9nILV_1MI9AytuHXEJLNNwF6lE8HXmpazeV2c"
SEED = {"resultType": "task", "taskId": TASK_ID, "status": "working", "ttlMs": 900000, "pollIntervalMs": 5000}
NAME_REQUEST = {"method": "elicitation/create", "params": {"message": "Name?"}}


@requirement("create:either-result")
def test_a_result_type_of_task_is_a_task_even_with_content_beside_it() -> None:
    assert read_call_reply({**SEED, "content": []}) == Created(read_task({**SEED, "content": []}))


@requirement("create:either-result")
def test_a_task_may_stand_under_the_name_of_one() -> None:
    task = {name: value for name, value in SEED.items() if name != "resultType"}
    assert read_call_reply({"resultType": "task", "task": task, "content": []}) == Created(read_task(task))
    meta = {"_meta": {"io.modelcontextprotocol/model-immediate-response": "soon"}}
    created = read_call_reply({"resultType": "task", "task": task, **meta})
    assert isinstance(created, Created)
    assert created.task.immediate_response == "soon"


@pytest.mark.parametrize("result_type", ["complete", "something-new", None, 7, ["task"], {"a": 1}])
def test_what_looks_like_a_task_but_does_not_say_so_is_a_result(result_type: object) -> None:
    raw = {**SEED, "resultType": result_type}
    assert read_call_reply(raw) == Returned(raw)


def test_a_result_without_a_result_type_is_passed_on_unchanged() -> None:
    raw = {"content": [{"type": "text", "text": "6"}], "isError": True, "_meta": {"a": 1}, "more": None}
    assert read_call_reply(raw) == Returned(raw)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"inputRequests": {"n": NAME_REQUEST}}, InputRequired({"n": NAME_REQUEST}, None)),
        (
            {"inputRequests": {"n": NAME_REQUEST}, "requestState": "s"},
            InputRequired({"n": NAME_REQUEST}, "s"),
        ),
        ({"requestState": "s"}, InputRequired({}, "s")),
        ({"requestState": ""}, InputRequired({}, "")),
        ({"inputRequests": [], "requestState": "s"}, InputRequired({}, "s")),
        ({"inputRequests": {"n": 1}, "requestState": 5}, InputRequired({"n": 1}, None)),
    ],
)
def test_a_round_of_questions_is_read_with_its_state(fields: dict[str, Any], expected: InputRequired) -> None:
    assert read_call_reply({"resultType": "input_required", "_meta": {}, **fields}) == expected


def test_a_round_whose_state_is_too_long_is_malformed_and_a_task_has_none() -> None:
    longest, longer = "s" * 2**20, "s" * (2**20 + 1)
    read = read_call_reply({"resultType": "input_required", "requestState": longest})
    assert read == InputRequired({}, longest)
    with pytest.raises(MalformedError, match="requestState of more than 1048576 characters"):
        read_call_reply({"resultType": "input_required", "requestState": longer})
    created = read_call_reply({"resultType": "task", "taskId": "t", "requestState": longer})
    assert isinstance(created, Created)
    assert (created.task.task_id, created.session_data) == ("t", None)


@pytest.mark.parametrize(
    "fields", [{}, {"inputRequests": {}}, {"inputRequests": "name"}, {"requestState": None}]
)
def test_a_round_with_nothing_to_answer_is_malformed(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match="without inputRequests and without requestState"):
        read_call_reply({"resultType": "input_required", **fields})


@pytest.mark.parametrize(
    ("reply", "fields"),
    [
        ({"n": 1}, {"result": {"n": 1}}),
        (RpcError(-32050, "quota", {"after": 7}), {"code": -32050, "message": "quota", "data": {"after": 7}}),
        (RpcError(-32050, "quota", None), {"code": -32050, "message": "quota"}),
        (RpcError(None, "quota", None), {"code": INTERNAL_ERROR, "message": "quota"}),
    ],
)
def test_a_result_or_an_error_is_written_and_an_error_has_a_code(reply: Any, fields: JSONObject) -> None:
    assert reply_fields(reply) == (fields if isinstance(reply, dict) else {"error": fields})


def test_a_created_task_without_an_id_is_malformed() -> None:
    with pytest.raises(MalformedError, match="usable taskId"):
        read_call_reply({"resultType": "task", "status": "working"})


@pytest.mark.parametrize("raw", [None, [], "ok", 3])
def test_a_reply_that_is_no_object_is_malformed(raw: object) -> None:
    with pytest.raises(MalformedError, match="must be an object"):
        read_call_reply(raw)


@pytest.mark.parametrize("status", [{}, {"status": None}, {"status": ""}, {"status": 7}])
def test_a_creation_without_a_usable_status_does_not_cost_the_task_id(status: dict[str, Any]) -> None:
    reply = read_call_reply({"resultType": "task", "taskId": TASK_ID, **status})
    assert isinstance(reply, Created)
    assert reply.task.task_id == TASK_ID
    assert not reply.task.known_status


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"code": -32050, "message": "no", "data": {"a": 1}}, RpcError(-32050, "no", {"a": 1})),
        ({"code": -32603, "message": "no"}, RpcError(-32603, "no", None)),
        ({"code": 0, "message": "", "data": 0}, RpcError(0, "", 0)),
        ({"code": "-32603", "message": 5}, RpcError(None, '{"code": "-32603", "message": 5}', None)),
        ({"code": 7, "data": 1, "reason": "full"}, RpcError(7, '{"reason": "full"}', 1)),
        (["full"] * 1000, RpcError(None, json.dumps(["full"] * 1000)[:1000], None)),
        ({"code": -32602.0, "message": "no"}, RpcError(-32602, "no", None)),
        ({"code": True}, RpcError(None, "", None)),
        ({"code": 1.5}, RpcError(None, "", None)),
        ({}, RpcError(None, "", None)),
        (None, RpcError(None, "", None)),
        ("boom" * 1000, RpcError(None, "boom" * 250, None)),
    ],
)
def test_an_error_keeps_its_code_message_and_data_and_lacks_what_is_no_such_thing(
    raw: object, expected: RpcError
) -> None:
    assert read_rpc_error(raw) == expected


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"id": 0}, 0),
        ({"id": "a"}, "a"),
        ({"id": True}, None),
        ({"id": 1.5}, None),
        ({"id": 1.0}, 1),
        ({}, None),
        ([], None),
    ],
)
def test_an_id_is_a_text_or_a_whole_number(fields: object, found: RequestId | None) -> None:
    assert id_in(fields, "id") == found


def test_urls_that_have_to_be_visited_are_questions_under_keys_of_ours() -> None:
    """One that does not say its mode can be nothing else."""
    entries = [
        {"mode": "url", "message": "A", "url": "https://a.test", "elicitationId": "1"},
        {"message": "B", "url": "https://b.test", "elicitationId": "1"},
    ]
    requests = read_url_requests({"elicitations": entries, "more": None})
    assert requests is not None
    assert list(requests.values()) == [
        {"method": "elicitation/create", "params": {**entry, "mode": "url"}} for entry in entries
    ]
    assert all(map(is_url_key, requests))
    assert not is_url_key("name")


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"elicitations": []},
        {"elicitations": {"url": "https://a.test"}},
        {"elicitations": ["https://a.test"]},
        {"elicitations": [{"mode": "url", "message": "no URL"}]},
        {"elicitations": [{"url": "https://a.test"}, {"mode": "form", "url": "https://b.test"}]},
    ],
)
def test_data_with_no_url_or_something_else_among_them_is_no_question(data: object) -> None:
    assert read_url_requests(data) is None
