"""What a request over HTTP has to carry besides its body, and what is wrong with one that does not."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY

from ..sessions.faults import HEADER_MISMATCH, UNSUPPORTED_VERSION
from ..sessions.headers import HeaderMap, param_headers
from ..wire import EXTENSION_ID, PROTOCOL_VERSION, JSONObject
from .faults import RefusedError
from .witness import Arrival, MissingHeader

__all__ = ["CAPABILITY", "breaches", "decoded", "refuse", "refuse_without_capability"]

CAPABILITY: Final = f"_meta {EXTENSION_ID}"
"""How the capability is called where a header is missing."""

_MISSING_CAPABILITY: Final = -32021
_NAMES: Final = {
    "tools/call": "name",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
_ENCODED: Final = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)


def decoded(value: str) -> str | None:
    """A header's value as it was meant; ``None`` if it looks encoded and is not."""
    encoded = _ENCODED.fullmatch(value)
    if encoded is None:
        return value
    try:
        return base64.b64decode(encoded[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _declares_tasks(params: JSONObject) -> bool:
    """Whether the request declares the Tasks extension, as each has to for itself."""
    found: Any = params
    for name in ("_meta", CLIENT_CAPABILITIES_META_KEY, "extensions", EXTENSION_ID):
        found = found.get(name) if isinstance(found, Mapping) else None
    return isinstance(found, Mapping)


def breaches(arrival: Arrival, tokens: HeaderMap) -> list[MissingHeader]:
    """What is missing or wrong, the most telling first.

    Args:
        arrival: A request over HTTP.
        tokens: The marked arguments of the tool that it calls.
    """
    assert arrival.headers is not None, "in memory there are no headers"
    return list(_breaches(arrival.method, arrival.params, arrival.headers, tokens))


def _breaches(
    method: str, params: JSONObject, headers: Mapping[str, str], tokens: HeaderMap
) -> Iterator[MissingHeader]:
    expected = {"MCP-Protocol-Version": PROTOCOL_VERSION, "Mcp-Method": method}
    named = params.get(_NAMES.get(method, ""))
    if isinstance(named, str):
        expected["Mcp-Name"] = named
    arguments = params.get("arguments")
    for name, value in param_headers(tokens, arguments if isinstance(arguments, Mapping) else {}).items():
        expected[name] = decoded(value) or ""
    for name, value in expected.items():
        found = headers.get(name.lower())
        if found is None or decoded(found) != value:
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
        yield MissingHeader(method, CAPABILITY, "{}", None)


def refuse(missing: list[MissingHeader], found_version: str | None) -> None:
    """Refuse a request as servers do. A capability that is missing may be one that is not needed.

    Raises:
        RefusedError: HTTP 400 with -32020, or -32022 for another version.
    """
    for one in missing:
        if one.name == "MCP-Protocol-Version" and found_version is not None:
            data = {"supported": [PROTOCOL_VERSION], "requested": found_version}
            raise RefusedError(UNSUPPORTED_VERSION, "Unsupported protocol version", data, http_status=400)
        if one.name != CAPABILITY:
            raise RefusedError(HEADER_MISMATCH, str(one), http_status=400)


def refuse_without_capability(params: JSONObject) -> None:
    """Refuse what only a client with the Tasks extension may ask for, or be answered with.

    Raises:
        RefusedError: HTTP 400 with -32021.
    """
    if not _declares_tasks(params):
        required: JSONObject = {"requiredCapabilities": {"extensions": {EXTENSION_ID: {}}}}
        raise RefusedError(
            _MISSING_CAPABILITY, "Missing required client capability", required, http_status=400
        )
