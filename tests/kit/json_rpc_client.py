"""A host that has no SDK: JSON-RPC over an HTTP client of httpx or httpx2, at either version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, CreateMessageRequestParams, ElicitRequestFormParams

from .json_rpc_host import CURRENT, JsonRpcHost
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
        self._has_begun = False

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
            return _result_of(await self._call_with_stream(name, dict(arguments), given))
        more: dict[str, Any] = {}
        while True:
            reply = await self._sender.call(name, dict(arguments), meta=given, **more)
            for notification in self._sender.notified:
                await progress_callback(0.0, None, notification["params"]["message"])
            self._sender.notified.clear()
            if "error" in reply or reply["result"]["resultType"] == "complete":
                return _result_of(reply)
            asked = reply["result"]["inputRequests"]
            answers = {key: await self._answer(**request) for key, request in asked.items()}
            more = {"inputResponses": answers, "requestState": reply["result"]["requestState"]}

    async def _call_with_stream(
        self, name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> dict[str, Any]:
        sender, client = self._sender, {"name": "a host", "version": "1"}
        if not self._has_begun:
            params = {
                "protocolVersion": sender.version,
                "capabilities": {"elicitation": {}},
                "clientInfo": client,
            }
            begin = {"jsonrpc": "2.0", "id": "begin", "method": "initialize", "params": params}
            assert (await sender.post(begin)).status_code == 200
            self._has_begun = True
        body, replies = sender.body(name, dict(arguments), meta), list[dict[str, Any]]()
        stream = sender.client.stream("POST", sender.url, content=json.dumps(body), headers=sender.headers)
        async with stream as response:
            async for line in response.aiter_lines():
                if not line.startswith(("{", "data: {")):
                    continue
                message = json.loads(line.removeprefix("data: "))
                if "method" not in message:
                    replies.append(message)
                elif "id" in message:
                    answer = await self._answer(message["method"], message["params"])
                    reply = {"jsonrpc": "2.0", "id": message["id"], "result": answer}
                    assert (await sender.post(reply)).status_code == 202
        (reply,) = replies
        assert reply["id"] == body["id"]
        return reply

    async def _answer(self, method: str, params: Any = None) -> Any:
        match method:
            case "elicitation/create":
                made = await self._person.elicit(None, ElicitRequestFormParams.model_validate(params))
            case "sampling/createMessage":
                made = await self._person.sample(None, CreateMessageRequestParams.model_validate(params))
            case _:
                made = await self._person.roots(None)
        return made.model_dump(by_alias=True, mode="json", exclude_none=True)


def _result_of(reply: Mapping[str, Any]) -> CallToolResult:
    if "error" in reply:
        raise MCPError(**reply["error"])
    return CallToolResult.model_validate(reply["result"])
