"""The session of the SDK's 2.x, where it was negotiated at 2025-11-25: its requests, and what it is asked.

Private names of the SDK that this depends on: the three callbacks of a session; its dispatcher's hook for
notifications, without which there are fewer hints and nothing else; how that writes answers, without which
none is said again; and what it holds of requests under way, without which those that get no answer last as
long as the session.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio
from mcp import ClientSession
from mcp.shared.dispatcher import coerce_request_id
from mcp_types import CancelledNotification, CancelledNotificationParams, ErrorData

from ..wire import JSONObject, RequestId, RpcError
from .faults import Faults
from .lines import ANSWERS, SessionLine
from .sdk_requests import RawRequest, mapped, sent
from .shapes_2025_11_25 import created_task
from .switchboard import AbandonedError, Switchboard

__all__ = ["SdkLine"]

logger = logging.getLogger("mcp_tasks_client")

_CALLBACKS: Final = {
    "elicitation/create": "_elicitation_callback",
    "sampling/createMessage": "_sampling_callback",
    "roots/list": "_list_roots_callback",
}
_INTERNAL_ERROR: Final = -32603
_UNDER_WAY: Final = "_in_flight"
_HOOK: Final = "_on_notify_intercept"
_WRITES: Final = ("_write_result", "_write_error")

_holders: Final = Counter[int]()
"""How many requests have an entry of the SDK's, by its ``id()``, while they hold it."""

_options: Final[ContextVar[Mapping[str, Any]]] = ContextVar(
    "what the SDK is to do with a request of ours", default=MappingProxyType({})
)

_boards: Final[WeakKeyDictionary[ClientSession, Switchboard]] = WeakKeyDictionary()


class SdkLine(SessionLine[ClientSession]):
    """The host's session as it is now.

    Args:
        current: That session. What it raises says why there is none.

    Raises:
        ConnectionLostError: There is none.
    """

    def __init__(self, current: Callable[[], ClientSession]) -> None:
        super().__init__(current, _boards, _plug)

    @property
    def introduction(self) -> JSONObject:
        """What the server said of itself in the handshake."""
        result = self.session.initialize_result
        assert result is not None, "no other generation begins without a handshake"
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def send(
        self,
        method: str,
        params: JSONObject,
        timeout_s: float | None,
        faults: Faults,
        request_id: RequestId | None = None,
    ) -> JSONObject:
        """Send a request, and return its result. Without an ID of ours the session gives it one.

        Raises:
            SessionError: No result.
        """
        request = RawRequest(method=method, params=params)
        # To take one back just as it is answered ends the session on some servers. So only calls are, and
        # what waits for a question, which has an ID of ours.
        options = {"cancel_on_abandon": request_id is not None or method == "tools/call"}
        before = _options.set(options if request_id is None else {**options, "request_id": request_id})
        try:
            with mapped(faults, self.session):
                return await sent(self.session, request, timeout_s, is_task=_is_created)
        finally:
            _options.reset(before)

    async def take_back(self, request_id: RequestId) -> None:
        """Tell the server that nobody waits for a reply: one that broke, the SDK takes for answered."""
        params = CancelledNotificationParams.model_validate({"requestId": request_id, "reason": "given up"})
        await self.session.send_notification(CancelledNotification(params=params))

    async def say_again(self, request_id: RequestId, answer: JSONObject | RpcError) -> None:
        """Answer a request of the server's once more, where the SDK still has a way to."""
        dispatcher: Any = self.session._dispatcher
        if not all(hasattr(dispatcher, name) for name in _WRITES):
            logger.warning("An answer may be lost, and this version of the SDK cannot say it again.")
        elif isinstance(answer, RpcError):
            await dispatcher._write_error(request_id, _as_error(answer))
        else:
            await dispatcher._write_result(request_id, answer)


def _is_created(reply: JSONObject) -> bool:
    return created_task(reply) is not None


def _plug(of: weakref.ref[ClientSession], board: Switchboard) -> Callable[[], None]:
    """Put a switchboard before a session's callbacks; returns what takes it away again."""
    session: Any = of()
    unplug = [_replace(session, name, _asking(board, method)) for method, name in _CALLBACKS.items()]
    unplug.append(_replace(session._dispatcher, "send_raw_request", _as_wanted))
    if hasattr(session._dispatcher, _HOOK):
        unplug.append(_replace(session._dispatcher, _HOOK, _telling(board)))

    def restore() -> None:
        for one in unplug:
            one()

    return restore


def _replace(owner: Any, name: str, around: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace an attribute by something around it; returns what puts it back."""
    before = getattr(owner, name)
    after = around(before)
    setattr(owner, name, after)
    reference = weakref.ref(owner)

    def restore() -> None:
        owner = reference()
        if owner is not None and getattr(owner, name) is after:  # else somebody has come after us
            setattr(owner, name, before)

    return restore


def _as_wanted(send: Any) -> Any:
    """Has a request of ours go as we want it to, for which the SDK's own session has no word."""

    async def as_wanted(method: str, params: Any, opts: Any = None, **related: Any) -> Any:
        return await send(method, params, {**(opts or {}), **_options.get()}, **related)

    return as_wanted


def _asking(board: Switchboard, method: str) -> Callable[[Any], Any]:
    def around(callback: Any) -> Any:
        async def asked(context: Any, *params: Any) -> Any:
            # Our own machine has the host's callback asked without the mark of a task, and so comes through.
            meta = getattr(context, "meta", None)
            message: JSONObject = {
                "id": context.request_id,
                "method": method,
                "params": {**_dumped(*params), **({"_meta": dict(meta)} if meta else {})},
            }
            entry = _entry(context)
            with _held(entry) as settle:
                try:
                    answer = await board.answer_to(message, getattr(entry, "scope", None))
                except AbandonedError:
                    settle()
                    await anyio.sleep_forever()  # until it ends by that, or else with the session
                if answer is None:
                    return await callback(context, *params)
            if isinstance(answer, RpcError):
                return _as_error(answer)
            return ANSWERS[method].validate_python(answer, by_name=False)

        return asked

    return around


def _entry(context: Any) -> Any:
    """What the SDK holds of a request, or of one that came under its ID before this one was looked at."""
    return getattr(context.session._dispatcher, _UNDER_WAY, {}).get(coerce_request_id(context.request_id))


@contextmanager
def _held(entry: Any) -> Iterator[Callable[[], None]]:
    """For as long as a request may be answered. What this gives ends it without an answer.

    So does the SDK with one that the server has taken back. Where two requests of one ID have the same
    entry, nobody knows whose it is.
    """
    _holders[id(entry)] += 1

    def settle() -> None:
        if _holders[id(entry)] == 1:
            with suppress(AttributeError):  # else it lasts as long as the session
                entry.scope.cancel()

    try:
        yield settle
    finally:
        _holders[id(entry)] -= 1
        if not _holders[id(entry)]:
            del _holders[id(entry)]


def _telling(board: Switchboard) -> Callable[[Any], Any]:
    def around(hook: Any) -> Any:
        def told(method: str, params: Mapping[str, Any] | None) -> bool:
            board.tell(method, params)
            return hook is not None and bool(hook(method, params))

        return told

    return around


def _as_error(error: RpcError) -> ErrorData:
    return ErrorData(code=error.code or _INTERNAL_ERROR, message=error.message, data=error.data)


def _dumped(params: Any = None) -> JSONObject:
    if params is None:
        return {}
    dumped: JSONObject = params.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dumped
