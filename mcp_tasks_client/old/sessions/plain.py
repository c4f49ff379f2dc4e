"""What a server of 2025-11-25 asks for a call that is no task, or for itself."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import anyio

from ..errors import SessionError
from ..inputs import InputContext, Inputs
from ..wire import JSONObject, RequestId, RpcError
from .peer import Peer
from .saying import say
from .shapes_2025_11_25 import id_text, request_id_of

__all__ = ["QUESTIONS", "PlainQuestions"]

QUESTIONS: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})

_METHOD_NOT_FOUND: Final = -32601


class PlainQuestions:
    """Those that have no answer yet.

    Args:
        inputs: Answers them.
        timeout_s: Seconds that an answer may take to be taken.
    """

    def __init__(self, inputs: Inputs, timeout_s: float) -> None:
        self._inputs = inputs
        self._timeout_s = timeout_s
        self._open: dict[tuple[Peer, str], JSONObject] = {}
        self._said: set[tuple[Peer, str]] = set()
        self._asking: dict[tuple[Peer, str], anyio.CancelScope] = {}

    def add(self, peer: Peer, message: JSONObject) -> bool:
        """Note a request. False if it has come twice, and nothing was said to it yet."""
        name = peer, id_text(_id(message))
        if self._open.get(name) == message and name not in self._said:
            return False
        self._withdraw(name)
        self._open[name] = message
        return True

    def withdraw(self, peer: Peer, request_id: RequestId, message: JSONObject | None = None) -> None:
        """Neither ask nor answer what came under an ID, unless it is this message, which has come again."""
        name = peer, id_text(request_id)
        if self._open.get(name) != message:
            self._withdraw(name)

    def _withdraw(self, name: tuple[Peer, str]) -> None:
        self._open.pop(name, None)
        self._said.discard(name)
        if name in self._asking:
            self._asking.pop(name).cancel()

    async def answer(self, peer: Peer, message: JSONObject) -> None:
        """Answer a request, unless it is withdrawn meanwhile."""
        request_id, method = _id(message), message.get("method")
        name = peer, id_text(request_id)
        try:
            answer: JSONObject | RpcError = {}
            if method in QUESTIONS:
                context = InputContext(tool=None, key=str(request_id), task=None)
                with anyio.CancelScope() as scope:
                    if self._open.get(name) is message:
                        self._asking[name] = scope
                        answer = await self._inputs.reply(context, message)
            elif method != "ping":
                answer = RpcError(_METHOD_NOT_FOUND, "Method not found", None)
            if self._open.get(name) is message:
                self._said.add(name)  # it may arrive though nobody says so
            with suppress(SessionError):  # the call that it was for fails by itself
                await say(
                    peer,
                    request_id,
                    answer,
                    self._timeout_s,
                    rest=anyio.sleep,
                    # Another request may have its ID by then.
                    wanted=lambda: self._open.get(name) is message,
                )
        finally:
            if self._open.get(name) is message:
                del self._open[name]
                self._said.discard(name)
                self._asking.pop(name, None)


def _id(message: JSONObject) -> RequestId:
    request_id = request_id_of(message)
    assert request_id is not None, "only requests are answered"
    return request_id
