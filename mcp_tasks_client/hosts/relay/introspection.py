"""Parts of the official SDK that we rely on beyond its public interface: words of its JSON-RPC errors.

More of these words, and what is lost without them, stand in :mod:`mcp_tasks_client.hosts.sdk.introspection`.
"""

from __future__ import annotations

from typing import Final

from ...protocol.replies import RpcError

__all__ = ["denies_session"]

_DENIALS: Final = frozenset({"Session terminated", "Session not found"})


def denies_session(error: RpcError) -> bool:
    """Whether an error says that there is no such MCP session.

    Reads the message that the SDK's transport makes of HTTP 404, and the one of the official servers. Without
    them the end of a session counts as an error of the request. ``test_core_hosts.py`` fails first.
    """
    return error.data is None and error.message in _DENIALS
