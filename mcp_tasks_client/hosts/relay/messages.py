"""The messages of the official SDK, of its 1.x and 2.x, read and made as JSON."""

from __future__ import annotations

from typing import Any, Final

from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage
from pydantic import TypeAdapter

from ...protocol import JSONObject
from ...protocol.replies import RpcError

__all__ = ["make_message", "read_message"]


_MESSAGE: Final[TypeAdapter[Any]] = TypeAdapter(JSONRPCMessage)


def read_message(message: Any) -> JSONObject:
    """A ``SessionMessage`` as JSON, its ``error`` as :class:`RpcError`. Nothing is copied."""
    root = getattr(message.message, "root", message.message)  # 1.x wraps all four kinds in one model
    read = {name: getattr(root, name) for name in ("id", "method", "params", "result") if hasattr(root, name)}
    error = getattr(root, "error", None)
    if error is not None:
        read["error"] = RpcError(error.code, error.message, error.data)
    return read


def make_message(fields: JSONObject, metadata: Any = None) -> Any:
    """A ``SessionMessage`` of the fields besides ``jsonrpc``."""
    return SessionMessage(_MESSAGE.validate_python({"jsonrpc": "2.0", **fields}), metadata)
