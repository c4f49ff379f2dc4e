"""The common part of all sessions of MCP 2026-07-28, over any transport.

A way of travelling implements one method, :meth:`WireSession.exchange`. Two things are refused here and never
sent: ``session_data`` of another version, which may be a credential, and a task ID that no message can carry.
"""

from __future__ import annotations

import functools
import importlib.metadata
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel

from ..errors import RemoteProtocolError
from ..protocol import OLDER_VERSION, PROTOCOL_VERSION, JSONObject, MalformedError
from ..protocol.params import call_params, task_params
from ..protocol.replies import CallReply, read_call_reply
from ..protocol.task import read_task
from ..protocol.text import is_encodable
from ..questions.context import CallContext
from .base import (
    OTHER_VERSION,
    BeforeSend,
    Limits,
    Session,
    Snapshot,
    TaskRef,
    ToolCall,
    made_in_another,
)
from .request_errors import RequestErrors
from .slots import Slots

__all__ = ["WireRequest", "WireSession", "own_info"]

T = TypeVar("T")

_NAMES: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The param that the header ``Mcp-Name`` repeats, for requests about no task.

Source: MCP 2026-07-28, Streamable HTTP, "Standard Request Headers"."""


@dataclass(frozen=True, eq=False, slots=True)
class WireRequest:
    """One request, of a call or about a task or neither."""

    method: str
    params: JSONObject = field(repr=False)
    """Without ``_meta``."""

    context: CallContext | None = field(repr=False)
    """The context of the call for whose sake the request is sent."""

    call: ToolCall | None = None
    ref: TaskRef | None = None
    meta: Mapping[str, Any] | None = field(default=None, repr=False)
    """The caller's own entries for ``_meta``."""

    patient: bool = False
    """Whether the reply may take as long as that to a ``tools/call``."""

    @property
    def name(self) -> str | None:
        """The header ``Mcp-Name``: the task ID, or the tool, the prompt or the resource."""
        named = self.task_id if self.ref is not None else self.params.get(_NAMES.get(self.method, ""))
        return named if isinstance(named, str) else None

    @property
    def task_id(self) -> str | None:
        """The task that it is about."""
        return None if self.ref is None else self.ref.task_id

    @property
    def errors(self) -> RequestErrors:
        """Makes the errors of this request."""
        return RequestErrors(self.method, self.task_id)


