"""The headers and ``_meta`` that a request over HTTP needs, and the refusal of a request without them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY

from ..protocol import EXTENSION_ID, PROTOCOL_VERSION, JSONObject
from ..sessions.param_headers import HeaderMap, param_headers
from .faults import RefusedError
from .witness import Arrival, MissingHeader

__all__ = ["decode_header", "find_missing", "refuse_missing", "refuse_without_capability"]

_CAPABILITY: Final = f"_meta {EXTENSION_ID}"
"""The capability's name in :class:`MissingHeader`."""

_HEADER_MISMATCH: Final = -32020
_MISSING_CAPABILITY: Final = -32021
_UNSUPPORTED_VERSION: Final = -32022
_NAMES: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The param that ``Mcp-Name`` repeats."""

_ENCODED: Final = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)


def decode_header(value: str) -> str | None:
    """The text that a header's value stands for; ``None`` if it looks encoded and is not."""
    encoded = _ENCODED.fullmatch(value)
    if encoded is None:
        return value
    try:
        return base64.b64decode(encoded[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def find_missing(arrival: Arrival, marked: HeaderMap) -> list[MissingHeader]:
    """The headers and entries that are missing or wrong, the most telling first.

    Args:
        arrival: A request over HTTP.
        marked: The arguments of its tool that are marked with ``x-mcp-header``.
    """
    assert arrival.headers is not None, "in memory there are no headers"
    return list(_missing(arrival.method, arrival.params, arrival.headers, marked))


def _missing(
    method: str, params: JSONObject, headers: Mapping[str, str], marked: HeaderMap
) -> Iterator[MissingHeader]:
    expected = {"MCP-Protocol-Version": PROTOCOL_VERSION, "Mcp-Method": method}
    named = params.get(_NAMES.get(method, ""))
    if isinstance(named, str):
        expected["Mcp-Name"] = named
    arguments = params.get("arguments")
    for name, value in param_headers(marked, arguments if isinstance(arguments, Mapping) else {}).items():
        expected[name] = decode_header(value) or ""
    for name, value in expected.items():
        found = headers.get(name.lower())
        if found is None or decode_header(found) != value:
            yield MissingHeader(method, name, value, found)
    accept = headers.get("accept", "")
    for media_type in ("application/json", "text/event-stream"):
        if media_type not in accept:
            yield MissingHeader(method, "Accept", media_type, accept or None)
    meta = params.get("_meta")
    version = meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, Mapping) else None
    if version != PROTOCOL_VERSION:
        name = f"_meta {PROTOCOL_VERSION_META_KEY}"
        yield MissingHeader(method, name, PROTOCOL_VERSION, version if isinstance(version, str) else None)
    if not _declares_tasks(params):
        yield MissingHeader(method, _CAPABILITY, "{}", None)


def _declares_tasks(params: JSONObject) -> bool:
    found: Any = params
    for name in ("_meta", CLIENT_CAPABILITIES_META_KEY, "extensions", EXTENSION_ID):
        found = found.get(name) if isinstance(found, Mapping) else None
    return isinstance(found, Mapping)


def refuse_missing(missing: list[MissingHeader], found_version: str | None) -> None:
    """Refuse a request as servers do. A missing capability is no reason, since not every request needs it.

    Raises:
        RefusedError: HTTP 400 with -32020, or with -32022 for another version.
    """
    for one in missing:
        if one.name == "MCP-Protocol-Version" and found_version is not None:
            data = {"supported": [PROTOCOL_VERSION], "requested": found_version}
            raise RefusedError(_UNSUPPORTED_VERSION, "Unsupported protocol version", data, http_status=400)
        if one.name != _CAPABILITY:
            raise RefusedError(_HEADER_MISMATCH, str(one), http_status=400)


def refuse_without_capability(params: JSONObject) -> None:
    """Refuse a request that needs the Tasks extension and does not declare it.

    Raises:
        RefusedError: HTTP 400 with -32021.
    """
    if not _declares_tasks(params):
        required: JSONObject = {"requiredCapabilities": {"extensions": {EXTENSION_ID: {}}}}
        raise RefusedError(
            _MISSING_CAPABILITY, "Missing required client capability", required, http_status=400
        )
