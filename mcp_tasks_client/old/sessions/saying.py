"""Says a reply until the server has it: it does not ask again, and may wait for ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_exponential

from ..errors import CredentialRefusedError, SessionError
from ..wire import JSONObject, RequestId, RpcError
from .peer import Peer

__all__ = ["say"]

_LONGEST_S: Final = 30.0
_MOST: Final = 125
"""Tries; they take an hour."""

_back_off = wait_exponential(max=_LONGEST_S)


async def say(
    peer: Peer,
    request_id: RequestId,
    reply: JSONObject | RpcError,
    timeout_s: float,
    *,
    rest: Callable[[float], Awaitable[None]],
    wanted: Callable[[], bool],
    tried: Callable[[], None] = lambda: None,
) -> bool:
    """Answer a request of a server's, again and again until it has the answer, ever more rarely, for an hour.

    Also where the session seems to be lost: that can be what one of several servers says.

    Args:
        peer: The server.
        request_id: Of the request.
        reply: The answer.
        timeout_s: Seconds that it may take to be taken, each time.
        rest: Waits for so many seconds.
        wanted: Whether anybody waits for it still.
        tried: Called after each try.

    Returns:
        Whether the server has it; else nobody waits for it any more.

    Raises:
        SessionError: It does not take it.
    """

    async def once() -> bool:
        if not wanted():
            return False
        try:
            await peer.answer(request_id, reply, timeout_s)
        finally:
            tried()
        return True

    retrying = AsyncRetrying(
        retry=retry_if_exception(_may_pass),
        wait=_pause_s,
        stop=stop_after_attempt(_MOST),
        sleep=rest,
        reraise=True,
    )
    return await retrying(once)


def _may_pass(error: BaseException) -> bool:
    # A credential may be renewed meanwhile.
    return isinstance(error, CredentialRefusedError) or (isinstance(error, SessionError) and error.retryable)


def _pause_s(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    wanted_s = error.retry_after_s if isinstance(error, SessionError) else None
    return max(_back_off(state), wanted_s or 0.0)