class WireSession(Session):
    """A server that speaks 2026-07-28. No event loop is needed to make one.

    Attributes:
        closed: Whether the session sends nothing, since it was closed.
    """

    def __init__(self, endpoint: str, limits: Limits | None) -> None:
        self.endpoint = endpoint
        self.limits = limits or Limits()
        self.closed = False
        self._slots = Slots(self.limits)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.endpoint}>"

    async def discover(self, context: CallContext | None = None) -> None:
        """Ask the server whether it speaks 2026-07-28, unless it has said so. The default asks nothing.

        Raises:
            OtherVersionError: It does not.
            SessionError: It could not be asked.
        """

    @abstractmethod
    async def exchange(self, request: WireRequest, before_send: BeforeSend) -> JSONObject:
        """Send one request, once, and return its result as it came.

        ``before_send`` must be awaited right before the request may reach the server, after all that has to
        be asked first. It waits for its turn under a cap. Its exceptions are passed on.

        Raises:
            SessionError: No result. ``not_executed`` is set if nothing can have happened.
            ValueError: The params have no JSON form. Nothing was sent.
            TypeError: The params hold something that has no JSON form. Nothing was sent.
        """

    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        """Send ``tools/call`` once, and never again.

        Raises:
            SessionError: No reply. ``not_executed`` is set if nothing can have happened.
            ValueError: The name or the arguments have no JSON or no UTF-8 form. Nothing was sent.
            TypeError: The arguments hold something that has no JSON form. Nothing was sent.
        """
        self.check_open("tools/call")
        params = call_params(
            call.name, call.arguments, input_responses=call.input_responses, request_state=call.request_state
        )
        request = WireRequest("tools/call", params, call.context, call=call, meta=call.meta, patient=True)
        raw = await self._take_turn(request, self._slots.calls, before_send)
        return _read(read_call_reply, raw, "tools/call")

    async def get(self, ref: TaskRef) -> Snapshot:
        """Send ``tasks/get`` once.

        Raises:
            SessionError: No snapshot; its code is -32602 if the server does not know the task.
        """
        raw = await self._send_task("tasks/get", ref, None, self._slots.polls)
        task = _read(read_task, raw, "tasks/get")
        return Snapshot(task, task.request_state)

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> Snapshot | None:
        """Send ``tasks/update`` once. Some servers acknowledge with the task, and tell of its end only there.

        Raises:
            SessionError: No acknowledgement.
            ValueError: The answers have no JSON form. Nothing was sent.
            TypeError: The answers hold something that has no JSON form. Nothing was sent.
        """
        raw = await self._send_task("tasks/update", ref, answers, self._slots.task_requests)
        _refuse_task(raw, "tasks/update")
        return _read_end(raw, ref)

    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once.

        Raises:
            SessionError: No acknowledgement.
        """
        raw = await self._send_task("tasks/cancel", ref, None, self._slots.task_requests)
        _refuse_task(raw, "tasks/cancel")

    async def ask(
        self, method: str, params: JSONObject, *, context: CallContext | None = None, patient: bool = False
    ) -> JSONObject:
        """Send a request that concerns neither a call nor a task once, and return its result as it came.

        Raises:
            SessionError: No result.
            ValueError: The params have no JSON form. Nothing was sent.
            TypeError: The params hold something that has no JSON form. Nothing was sent.
        """
        self.check_open(method)
        own = {name: value for name, value in params.items() if name != "_meta"}
        request = WireRequest(method, own, context, meta=params.get("_meta"), patient=patient)
        raw = await self.exchange(request, anyio.lowlevel.checkpoint_if_cancelled)
        _refuse_task(raw, method)
        return raw

    async def aclose(self) -> None:
        """Send nothing more. Requests under way go on."""
        self.closed = True

    def check_open(self, method: str) -> None:
        """Check that the session is not closed.

        Raises:
            ConnectionLostError: It is; ``not_executed``.
        """
        if self.closed:
            raise RequestErrors(method).closed("session", sent=False)

    async def _send_task(
        self, method: str, ref: TaskRef, answers: Mapping[str, JSONObject] | None, slots: anyio.Semaphore
    ) -> JSONObject:
        self.check_open(method)
        if ref.session_data is not None and ref.session_data.startswith(OTHER_VERSION):
            raise made_in_another(
                PROTOCOL_VERSION,
                f'Resume it by TasksClient(url, protocol="{OLDER_VERSION}") if the server still speaks that, '
                "or make the call again.",
            )
        if not is_encodable(ref.task_id):
            raise RemoteProtocolError(
                f"{method} cannot be sent, because the server issued a task ID that has no UTF-8 form. "
                "Report it to the server's author.",
                not_executed=True,
            )
        params = task_params(ref.task_id, request_state=ref.session_data, input_responses=answers)
        request = WireRequest(method, params, ref.context, ref=ref)
        return await self._take_turn(request, slots, ref.before_send)

    async def _take_turn(
        self, request: WireRequest, slots: anyio.Semaphore, before_send: BeforeSend | None = None
    ) -> JSONObject:
        """Send a request under a cap. It waits for its turn when it is about to be sent."""
        taken = False

        async def take() -> None:
            nonlocal taken
            await slots.acquire()
            taken = True
            if before_send is not None:
                await before_send()

        try:
            return await self.exchange(request, take)
        finally:
            if taken:
                slots.release()


def _read(read: Callable[[object], T], raw: JSONObject, method: str) -> T:
    try:
        return read(raw)
    except MalformedError as error:
        raise RequestErrors(method).malformed(str(error)) from None


def _read_end(raw: JSONObject, ref: TaskRef) -> Snapshot | None:
    """The end of a task in an acknowledgement; ``None`` if there is none."""
    with suppress(MalformedError):
        task = read_task(raw)
        if task.terminal and task.task_id == ref.task_id:
            return Snapshot(task, task.request_state)
    return None


def _refuse_task(raw: JSONObject, method: str) -> None:
    if raw.get("resultType") == "task":
        raise RequestErrors(method).malformed("a task, which only tools/call may be answered with")


def own_info() -> JSONObject:
    """``clientInfo`` of a client without a host's name: ``name`` and ``version``."""
    return {"name": "mcp-tasks-client", "version": _own_version()}


@functools.cache  # a look into installed packages takes as long as some requests
def _own_version() -> str:
    try:
        return importlib.metadata.version("mcp-tasks-client")
    except importlib.metadata.PackageNotFoundError:
        return "0"
