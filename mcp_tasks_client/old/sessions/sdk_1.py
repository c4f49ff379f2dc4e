"""The session of the SDK's 1.x as ours: ``mcp.ClientSession``, and what FastMCP made of it before its 4.

That SDK speaks 2025-11-25 and no later version. It has shapes of its own, which are turned into those of
``mcp-types`` and back here and nowhere else; the checker does not know it, as one environment has one SDK.

It runs the callbacks of a session while it reads, so that nothing is received until they return. A question
of a task is therefore taken before that. Private names that this depends on: :data:`_PLUGS`, without which
questions go straight to the callbacks, unjournaled; and for hints, the session's handler of messages.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio
import mcp_types
from pydantic import BaseModel

from ..errors import ConnectionLostError, SessionError
from ..inputs import Callbacks, ElicitationCallback, InputContext, Inputs, RootsCallback, SamplingCallback
from ..wire import JSONObject, RequestId, RpcError, Task
from .faults import Faults, made_of_404
from .host_tasks import HostTasksSession
from .limits import Limits
from .lines import ANSWERS, SessionLine
from .sdk_1_requests import Raw, Sent
from .shapes_2025_11_25 import related_task
from .switchboard import AbandonedError, Switchboard
from .task_wish import TaskWish

__all__ = ["Line1", "Sdk1Session", "callbacks_of_host"]

logger = logging.getLogger("mcp_tasks_client")

_types: Any = import_module("mcp.types")
_exceptions: Any = import_module("mcp.shared.exceptions")
_context: Any = import_module("mcp.shared.context")

_QUESTIONS: Final = {
    "elicitation/create": ("ElicitRequest", "_elicitation_callback"),
    "sampling/createMessage": ("CreateMessageRequest", "_sampling_callback"),
    "roots/list": ("ListRootsRequest", "_list_roots_callback"),
}
_PLUGS: Final = ("_received_request", "_in_flight", "_send_response", "_task_group")
_WATCH_S: Final = 0.5
_TOLD_S: Final = 5.0
_MOST_ANSWERED: Final = 1000
"""Questions, of which it is noticed when a server takes them back all the same."""

_INTERNAL_ERROR: Final = -32603
_INVALID_PARAMS: Final = -32602
_CONNECTION_CLOSED: Final = -32000, "Connection closed"
_REQUEST_TIMEOUT: Final = 408
_GONE: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError)

_boards: Final[WeakKeyDictionary[Any, Switchboard]] = WeakKeyDictionary()


class Sdk1Session(HostTasksSession):
    """A server reached through a session of the SDK's 1.x.

    Args:
        current: The session as it is now. What it raises says why there is none.
        endpoint: The server's name in the journal.
        inputs: Answers questions.
        ephemeral: Whether the server's tasks end with the connection, as with stdio.
        limits: ``None`` are those over a host's session.
        wish: Whether 2025-11-25 is asked for tasks.
    """

    def __init__(
        self,
        current: Callable[[], Any],
        *,
        endpoint: str,
        inputs: Inputs,
        ephemeral: bool = False,
        limits: Limits | None = None,
        wish: TaskWish | None = None,
    ) -> None:
        super().__init__(
            partial(Line1, current),
            endpoint=endpoint,
            inputs=inputs,
            limits=limits,
            wish=wish,
        )
        self._current = current
        self._ephemeral = ephemeral

    @property
    def ephemeral(self) -> bool:
        """As given."""
        return self._ephemeral

    async def watch(self, heard: Callable[[Task], None]) -> None:
        """Return when there was a connection and there is none. Another one instead goes on."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(super().watch, heard)
            await self._disconnected()
            tasks.cancel_scope.cancel()

    async def _disconnected(self) -> None:
        was_open = False
        while True:
            try:
                is_open = not _is_closed(self._current())
            except RuntimeError:
                is_open = False
            if was_open and not is_open:
                return
            was_open = is_open
            await anyio.sleep(_WATCH_S)


