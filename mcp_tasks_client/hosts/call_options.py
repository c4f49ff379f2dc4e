"""An idempotency key or a label for a call that is made through code which has no argument for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ..engine.idempotency import OnUnknown
from ..engine.record_maker import check_label
from ..protocol import JSONObject

__all__ = [
    "META_KEY",
    "META_LABEL",
    "CallOptions",
    "call_label",
    "idempotency_key",
    "key_of",
    "read_options",
    "without_options",
]

META_KEY: Final = "mcp-tasks-client/idempotency-key"
"""The name of a key in a request's ``_meta``. It is not sent to the server."""

META_LABEL: Final = "mcp-tasks-client/label"
"""The name of a label in ``_meta``. It is not sent to the server."""

_OURS: Final = frozenset({META_KEY, META_LABEL})


@dataclass(frozen=True, slots=True)
class _Block:
    """The options that the blocks around a call give it."""

    key: str | None = None
    on_unknown: OnUnknown = "raise"
    label: str | None = None


_NONE: Final = _Block()
_CURRENT: Final[ContextVar[_Block]] = ContextVar("mcp_tasks_client_call", default=_NONE)


@contextmanager
def _block(**given: Any) -> Iterator[None]:
    token = _CURRENT.set(replace(_CURRENT.get(), **given))
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def idempotency_key(key: str, *, on_unknown: OnUnknown = "raise") -> Iterator[None]:
    """Give the call that is made in this block an idempotency key.

    ::

        with idempotency_key("order-42"):
            result = await client.call_tool("deploy", {"service": "web"})

    It is the same as the argument of :meth:`TasksClient.call_tool`, which wins over the block.

    A host that times out and sends the call again joins the existing task, in this process or a later one.
    Put the block around one call: a second call with other arguments is refused under the same key.

    The key is a context variable. It reaches :class:`TasksHttpTransport` through httpx, httpx2 and the
    official SDK 2.x, also where those send from tasks of their own. mcp 1.x, and :class:`TasksTransport`,
    send from a task that began with the connection: there, put the key into the request's ``_meta`` as
    ``"mcp-tasks-client/idempotency-key"``, and open no connection inside of the block, since all its calls
    would have the key.

    There is no key by default. A JSON-RPC request ID is no key, since IDs begin anew in each process, and a
    host gives a repeated call a new one.

    Args:
        key: Any text that stands for this one call.
        on_unknown: How to treat an earlier call whose reply was lost: ``"raise"``, or ``"resend"`` if the
            tool may run twice.

    Raises:
        ValueError: The key is empty, or ``on_unknown`` is neither word.
    """
    if not key:
        raise ValueError("an idempotency key cannot be empty; leave the block out to call without one")
    if on_unknown not in ("raise", "resend"):
        raise ValueError(f'on_unknown must be "raise" or "resend", got {on_unknown!r}')
    with _block(key=key, on_unknown=on_unknown):
        yield


@contextmanager
def call_label(label: str) -> Iterator[None]:
    """Give the calls that are made in this block a label: a short text for people, kept with the record.

    ::

        with call_label("Deploy web for Ada"):
            result = await client.call_tool("deploy", {"service": "web"})

    It is the same as ``label=`` of :meth:`TasksClient.call_tool`, which wins over the block. The server never
    gets it. It reaches a call as an :func:`idempotency_key` does; in ``_meta`` it is
    ``"mcp-tasks-client/label"``. Under a :class:`TasksExtension` the SDK sends ``_meta`` as it is: use the
    block there.

    Args:
        label: At most 200 characters.

    Raises:
        ValueError: It is no text, or longer.
    """
    check_label(label)
    with _block(label=label):
        yield


class CallOptions(NamedTuple):
    """The options of a call that are not for the server."""

    key: Any
    """The idempotency key as given, not checked; ``None`` if there is none."""

    on_unknown: OnUnknown
    label: Any
    """The label as given, not checked; ``None`` if there is none."""

    meta: Mapping[str, Any]
    """The ``_meta`` of the call without our entries."""


def read_options(
    key: object = None,
    on_unknown: OnUnknown = "raise",
    label: object = None,
    meta: Mapping[str, Any] | None = None,
) -> CallOptions:
    """The options of a call. One that is ``None`` is left to ``meta``, then to the blocks around.

    ``on_unknown`` is used unless the key comes from a block, which brings its own.
    """
    meta, block = meta or {}, _CURRENT.get()
    if key is None:
        key = meta.get(META_KEY)
    if key is None and block.key is not None:
        key, on_unknown = block.key, block.on_unknown
    if label is None:
        label = meta.get(META_LABEL, block.label)
    return CallOptions(key, on_unknown, label, _not_ours(meta))


def key_of(params: object) -> Any:
    """The idempotency key that the params of a call, or else the blocks around, give it; ``None`` if none."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    return read_options(meta=meta if isinstance(meta, dict) else None).key


def without_options(params: JSONObject) -> JSONObject | None:
    """The params of a request that passes to the server, without our entries; ``None`` if there are none."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or meta.keys().isdisjoint(_OURS):
        return None
    return {**params, "_meta": _not_ours(meta)}


def _not_ours(meta: Mapping[str, Any]) -> JSONObject:
    return {name: value for name, value in meta.items() if name not in _OURS}
