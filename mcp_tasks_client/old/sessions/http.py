"""The native session: MCP 2026-07-28 over Streamable HTTP, on httpx.

One POST per request, no session at the server. Decisions that are not the protocol's:

- ``tasks/*`` never wait for the server's catalogue: an unfinished task can be observed at once
  after a restart. ``tools/call`` does, since only the catalogue says which arguments also travel
  as headers.
- ``tasks/*`` and ``tools/call`` have separate caps, so that long calls never starve the polls.
- A reply that has arrived is returned even if its reader is cancelled meanwhile.
- ``subscriptions/listen``, which may live for hours, is under neither cap.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import anyio
import httpx
from anyio.lowlevel import checkpoint
from mcp_types import Tool

from ..errors import RemoteProtocolError, SessionError
from ..params import call_params, request_meta, task_params
from ..wire import (
    PROTOCOL_VERSION,
    CallReply,
    JSONObject,
    MalformedError,
    Task,
    header_value,
    read_call_reply,
    read_task,
)
from .base import Leaving, Session, TaskRef, ToolCall
from .bodies import ACCEPTED_ENCODINGS
from .catalogue import Catalogue
from .channel import HttpChannel, Message, encoded
from .endpoints import parse_url, url_endpoint
from .faults import HEADER_MISMATCH, Faults
from .headers import FIELD_NAME, param_headers
from .limits import Limits
from .listening import LISTEN, Subscription, listen, listen_params

__all__ = ["HttpSession"]

T = TypeVar("T")

if TYPE_CHECKING:
    import httpx2

AnyClient: TypeAlias = "httpx.AsyncClient | httpx2.AsyncClient"
AnyAuth: TypeAlias = "httpx.Auth | httpx2.Auth | tuple[str, str]"

# One line without outer blanks: what h11 takes, and every server reads alike.
_FIXED: Final[Mapping[str, str]] = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": ", ".join(ACCEPTED_ENCODINGS),
    "MCP-Protocol-Version": PROTOCOL_VERSION,
}
_DISCOVER: Final = "server/discover"
_PROTOCOL_FIELDS: Final = frozenset({*map(str.lower, _FIXED), "mcp-method", "mcp-name"})
_FIELD_VALUE: Final = re.compile(r"([\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?)?")


class HttpSession(Session):
    """A server reached by URL.

    No event loop is needed to make one. Use it within one event loop, and :meth:`aclose` it there.

    Args:
        url: The server's MCP endpoint, ``http`` or ``https``. A user and password in it are sent
            as Basic auth, unless there is other ``auth``.
        http_client: An ``httpx.AsyncClient`` or ``httpx2.AsyncClient``; used for everything, with its
            own auth, headers, proxies and transport, and left open. Its time-outs count if they are not
            the library's default. ``None``: our own transport.
        headers: Sent with each request; the protocol's own cannot be replaced.
        auth: Used for each request, as the library of ``http_client`` takes it.
        endpoint: The server's name in the journal; ``None`` derives it from ``url``.
        capabilities: Client capabilities to declare besides the tasks extension.
        client_info: ``name`` and ``version`` of the host.
        max_response_bytes: Bytes of one reply, decompressed, or of one event while listening, at most.
        tasks_in_flight: Polls under way at once, at most, and as many other ``tasks/*`` requests.
        calls_in_flight: ``tools/call`` requests under way at once, at most.
        task_timeout_s: Seconds of silence after which a request is given up; twice as many in all.
        call_read_timeout_s: Seconds of silence after which a ``tools/call`` is given up.

    Attributes:
        channel: Sends the requests, also those of another generation.
        headers: Sent with each of them.
        client_info: As given, or ours.
        limits: As given.

    Raises:
        ValueError: The URL is not an absolute ``http`` or ``https`` URL, a header cannot be sent,
            or a limit is not positive.
        TypeError: ``http_client`` is of neither library, or ``auth`` not of its.
    """

    def __init__(
        self,
        url: str,
        *,
        http_client: AnyClient | None = None,
        headers: Mapping[str, str] | None = None,
        auth: AnyAuth | None = None,
        endpoint: str | None = None,
        capabilities: JSONObject | None = None,
        client_info: JSONObject | None = None,
        max_response_bytes: int = 64 * 1024 * 1024,
        tasks_in_flight: int = 16,
        calls_in_flight: int = 64,
        task_timeout_s: float = 30.0,
        call_read_timeout_s: float = 300.0,
    ) -> None:
        self.limits = Limits(
            max_response_bytes=max_response_bytes,
            tasks_in_flight=tasks_in_flight,
            calls_in_flight=calls_in_flight,
            task_timeout_s=task_timeout_s,
            call_read_timeout_s=call_read_timeout_s,
        )
        parsed = parse_url(url)
        self._endpoint = url_endpoint(parsed) if endpoint is None else endpoint
        self.headers: Mapping[str, str] = {**_checked_headers(headers), **_FIXED}
        self._capabilities = capabilities or {}
        self.client_info = client_info or _own_info()
        self._meta = encoded(request_meta(self.client_info, self._capabilities, None), "every request")
        self._poll_slots = anyio.Semaphore(tasks_in_flight, fast_acquire=True)
        # Of their own: a server that holds every poll open must not keep a cancellation from leaving.
        self._word_slots = anyio.Semaphore(tasks_in_flight, fast_acquire=True)
        self._call_slots = anyio.Semaphore(calls_in_flight, fast_acquire=True)
        self._ids = itertools.count(1)
        self._catalogue = Catalogue(self._look_up, self._endpoint)
        self.channel = HttpChannel(
            parsed,
            http_client,
            auth,
            user_agent=f"mcp-tasks-client/{_own_info()['version']}",
            max_idle=2 * tasks_in_flight + calls_in_flight,
            max_response_bytes=max_response_bytes,
        )

    def __repr__(self) -> str:
        return f"<HttpSession {self._endpoint}>"

    @property
    def endpoint(self) -> str:
        """The URL without credentials, fragment and default port; its query only as a digest."""
        return self._endpoint

    @property
    def calls_in_flight(self) -> int:
        """How many ``tools/call`` it sends at once, at most."""
        return self.limits.calls_in_flight

    async def tool(self, name: str) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none of that name.

        Raises:
            RemoteProtocolError: The server does not speak 2026-07-28, or its list is none.
            SessionError: The server could not be asked.
        """
        return await self._catalogue.description(name)

    def listed(self, name: str) -> Tool | None:
        """The same, where the list is there."""
        return self._catalogue.listed(name)

    @property
    def spoken(self) -> bool:
        """Whether the server is known to speak 2026-07-28."""
        return self._catalogue.version_known

    async def discover(self) -> None:
        """Find out whether it does.

        Raises:
            OtherVersionError: It does not.
            SessionError: It could not be asked.
        """
        await self._catalogue.discover()

    def forget_tools(self) -> None:
        """Have the next question about a tool fetch the list again."""
        self._catalogue.forget_tools()

    async def call(self, call: ToolCall, leaving: Leaving = checkpoint) -> CallReply:
        """Send ``tools/call`` once. Never repeats it, whatever happens.

        Args:
            call: What to call.
            leaving: Awaited once the tool is looked up and there is room under the cap.

        Raises:
            SessionError: No result. ``not_executed`` is set if nothing can have happened.
            ValueError: The name or the arguments have no JSON or no UTF-8 form. Nothing was sent.
            TypeError: The arguments hold something that has no JSON form. Nothing was sent.
        """
        params = call_params(
            call.name,
            call.arguments,
            input_responses=call.input_responses,
            request_state=call.request_state,
        )
        # Made before anything is asked of the server: the caller's own mistakes come first.
        request = self._request("tools/call", params, meta=call.meta, named=header_value(call.name))
        listed = await self._catalogue.to_call(call.name)
        if listed is not None:
            _replace(request.headers, param_headers(listed.headers, call.arguments))
        async with self._call_slots:
            await leaving()
            try:
                result = await self.channel.send(request, self.limits.call_read_timeout_s)
            except SessionError as error:
                if error.code == HEADER_MISMATCH:
                    # Most likely the tool's schema has changed since it was listed.
                    self._catalogue.forget_tools()
                raise
        return _read(read_call_reply, result, request)

    async def get(self, ref: TaskRef) -> Task:
        """Send ``tasks/get`` once.

        Raises:
            SessionError: No snapshot; its code is -32602 if the server does not know the task.
        """
        request, result = await self._ask_task("tasks/get", ref)
        return _read(read_task, result, request)

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        """Send ``tasks/update`` once.

        Raises:
            SessionError: No acknowledgement.
            ValueError: The answers have no JSON form. Nothing was sent.
            TypeError: The answers hold something that has no JSON form. Nothing was sent.
        """
        request, result = await self._ask_task("tasks/update", ref, answers)
        _refuse_task(result, request)

    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once.

        Raises:
            SessionError: No acknowledgement.
        """
        request, result = await self._ask_task("tasks/cancel", ref)
        _refuse_task(result, request)

    async def listen(
        self, task_ids: Sequence[str], agreed: Callable[[frozenset[str]], None], heard: Callable[[Task], None]
    ) -> None:
        """Send ``subscriptions/listen`` once, and pass on what is told until the server ends it in order.

        Args:
            task_ids: Whose changes to tell.
            agreed: Called once, with those of them that the server has agreed to tell of.
            heard: Called with each snapshot that comes, of whichever task.

        Raises:
            SessionError: Refused, broken, or silent: ``task_timeout_s`` without an acknowledgement, or 5
                minutes without a line after it.
        """
        request = self._request(LISTEN, listen_params(task_ids), task_ids=task_ids)
        # A compressed stream holds back what is to be told until there is more of it.
        _replace(request.headers, {"Accept-Encoding": "identity"})
        subscription = Subscription(task_ids, agreed, heard)
        await listen(
            self.channel, request, subscription, self.limits.task_timeout_s, self.limits.max_response_bytes
        )

    async def aclose(self) -> None:
        """Close the HTTP client, if it is our own. Further requests are refused."""
        await self.channel.aclose()

    async def _ask_task(
        self, method: str, ref: TaskRef, answers: Mapping[str, JSONObject] | None = None
    ) -> tuple[Message, JSONObject]:
        params = task_params(ref.task_id, request_state=ref.request_state, input_responses=answers)
        try:
            named = header_value(ref.task_id)
        except MalformedError as error:
            raise RemoteProtocolError(
                f"{method} cannot be sent: the server issued a task ID that no HTTP header can carry "
                f"({error}). The task can only be reached in another way.",
                not_executed=True,
            ) from None
        request = self._request(method, params, named=named, task_id=ref.task_id)
        async with self._poll_slots if method == "tasks/get" else self._word_slots:
            return request, await self._send_in_time(request)

    async def _look_up(self, method: str, params: JSONObject) -> JSONObject:
        request = self._request(method, params)
        if method == _DISCOVER:
            # One server of an older version takes a request without a session ID for the beginning of a
            # session, by which it ends the tasks of all others. An unknown one it just refuses.
            request.headers["Mcp-Session-Id"] = "none"
        # The catalogue asks one thing at a time, so it needs no cap.
        result = await self._send_in_time(request)
        _refuse_task(result, request)
        return result

    async def _send_in_time(self, request: Message) -> JSONObject:
        # Bounded as a whole: a server that drips, byte by byte, would hold a poll for ever.
        limit_s = 2 * self.limits.task_timeout_s
        with anyio.move_on_after(limit_s):
            return await self.channel.send(request, self.limits.task_timeout_s)
        raise request.faults.overdue(limit_s)

    def _request(
        self,
        method: str,
        params: JSONObject,
        *,
        meta: Mapping[str, Any] | None = None,
        named: str | None = None,
        task_id: str | None = None,
        task_ids: Sequence[str] = (),
    ) -> Message:
        request_id = next(self._ids)
        said = self._meta
        if meta is not None:
            said = encoded(request_meta(self.client_info, self._capabilities, meta), method)
        # Put together, because what is the same in all of them is most of a poll: in place of the null.
        params_json = encoded({**params, "_meta": None}, method).removesuffix("null}") + said + "}"
        message = f'{{"jsonrpc":"2.0","id":{request_id},"method":"{method}","params":{params_json}}}'
        headers = {**self.headers, "Mcp-Method": method}
        if named is not None:
            headers["Mcp-Name"] = named
        return Message(
            request_id, method, message.encode("ascii"), headers, Faults(method, task_id, task_ids)
        )


def _checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Those that may be added to the protocol's own."""
    checked: dict[str, str] = {}
    for name, value in (headers or {}).items():
        # Its value stays out of the message: it may well be the credential.
        if not (FIELD_NAME.fullmatch(name) and _FIELD_VALUE.fullmatch(value)):
            raise ValueError(
                f"the header {name!r} cannot be sent: give it a name without blanks, and one line of "
                "plain ASCII without a blank at either end"
            )
        if name.lower() not in _PROTOCOL_FIELDS:
            _replace(checked, {name: value})
    return checked


def _replace(headers: dict[str, str], others: Mapping[str, str]) -> None:
    """Set header fields, in place of those whose names differ in case only."""
    named = {name.lower() for name in others}
    for name in [name for name in headers if name.lower() in named]:
        del headers[name]
    headers.update(others)


def _own_info() -> JSONObject:
    try:
        version = importlib.metadata.version("mcp-tasks-client")
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    return {"name": "mcp-tasks-client", "version": version}


def _read(read: Callable[[object], T], result: JSONObject, request: Message) -> T:
    try:
        return read(result)
    except MalformedError as error:
        raise request.faults.malformed(str(error)) from None


def _refuse_task(result: JSONObject, request: Message) -> None:
    """Refuse a task as the answer to what is not ``tools/call``.

    Source: Tasks extension, "Capability Negotiation" (MUST interpret as an invalid response).
    """
    if result.get("resultType") == "task":
        raise request.faults.malformed("a task, which only tools/call may be answered with")
