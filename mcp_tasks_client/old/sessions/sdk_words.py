"""What the official SDK answers in a server's name when it has no answer: JSON-RPC errors of its own making.

They say nothing about what the server has done, and have codes that a server may use as well.
"""

from __future__ import annotations

from typing import Final

from ..wire import RpcError

__all__ = ["made_up"]

_WORDS: Final = (
    (-32603, "Server returned an error response"),
    (-32601, "Not Found"),
    (-32700, "Failed to parse"),
    (-32600, "Unexpected content type"),
    (-32600, "server answered a request with 202"),
    (-32600, "Redirect to "),
    (-32000, "SSE stream "),
    (-32001, "Request '"),  # … timed out
    (-32001, "Timed out after "),
)


def made_up(error: RpcError) -> bool:
    """Whether an error is one of the SDK's, by its words."""
    ours = any(error.code == code and error.message.startswith(words) for code, words in _WORDS)
    return ours and error.data is None
