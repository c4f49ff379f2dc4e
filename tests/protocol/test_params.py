"""The params that we send: exactly what the protocol has, and never the caller's own objects."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY

from mcp_tasks_client.protocol import EXTENSION_ID, PROTOCOL_VERSION
from mcp_tasks_client.protocol.params import call_params, request_meta, task_params

from .._requirements import requirement


@requirement("capability:per-request")
def test_every_request_declares_version_client_and_the_extension() -> None:
    assert request_meta({"name": "host", "version": "3"}, {"elicitation": {"form": {}}}, None) == {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "host", "version": "3"},
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {"form": {}},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
    }


def test_the_caller_s_meta_travels_along_but_replaces_nothing_of_the_protocol_s() -> None:
    forged = dict.fromkeys(
        [PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY], "forged"
    )
    meta = request_meta({"name": "host"}, {}, {"traceparent": "00-1", **forged})
    assert meta == {
        "traceparent": "00-1",
        PROTOCOL_VERSION_META_KEY: PROTOCOL_VERSION,
        CLIENT_INFO_META_KEY: {"name": "host"},
        CLIENT_CAPABILITIES_META_KEY: {"extensions": {EXTENSION_ID: {}}},
    }


def test_other_extensions_are_declared_beside_ours_and_the_caller_s_objects_stay_as_they_are() -> None:
    capabilities = {"extensions": {"vendor/x": {"a": 1}}, "roots": {}}
    extra = {"a": 1}
    meta = request_meta({}, capabilities, extra)
    assert meta[CLIENT_CAPABILITIES_META_KEY]["extensions"] == {"vendor/x": {"a": 1}, EXTENSION_ID: {}}
    assert capabilities == {"extensions": {"vendor/x": {"a": 1}}, "roots": {}}
    assert extra == {"a": 1}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (call_params("t", {"a": None}), {"name": "t", "arguments": {"a": None}}),
        (call_params("t", None), {"name": "t", "arguments": {}}),
        (
            call_params("t", {}, input_responses={"k": {"action": "accept"}}, request_state="s"),
            {
                "name": "t",
                "arguments": {},
                "inputResponses": {"k": {"action": "accept"}},
                "requestState": "s",
            },
        ),
        (
            call_params("t", {}, input_responses={}, request_state=""),
            {"name": "t", "arguments": {}, "requestState": ""},
        ),
        (task_params("id"), {"taskId": "id"}),
        (task_params("id", request_state=""), {"taskId": "id", "requestState": ""}),
        (
            task_params("id", input_responses={"k": {}}, request_state="s"),
            {"taskId": "id", "inputResponses": {"k": {}}, "requestState": "s"},
        ),
        (task_params("id", input_responses={}), {"taskId": "id", "inputResponses": {}}),
    ],
)
def test_params_hold_exactly_what_the_method_needs(params: dict[str, Any], expected: dict[str, Any]) -> None:
    assert params == expected


def test_params_are_copies_so_that_later_changes_do_not_travel() -> None:
    arguments = {"a": 1}
    params = call_params("t", arguments)
    arguments["a"] = 2
    assert params["arguments"] == {"a": 1}
