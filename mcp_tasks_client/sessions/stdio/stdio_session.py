"""A server of 2026-07-28 that is a process of ours, over its standard streams."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
from mcp_types import Tool

from ...errors import SessionError
from ...protocol import JSONObject
from ...protocol.params import request_meta
from ...protocol.replies import RpcError, id_in
from ...questions.context import CallContext
from ..base import BeforeSend, Limits
from ..http.endpoint_names import name_of_command
from ..oddities import note_oddity
from ..shared import Shared
from ..tool_catalogue import ToolCatalogue
from ..wire import WireRequest, WireSession, own_info
from .current_process import CurrentProcess
from .pipe import Pipe, encode_message
from .stdio_server import StdioServer

__all__ = ["StdioSession"]

_DISCOVER = "server/discover"


class StdioSession(WireSession):
    """A process, which is started by the first request, and by the next one after it has ended.

    No event loop is needed to make one. Use it within one event loop, and :meth:`aclose` it there.

    Args:
        server: How the process is started.
        endpoint: The server's name in the journal; ``None`` derives it from the command.
        capabilities: Client capabilities to declare besides the tasks extension.
        client_info: ``name`` and ``version`` of the host.
        limits: Sizes, caps and time-outs; ``None`` is the defaults. A ``tools/call``, and a host's own
            request, may take as long as the process lives.
        tell: Told of each message of the server's that comes unasked; ``None`` drops them.
        sleep: Waits, in seconds, before a discovery is repeated.

    Attributes:
        client_info: As given, or ours.
        process: That of the server, which a session of another version may use.
        tell: As given.
    """

    def __init__(
        self,
        server: StdioServer,
        *,
        endpoint: str | None = None,
        capabilities: JSONObject | None = None,
        client_info: JSONObject | None = None,
        limits: Limits | None = None,
        tell: Callable[[JSONObject], None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        name = name_of_command(server.command, server.args, server.cwd) if endpoint is None else endpoint
        super().__init__(name, limits)
        self.client_info = client_info or own_info()
        self.tell = tell
        self.process = CurrentProcess(server, name, self.limits.max_response_bytes, self._take)
        self._capabilities = capabilities or {}
        self._catalogue = ToolCatalogue(self._look_up, name, sleep)
        self._greeting = Shared(self._greet)
        self._hearing: dict[str | int, Callable[[JSONObject], None]] = {}

    @property
    def ephemeral(self) -> bool:
        """True: the server's tasks end with its process."""
        return True

    async def discover(self, context: CallContext | None = None) -> None:
        """Ask the server whether it speaks 2026-07-28, unless it has said so.

        Raises:
            OtherVersionError: It does not.
            SessionError: It could not be asked.
        """
        await self._catalogue.discover(context)

    async def tool(
        self, name: str, *, fresh: bool = False, context: CallContext | None = None
    ) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none of that name.

        Raises:
            SessionError: The server could not be asked.
        """
        listed = await self._catalogue.find(name, context, fresh=fresh)
        return None if listed is None else listed.tool

    async def exchange(self, request: WireRequest, before_send: BeforeSend) -> JSONObject:
        """Send one request, and return its result as it came. A caller that is cancelled takes it back."""
        call, errors, request_id = request.call, request.errors, secrets.token_hex(8)
        meta = request_meta(self.client_info, self._capabilities, request.meta)
        params = {**request.params, "_meta": meta}
        # Made before anything is asked of the server, so that the caller's own mistakes come first.
        line = encode_message({"id": request_id, "method": request.method, "params": params}, request.method)
        if request.method == _DISCOVER:
            pipe = await self.process.pipe(request.method)
        else:
            pipe = await self._greeted(request)
        await before_send()
        token = None if call is None or call.hear is None else id_in(meta, "progressToken")
        if token is not None and call is not None and call.hear is not None:
            self._hearing[token] = call.hear
        try:
            if not pipe.has_answered:
                reply = await pipe.greet(errors, line, request_id)
            else:
                timeout_s = None if request.patient else self.limits.task_timeout_s
                reply = await pipe.request(errors, line, request_id, timeout_s)
        except anyio.get_cancelled_exc_class():
            await pipe.take_back(request_id)
            raise
        finally:
            if token is not None:
                self._hearing.pop(token, None)
        if isinstance(reply, RpcError):
            raise errors.for_rpc_error(reply)
        return reply

    async def aclose(self) -> None:
        """End the process."""
        await super().aclose()
        await self.process.aclose()

    async def _greeted(self, request: WireRequest) -> Pipe:
        """The process, once it has answered anything: from then on no time limits its start."""
        while not (pipe := await self.process.pipe(request.method)).has_answered:
            await self._greeting.run(request.context)
        return pipe

    async def _greet(self, context: CallContext | None) -> None:
        self._catalogue.forget_tools()  # the last process's may not be this one's
        request = WireRequest(_DISCOVER, {}, context)
        try:
            await self.exchange(request, anyio.lowlevel.checkpoint_if_cancelled)
        except SessionError as error:
            if error.code is None:
                raise

    async def _look_up(self, method: str, params: JSONObject, context: CallContext | None) -> JSONObject:
        return await self.ask(method, params, context=context)

    def _take(self, message: JSONObject) -> None:
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        if "id" in message or not isinstance(method, str):
            note_oddity(self.endpoint, "it sends requests, which MCP 2026-07-28 has not, and gets no reply")
            return
        token = id_in(params, "progressToken") if method == "notifications/progress" else None
        hear = None if token is None else self._hearing.get(token)
        if hear is not None:
            hear(message)
            return
        if method == "notifications/tools/list_changed":
            self._catalogue.forget_tools()
        if self.tell is not None:
            self.tell(message)
