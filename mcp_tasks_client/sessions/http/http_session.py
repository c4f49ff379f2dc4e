"""The native session: MCP 2026-07-28 over Streamable HTTP.

One POST per request, no session at the server. Decisions that are not the protocol's:

- ``tasks/*`` never wait for the server's list of tools: an unfinished task can be observed at once
  after a restart. ``tools/call`` does, since only the list says which arguments also travel
  as headers.
- A reply that has arrived is returned even if its reader is cancelled meanwhile.
- ``subscriptions/listen``, which may live for hours, is under no cap.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio
import httpx
from mcp_types import HEADER_MISMATCH, Tool

from ...errors import MissingCapabilityError, SessionError
from ...protocol import OLDER_VERSION, JSONObject
from ...protocol.params import request_meta
from ...protocol.text import header_value
from ...questions.context import CallContext
from ..base import BeforeSend, Limits, ObservedTasks
from ..json_text import encode_json
from ..param_headers import param_headers
from ..request_errors import RequestErrors
from ..tool_catalogue import ToolCatalogue
from ..wire import WireRequest, WireSession, own_info
from .changes import Changes, keep_told, offered_changes
from .channel import HttpChannel, Message
from .endpoint_names import name_of_url, parse_url
from .headers import FIXED_HEADERS, AnyHeaders, HostHeaders
from .subscription import (
    LISTEN,
    Subscription,
    TakesMessages,
    keep_subscribed,
    listen_params,
    read_subscription,
)
from .transport import Transport

if TYPE_CHECKING:
    import httpx2

__all__ = ["AnyAuth", "AnyClient", "AnyHeaders", "HttpSession"]

AnyClient: TypeAlias = "httpx.AsyncClient | httpx2.AsyncClient"
"""The host's own HTTP client."""

AnyAuth: TypeAlias = "httpx.Auth | httpx2.Auth | tuple[str, str]"
"""An auth flow of either library, or a user's name and password."""


