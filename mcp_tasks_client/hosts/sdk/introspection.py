"""Parts of the official SDK 2.x and FastMCP 4.x that we rely on beyond their public interface.

Every private name, frame and error text that the drop-in needs stands here, each in a function that
says what it reads and what is lost without it. A function that finds nothing returns the value that does
least harm. ``tests/hosts/sdk/test_introspection.py`` has one test for each, and fails first on a release that
has changed one.

Importing this module imports neither package, because :func:`is_client` is asked before either is needed.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from mcp_types import CLIENT_CAPABILITIES_META_KEY

from ...protocol import JSONObject
from ...protocol.params import declare_tasks
from ...protocol.replies import RpcError

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import Result

    from ...errors import SessionError
    from ...sessions.request_errors import RequestErrors

__all__ = [
    "Address",
    "DeclaringMeta",
    "address_of",
    "client_being_made",
    "error_of",
    "extensions_of",
    "fastmcp_created_task",
    "is_client",
    "is_closed",
    "progress_callback_of_reply",
    "result_of_invalid_reply",
    "send_request_code",
    "unread_in",
    "was_made_up",
]

_PACKAGES: Final = frozenset({"mcp", "fastmcp"})
_CLASSES: Final = frozenset({"Client", "ClientSession"})

_MADE_UP: Final = (
    (-32000, "SSE stream "),
    (-32001, "Request '"),  # … timed out
    (-32001, "Timed out after "),
    (-32600, "Redirect to "),
    (-32600, "Session terminated"),
    (-32600, "Unexpected content type"),
    (-32600, "server answered a request with 202"),
    (-32601, "Not Found"),
    (-32603, "Server returned an error response"),
    (-32700, "Failed to parse"),
)
"""Code, and beginning of the message, of the errors that the SDK answers in a server's name."""

_HIDING: Final = ("Server returned an error response", "Request '", "Timed out after ", "Failed to parse")
"""Beginnings of those that do not tell whether the server would refuse the request again: 400 and 503 read
the same, and a reply to another JSON-RPC ID is no reply."""

_CLOSED: Final = (-32000, "Connection closed")
_REDIRECT: Final = re.compile(r"Redirect to (\S+) not followed")
_UNREAD: Final = re.compile(
    r"Invalid JSON: ((lone leading surrogate|unexpected end of hex|number out of|recursion limit)[^\[]*)"
)
"""Pydantic's words about JSON that only its parser refuses: half a surrogate pair, more than 4,300 digits,
more than 200 levels."""

_TOO_LARGE: Final = re.compile(r"SSE stream failed: Server-sent event exceeded the (\d+) byte limit")


# ── the host's client ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server."""

    endpoint: str
    """The server's name in the journal."""

    ephemeral: bool
    """Whether the server, and with it its tasks, ends with the connection."""


def is_client(candidate: object) -> bool:
    """Whether ``candidate`` is a client or a session of the official SDK or of FastMCP.

    Reads the names of its classes and of their modules. If a class is renamed, ``TasksClient`` refuses the
    client by an error that names the types it takes.
    """
    return any(
        kind.__name__ in _CLASSES and kind.__module__.partition(".")[0] in _PACKAGES
        for kind in type(candidate).__mro__
    )


def address_of(client: object) -> Address | None:
    """The address of a client's server; ``None`` if the server is in this process, or cannot be seen.

    Reads ``mcp.Client.server``, as the client was given it, and ``fastmcp.Client.transport``, as the client
    has made it: of either, ``url``, or ``command``, ``args`` and ``cwd``. Without them the host is asked for
    an ``endpoint``.

    Raises:
        ValueError: The URL is not an absolute ``http`` or ``https`` URL.
    """
    # Imported on use, because it imports httpx, which can take as long as all of this package.
    from ...sessions.http.endpoint_names import name_of_command, name_of_url, parse_url

    for server in (getattr(client, "server", None), getattr(client, "transport", None)):
        url = server if isinstance(server, str) else getattr(server, "url", None)
        if isinstance(url, str):
            return Address(name_of_url(parse_url(url)), ephemeral=False)
        command = getattr(server, "command", None)
        if isinstance(command, str):
            arguments = list(getattr(server, "args", None) or ())
            name = name_of_command(command, arguments, getattr(server, "cwd", None))
            return Address(name, ephemeral=True)
    return None


def extensions_of(client: object) -> list[object]:
    """The extensions that a client was made with.

    Reads ``mcp.Client.extensions``, which is public, and ``fastmcp.Client._extensions_arg``. Of a session,
    it reads ``ClientSession._result_claims``, whose resolvers may have an ``extension``. Without them
    ``TasksClient(client)`` has its own options and defaults.
    """
    claims = getattr(client, "_result_claims", None)
    if isinstance(claims, dict):
        return [getattr(claim.resolve, "extension", None) for several in claims.values() for claim in several]
    given = getattr(client, "extensions", None) or getattr(client, "_extensions_arg", None)
    return list(given or ())


def client_being_made(extension: object) -> object | None:
    """The client whose constructor asks the extension for its claims; ``None`` if anybody else asks.

    Reads the variable ``self`` in the frames of our callers, beyond the extension itself and as long as they
    belong to the two packages: an extension is not told which client it is made for. Without it the host
    is asked for an ``endpoint``.
    """
    for frame in _callers():
        owner: object = frame.f_locals.get("self")
        if frame.f_globals.get("__name__") == __name__ or owner is extension:
            continue
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _PACKAGES:
            return None
        if is_client(owner):
            return owner
    return None


