"""Requests over the official SDK's session, in plain JSON; and what it raises, as our errors."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from mcp import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import Request
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from ..errors import SessionError
from ..wire import JSONObject, RpcError
from .faults import Faults, denies_session, made_of_404
from .sdk_words import made_up

__all__ = ["SEND_REQUEST", "RawRequest", "is_closed", "mapped", "names_a_task", "sent"]

_RAW: Final = TypeAdapter(dict[str, Any])
_CLOSED: Final = "Connection closed"

_CONNECTION_CLOSED: Final = -32000

SEND_REQUEST: Final = getattr(inspect.unwrap(ClientSession.send_request), "__code__", None)
"""The SDK's code that has a reply in its hands, to be known again among our callers."""


class RawRequest(Request[dict[str, Any], str]):
    """A request whose params are plain JSON, so that they go as they are."""


def names_a_task(reply: JSONObject) -> bool:
    """Whether it is a task, as 2026-07-28 has them."""
    return reply.get("resultType") == "task"


async def sent(
    session: ClientSession,
    request: Request[Any, str],
    timeout_s: float | None,
    *,
    is_task: Callable[[JSONObject], bool] = names_a_task,
) -> JSONObject:
    """Send a request, and return its result as it came.

    Args:
        session: Sends it.
        request: What to send.
        timeout_s: Seconds after which it is given up; ``None`` leaves that to the session.
        is_task: Whether a result must not be lost, though the SDK takes it for broken.

    Raises:
        MCPError: No result.
        ValidationError: A result that does not fit the protocol.
    """
    send: Any = session.send_request  # takes any type adapter, though its annotation wants a model's
    try:
        raw: JSONObject = await send(request, _RAW, request_read_timeout_seconds=timeout_s)
    except ValidationError as error:
        # Checked by the SDK against the core protocol first. A task in it must not be lost for that.
        whole = _whole_result(error)
        if whole is None or not is_task(whole):
            raise
        return whole
    return raw


def _whole_result(error: ValidationError) -> JSONObject | None:
    """What did not pass, as it came: the error tells of its faults, the SDK's own frame has all."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        raw = frame.f_locals.get("raw") if frame.f_code is SEND_REQUEST else None
        if isinstance(raw, dict):
            return raw
    return None


@contextmanager
def mapped(faults: Faults, session: ClientSession) -> Iterator[None]:
    """Turn what the SDK raises into :class:`SessionError`."""
    try:
        yield
    except ValidationError as error:
        raise faults.malformed(f"it does not fit the core protocol, {error.error_count()} errors") from None
    except MCPError as error:
        said = RpcError(error.code, error.message, error.data)
        raise _fault(faults, said, session) from error


def is_closed(session: ClientSession) -> bool:
    """Whether the connection has ended; the SDK shows it nowhere else."""
    group = session._task_group
    return (
        group is None
        or group.cancel_scope.cancel_called
        or bool(getattr(session._dispatcher, "_closed", False))
    )


def _fault(faults: Faults, error: RpcError, session: ClientSession) -> SessionError:
    said = error.code, error.message
    if error.data is not None:
        return faults.by_code(error, None, None)
    if said == (_CONNECTION_CLOSED, _CLOSED):
        # The same words may be a proxy's, about a connection of its own.
        return faults.disconnected() if is_closed(session) else faults.lost(error.message)
    # A server that needs no sessions says nothing of one: then it is only the SDK's word for an HTTP 404.
    needed = session.protocol_version not in MODERN_PROTOCOL_VERSIONS
    if made_of_404(error) or (needed and denies_session(error)):
        return faults.session_ended(error)
    if made_up(error):
        return faults.lost(error.message)
    return faults.by_code(error, None, None)
