"""A host that knows nothing but JSON-RPC, over streams in memory, at one version of the protocol."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from mcp_tasks_client.protocol import JSONObject

__all__ = [
    "CURRENT",
    "EVERYTHING",
    "LIMIT_S",
    "OLDER",
    "OLDEST",
    "VERSIONS",
    "MemoryHost",
    "Refused",
    "Sent",
    "reference_in",
    "text_of",
]

LIMIT_S: Final = 60.0
"""Seconds that a test may wait for anything."""

CURRENT: Final = "2026-07-28"
OLDER: Final = "2025-11-25"
OLDEST: Final = "2025-06-18"
VERSIONS: Final = (OLDEST, OLDER, CURRENT)

EVERYTHING: Final[JSONObject] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
"""The capabilities of a host that can be asked anything."""

_META: Final = "io.modelcontextprotocol/"

Answer = Callable[[JSONObject], "JSONObject | Exception | None"]
"""Makes the result of a question, by its params. ``None`` is no answer, an exception is an error."""


class Refused(Exception):  # noqa: N818  # the reply of a server
    """A JSON-RPC error as the reply."""

    def __init__(self, error: JSONObject) -> None:
        super().__init__(error)
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data = error.get("data")


class Sent:
    """A request that was sent."""

    def __init__(self, request_id: int, method: str) -> None:
        self.request_id = request_id
        self.method = method
        self.message: JSONObject | None = None
        self._came = anyio.Event()

    def take(self, message: JSONObject) -> None:
        assert self.message is None, f"{self.method} has two replies"
        self.message = message
        self._came.set()

    @property
    def is_answered(self) -> bool:
        return self.message is not None

    async def reply(self) -> JSONObject:
        """The result, once it has come.

        Raises:
            Refused: It is an error.
        """
        with anyio.fail_after(LIMIT_S):
            await self._came.wait()
        assert self.message is not None
        if "error" in self.message:
            raise Refused(self.message["error"])
        result: JSONObject = self.message["result"]
        return result


class MemoryHost:
    """The host.

    Args:
        version: Of the protocol.
        name: As it introduces itself.
        capabilities: As it declares them.

    Attributes:
        received: Every message of the server's, in order.
        asked: What the server has asked: method, params, and the request of the host that it belongs to.
        answers: How the host answers what it is asked, by method.
        introduction: The result of the handshake, or of ``server/discover``.
    """

    def __init__(
        self, version: str = OLDER, *, name: str = "a host", capabilities: Mapping[str, Any] = EVERYTHING
    ) -> None:
        self.version = version
        self.name = name
        self.capabilities = dict(capabilities)
        self.received: list[JSONObject] = []
        self.asked: list[tuple[str, JSONObject, Any]] = []
        self.answers: dict[str, Answer] = {}
        self.introduction: JSONObject = {}
        self._ids = itertools.count(1)
        self._sent: dict[int, Sent] = {}
        self._stream: Any = None
        self._news = anyio.Event()

    @property
    def is_current(self) -> bool:
        return self.version == CURRENT

    # ── the streams ───────────────────────────────────────────────────────────────────────────

    async def read(self, to_server: Any, from_server: Any) -> None:
        """Take what the server sends, until it ends."""
        self._stream = to_server
        async for item in from_server:
            message = item.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
            self.received.append(message)
            if "method" not in message:
                self._sent[message["id"]].take(message)
            elif "id" in message:
                related = getattr(item.metadata, "related_request_id", None)
                await self._be_asked(message, related)
            self._news.set()
            self._news = anyio.Event()

    async def _be_asked(self, message: JSONObject, related: Any) -> None:
        method, params = message["method"], message.get("params", {})
        self.asked.append((method, params, related))
        said = self.answers[method](params)
        if isinstance(said, Exception):
            await self._write({"id": message["id"], "error": {"code": -32603, "message": str(said)}})
        elif said is not None:
            await self._write({"id": message["id"], "result": said})

    async def _write(self, message: JSONObject) -> None:
        read = jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message})
        await self._stream.send(SessionMessage(read))

    async def until(self, holds: Callable[[], Any]) -> None:
        """Return once something holds."""
        with anyio.fail_after(LIMIT_S):
            while not holds():
                with anyio.move_on_after(0.01):  # it may be about something else than messages
                    await self._news.wait()

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    async def introduce(self) -> None:
        """Begin, as hosts of the version do."""
        if self.is_current:
            self.introduction = await self.request("server/discover")
            return
        params = {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "clientInfo": {"name": self.name, "version": "1"},
        }
        self.introduction = await self.request("initialize", params)
        await self.notify("notifications/initialized")

    async def notify(self, method: str, params: JSONObject | None = None) -> None:
        await self._write({"method": method, **({} if params is None else {"params": params})})

    async def send(self, method: str, params: Mapping[str, Any] | None = None) -> Sent:
        """Send a request, and do not wait for its reply."""
        given = dict(params or {})
        if self.is_current:
            given["_meta"] = {
                **given.get("_meta", {}),
                f"{_META}protocolVersion": CURRENT,
                f"{_META}clientInfo": {"name": self.name, "version": "1"},
                f"{_META}clientCapabilities": self.capabilities,
            }
        sent = Sent(next(self._ids), method)
        self._sent[sent.request_id] = sent
        await self._write({"id": sent.request_id, "method": method, "params": given})
        return sent

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> JSONObject:
        """The result.

        Raises:
            Refused: It is an error.
        """
        return await (await self.send(method, params)).reply()

    async def begin(
        self,
        tool: str,
        arguments: Any = None,
        *,
        token: Any = None,
        meta: JSONObject | None = None,
        **params: Any,
    ) -> Sent:
        """Send a call of a tool."""
        own = {**(meta or {}), **({} if token is None else {"progressToken": token})}
        given = {"name": tool, "arguments": arguments or {}, **({"_meta": own} if own else {}), **params}
        return await self.send("tools/call", given)

    async def call(self, tool: str, arguments: Any = None, **params: Any) -> JSONObject:
        """The result of a call. Questions in it are answered on the way, as each version does it.

        Raises:
            Refused: It is an error.
        """
        result = await (await self.begin(tool, arguments, **params)).reply()
        while result.get("resultType") == "input_required":
            given = {}
            for key, question in result["inputRequests"].items():
                self.asked.append((question["method"], question.get("params", {}), key))
                said = self.answers[question["method"]](question.get("params", {}))
                assert isinstance(said, dict)
                given[key] = said
            more = {"inputResponses": given, "requestState": result["requestState"]}
            result = await (await self.begin(tool, arguments, **{**params, **more})).reply()
        return result

    async def give_up(self, sent: Sent) -> None:
        """Tell the server that nobody waits for the reply any more."""
        await self.notify("notifications/cancelled", {"requestId": sent.request_id, "reason": "timed out"})
        with suppress(Refused):  # messages are taken in order: after this reply the server has read it
            await self.request("tasks/list")

    def method_of(self, request_id: Any) -> str:
        """The method of a request that was sent."""
        return self._sent[request_id].method

    def notified(self, method: str) -> list[JSONObject]:
        """The params of the notifications of a method."""
        return [one.get("params", {}) for one in self.received if one.get("method") == method]

    def progress(self, token: Any) -> list[JSONObject]:
        """The progress that was told under a token."""
        return [one for one in self.notified("notifications/progress") if one["progressToken"] == token]


def reference_in(told: str) -> str:
    """The reference in an answer in between."""
    return told.split('reference "')[1].split('"')[0]


def text_of(result: JSONObject) -> str:
    """The first text of a result."""
    return str(result["content"][0]["text"])
