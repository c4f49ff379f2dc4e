"""Messages of the SDK, in either of its generations, as they are in JSON."""

from __future__ import annotations

from typing import Any, Final

from ..wire import JSONObject, RpcError

__all__ = ["as_reply", "read"]

_INTERNAL_ERROR: Final = -32603


def read(message: Any) -> JSONObject:
    """A message of the SDK's, as it is in JSON. Nothing of it is copied."""
    root = getattr(message.message, "root", message.message)  # 1.x has a model of all four kinds
    said = {name: getattr(root, name) for name in ("id", "method", "params", "result") if hasattr(root, name)}
    error = getattr(root, "error", None)
    if error is not None:
        said["error"] = RpcError(error.code, error.message, error.data)
    return said


def as_reply(reply: JSONObject | RpcError) -> JSONObject:
    """The part of a response that says what came of a request."""
    if not isinstance(reply, RpcError):
        return {"result": reply}
    data = {} if reply.data is None else {"data": reply.data}
    return {
        "error": {
            "code": _INTERNAL_ERROR if reply.code is None else reply.code,
            "message": reply.message,
            **data,
        }
    }
