"""The params of the requests that we send, ``_meta`` included, exactly as the protocol has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY

from . import EXTENSION_ID, PROTOCOL_VERSION, JSONObject

__all__ = ["call_params", "declare_tasks", "request_meta", "task_params"]


def declare_tasks(capabilities: JSONObject) -> JSONObject:
    """Client capabilities with the extension among them."""
    return {**capabilities, "extensions": {**(capabilities.get("extensions") or {}), EXTENSION_ID: {}}}


def request_meta(
    client_info: JSONObject, capabilities: JSONObject, extra: Mapping[str, Any] | None
) -> JSONObject:
    """``params._meta`` of every request: version, client and capabilities, the extension among them.

    Args:
        client_info: ``name`` and ``version`` of the host.
        capabilities: Client capabilities other than the extension, such as ``elicitation``.
        extra: The caller's own entries. They cannot replace the protocol's.

    Source: Tasks extension, "Capability Negotiation".
    """
    return {
        **(extra or {}),
        PROTOCOL_VERSION_META_KEY: PROTOCOL_VERSION,
        CLIENT_INFO_META_KEY: client_info,
        CLIENT_CAPABILITIES_META_KEY: declare_tasks(capabilities),
    }


def call_params(
    name: str,
    arguments: Mapping[str, Any] | None,
    *,
    input_responses: Mapping[str, Any] | None = None,
    request_state: str | None = None,
) -> JSONObject:
    """``params`` of ``tools/call``, without ``_meta``; the last two only in a later round."""
    params: JSONObject = {"name": name, "arguments": dict(arguments or {})}
    if input_responses:
        params["inputResponses"] = dict(input_responses)
    if request_state is not None:
        params["requestState"] = request_state
    return params


def task_params(
    task_id: str, *, request_state: str | None = None, input_responses: Mapping[str, Any] | None = None
) -> JSONObject:
    """``params`` of the ``tasks/*`` methods, without ``_meta``; responses only for ``tasks/update``."""
    params: JSONObject = {"taskId": task_id}
    if input_responses is not None:
        params["inputResponses"] = dict(input_responses)
    if request_state is not None:
        params["requestState"] = request_state
    return params
