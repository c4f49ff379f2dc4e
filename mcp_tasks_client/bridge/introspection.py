"""The parts of the official SDK's server that it calls provisional, and how they are used here.

A middleware may return a result as it is. A handler may not: the SDK validates a handler's result against
the version of the connection, and drops fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from mcp.server import Server, ServerRequestContext
from mcp.server.session import ServerSession
from mcp_types import JSONRPCError, JSONRPCResponse, RequestId

__all__ = [
    "Context",
    "Next",
    "Session",
    "prepend_middleware",
    "replace_middleware",
    "replied_id",
    "when_ended",
]

Context: TypeAlias = ServerRequestContext[Any, Any]
"""One request or notification of a host, as the SDK hands it to a middleware."""

Session: TypeAlias = ServerSession
"""The connection that a request or notification has come by, with ways back."""

Next: TypeAlias = Callable[[Context], Awaitable[Any]]
"""The SDK's own treatment of a message."""


def replace_middleware(server: Server[Any], middleware: Callable[[Context, Next], Awaitable[Any]]) -> None:
    """Have a middleware see each message first, and alone. The SDK's own one makes spans of each message."""
    server.middleware[:] = [middleware]  # type: ignore[list-item]  # a coroutine function is one


def prepend_middleware(server: Server[Any], middleware: Callable[[Context, Next], Awaitable[Any]]) -> None:
    """Have a middleware see each message before that which is in front by now."""
    server.middleware.insert(0, middleware)  # type: ignore[arg-type]  # a coroutine function is one


def when_ended(session: Session, tell: Callable[[], object]) -> None:
    """Have a function called once a connection has ended."""
    session._connection.exit_stack.callback(tell)


def replied_id(message: Any) -> RequestId | None:
    """The ID of the request that a message of the SDK's stream answers; ``None`` if it answers none."""
    said = message.message
    return said.id if isinstance(said, JSONRPCResponse | JSONRPCError) else None
