"""An idempotency key for a call that is made through code which has no argument for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from ..engine.idempotency import OnUnknown

__all__ = ["META_KEY", "idempotency_key", "read_key"]

META_KEY: Final = "mcp-tasks-client/idempotency-key"
"""The name of a key in a request's ``_meta``. It is not sent to the server."""

_CURRENT: Final[ContextVar[tuple[str, OnUnknown] | None]] = ContextVar("mcp_tasks_client_key", default=None)


@contextmanager
def idempotency_key(key: str, *, on_unknown: OnUnknown = "raise") -> Iterator[None]:
    """Give the call that is made in this block an idempotency key.

    ::

        with idempotency_key("order-42"):
            result = await client.call_tool("deploy", {"service": "web"})

    It is the same as the argument of :meth:`TasksClient.call_tool`, which wins over the block.

    A host that times out and sends the call again joins the task that there is, in this process or a later
    one. Put the block around one call: a second call with other arguments is refused under the same key.

    The key is a context variable. It reaches :class:`TasksHttpTransport` through httpx, httpx2 and the
    official SDK 2.x, also where those send from tasks of their own. mcp 1.x, and :class:`TasksTransport`,
    send from a task that began with the connection: there, put the key into the request's ``_meta`` as
    ``"mcp-tasks-client/idempotency-key"``, and open no connection inside of the block, since all its calls
    would have the key.

    There is no key by default. A JSON-RPC request ID is none, since IDs begin anew in each process, and a
    host that repeats a call gives it a new one.

    Args:
        key: Any text that stands for this one call.
        on_unknown: What to do about an earlier call whose reply was lost: ``"raise"``, or ``"resend"`` if
            the tool may run twice.

    Raises:
        ValueError: The key is empty, or ``on_unknown`` neither word.
    """
    if not key:
        raise ValueError("an idempotency key cannot be empty; leave the block out to call without one")
    if on_unknown not in ("raise", "resend"):
        raise ValueError(f'on_unknown must be "raise" or "resend", got {on_unknown!r}')
    token = _CURRENT.set((key, on_unknown))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def read_key(
    key: object, on_unknown: OnUnknown, meta: Mapping[str, Any] | None
) -> tuple[Any, OnUnknown, Mapping[str, Any]]:
    """The idempotency key of a call, what to do about an unknown outcome, and ``_meta`` without the key.

    Args:
        key: As given to the call. ``None`` leaves it to ``meta``, then to the block that the caller is in.
        on_unknown: As given to the call; counts unless the key is that of the block.
        meta: The entries for ``_meta``.
    """
    meta = meta or {}
    if key is None:
        key = meta.get(META_KEY)
    block = _CURRENT.get() if key is None else None
    if block is not None:
        key, on_unknown = block
    return key, on_unknown, {name: value for name, value in meta.items() if name != META_KEY}
