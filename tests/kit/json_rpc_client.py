"""A host that has no SDK: JSON-RPC over an HTTP client of httpx or httpx2, at either version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, CreateMessageRequestParams, ElicitRequestFormParams

from .json_rpc_host import CURRENT, JsonRpcHost, OlderJsonRpcHost
from .person import Person

__all__ = ["JsonRpcClient"]

CAPABILITIES: Final = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}


async def _pass_over(progress: float, total: float | None, message: str | None) -> None:
    pass


class JsonRpcClient:
    """Calls tools, and has a person answer what is asked on the way.

    At 2026-07-28 a result asks for input, and the call goes again with the answers. A reply is read to its
    end, and its progress told after that. At 2025-11-25 the stream of the reply asks.

    Args:
        http_client: Of httpx or httpx2.
        url: Of the server.
        person: Who answers.
        version: Of the protocol.
    """

    def __init__(self, http_client: Any, url: str, person: Person, version: str = CURRENT) -> None:
        self._sender = JsonRpcHost(http_client, url=url, capabilities=CAPABILITIES, version=version)
        self._person = person
        self._session: _OlderSession | None = None

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        progress_callback: Any = _pass_over,
    ) -> CallToolResult:
        """Call a tool, with as many requests as it takes. One call at a time: progress names no call.

        Raises:
            MCPError: The reply is an error.
        """
        given = {**(meta or {}), "progressToken": name}
        if self._sender.version != CURRENT:
            if self._session is None:
                self._session = _OlderSession(self._sender, self)
                await self._session.initialize()
            return _result_of(await self._session.call(name, dict(arguments), given))
        more: dict[str, Any] = {}
        while True:
            reply = await self._sender.call(name, dict(arguments), meta=given, **more)
            for notification in self._sender.notified:
                await progress_callback(0.0, None, notification["params"]["message"])
            self._sender.notified.clear()
            if "error" in reply or reply["result"]["resultType"] == "complete":
                return _result_of(reply)
            asked = reply["result"]["inputRequests"]
            answers = {key: await self.answer(**request) for key, request in asked.items()}
            more = {"inputResponses": answers, "requestState": reply["result"]["requestState"]}

    async def answer(self, method: str, params: Any = None) -> Any:
        """What the person answers to a question of the server."""
        match method:
            case "elicitation/create":
                made = await self._person.elicit(None, ElicitRequestFormParams.model_validate(params))
            case "sampling/createMessage":
                made = await self._person.sample(None, CreateMessageRequestParams.model_validate(params))
            case _:
                made = await self._person.roots(None)
        return made.model_dump(by_alias=True, mode="json", exclude_none=True)


class _OlderSession(OlderJsonRpcHost):
    """A session at 2025-11-25 whose questions a client has answered."""

    def __init__(self, host: JsonRpcHost, client: JsonRpcClient) -> None:
        super().__init__(host, {})
        self._client = client

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"result": await self._client.answer(request["method"], request.get("params"))}


def _result_of(reply: Mapping[str, Any]) -> CallToolResult:
    if "error" in reply:
        raise MCPError(**reply["error"])
    return CallToolResult.model_validate(reply["result"])