def fastmcp_created_task() -> type[Result] | None:
    """FastMCP's own model of a created task; ``None`` as long as ``fastmcp_tasks`` is not loaded.

    Reads ``fastmcp_tasks.client_models.ClientCreateTaskResult``: ``call_tool_task`` takes nothing else for a
    task. It is not imported here, because importing it has every FastMCP client in the process declare tasks.
    Without it ``call_tool_task`` raises a ``ToolError`` that does not say which task it leaves at the server.
    """
    return getattr(sys.modules.get("fastmcp_tasks.client_models"), "ClientCreateTaskResult", None)


# ── the session ───────────────────────────────────────────────────────────────────────────────────


class DeclaringMeta(dict[str, Any]):
    """``_meta`` of one request of ours, which declares more than the session does.

    Relies on how ``ClientSession.send_request`` stamps a request: it assigns the session's capabilities to
    an item of the ``_meta`` that :meth:`Request.model_dump` gave. The public ``ClientSession.adopt()`` would
    not do: it declares the constructor's extensions for every request of the session, so that the host's own
    calls would be answered with tasks as well. Without the assignment nothing more is declared, so that the
    server answers each call itself, or asks for the capability.
    """

    def __init__(self, meta: Mapping[str, Any], capabilities: JSONObject) -> None:
        super().__init__(meta)
        self._ours = capabilities

    def __setitem__(self, name: str, value: Any) -> None:
        if name == CLIENT_CAPABILITIES_META_KEY:
            value = declare_tasks({**value, **self._ours})
        super().__setitem__(name, value)


def is_closed(session: ClientSession, code: int, message: str) -> bool:
    """Whether a request failed because the session's connection is closed.

    Reads the words of the SDK's error, and ``ClientSession._dispatcher._closed``, because a proxy may say
    the same words about a connection of its own. Without the attribute the words alone count: the
    observation ends, and ``resume()`` takes it up. Without the words a task is polled in vain, for as
    long as somebody waits for it.
    """
    dispatcher = getattr(session, "_dispatcher", None)
    return (code, message) == _CLOSED and bool(getattr(dispatcher, "_closed", True))


def was_made_up(code: int, message: str) -> bool:
    """Whether a JSON-RPC error without ``data`` is the SDK's own, so that it says nothing about the server.

    Reads the words of the SDK's errors, because their codes may be a server's as well. Without them a
    reply that an HTTP server or a gateway garbled counts as the MCP server's own refusal.
    """
    return any(code == theirs and message.startswith(words) for theirs, words in _MADE_UP)


def error_of(errors: RequestErrors, reply: RpcError) -> SessionError:
    """The error that an error reply means, which the SDK may have made up.

    Reads the words with which the SDK refuses an event that is too large, a redirect, or JSON that it cannot
    read, and those that hide the server's reason. Without the former a final reply counts as one whose reason
    is hidden; without the latter, the same poll is repeated in vain for as long as somebody waits.
    """
    message = reply.message
    if reply.data is not None or reply.code is None or not was_made_up(reply.code, message):
        return errors.for_rpc_error(reply)
    too_large, redirect = _TOO_LARGE.match(message), _REDIRECT.match(message)
    unread = unread_in(message)
    if too_large is not None:
        return errors.too_large(int(too_large[1]), None, setting="max_sse_event_size of the SDK's transport")
    if redirect is not None:
        to = errors.quote(redirect[1])
        return errors.redirected(
            f"to {to}, and not followed. If that is the right server, use its URL.", None
        )
    if unread is not None:
        return errors.unread(unread)
    return errors.hidden(message) if message.startswith(_HIDING) else errors.lost(message)


def unread_in(message: str) -> str | None:
    """The words of the SDK's parser about JSON that it alone refuses; ``None`` if it has other words.

    Reads the words of pydantic's ``json_invalid``. Without them such a reply counts as one whose reason is
    hidden.
    """
    found = _UNREAD.search(message)
    return None if found is None else found[1].rstrip()


# ── the SDK's code that reads a reply ─────────────────────────────────────────────────────────────


def result_of_invalid_reply(error: BaseException) -> JSONObject | None:
    """The result in which the SDK found a fault, as it came; ``None`` if it cannot be found.

    Reads the variable ``raw`` of ``ClientSession.send_request`` in the traceback: the SDK checks a reply
    against the core protocol first, and its error has the faults, but not the whole reply. Without it a
    task in such a reply is lost.
    """
    code = send_request_code()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        raw = frame.f_locals.get("raw") if frame.f_code is code else None
        if isinstance(raw, dict):
            return raw
    return None


def progress_callback_of_reply() -> ProgressFnT | None:
    """The progress callback of the call whose reply the SDK is reading at this moment, further up the stack.

    Reads the argument ``progress_callback`` of ``ClientSession.send_request`` in the frames of our callers,
    because the SDK hands a claimed result to an extension without it. Without it a host that has given a
    progress callback gets the result, and no messages on the way.
    """
    code = send_request_code()
    found: dict[str, Any] = next((frame.f_locals for frame in _callers() if frame.f_code is code), {})
    return found.get("progress_callback")


@cache
def send_request_code() -> CodeType | None:
    """The code of ``ClientSession.send_request``, also if a decorator was wrapped around the method.

    Called as our modules are imported, so that a later replacement of the method does not hide its code.
    """
    from mcp import ClientSession

    return getattr(inspect.unwrap(ClientSession.send_request), "__code__", None)


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
