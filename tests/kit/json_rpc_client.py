"""A host that has no SDK: JSON-RPC at 2026-07-28 over an HTTP client of httpx or httpx2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, CreateMessageRequestParams, ElicitRequestFormParams

from .json_rpc_host import JsonRpcHost
from .person import Person

__all__ = ["JsonRpcClient"]

CAPABILITIES: Final = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}


class JsonRpcClient:
    """Calls tools, and calls again with the answers where a result asks for input.

    A reply is read to its end, and its progress told after that.

    Args:
        http_client: Of httpx or httpx2.
        url: Of the server.
        person: Who answers.
    """

    def __init__(self, http_client: Any, url: str, person: Person) -> None:
        self._sender = JsonRpcHost(http_client, url=url, capabilities=CAPABILITIES)
        self._person = person

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], *, progress_callback: Any
    ) -> CallToolResult:
        """Call a tool, with as many requests as it takes. One call at a time: progress names no call."""
        more: dict[str, Any] = {}
        while True:
            reply = await self._sender.call(name, dict(arguments), meta={"progressToken": name}, **more)
            for notification in self._sender.notified:
                await progress_callback(0.0, None, notification["params"]["message"])
            self._sender.notified.clear()
            if "error" in reply:
                raise MCPError(**reply["error"])
            result = reply["result"]
            if result["resultType"] == "complete":
                return CallToolResult.model_validate(result)
            asked = result["inputRequests"]
            answers = {key: await self._answer(**request) for key, request in asked.items()}
            more = {"inputResponses": answers, "requestState": result["requestState"]}

    async def _answer(self, method: str, params: Any = None) -> Any:
        match method:
            case "elicitation/create":
                made = await self._person.elicit(None, ElicitRequestFormParams.model_validate(params))
            case "sampling/createMessage":
                made = await self._person.sample(None, CreateMessageRequestParams.model_validate(params))
            case _:
                made = await self._person.roots(None)
        return made.model_dump(by_alias=True, mode="json", exclude_none=True)
