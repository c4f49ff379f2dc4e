"""A server's description of itself before the first call: the versions it speaks, and its tools.

Asked for once, when first needed, and kept only if that succeeded. These requests change nothing at
the server, so they are repeated here, a few times, where a session repeats nothing else. Callers that
need the same answer at the same time share one request and its outcome, a failure too: a thousand
calls to a server that cannot be asked fail after one discovery, not after a thousand.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import anyio.lowlevel
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    Tool,
)
from pydantic import BaseModel, ValidationError

from ..errors import RemoteProtocolError, SessionError
from ..protocol import EXTENSION_ID, PROTOCOL_VERSION, JSONObject, MalformedError
from ..protocol.text import quote
from ..questions.context import CallContext
from .oddities import note_oddity
from .param_headers import HeaderMap, header_map
from .repetition import repeat
from .shared import Shared

__all__ = ["ListedTool", "OtherVersionError", "ToolCatalogue", "read_tool"]

T = TypeVar("T")

_log = logging.getLogger("mcp_tasks_client")

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
"""A longer one that a server asks for is left to the caller, which knows its time limit."""

_SLICE: Final = 200
_BYTES_OF_SLICE: Final = 2**20
"""Tools that are read before the event loop gets its turn, and bytes of them."""

_UNFINISHED: Final = (
    "the list of tools has no end, is too large, ends with an empty nextCursor, or breaks off"
)
"""The tools that have come are used then. The others can be called, as tools that are not listed."""

_MOST_PAGES: Final = 1000
_MOST_TOOLS: Final = 100_000
_MOST_BYTES: Final = 2**26
"""Bytes of all tools and cursors of a list together, about: as many as one reply may have."""

_LARGEST_TOOL: Final = 2**20
"""Bytes of one tool, about. A schema of more cannot be read without holding the event loop."""

_OF_EACH_VALUE: Final = 32
"""Bytes that each JSON value counts as, besides its characters. Reading one takes about a microsecond."""

_MOST_ABSENT: Final = 1000
"""Names that are remembered as not listed, at most."""

# How servers of other versions answer a method, a header and a request without a session that
# they do not know.
_OTHER_VERSION_CODES: Final = frozenset(
    {UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS}
)
_OTHER_VERSION_STATUSES: Final = frozenset({400, 404, 405, 406, 415})


@dataclass(frozen=True, slots=True)
class ListedTool:
    """One tool of the list."""

    tool: Tool
    headers: HeaderMap
    """The arguments that also travel as headers."""

    fault: str | None = None
    """The reason not to offer or call it: marks for headers that the protocol does not allow."""


class OtherVersionError(RemoteProtocolError):
    """The server does not speak 2026-07-28. Nothing but the question was sent."""


class ToolCatalogue:
    """The tools of one server, looked up by name.

    Args:
        request: Sends a request of the given method, params and context once, and returns its result.
        endpoint: The server's name, for the log.
        sleep: Waits between attempts, in seconds.

    Attributes:
        capabilities: Those that the server has declared; empty before it was asked.
    """

    def __init__(
        self,
        request: Callable[[str, JSONObject, CallContext | None], Awaitable[JSONObject]],
        endpoint: str,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._request = request
        self._endpoint = endpoint
        self._sleep = sleep
        self.capabilities: JSONObject = {}
        self._version_known = False
        self._tools: dict[str, ListedTool] | None = None
        self._absent: set[str] = set()
        self._discovery = Shared(self._discover)
        self._fetching = Shared(self._fetch)

    @property
    def has_extension(self) -> bool:
        """Whether the server has declared the Tasks extension."""
        extensions = self.capabilities.get("extensions")
        return isinstance(extensions, dict) and EXTENSION_ID in extensions

    async def discover(self, context: CallContext | None) -> None:
        """Ask the server whether it speaks our version, unless it has said so.

        Raises:
            OtherVersionError: It does not.
            SessionError: It could not be asked.
        """
        if not self._version_known:
            await self._discovery.run(context)

    async def find(self, name: str, context: CallContext | None, *, fresh: bool = False) -> ListedTool | None:
        """The tool of that name, ``None`` if there is none.

        A name that the list does not have is looked for once more, in a new list, and then remembered as
        absent, so that not each call of an unlisted tool fetches the whole list.

        ``fresh`` fetches the list again, or waits for the one that is being fetched.

        Raises:
            RemoteProtocolError: The server does not speak our version, or its list is not one.
            SessionError: The server could not be asked.
        """
        if fresh or self._tools is None or not (name in self._tools or name in self._absent):
            await self._fetching.run(context)
        listed = (self._tools or {}).get(name)
        if listed is None:
            if len(self._absent) >= _MOST_ABSENT:
                self._absent.clear()
            self._absent.add(name)
        return listed

    async def find_for_call(self, name: str, context: CallContext | None) -> ListedTool | None:
        """The tool of that name, about to be called. A name that is not listed may still be callable.

        Raises:
            SessionError: The tool must not be called, or the server could not be asked; ``not_executed``.
        """
        listed = await self.find(name, context)
        if listed is not None and listed.fault is not None:
            self.forget_tools()  # the next call looks whether the server has been mended
            raise RemoteProtocolError(
                f"The tool {name!r} is listed with a schema that the protocol has clients reject "
                f"({quote(listed.fault)}). It can be called when the server's list is mended.",
                not_executed=True,
            )
        return listed

    def forget_tools(self) -> None:
        """Take the list for out of date: the next question about a tool fetches it again."""
        self._tools = None

    # ── the version ───────────────────────────────────────────────────────────────────────────

    async def _discover(self, context: CallContext | None) -> None:
        check = partial(self._check_version, context)
        try:
            await self._repeat(check)
        except OtherVersionError as error:
            if error.code is not None or error.http_status is None:
                raise
            # A mere HTTP status may be that of a gateway whose server is away for a moment.
            await self._sleep(_FIRST_PAUSE_S)
            await self._repeat(check)
        self._version_known = True

    async def _check_version(self, context: CallContext | None) -> None:
        try:
            result = await self._request("server/discover", {}, context)
        except SessionError as error:
            offered = error.data.get("supported") if isinstance(error.data, dict) else None
            if error.code == UNSUPPORTED_PROTOCOL_VERSION and _has_ours(offered):
                # The server refuses a version that it offers. The protocol has the client ask again in a
                # version of the list, and the only one that is ours is the one it was asked in.
                error.retryable = True
                raise
            if error.code in _OTHER_VERSION_CODES or error.http_status in _OTHER_VERSION_STATUSES:
                raise _other_version(offered, error.code, error.http_status) from error
            raise
        offered = result.get("supportedVersions")
        if not _has_ours(offered):
            raise _other_version(offered)
        capabilities = result.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}

    # ── the list ──────────────────────────────────────────────────────────────────────────────

    async def _fetch(self, context: CallContext | None) -> None:
        await self.discover(context)
        tools: dict[str, ListedTool] = {}
        faults: list[str] = []
        cursors: list[str | None] = [None]
        size = of_slice = 0
        while True:
            try:
                page = await self._repeat(partial(self._fetch_page, cursors[-1], context))
            except SessionError as error:
                if error.retryable or len(cursors) == 1:
                    raise
                note_oddity(self._endpoint, _UNFINISHED)
                break
            for number, entry in enumerate(page["tools"], 1):
                of_one = _measure(entry)
                size, of_slice = size + of_one, of_slice + of_one
                if size > _MOST_BYTES:
                    break
                if of_one > _LARGEST_TOOL:
                    faults.append(f"number {number} of its page, which is larger than {_LARGEST_TOOL} bytes")
                else:
                    read_tool(entry, tools, faults)
                if number % _SLICE == 0 or of_slice > _BYTES_OF_SLICE:
                    of_slice = 0
                    await anyio.lowlevel.checkpoint()
            cursor = page.get("nextCursor")
            size += len(cursor) if isinstance(cursor, str) else 0
            if cursor is None and size <= _MOST_BYTES:
                break
            is_lost = not isinstance(cursor, str) or cursor in ("", *cursors)
            is_too_much = size > _MOST_BYTES or len(tools) + len(faults) > _MOST_TOOLS
            if is_lost or is_too_much or len(cursors) == _MOST_PAGES:
                note_oddity(self._endpoint, _UNFINISHED)
                break
            cursors.append(cursor)
        self._tools = tools
        if faults:  # one line, however many there are
            _log.warning(
                "%s lists %d tools that are left out, the first one %s",
                self._endpoint,
                len(faults),
                faults[0],
            )

    async def _fetch_page(self, cursor: str | None, context: CallContext | None) -> JSONObject:
        try:
            page = await self._request("tools/list", {} if cursor is None else {"cursor": cursor}, context)
        except SessionError as error:
            if error.code == METHOD_NOT_FOUND:
                return {"tools": []}
            raise
        if not isinstance(page.get("tools"), list):
            raise RemoteProtocolError(
                "The server's list of tools has no tools; try again later.", retryable=True
            )
        return page

    async def _repeat(self, send: Callable[[], Awaitable[T]]) -> T:
        return await repeat(
            send,
            self._sleep,
            first_s=_FIRST_PAUSE_S,
            longest_s=_LONGEST_PAUSE_S,
            jitter=random.random,
            may_go_again=lambda error: (error.retry_after_s or 0.0) <= _LONGEST_PAUSE_S,
        )


def read_tool(entry: object, tools: dict[str, ListedTool], faults: list[str]) -> None:
    """Add one entry to the tools. One that is broken costs itself, never the list."""
    try:
        tool = Tool.model_validate(entry, by_name=False)
    except ValidationError as error:
        fields = ", ".join(
            ".".join(map(str, e["loc"])) or "entry"
            for e in error.errors(include_input=False, include_url=False)
        )
        name = entry.get("name") if isinstance(entry, dict) else None
        named = quote(name)[:80] if isinstance(name, str) else None
        faults.append(f"{named!r} (unusable {quote(fields)})")
        return
    try:
        tools[tool.name] = ListedTool(tool, header_map(tool.input_schema))
    except MalformedError as error:
        faults.append(f"{quote(tool.name)[:80]!r} ({quote(str(error))})")
        tools[tool.name] = ListedTool(tool, {}, fault=str(error))


def _measure(entry: object) -> int:
    """Bytes of an entry of the list, about; of one that is too large, as many as were counted."""
    pending, size = [entry], 0
    while pending and size <= _LARGEST_TOOL:
        value = pending.pop()
        size += _OF_EACH_VALUE
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict):
            size += sum(map(len, value))
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, BaseModel):  # as the SDK's session lists them
            pending += [field for _, field in value]
    return size


def _has_ours(versions: object) -> bool:
    return isinstance(versions, list) and PROTOCOL_VERSION in versions


def _other_version(offered: object, code: int | None = None, status: int | None = None) -> OtherVersionError:
    versions = [quote(v[:20]) for v in offered if isinstance(v, str)][:8] if isinstance(offered, list) else []
    instead = f"it offers {', '.join(versions)}" if versions else "it does not say what else it speaks"
    return OtherVersionError(
        f"The server does not speak MCP {PROTOCOL_VERSION} ({instead}). Check that the URL is its MCP "
        "endpoint, update the server, or use a session of a version that it speaks.",
        not_executed=True,
        code=code,
        http_status=status,
    )
