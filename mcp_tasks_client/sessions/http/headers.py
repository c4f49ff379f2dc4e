"""The headers of requests: those that the protocol has, and those of the host, which may renew them.

A host that gives a function is asked before each request, and once more if the server answers 401.
So a credential may expire in the middle of a task. The host is asked once at a time, and the answer serves
all requests that wait for it: a refresh token must not be used twice.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from ...errors import SessionError
from ...protocol import PROTOCOL_VERSION
from ...questions.context import CallContext
from ..param_headers import FIELD_NAME
from ..request_errors import foreign_error
from ..shared import Shared
from .body import ACCEPTED_ENCODINGS

__all__ = ["FIXED_HEADERS", "AnyHeaders", "HostHeaders"]

AnyHeaders: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Headers, or a function that gives them for each request, which may be async."""

# One line without outer blanks, as h11 takes it, and as every server reads it alike.
FIXED_HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": ", ".join(ACCEPTED_ENCODINGS),
    "MCP-Protocol-Version": PROTOCOL_VERSION,
}
_PROTOCOL_HEADERS: Final = frozenset({*map(str.lower, FIXED_HEADERS), "mcp-method", "mcp-name"})
_HEADER_VALUE: Final = re.compile(r"([\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?)?")


class HostHeaders:
    """The host's headers.

    Args:
        given: The headers, or a function that gives them, which may be a coroutine function.

    Attributes:
        may_change: Whether asking again may give others.

    Raises:
        ValueError: A header cannot be sent.
    """

    def __init__(self, given: AnyHeaders | None) -> None:
        self._ask = given if callable(given) else None
        self._fixed = {} if callable(given) else _check(given or {})
        self.may_change = self._ask is not None
        self._asking = Shared(self._ask_host)

    async def add_to(self, own: Mapping[str, str], method: str) -> dict[str, str]:
        """The headers of a request with those of the host, as the host gives them now.

        The request's ``own`` are not replaced by the host's.

        Raises:
            SessionError: The host gave none that can be sent, or raised this; ``not_executed``.
        """
        theirs = self._fixed
        if self._ask is not None:
            answer = await self._asking.run(None)
            if isinstance(answer, SessionError):  # it says whether that passes, and is one for each request
                said = copy.copy(answer)
                said.not_executed = True
                raise said from answer
            if isinstance(answer, Exception):
                error = foreign_error(method, answer, "go on")
                error.not_executed = True
                raise error from answer
            theirs = answer
        if not theirs:
            return dict(own)
        named = {name.lower() for name in own}
        return {**{name: value for name, value in theirs.items() if name.lower() not in named}, **own}

    async def _ask_host(self, context: CallContext | None) -> dict[str, str] | Exception:
        """The headers, or the exception of which each request makes an error of its own."""
        assert self._ask is not None
        try:
            asked = self._ask()
            return _check(await asked if inspect.isawaitable(asked) else asked)
        except Exception as cause:
            return cause


def _check(headers: Mapping[str, str]) -> dict[str, str]:
    """The host's headers without those of the protocol. Of two that differ in case, the last one counts.

    Raises:
        ValueError: One cannot be sent.
    """
    checked: dict[str, tuple[str, str]] = {}
    for name, value in headers.items():
        # Its value stays out of the message: it may well be the credential.
        if not (FIELD_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            raise ValueError(
                f"the header {name!r} cannot be sent: give it a name without blanks, and one line of "
                "plain ASCII without a blank at either end"
            )
        if name.lower() not in _PROTOCOL_HEADERS:
            checked[name.lower()] = name, value
    return dict(checked.values())
