"""The side of the bridge that a host sees: a server like any other, of any version, which knows no tasks.

Each message goes through one middleware of the SDK's server. Calls of tools become calls of ours. Everything
else passes to the server behind, and its result passes back as it came.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from mcp.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, LOG_LEVEL_META_KEY, METHOD_NOT_FOUND, SERVER_INFO_META_KEY

import mcp_tasks_client as tasks

from . import words
from .halves import without_halves
from .host_request import Host, HostRequest, Reply
from .introduction import Introduction
from .introspection import Context, Next, replace_middleware
from .options import Options
from .service import Connect, Service
from .serving import as_rpc_error, text_result

__all__ = ["Front", "open_front"]

_OF_THE_PROTOCOL: Final = "io.modelcontextprotocol/"
_KEY: Final = "mcp-tasks-client/idempotency-key"

_LISTS: Final = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
"""The member of the result that holds the list, by the method."""

_CACHEABLE: Final = frozenset({*_LISTS, "resources/read", "server/discover"})
"""Results that a host of 2026-07-28 may keep for a time which they name."""

_LATEST_HANDSHAKE: Final = "2025-11-25"
"""The latest version that begins by ``initialize``."""

_BY_THE_SDK: Final = frozenset({"ping", "subscriptions/listen"})

_MOST_HOSTS: Final = 100
"""Hosts of different names that one process serves, at most: each has a client of its own."""

_BUSY: Final = -32000


@asynccontextmanager
async def open_front(
    connect: Connect, endpoint: str, options: Options, reply_to: Callable[[Context], Reply]
) -> AsyncIterator[Front]:
    """Serve hosts as long as the block runs. Their unfinished calls are left to the journal.

    Args:
        connect: Makes the client for one host.
        endpoint: Names the file of the server's introduction.
        options: Of the bridge.
        reply_to: The reply to a request that is being served.
    """
    async with anyio.create_task_group() as group:
        front = Front(connect, Introduction(options.memory, endpoint), group, options, reply_to)
        try:
            yield front
        finally:
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await front.aclose()


class Front:
    """Serves connections of hosts.

    Args:
        connect: Makes the client for one host.
        introduction: Of the server.
        group: Runs the work that outlives a request.
        options: Of the bridge.
        reply_to: The reply to a request that is being served.

    Attributes:
        server: The SDK's server.
    """

    def __init__(
        self,
        connect: Connect,
        introduction: Introduction,
        group: TaskGroup,
        options: Options,
        reply_to: Callable[[Context], Reply],
    ) -> None:
        self._connect = connect
        self._introduction = introduction
        self._group = group
        self._options = options
        self._reply_to = reply_to
        self._services: dict[str, Service] = {}
        self.server: Server[Any] = Server("mcp-tasks bridge", on_subscriptions_listen=self._subscribe)
        replace_middleware(self.server, self._take)

    async def aclose(self) -> None:
        """Let go of all calls."""
        for service in self._services.values():
            await service.aclose()

    # ── messages of hosts ─────────────────────────────────────────────────────────────────────

    async def _take(self, context: Context, go_on: Next) -> Any:
        method, host = context.method, _host_of(context)
        if context.request_id is None:
            if method == "notifications/initialized":
                self._service_of(host).listen(context)
            return await go_on(context)
        if method in _BY_THE_SDK:
            return await go_on(context)
        try:
            result = await self._answer(method, host, context, go_on)
        except Exception as error:
            told = (error if isinstance(error, MCPError) else as_rpc_error(error)).error
            raise MCPError(**without_halves(told.model_dump(exclude_unset=True))) from error
        whole: dict[str, Any] = without_halves(self._finish(method, host, result))
        return whole

    async def _answer(self, method: str, host: Host, context: Context, go_on: Next) -> dict[str, Any]:
        service, params = self._service_of(host), _passed(context.params)
        match method:
            case "initialize" | "server/discover":
                standard = await go_on(context)
                await self._introduce(service)
                return self._introduced(standard)
            case "tools/call":
                return await self._call(service, host, context)
            case "tools/list":
                return await self._list_tools(service, host, params)
            case "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe":
                return await self._ask(service, method, params, otherwise={})
            case _ if method.startswith("tasks/"):
                raise MCPError(code=METHOD_NOT_FOUND, message="Method not found", data=method)
            case _ if method in _LISTS:
                return await self._ask(service, method, params, otherwise={_LISTS[method]: []})
            case _:
                return await service.ask(method, params)

    async def _ask(
        self, service: Service, method: str, params: dict[str, Any], otherwise: dict[str, Any]
    ) -> dict[str, Any]:
        """The server's result, or another one if the server does not know the method."""
        try:
            return await service.ask(method, params)
        except tasks.SessionError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            return otherwise

    # ── introductions ─────────────────────────────────────────────────────────────────────────

    async def _introduce(self, service: Service) -> None:
        ask = partial(service.ask, "server/discover", {})
        await self._introduction.learn(ask)
        self._group.start_soon(self._refresh, ask)

    async def _refresh(self, ask: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        if await self._introduction.refresh(ask):
            for one in self._services.values():
                for kind in ("tools", "prompts", "resources"):
                    one.tell(f"notifications/{kind}/list_changed", {})

    def _introduced(self, standard: Mapping[str, Any]) -> dict[str, Any]:
        said = self._introduction
        result = {**standard, "capabilities": said.capabilities}
        result.pop("instructions", None)
        if said.instructions is not None:
            result["instructions"] = said.instructions
        if "serverInfo" in result:
            result["serverInfo"] = said.server_info
        result.pop("_meta", None)
        return result

    # ── tools ─────────────────────────────────────────────────────────────────────────────────

    async def _list_tools(self, service: Service, host: Host, params: dict[str, Any]) -> dict[str, Any]:
        answers_early = self._options.answer_within(host.name) > 0
        page = await self._ask(service, "tools/list", params, otherwise={"tools": []})
        listed = page.get("tools")
        shown = [_plain(one, answers_early) for one in listed] if isinstance(listed, list) else []
        if answers_early and page.get("nextCursor") is None:
            opened = await service.opened()
            await opened.names.choose()
            shown += opened.tools.listed()
        return {**page, "tools": shown}

    async def _call(self, service: Service, host: Host, context: Context) -> dict[str, Any]:
        request = HostRequest(context, host, self._reply_to(context))
        tool, arguments = request.params.get("name"), request.params.get("arguments")
        arguments = {} if arguments is None else arguments
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            raise MCPError(
                code=INVALID_PARAMS, message="tools/call needs a name, and arguments are an object"
            )
        opened, answers_early = await service.opened(), self._options.answer_within(host.name) > 0
        if answers_early:
            await opened.names.choose()
        if request.continued is not None:
            call = await opened.calls.by_reference(request.continued)
            if call is None:
                list_tool = opened.names.list_tool if answers_early else None
                return text_result(words.no_such_call(request.continued, list_tool), is_error=True)
            call.take_answers(request.answers)
            return await opened.serving.wait(call, request)
        if answers_early and tool in opened.names:
            return await opened.tools.call(tool, arguments, request)
        key = request.meta.get(_KEY)
        if key is not None and not (isinstance(key, str) and key):
            raise MCPError(code=INVALID_PARAMS, message=f"{_KEY} in _meta is a text that is not empty")
        call, is_earlier = await opened.calls.find_or_begin(
            tool,
            arguments,
            meta=_passed(request.params).get("_meta", {}),
            key=key,
            call_id=_call_id(context, request.meta.get("callId")),
        )
        return await opened.serving.wait(call, request, is_earlier=is_earlier)

    # ── both ──────────────────────────────────────────────────────────────────────────────────

    def _service_of(self, host: Host) -> Service:
        name = self._options.application or host.name
        service = self._services.get(name)
        if service is None:
            if len(self._services) >= _MOST_HOSTS:
                raise MCPError(code=_BUSY, message=f"The bridge serves {_MOST_HOSTS} hosts, and no more.")
            service = Service(host, name, self._connect, self._group, self._options)
            self._services[name] = service
        return service

    async def _subscribe(self, context: Context, params: Any) -> Any:
        return await self._service_of(_host_of(context)).subscribe(context, params)

    def _finish(self, method: str, host: Host, result: dict[str, Any]) -> dict[str, Any]:
        """A result in the envelope of the host's version."""
        if not host.is_current:
            return {name: value for name, value in result.items() if name != "resultType"}
        cached = {"ttlMs": 0, "cacheScope": "private"} if method in _CACHEABLE else {}
        meta = result.get("_meta")
        return {
            "resultType": "complete",
            **cached,
            **result,
            "_meta": {
                SERVER_INFO_META_KEY: self._introduction.server_info,
                **(meta if isinstance(meta, dict) else {}),
            },
        }


def _host_of(context: Context) -> Host:
    """The host of a message, by its handshake or by the message itself."""
    introduced = context.session.client_params
    capabilities = context.session.client_capabilities
    if context.method == "initialize":
        params = context.params or {}
        info, declared = params.get("clientInfo"), params.get("capabilities")
        info = info if isinstance(info, dict) else {}
        return Host(
            name=str(info.get("name") or "unknown"),
            capabilities=declared if isinstance(declared, dict) else {},
            protocol_version=min(str(params.get("protocolVersion")), _LATEST_HANDSHAKE),
        )
    return Host(
        name=introduced.client_info.name if introduced is not None else "unknown",
        capabilities={}
        if capabilities is None
        else capabilities.model_dump(mode="json", by_alias=True, exclude_none=True),
        protocol_version=context.protocol_version,
    )


def _call_id(context: Context, given: Any) -> Any:
    """The ID of a call that the host gives, which tells calls of one session apart.

    Requests over HTTP without a session may be of one host or of many.
    """
    if given is None or context.request is None:
        return given
    session = context.request.headers.get("mcp-session-id")
    return None if session is None else (session, given)


def _passed(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The params for the server behind, without the words of the host about itself.

    Raises:
        MCPError: ``_meta`` is no object.
    """
    passed = dict(params or {})
    meta = passed.pop("_meta", None)
    if meta is not None and not isinstance(meta, Mapping):
        raise MCPError(code=INVALID_PARAMS, message="_meta is an object")
    if meta is not None:
        kept = {
            name: value
            for name, value in meta.items()
            if name == LOG_LEVEL_META_KEY
            or not (name.startswith(_OF_THE_PROTOCOL) or name == "progressToken")
        }
        if kept:
            passed["_meta"] = kept
    return passed


def _plain(tool: Any, answers_early: bool) -> Any:
    """A tool as an ordinary one. An answer in between fits no output schema, and hosts check that."""
    if not isinstance(tool, dict):
        return tool
    shown = {name: value for name, value in tool.items() if not (answers_early and name == "outputSchema")}
    if isinstance(shown.get("execution"), dict):
        execution = {name: value for name, value in shown["execution"].items() if name != "taskSupport"}
        shown["execution"] = execution
        if not execution:
            del shown["execution"]
    return shown
