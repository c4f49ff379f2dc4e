"""A request over a session of the SDK's 1.x, which can be given up without harm to it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio
from pydantic import BaseModel, RootModel

from ..wire import JSONObject, RequestId

__all__ = ["Raw", "Sent"]

_DELIVERY_S: Final = 5.0
"""Seconds for a reply to be handed over that has come; it takes a turn of the loop."""

_NOT_THERE: Final = object()


class _Request(BaseModel):
    method: str
    params: JSONObject


Raw = RootModel[JSONObject]
"""What a request brings, as it came."""


class _GivenUp:
    """Takes the late replies to requests of ours, which a session would hand to its host as errors."""

    def __init__(self) -> None:
        self.request_ids: set[RequestId] = set()

    def route_response(self, request_id: RequestId, response: object) -> bool:
        """Whether a response is one of them."""
        late = request_id in self.request_ids
        self.request_ids.discard(request_id)
        return late

    route_error = route_response


_given_up: Final[WeakKeyDictionary[Any, _GivenUp]] = WeakKeyDictionary()


def _given_up_in(session: Any) -> _GivenUp:
    """What takes late replies in a session; nothing where the session has no place for it."""
    if session not in _given_up:
        _given_up[session] = _GivenUp()
        if hasattr(session, "add_response_router"):
            session.add_response_router(_given_up[session])
    return _given_up[session]


class Sent:
    """A request that the session has sent, and that can be given up without harm.

    A session that has taken the reply to a request off its stream, and finds nobody waiting when it hands
    it over a moment later, takes that for the end of its connection. So the request is never just
    cancelled, nor given a time by the session: first the session is made to forget that it waits.

    Args:
        session: Sends it.
        method: JSON-RPC method.
        params: Its params.
        timeout_s: Seconds after which it will be given up; ``None`` leaves that to the session.

    Attributes:
        request_id: Its ID; ``None`` while it has none.
        result: What came.
        error: What came instead.
        over: Whether anything did.
    """

    def __init__(self, session: Any, method: str, params: JSONObject, timeout_s: float | None) -> None:
        self.request_id: RequestId | None = None
        self.result: JSONObject | None = None
        self.error: Exception | None = None
        self.over = anyio.Event()
        self._session = session
        self._request = _Request(method=method, params=params)
        self._limit = None if timeout_s is None else timedelta(seconds=timeout_s + _DELIVERY_S)
        self._scope = anyio.CancelScope(shield=True)

    async def run(self) -> None:
        """Send it, and wait for what comes."""
        with self._scope:
            self.request_id = getattr(self._session, "_request_id", None)  # the next one's
            try:
                self.result = (await self._session.send_request(self._request, Raw, self._limit)).root
            except Exception as error:
                self.error = error
            self.over.set()

    async def give_up(self) -> None:
        """End :meth:`run`. What is being handed over comes first."""
        if self.request_id is not None:  # else it has not been sent
            waited_for = getattr(self._session, "_response_streams", {self.request_id: None})
            if waited_for.pop(self.request_id, _NOT_THERE) is not _NOT_THERE:
                _given_up_in(self._session).request_ids.add(self.request_id)
            else:
                with anyio.move_on_after(_DELIVERY_S, shield=True):
                    await self.over.wait()
        self._scope.cancel()
