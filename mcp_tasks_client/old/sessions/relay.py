"""Between a host's session and its transport: everything passes, and requests of ours go among the host's.

A transport of the SDK's is a pair of streams of messages. Whoever stands between sees the handshake, and so
knows what the server offers; takes a call that may become a task out of the stream, and puts its result in;
and has the server's questions before the host's session has them, by no private name of anybody's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, TypeAlias
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup

from ..errors import ConnectionLostError
from ..inputs import InputContext, Inputs
from ..wire import JSONObject, RequestId, RpcError
from .faults import Faults, denies_session
from .messages import as_reply, read
from .sdk_words import made_up
from .shapes_2025_11_25 import CORE_TASKS_VERSION, related_task
from .switchboard import AbandonedError, Switchboard

__all__ = ["Relay", "Serve", "Served"]


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Served:
    """What became of a call of the host's."""

    reply: JSONObject | RpcError
    had: Callable[[], None] = _nothing
    """Called when the host's session has read it."""


Serve: TypeAlias = Callable[[JSONObject], Awaitable[Served | None]]
"""Runs a ``tools/call`` of the host's by its params; ``None`` leaves it to the server."""

logger = logging.getLogger("mcp_tasks_client")

_TOLD_S: Final = 5.0
_INTERNAL_ERROR: Final = -32603
_KINDS: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""Capabilities, by what they are asked for."""

_CLOSED: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError)


class _Waiting:
    """A request of ours, whose reply may come."""

    def __init__(self) -> None:
        self.came = anyio.Event()
        self.reply: JSONObject | RpcError | None = None


class Relay:
    """Passes messages on, and has some of its own.

    Args:
        wrapped: Makes a message of the SDK's from one in JSON.
        serve: Asked about each call of the host's, once there is a session at 2025-11-25.
        inputs: Answer in the host's place what it does not declare itself, in its handshake too.

    Attributes:
        introduction: What the server said of itself in the handshake.
        over: Set once there is no connection any more.
    """

    def __init__(self, *, wrapped: Callable[[JSONObject], Any], serve: Serve, inputs: Inputs) -> None:
        self.introduction: JSONObject = {}
        self.over = anyio.Event()
        self._board: Switchboard | None = None
        self._to_server: Any = None
        self._to_host: Any = None
        self._wrapped = wrapped
        self._serve = serve
        self._session_id: Callable[[], str | None] = _nameless
        self._inputs = inputs
        self._declared: frozenset[str] = frozenset()
        self._handshake: RequestId | None = None
        self._own = f"tasks-{uuid4().hex}-"
        self._ids = count()
        self._waiting: dict[RequestId, _Waiting] = {}
        self._serving: dict[RequestId, anyio.CancelScope] = {}
        self._served = anyio.Event()
        self._unread: dict[int, anyio.Event] = {}
        self._answering: dict[RequestId, tuple[anyio.CancelScope, JSONObject]] = {}
        self._tasks: TaskGroup | None = None

    @property
    def board(self) -> Switchboard:
        """Where the server's questions go.

        Raises:
            ConnectionLostError: There is no session, or not one at 2025-11-25.
        """
        if self._board is None or self.over.is_set():
            raise ConnectionLostError(
                "The host's session is not connected, or not at 2025-11-25. Connect it; then repeat the "
                "call, or resume() what is unfinished.",
                not_executed=True,
            )
        return self._board

    async def run(
        self,
        host: tuple[Any, Any],
        server: tuple[Any, Any],
        session_id: Callable[[], str | None] | None = None,
    ) -> None:
        """Pass on what comes, until cancelled.

        Args:
            host: What its session writes, and what it reads.
            server: What comes from the transport, and what goes there.
            session_id: Tells what the transport calls the session by now; ``None`` if it has no name.
        """
        (from_host, self._to_host), (from_server, self._to_server) = host, server
        self._session_id = session_id or _nameless
        async with from_host, self._to_host, anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._hear_server, from_server)
            with suppress(*_CLOSED):
                async for message in from_host:
                    await self._from_host(message)
            # The host's session has ended, and its transport ends when it is left.
            await anyio.sleep_forever()

    async def _hear_server(self, from_server: Any) -> None:
        try:
            with suppress(*_CLOSED):
                async for message in from_server:
                    if not self._taken(message):
                        with suppress(*_CLOSED):  # nobody reads any more
                            await self._to_host.send(message)
        finally:
            self.over.set()
            for waiting in self._waiting.values():
                waiting.came.set()
            self._to_host.close()

    async def let_go(self) -> None:
        """Abandon the host's calls, and return when that has been done."""
        while self._serving:
            for scope in self._serving.values():
                scope.cancel()
            await self._served.wait()

    # ── requests of ours ──────────────────────────────────────────────────────────────────────

    def new_request_id(self) -> RequestId:
        """An ID that none of the host's requests has."""
        return f"{self._own}{next(self._ids)}"

    async def request(
        self,
        method: str,
        params: JSONObject,
        timeout_s: float | None,
        faults: Faults,
        request_id: RequestId | None = None,
    ) -> JSONObject:
        """Ask the server, and return its result.

        Raises:
            SessionError: No result.
        """
        try:
            reply = await self._ask(self._to_server, method, params, timeout_s, request_id)
        except _CLOSED as error:
            raise faults.disconnected() from error
        if reply is None:
            assert timeout_s is not None or self.over.is_set(), "else there is no end without a reply"
            raise faults.disconnected() if self.over.is_set() else faults.overdue(timeout_s or 0.0)
        if not isinstance(reply, RpcError):
            return reply
        if denies_session(reply):
            raise faults.session_ended(reply)
        raise faults.lost(reply.message) if made_up(reply) else faults.by_code(reply, None, None)

    async def take_back(self, request_id: RequestId, stream: Any = None) -> None:
        """Tell the server, or whose stream it is, that nobody waits for a reply any more."""
        params = {"requestId": request_id, "reason": "given up"}
        with suppress(*_CLOSED):
            said = {"method": "notifications/cancelled", "params": params}
            await self._say(stream or self._to_server, said)

    async def ask_host(self, method: str, params: JSONObject | None) -> JSONObject | RpcError:
        """Ask the host what a server has asked, for as long as it takes."""
        answer = None
        with suppress(*_CLOSED):
            answer = await self._ask(self._to_host, method, params, None)
        return RpcError(_INTERNAL_ERROR, "the host's session has ended", None) if answer is None else answer

    async def _ask(
        self,
        stream: Any,
        method: str,
        params: JSONObject | None,
        timeout_s: float | None,
        request_id: RequestId | None = None,
    ) -> JSONObject | RpcError | None:
        if self.over.is_set():
            return None
        waits = request_id is not None
        request_id = request_id or self.new_request_id()
        given = {} if params is None else {"params": params}
        waiting = self._waiting[request_id] = _Waiting()
        try:
            with anyio.move_on_after(timeout_s):
                await self._say(stream, {"id": request_id, "method": method, **given})
                await waiting.came.wait()
        finally:
            del self._waiting[request_id]
            # A server would hand the next question to who does not wait for it any more. Of other requests
            # nobody need know: to take one back just as it is answered ends the session on some servers.
            wanted = waits or stream is self._to_host
            if wanted and waiting.reply is None and not self.over.is_set():
                with anyio.move_on_after(_TOLD_S, shield=True):
                    await self.take_back(request_id, stream)
        return waiting.reply

    async def _say(self, stream: Any, message: JSONObject) -> None:
        await stream.send(self._wrapped({"jsonrpc": "2.0", **message}))

    # ── what the host says ────────────────────────────────────────────────────────────────────

    async def _from_host(self, message: Any) -> None:
        said = read(message)
        params: JSONObject = said.get("params") or {}
        match said.get("method"):
            case None if self._replied(said):
                return
            case "initialize":
                self._handshake = said["id"]
                message = self._introducing(message, params)
            case "tools/call" if self._serves(message):
                assert self._tasks is not None, "they run"
                # Before it begins, for it can be taken back at once.
                self._serving[said["id"]] = scope = anyio.CancelScope()
                self._tasks.start_soon(self._serve_call, said["id"], params, message, scope)
                return
            case "notifications/cancelled" if params.get("requestId") in self._serving:
                self._serving[params["requestId"]].cancel()
                return
        with suppress(*_CLOSED):
            await self._to_server.send(message)

    def _introducing(self, message: Any, params: JSONObject) -> Any:
        """The host's introduction, with what can be answered in its place."""
        theirs, ours = params.get("capabilities") or {}, self._inputs.capabilities
        capabilities, self._declared = {**ours, **theirs}, frozenset(ours) - frozenset(theirs)
        said = {"id": self._handshake, "method": "initialize"}
        whole = self._wrapped({"jsonrpc": "2.0", **said, "params": {**params, "capabilities": capabilities}})
        return replace(whole, metadata=message.metadata)

    def _serves(self, message: Any) -> bool:
        """Whether a call may be for us. One that was made before, and goes on by a token, is not."""
        return self._board is not None and getattr(message.metadata, "resumption_token", None) is None

    async def _serve_call(
        self, request_id: RequestId, params: JSONObject, message: Any, scope: anyio.CancelScope
    ) -> None:
        try:
            with scope, suppress(*_CLOSED):
                served = await self._safely_served(params)
                if served is None:
                    await self._to_server.send(message)
                else:
                    reply = self._wrapped({"jsonrpc": "2.0", "id": request_id, **as_reply(served.reply)})
                    self._unread[id(reply)] = read = anyio.Event()
                    try:
                        await self._to_host.send(reply)
                        await read.wait()
                    finally:
                        del self._unread[id(reply)]
                    served.had()
        finally:
            del self._serving[request_id]
            self._served.set()
            self._served = anyio.Event()

    async def _safely_served(self, params: JSONObject) -> Served | None:
        try:
            return await self._serve(params)
        except Exception as error:
            logger.exception("A call could not be seen through")
            return Served(RpcError(_INTERNAL_ERROR, f"{type(error).__name__}: {error}", None))

    def read(self, message: Any) -> None:
        """Note that the host's session has read a message."""
        read = self._unread.get(id(message))
        if read is not None:
            read.set()

    # ── what the server says ──────────────────────────────────────────────────────────────────

    def _taken(self, message: Any) -> bool:
        """Whether a message is for us. What goes wrong here is no reason for the host not to have it."""
        try:
            return not isinstance(message, Exception) and self._take(read(message), message)
        except Exception as error:
            logger.warning("What the server says could not be read: %s: %s", type(error).__name__, error)
            return False

    def _take(self, said: JSONObject, message: Any) -> bool:
        method, params = said.get("method"), said.get("params") or {}
        if method is None:
            if "result" in said and said.get("id") == self._handshake:
                self._introduced(said["result"])
            return self._replied(said)
        if self._board is None:
            return False
        if "id" not in said:
            return self._told(self._board, method, params)
        self._board.given_away(said)
        before = self._answering.get(said["id"])
        if before is not None and before[1] != said:
            before[0].cancel()  # the server has given its ID to another request
        if "task" in params or (related_task(params) is None and _KINDS.get(method) not in self._declared):
            return False
        if before is None or before[1] != said:  # it may come over two streams
            assert self._tasks is not None, "they run"
            scope = anyio.CancelScope()
            self._answering[said["id"]] = scope, said
            self._tasks.start_soon(self._answer, self._board, said, message, scope)
        return True

    def _introduced(self, result: JSONObject) -> None:
        self.introduction = result
        if result.get("protocolVersion") == CORE_TASKS_VERSION:
            name = self._session_id()
            self._board = Switchboard(_plugged, name if isinstance(name, str) else None)
        else:
            logger.warning("The session is not at %s, and its calls are plain ones", CORE_TASKS_VERSION)

    def _told(self, board: Switchboard, method: str, params: JSONObject) -> bool:
        """Take a notification; whether it is none of the host's business."""
        if method == "notifications/cancelled" and params.get("requestId") in self._answering:
            self._answering[params["requestId"]][0].cancel()
            return True
        board.tell(method, params)
        return method == "notifications/tasks/status" and board.sees_to(str(params.get("taskId")))

    async def _answer(
        self, board: Switchboard, said: JSONObject, message: Any, scope: anyio.CancelScope
    ) -> None:
        with scope, suppress(AbandonedError):
            try:
                answer = await board.answer_to(said, scope)
                if answer is None and _KINDS.get(said["method"]) in self._declared:
                    context = InputContext(tool=None, key=str(said["id"]), task=None)
                    answer = await self._inputs.reply(context, said)
            finally:
                if self._answering.get(said["id"]) == (scope, said):
                    del self._answering[said["id"]]
            if answer is not None:
                await self.answer(said["id"], answer)
            else:
                with suppress(*_CLOSED):
                    await self._to_host.send(message)

    async def answer(self, request_id: RequestId, answer: JSONObject | RpcError) -> None:
        """Answer a request of the server's, unless there is no connection any more."""
        with suppress(*_CLOSED):
            await self._say(self._to_server, {"id": request_id, **as_reply(answer)})

    def _replied(self, said: JSONObject) -> bool:
        """Take the reply to a request of ours, waited for or not."""
        request_id = said.get("id")
        waiting = self._waiting.get(request_id) if isinstance(request_id, str | int) else None
        if waiting is not None:
            error = said.get("error")
            waiting.reply = said.get("result", {}) if error is None else error
            waiting.came.set()
        return waiting is not None or str(request_id).startswith(self._own)


def _nameless() -> None:
    return None


def _plugged(board: Switchboard) -> Callable[[], None]:
    return lambda: None  # the relay asks it by itself