class Line1(SessionLine[Any]):
    """The host's session as it is now.

    Args:
        current: That session. What it raises says why there is none.

    Raises:
        ConnectionLostError: There is none.
    """

    def __init__(self, current: Callable[[], Any]) -> None:
        super().__init__(current, _boards, _plug)

    @property
    def introduction(self) -> JSONObject:
        """What the server said of itself in the handshake, as far as the SDK has kept it."""
        capabilities = self.session.get_server_capabilities()
        if capabilities is None:
            raise ConnectionLostError(
                "The host's session is not initialized: await session.initialize() first.", not_executed=True
            )
        return {"capabilities": _dumped(capabilities)}

    async def send(
        self,
        method: str,
        params: JSONObject,
        timeout_s: float | None,
        faults: Faults,
        request_id: RequestId | None = None,
    ) -> JSONObject:
        """Send a request, and return its result. The session gives it an ID of its own.

        Raises:
            SessionError: No result.
        """
        sent = Sent(self.session, method, params, timeout_s)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sent.run)
            try:
                with anyio.move_on_after(timeout_s):
                    await sent.over.wait()
            finally:
                if not sent.over.is_set():
                    await sent.give_up()
                    if method == "tasks/result" and sent.request_id is not None:
                        await self._take_back(sent.request_id)
        if isinstance(sent.error, _exceptions.McpError):
            said = RpcError(sent.error.error.code, sent.error.error.message, sent.error.error.data)
            raise _fault(faults, said, self.session) from sent.error
        if isinstance(sent.error, _GONE):
            raise faults.disconnected() from sent.error
        if sent.error is not None:
            raise sent.error
        if sent.result is None:
            assert timeout_s is not None, "else there is no end without a reply"
            raise faults.overdue(timeout_s)
        return sent.result

    async def say_again(self, request_id: RequestId, answer: JSONObject | RpcError) -> None:
        """Answer a request of the server's once more."""
        await _say(self.session, request_id, answer)

    async def _take_back(self, request_id: RequestId) -> None:
        """Tell the server that nobody waits, for it would hand the next question to who does not."""
        params = _types.CancelledNotificationParams(requestId=request_id, reason="given up")
        notification = _types.CancelledNotification(params=params)
        with anyio.move_on_after(_TOLD_S, shield=True), suppress(*_GONE):
            await self.session.send_notification(_types.ClientNotification(notification))


def callbacks_of_host(
    current: Callable[[], Any],
    *,
    elicitation: ElicitationCallback | None,
    sampling: SamplingCallback | None,
    roots: RootsCallback | None,
) -> Callbacks:
    """Callbacks as given; where there is none, the one that the host gave to its own session."""

    async def asked(method: str, context: InputContext, params: BaseModel | None) -> Any:
        session = current()
        request, callback = _QUESTIONS[method]
        theirs = _context.RequestContext(
            request_id=context.key, meta=None, session=session, lifespan_context=None
        )
        given: tuple[Any, ...] = ()
        if params is not None:
            whole = {"method": method, "params": _dumped(params)}
            given = (getattr(_types, request).model_validate(whole).params,)
        answer = await getattr(session, callback)(theirs, *given)
        if isinstance(answer, _types.ErrorData):
            return mcp_types.ErrorData.model_validate(_dumped(answer))
        return ANSWERS[method].validate_python(_dumped(answer), by_name=False)

    async def elicit(context: InputContext, params: mcp_types.ElicitRequestParams) -> Any:
        return await asked("elicitation/create", context, params)

    async def sample(context: InputContext, params: mcp_types.CreateMessageRequestParams) -> Any:
        return await asked("sampling/createMessage", context, params)

    async def list_roots(context: InputContext) -> Any:
        return await asked("roots/list", context, None)

    return Callbacks(
        elicitation=elicitation or elicit, sampling=sampling or sample, roots=roots or list_roots
    )


# ── the session's insides ─────────────────────────────────────────────────────────────────────


class _Taken:
    """Stands for a question among those that the server can take back, before it is answered and after."""

    def __init__(self, board: Switchboard, request_id: RequestId) -> None:
        self.request_id = request_id
        self.scope = anyio.CancelScope()
        self.answered = False
        self._board = board

    async def cancel(self) -> None:
        self.scope.cancel()
        if self.answered:
            self._board.taken_back(self.request_id)


