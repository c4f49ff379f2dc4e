"""What a server says of itself before the first call: the versions it speaks and its tools.

Asked for once, when first needed, and kept only if it succeeded. The requests change nothing at
the server, so these are repeated here, a few times, where a session repeats nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio
from mcp_types import Tool
from pydantic import ValidationError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
from tenacity.wait import wait_exponential, wait_random

from ..errors import RemoteProtocolError, SessionError
from ..wire import PROTOCOL_VERSION, JSONObject, MalformedError
from .faults import UNSUPPORTED_VERSION
from .headers import HeaderMap, header_map

__all__ = ["Catalogue", "ListedTool", "OtherVersionError"]

_log = logging.getLogger("mcp_tasks_client")

_ATTEMPTS: Final = 3
_LONGEST_PAUSE_S: Final = 10.0
"""A server that asks for more patience gets it from whoever called, who knows how much there is."""

_MOST_PAGES: Final = 1000

_METHOD_NOT_FOUND: Final = -32601
_INVALID_REQUEST: Final = -32600
_INVALID_PARAMS: Final = -32602

# How servers of other versions answer a method, a header and a request without a session that
# they do not know.
_OTHER_VERSION_CODES: Final = frozenset(
    {UNSUPPORTED_VERSION, _METHOD_NOT_FOUND, _INVALID_REQUEST, _INVALID_PARAMS}
)
_OTHER_VERSION_STATUSES: Final = frozenset({400, 404, 405, 406, 415})

_backoff: Final = wait_exponential(multiplier=0.2, max=2.0) + wait_random(0.0, 0.2)


@dataclass(frozen=True, slots=True)
class ListedTool:
    """One tool of the list."""

    tool: Tool
    headers: HeaderMap
    """Which of its arguments also travel as headers."""

    fault: str | None = None
    """Why it must be neither offered nor called: marks for headers that the protocol does not allow."""


class OtherVersionError(RemoteProtocolError):
    """The server does not speak 2026-07-28. Nothing but the question was sent."""


class Catalogue:
    """The tools of one server, looked up by name.

    Args:
        request: Sends a request of the given method and params once, and returns its result.
        endpoint: The server's name, for the log.

    Attributes:
        version_known: Whether the server has said that it speaks our version.
    """

    def __init__(self, request: Callable[[str, JSONObject], Awaitable[JSONObject]], endpoint: str) -> None:
        self._request = request
        self._endpoint = endpoint
        self._lock = anyio.Lock()
        self.version_known = False
        self._tools: dict[str, ListedTool] | None = None

    async def find(self, name: str) -> ListedTool | None:
        """The tool of that name, ``None`` if there is none.

        A name that an earlier list does not have is looked for once more, in a new one.

        Raises:
            RemoteProtocolError: The server does not speak our version, or its list is not one.
            SessionError: The server could not be asked.
        """
        known = self._tools
        if known is None or name not in known:
            async with self._lock:
                # Whoever held the lock before us may have brought a list that is newer than our question.
                if self._tools is known:
                    self._tools = await self._fetch()
                known = self._tools
        return (known or {}).get(name)

    async def to_call(self, name: str) -> ListedTool | None:
        """The tool of that name, on the point of being called.

        A name that is not listed may still be one that the server knows.

        Raises:
            SessionError: It must not be called, or the server could not be asked; ``not_executed``.
        """
        try:
            listed = await self.find(name)
        except SessionError as error:
            error.not_executed = True
            raise
        if listed is not None and listed.fault is not None:
            # The next call looks whether the server has been mended.
            self.forget_tools()
            raise RemoteProtocolError(
                f"The tool {name!r} is listed with a schema that the protocol has clients reject "
                f"({listed.fault:.200}). It can be called when the server's list is mended.",
                not_executed=True,
            )
        return listed

    async def description(self, name: str) -> Tool | None:
        """The tool as the server lists it; ``None`` if there is none that may be called.

        Raises:
            SessionError: The server could not be asked.
        """
        await self.find(name)
        return self.listed(name)

    def listed(self, name: str) -> Tool | None:
        """The same by the list that is there, if there is one."""
        listed = (self._tools or {}).get(name)
        return listed.tool if listed is not None and listed.fault is None else None

    def forget_tools(self) -> None:
        """Take the list for out of date."""
        self._tools = None

    async def _fetch(self) -> dict[str, ListedTool]:
        await self._discover()
        tools: dict[str, ListedTool] = {}
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(_MOST_PAGES):
            page: JSONObject = await _retrying()(self._page, cursor)
            tools |= self._read_tools(page["tools"])
            cursor = page.get("nextCursor")
            if cursor is None:
                return tools
            if cursor in seen:
                break
            seen.add(cursor)
        raise RemoteProtocolError(
            f"The server's list of tools does not end: after {len(seen)} pages it goes on or starts again. "
            "No tool can be called until its tools/list is mended.",
            not_executed=True,
        )

    async def discover(self) -> None:
        """Ask the server whether it speaks our version, unless it has said so.

        Raises:
            OtherVersionError: It does not.
            SessionError: It could not be asked.
        """
        async with self._lock:
            await self._discover()

    async def _discover(self) -> None:
        if not self.version_known:
            await _retrying()(self._check_version)
            self.version_known = True

    async def _check_version(self) -> None:
        try:
            result = await self._request("server/discover", {})
        except SessionError as error:
            offered = error.data.get("supported") if isinstance(error.data, dict) else None
            if error.code == UNSUPPORTED_VERSION and _has_ours(offered):
                # It refuses what it offers. The protocol has the client ask again in a version of
                # the list, and the only one that is ours is the one it was asked in.
                error.retryable = True
                raise
            if error.code in _OTHER_VERSION_CODES or error.http_status in _OTHER_VERSION_STATUSES:
                raise _other_version(offered, error.code, error.http_status) from error
            raise
        offered = result.get("supportedVersions")
        if not _has_ours(offered):
            raise _other_version(offered)

    async def _page(self, cursor: str | None) -> JSONObject:
        try:
            page = await self._request("tools/list", {} if cursor is None else {"cursor": cursor})
        except SessionError as error:
            if error.code == _METHOD_NOT_FOUND:
                return {"tools": []}
            raise
        if not isinstance(page.get("tools"), list) or not isinstance(page.get("nextCursor"), str | None):
            raise RemoteProtocolError(
                "The server's list of tools has no tools or no usable nextCursor; try again later.",
                retryable=True,
            )
        return page

    def _read_tools(self, entries: list[Any]) -> dict[str, ListedTool]:
        """The usable entries. One that is broken costs itself, never the list."""
        tools: dict[str, ListedTool] = {}
        for entry in entries:
            try:
                tool = Tool.model_validate(entry, by_name=False)
            except ValidationError as error:
                fields = ", ".join(
                    ".".join(map(str, e["loc"])) or "entry"
                    for e in error.errors(include_input=False, include_url=False)
                )
                self._skipped(entry, f"unusable {fields}")
                continue
            try:
                tools[tool.name] = ListedTool(tool, header_map(tool.input_schema))
            except MalformedError as error:
                self._skipped(entry, str(error))
                tools[tool.name] = ListedTool(tool, {}, fault=str(error))
        return tools

    def _skipped(self, entry: object, why: str) -> None:
        name = entry.get("name") if isinstance(entry, dict) else None
        _log.warning("%s lists a tool that is left out: %.80r (%.200s)", self._endpoint, name, why)


def _has_ours(versions: object) -> bool:
    return isinstance(versions, list) and PROTOCOL_VERSION in versions


def _other_version(offered: object, code: int | None = None, status: int | None = None) -> OtherVersionError:
    versions = [v[:20] for v in offered if isinstance(v, str)][:8] if isinstance(offered, list) else []
    instead = f"it offers {', '.join(versions)}" if versions else "it does not say what else it speaks"
    return OtherVersionError(
        f"The server does not speak MCP {PROTOCOL_VERSION} ({instead}). Check that the URL is its MCP "
        "endpoint, update the server, or use a session of a version that it speaks.",
        not_executed=True,
        code=code,
        http_status=status,
    )


def _retrying() -> AsyncRetrying:
    # anyio's sleep, since the one that tenacity brings knows no third event loop.
    return AsyncRetrying(
        sleep=anyio.sleep,
        stop=stop_after_attempt(_ATTEMPTS),
        wait=_pause,
        retry=retry_if_exception(_may_pass_soon),
        reraise=True,
    )


def _may_pass_soon(error: BaseException) -> bool:
    return isinstance(error, SessionError) and error.retryable and _asked_wait(error) <= _LONGEST_PAUSE_S


def _pause(attempt: RetryCallState) -> float:
    error = attempt.outcome.exception() if attempt.outcome is not None else None
    return max(_backoff(attempt), _asked_wait(error))


def _asked_wait(error: BaseException | None) -> float:
    return (error.retry_after_s or 0.0) if isinstance(error, SessionError) else 0.0