class HttpSession(WireSession):
    """A server reached by URL.

    No event loop is needed to make one. Use it within one event loop, and :meth:`aclose` it there.

    Args:
        url: The server's MCP endpoint, ``http`` or ``https``. A user and password in it are sent
            as Basic auth, unless there is other ``auth``.
        http_client: An ``httpx.AsyncClient`` or ``httpx2.AsyncClient``; used for everything, with its
            own auth, headers, proxies and transport, and left open. Its time-outs count if they are not
            the library's default. A :class:`Transport` is used as it is. ``None``: our own transport.
        headers: Sent with each request; the protocol's own cannot be replaced. A function, which may be a
            coroutine function, is asked for them before each request, and once more after HTTP 401.
        auth: Used for each request, as the library of ``http_client`` takes it.
        endpoint: The server's name in the journal; ``None`` derives it from ``url``.
        capabilities: Client capabilities to declare besides the tasks extension.
        client_info: ``name`` and ``version`` of the host.
        limits: Sizes, caps and time-outs; ``None`` is the defaults.
        tell: Told of each message of the server's on the streams of replies, and of changed lists; ``None``
            asks for no such stream.
        sleep: Waits, in seconds, before a discovery is repeated and a stream is opened again.

    Attributes:
        channel: Sends the requests, with the host's headers.
        client_info: As given, or ours.
        tell: As given.

    Raises:
        ValueError: The URL is not an absolute ``http`` or ``https`` URL, or a header cannot be sent.
        TypeError: ``http_client`` is of neither library, or ``auth`` not of its.
    """

    def __init__(
        self,
        url: str,
        *,
        http_client: AnyClient | Transport | None = None,
        headers: AnyHeaders | None = None,
        auth: AnyAuth | None = None,
        endpoint: str | None = None,
        capabilities: JSONObject | None = None,
        client_info: JSONObject | None = None,
        limits: Limits | None = None,
        tell: Callable[[JSONObject], None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        parsed = parse_url(url)
        super().__init__(name_of_url(parsed) if endpoint is None else endpoint, limits)
        self._capabilities = capabilities or {}
        self.client_info = client_info or own_info()
        self._meta = encode_json(request_meta(self.client_info, self._capabilities, None), "every request")
        self._ids = itertools.count(1)
        self.tell = tell
        self._sleep = sleep
        self._catalogue = ToolCatalogue(self._look_up, self.endpoint, sleep)
        self.channel = HttpChannel(
            parsed,
            http_client,
            auth,
            HostHeaders(headers),
            user_agent="{name}/{version}".format(**own_info()),
            max_idle=2 * self.limits.tasks_in_flight + self.limits.calls_in_flight,
            max_response_bytes=self.limits.max_response_bytes,
        )

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
        """The tool's description, as the server lists it; ``None`` if it lists none that may be called.

        Raises:
            RemoteProtocolError: The server does not speak 2026-07-28, or its list is none.
            SessionError: The server could not be asked.
        """
        listed = await self._catalogue.find(name, context, fresh=fresh)
        return listed.tool if listed is not None and listed.fault is None else None

    async def exchange(self, request: WireRequest, before_send: BeforeSend) -> JSONObject:
        """Send one request in a POST of its own, and return its result as it came."""
        # Made before anything is asked of the server, so that the caller's own mistakes come first.
        message, call = self._message(request), request.call
        if call is None:
            await before_send()
            return await (self._send_call(message) if request.patient else self._send(message))
        listed = await self._catalogue.find_for_call(call.name, request.context)
        if listed is not None:
            self._check_makes_task(listed.tool)
            message.headers.update(param_headers(listed.headers, call.arguments))
        await before_send()
        try:
            return await self._send_call(message, call.hear)
        except SessionError as error:
            if error.code == HEADER_MISMATCH:
                # Most likely the tool's schema has changed since it was listed.
                self._catalogue.forget_tools()
            raise

    def _check_makes_task(self, tool: Tool) -> None:
        """Check that the server makes tasks at 2026-07-28, if the tool can only be called as a task.

        Raises:
            MissingCapabilityError: It makes them in the version before; ``not_executed``.
        """
        support = tool.execution.task_support if tool.execution is not None else None
        if support == "required" and not self._catalogue.has_extension:
            raise MissingCapabilityError(
                f"{tool.name!r} was not called: it requires a task, and the server makes tasks at MCP "
                f'{OLDER_VERSION} only. Call it by TasksClient(url, protocol="{OLDER_VERSION}").',
                not_executed=True,
            )

    async def _look_up(self, method: str, params: JSONObject, context: CallContext | None) -> JSONObject:
        return await self.ask(method, params, context=context)

    async def run(self, observed: ObservedTasks) -> None:
        """Deliver the notifications of ``subscriptions/listen``; return if the server does not offer them."""
        asked = {} if self.tell is None else offered_changes(self._catalogue.capabilities)
        if not asked:
            await keep_subscribed(self._listen, observed, self._sleep)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_subscribed, self._listen, observed, self._sleep)
            begin, listen = partial(Changes, asked, self._hear), partial(self._listen_for_changes, asked)
            await keep_told(listen, begin, self._sleep)

    async def aclose(self) -> None:
        """Close the HTTP client, if it is our own, and end the requests under way."""
        await super().aclose()
        await self.channel.aclose()

    async def _listen(self, subscription: Subscription) -> None:
        request = WireRequest(LISTEN, listen_params(subscription.task_ids), subscription.context)
        await self._read_stream(self._message(request, tuple(subscription.task_ids)), subscription)

    async def _listen_for_changes(self, asked: JSONObject, changes: Changes) -> None:
        await self._read_stream(self._message(WireRequest(LISTEN, {"notifications": asked}, None)), changes)

    async def _read_stream(self, message: Message, stream: TakesMessages) -> None:
        # A compressed stream holds messages back until there are more of them.
        message.headers["Accept-Encoding"] = "identity"
        await read_subscription(self.channel, message, stream, self.limits.task_timeout_s)

    def _hear(self, message: JSONObject) -> None:
        if message.get("method") == "notifications/tools/list_changed":
            self._catalogue.forget_tools()
        if self.tell is not None:
            self.tell(message)

    async def _send(self, message: Message) -> JSONObject:
        # Bounded as a whole: a server that drips, byte by byte, would hold a poll for ever.
        timeout_s = self.limits.task_timeout_s
        return await self.channel.exchange(message, silence_s=timeout_s, total_s=2 * timeout_s)

    async def _send_call(
        self, message: Message, hear: Callable[[JSONObject], None] | None = None
    ) -> JSONObject:
        silence_s = self.limits.call_read_timeout_s
        if hear is None and self.tell is not None:
            hear = self._hear
        if hear is None:
            return await self.channel.exchange(message, silence_s=silence_s)
        message.headers["Accept-Encoding"] = "identity"  # as for every stream
        return await self.channel.exchange(message, self.channel.reader(message, hear), silence_s=silence_s)

    def _message(self, request: WireRequest, secrets: Sequence[str] = ()) -> Message:
        request_id, method, own = next(self._ids), request.method, self._meta
        if request.meta is not None:
            meta = request_meta(self.client_info, self._capabilities, request.meta)
            own = encode_json(meta, method)
        # _meta is most of a poll's body and the same in nearly all requests, so it is encoded once and
        # spliced in place of the null: 5 microseconds instead of 8, of some 170 that a poll costs.
        params_json = encode_json({**request.params, "_meta": None}, method).removesuffix("null}") + own + "}"
        content = f'{{"jsonrpc":"2.0","id":{request_id},"method":"{method}","params":{params_json}}}'
        headers = {**FIXED_HEADERS, "Mcp-Method": method}
        if request.name is not None:
            headers["Mcp-Name"] = header_value(request.name)
        errors = RequestErrors(method, request.task_id, secrets, self.endpoint)
        return Message(request_id, content.encode("ascii"), headers, errors, context=request.context)
