"""The session of a server by URL, and the discovery of its version, which servers by command share.

The server is asked for its version before the first request of any kind, and once. A server that knows only
``initialize`` may refuse the question as it would refuse a credential, and is then asked by ``initialize``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import anyio
from mcp_types import Tool

from ...aio.clock import Clock
from ...errors import CredentialRefusedError, SessionError
from ...policy import PollPolicy
from ...protocol import JSONObject
from ...protocol.replies import CallReply
from ...questions.callbacks import Inputs
from ...questions.context import CallContext
from ..base import BeforeSend, Limits, ObservedTasks, Session, Snapshot, TaskRef, ToolCall
from ..shared import Shared
from ..tool_catalogue import OtherVersionError
from ..wire import WireSession

if TYPE_CHECKING:
    from ..http.http_session import HttpSession

__all__ = ["DiscoveringSession", "session_by_url"]

_REFUSED_BY_NAME: Final = re.compile(r"\berror\s*=")
"""In a ``WWW-Authenticate``, says that it was the credential that was refused. Source: RFC 6750, 3."""


NativeT = TypeVar("NativeT", bound=WireSession)


def _is_refused_without_reason(error: SessionError) -> bool:
    return isinstance(error, CredentialRefusedError) and not _REFUSED_BY_NAME.search(error.challenge)


class DiscoveringSession(Session, Generic[NativeT]):
    """A session of 2026-07-28, or another one where the server does not speak that.

    Requests that begin together share one discovery. Until it has succeeded, each request asks again.

    Args:
        native: That of 2026-07-28, which asks the server. Closed with this session.
        speak_other: Makes the session of another version. That session may use the connection of ``native``,
            and leaves it open.
        asks_version: Whether the server is asked, and not taken for one that needs the other session.
        is_unclear: Whether an error may come from a server that speaks nothing but another version. Such a
            server is asked for its tools in that version.
    """

    def __init__(
        self,
        native: NativeT,
        speak_other: Callable[[NativeT], Session],
        *,
        asks_version: bool = True,
        is_unclear: Callable[[SessionError], bool] = _is_refused_without_reason,
    ) -> None:
        self.endpoint = native.endpoint
        self.limits = native.limits
        self._native = native
        self._is_unclear = is_unclear
        self._speak_other = speak_other
        self._asks_version = asks_version
        self._choosing = Shared(self._choose_now)
        self._chosen: Session | None = None
        self._decided = anyio.Event()

    def __repr__(self) -> str:
        return repr(self._chosen or self._native)

    @property
    def ephemeral(self) -> bool:
        """True if the server's tasks end with its process."""
        return self._native.ephemeral

    async def tool(
        self, name: str, *, fresh: bool = False, context: CallContext | None = None
    ) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none of that name."""
        return await (await self._choose(context)).tool(name, fresh=fresh, context=context)

    async def other(self, *, context: CallContext | None = None) -> Session | None:
        """The session of another version, if the server needs one.

        Raises:
            SessionError: The server could not be asked; ``not_executed``.
        """
        chosen = await self._choose(context)
        return None if chosen is self._native else chosen

    async def may_make_task(self, name: str, *, context: CallContext | None = None) -> bool:
        """Whether a call of a tool may become a task."""
        return await (await self._choose(context)).may_make_task(name, context=context)

    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        """Send ``tools/call`` once."""
        return await (await self._choose(call.context)).call(call, before_send)

    async def get(self, ref: TaskRef) -> Snapshot:
        """Ask for the task once."""
        return await (await self._choose(ref.context)).get(ref)

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> str | Snapshot | None:
        """Send the answers once."""
        return await (await self._choose(ref.context)).update(ref, answers)

    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once."""
        await (await self._choose(ref.context)).cancel(ref)

    def forget(self, task_id: str) -> None:
        """Note that the end of a task is journaled."""
        if self._chosen is not None:
            self._chosen.forget(task_id)

    async def ask(
        self, method: str, params: JSONObject, *, context: CallContext | None = None, patient: bool = False
    ) -> JSONObject:
        """Send another request once."""
        return await (await self._choose(context)).ask(method, params, context=context, patient=patient)

    async def run(self, observed: ObservedTasks) -> None:
        """Deliver the server's unasked messages, once a request has found out its version."""
        await self._decided.wait()
        assert self._chosen is not None
        await self._chosen.run(observed)

    async def aclose(self) -> None:
        """Close the session that was chosen, and the native one."""
        try:
            if self._chosen is not None and self._chosen is not self._native:
                await self._chosen.aclose()
        finally:
            await self._native.aclose()

    async def _choose(self, context: CallContext | None) -> Session:
        """The session that the server needs.

        Raises:
            SessionError: The server could not be asked; ``not_executed``.
        """
        while self._chosen is None:
            await self._choosing.run(context)
        return self._chosen

    async def _choose_now(self, context: CallContext | None) -> None:
        chosen: Session = self._native
        try:
            if self._asks_version:
                await self._native.discover(context)
            else:
                chosen = self._speak_other(self._native)
        except OtherVersionError:
            chosen = self._speak_other(self._native)
        except SessionError as error:
            if not self._is_unclear(error):
                raise
            chosen = self._speak_other(self._native)
            try:
                # Lists the tools. Gateways grant ``initialize`` and ``ping`` to everybody.
                await chosen.tool("", context=context)
            except SessionError:
                await chosen.aclose()
                raise error from None
        self._chosen = chosen
        self._decided.set()


def session_by_url(
    url: str,
    inputs: Inputs,
    policy: PollPolicy,
    clock: Clock,
    *,
    older: dict[str, Any],
    capabilities: JSONObject | None = None,
    limits: Limits | None = None,
    asks_version: bool = True,
    **options: Any,
) -> DiscoveringSession[HttpSession]:
    """The session of a server by URL: native, or of the older version that the server speaks."""
    from ..http.http_session import HttpSession  # on use, since it imports an HTTP library

    def speak_other(http: HttpSession) -> Session:
        # Loaded only for a server that turns out to need it.
        from ..v2025.core_session import session_over

        return session_over(http, inputs=inputs, clock=clock, **older)

    http = HttpSession(
        url,
        capabilities=inputs.capabilities if capabilities is None else capabilities,
        limits=limits or Limits(tasks_in_flight=policy.polls_in_flight),
        sleep=clock.sleep,
        **options,
    )
    return DiscoveringSession(http, speak_other, asks_version=asks_version)
