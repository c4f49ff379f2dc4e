"""A host that knows nothing but JSON-RPC over the streams of a transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import CONNECTION_CLOSED

from mcp_tasks_client.hosts.call_options import META_KEY, META_LABEL, read_options
from mcp_tasks_client.protocol import JSONObject
from tests.kit.json_rpc_host import JsonRpcHost

__all__ = ["StreamHost", "over_streams"]

_CLOSED: Final = (CONNECTION_CLOSED, "Connection closed")
"""The SDK's own words. A server may send the code as well."""


class StreamHost(JsonRpcHost):
    """Sends ``tools/call`` as the SDK's own sessions do, and takes it back as they do if it is cancelled."""

    def __init__(self, session: JSONRPCDispatcher[Any]) -> None:
        super().__init__(None)
        self._session = session

    async def call(self, name: str, arguments: JSONObject | None = None, **params: Any) -> JSONObject:
        """The result or the error.

        Raises:
            ConnectionError: The connection was closed.
        """
        options = read_options(meta=params.pop("meta", {}))
        ours = {META_KEY: options.key, META_LABEL: options.label}
        meta = {**options.meta, **{name: value for name, value in ours.items() if value is not None}}
        body = self.body(name, arguments, meta, **params)
        headers = {"mcp-protocol-version": self.version, "mcp-method": "tools/call", "mcp-name": name}
        try:
            return {
                "result": await self._session.send_raw_request(
                    "tools/call", body["params"], {"headers": headers}
                )
            }
        except MCPError as error:
            if (error.code, error.message) == _CLOSED:
                raise ConnectionError from error
            return {"error": {"code": error.code, "message": error.message, "data": error.data}}


@asynccontextmanager
async def over_streams(transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[StreamHost]:
    """A host over a transport of the SDK."""

    async def refuse(context: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        raise AssertionError(f"nobody sends {method}")

    async def ignore(context: Any, method: str, params: Mapping[str, Any] | None) -> None:
        pass

    async with transport as (read, write, *_), anyio.create_task_group() as tasks:
        session = JSONRPCDispatcher[Any](read, write)
        await tasks.start(session.run, refuse, ignore)
        yield StreamHost(session)
        tasks.cancel_scope.cancel()