def _plug(of: weakref.ref[Any], board: Switchboard) -> Callable[[], None]:
    """Put a switchboard before a session's callbacks; returns what takes it away again."""
    session: Any = of()
    if not all(hasattr(session, name) for name in _PLUGS):
        return lambda: None
    received: Any = session._received_request
    handled: Any = getattr(session, "_message_handler", None)
    answered: deque[_Taken] = deque()

    async def ours(responder: Any) -> None:
        message = _message(responder)
        if related_task(message.get("params")) is None or "task" in message["params"]:
            board.given_away(message)
            await received(responder)
            return
        # Else the session would take a question that is not answered yet for one that nobody knows.
        responder._completed = True
        session._in_flight[responder.request_id] = taken = _Taken(board, responder.request_id)
        session._task_group.start_soon(answer, responder, message, taken)

    async def answer(responder: Any, message: JSONObject, taken: _Taken) -> None:
        if await _answer(board, session, responder, message, taken, received):
            answered.append(taken)
        else:
            _forget(session, taken)
        if len(answered) > _MOST_ANSWERED:
            _forget(session, answered.popleft())

    async def heard(message: Any) -> None:
        root = getattr(message, "root", None)
        if isinstance(message, _types.ServerNotification) and root is not None:
            board.tell(root.method, _dumped(root.params) if root.params is not None else None)
        await handled(message)

    session._received_request = ours
    if handled is not None:
        session._message_handler = heard

    def restore() -> None:
        session: Any = of()
        if session is not None and session.__dict__.get("_received_request") is ours:
            del session._received_request  # what it has of its class is what it had
        if session is not None and getattr(session, "_message_handler", None) is heard:
            session._message_handler = handled
        while session is not None and answered:
            _forget(session, answered.popleft())

    return restore


async def _answer(
    board: Switchboard, session: Any, responder: Any, message: JSONObject, taken: _Taken, host: Any
) -> bool:
    """See that a question gets an answer; whether it was one of ours."""
    answer: JSONObject | RpcError | None = None
    with taken.scope:
        try:
            answer = await board.answer_to(message, taken.scope)
        except AbandonedError:
            return False
    if taken.scope.cancelled_caught:
        return False
    taken.answered = answer is not None
    if answer is None:
        responder._completed = False
        session._in_flight[taken.request_id] = responder
        try:
            await host(responder)
            return False
        except Exception as error:  # as the session itself takes it, of whose loop this is no part
            logger.warning("The host's callback for %s raised %s", message["method"], type(error).__name__)
            answer = RpcError(_INVALID_PARAMS, "Invalid request parameters", "")
    await _say(session, taken.request_id, answer)
    return taken.answered


def _forget(session: Any, taken: _Taken) -> None:
    if session._in_flight.get(taken.request_id) is taken:
        del session._in_flight[taken.request_id]


async def _say(session: Any, request_id: RequestId, answer: JSONObject | RpcError) -> None:
    if isinstance(answer, RpcError):
        code = answer.code or _INTERNAL_ERROR
        response = _types.ErrorData(code=code, message=answer.message, data=answer.data)
    else:
        response = Raw(answer)
    with suppress(*_GONE):  # the session has ended meanwhile
        await session._send_response(request_id, response)


def _message(responder: Any) -> JSONObject:
    root = responder.request.root
    params = _dumped(root.params) if getattr(root, "params", None) is not None else {}
    return {"id": responder.request_id, "method": root.method, "params": params}


def _dumped(model: BaseModel) -> JSONObject:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _is_closed(session: Any) -> bool:
    """Whether the connection has ended; the SDK shows it nowhere else."""
    return bool(getattr(getattr(session, "_write_stream", None), "_closed", False))


def _fault(faults: Faults, error: RpcError, session: Any) -> SessionError:
    said = error.code, error.message
    if error.data is None:
        if said == _CONNECTION_CLOSED:
            return faults.disconnected() if _is_closed(session) else faults.lost(error.message)
        if made_of_404(error):  # this SDK passes on nobody else's word
            return faults.session_ended(error)
        if error.code == _REQUEST_TIMEOUT:
            return faults.lost(error.message)
    return faults.by_code(error, None, None)
