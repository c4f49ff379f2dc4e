"""What goes wrong over HTTP, as this package's errors.

Everything that can end a request is told in one place, so that all messages say the same three
things: what happened, whether the server may have acted, and what to do next. Nothing here
quotes a header or a whole task ID.
"""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC
from typing import Final, NoReturn

from ..errors import (
    ConnectionLostError,
    CredentialRefusedError,
    MissingCapabilityError,
    RemoteProtocolError,
    SessionError,
)
from ..wire import MalformedError, RpcError, header_value, shorten
from .base import GATEWAY_STATUSES, INVALID_PARAMS, REFUSED_CODES
from .transport import OF_HTTPX, Failures

__all__ = [
    "CREDENTIAL_STATUSES",
    "HEADER_MISMATCH",
    "UNSUPPORTED_VERSION",
    "Faults",
    "denies_session",
    "made_of_404",
    "may_deny_session",
    "retry_after_s",
]

HEADER_MISMATCH: Final = -32020
UNSUPPORTED_VERSION: Final = -32022
CREDENTIAL_STATUSES: Final = frozenset({401, 403})

_MISSING_CAPABILITY: Final = frozenset({-32021, -32003})
_TOO_MANY_REQUESTS: Final = 429

# Of the client errors, those that a deployment, a slow network or a race can cause by themselves.
_PASSING_STATUSES: Final = frozenset({404, 408, 409, 425, _TOO_MANY_REQUESTS})

_LONGEST_QUOTE: Final = 300
_SESSION_CODES: Final = frozenset({-32600, -32000, -32001, 32600})
_NO_SESSION: Final = re.compile(
    r"\b(unknown|invalid|missing|no|expired)\b.{0,20}\bsession\b"
    r"|\bsession\b.{0,20}\b(not found|unknown|expired|terminated|invalid)\b"
    r"|\bserver not initialized\b",  # as one SDK says after a restart, where it has one session at a time
    re.IGNORECASE,
)
_SDK_ENDED: Final = frozenset({(-32600, "Session terminated"), (32600, "Session terminated")})
"""What the official SDK makes of an HTTP 404."""

_USUAL: Final = _SDK_ENDED | {(-32600, "Session not found"), (-32001, "Session not found")}
"""The same, and what the official SDKs' servers say. A tool hardly ever does."""

_SECONDS: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def made_of_404(error: RpcError) -> bool:
    """Whether an error is the official SDK's word for an HTTP 404 in a session."""
    return (error.code, error.message) in _SDK_ENDED and error.data is None


def denies_session(error: RpcError) -> bool:
    """Whether an error says that there is no such session, in the very words of the official SDKs."""
    return (error.code, error.message) in _USUAL and error.data is None


def may_deny_session(error: RpcError) -> bool:
    """Whether an error may say so, in whatever words. A tool may say the same of sessions of its own."""
    said = error.code in _SESSION_CODES and _NO_SESSION.search(error.message) is not None
    return said and error.data is None


def retry_after_s(value: str) -> float | None:
    """Seconds that a ``Retry-After`` asks for; ``None`` if it is empty or makes no sense.

    Both of its forms are read, a number of seconds and a date. A time that has passed is 0.

    Source: RFC 9110, 10.2.3.
    """
    value = value.strip()
    if _SECONDS.fullmatch(value):
        seconds = float(value)
    else:
        try:
            date = email.utils.parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        # The oldest of the three forms of a date names no zone, and all of them are in GMT.
        seconds = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - time.time()
    return max(0.0, seconds) if math.isfinite(seconds) else None


class Faults:
    """The ways in which one request can fail.

    Args:
        method: JSON-RPC method, for the messages.
        task_id: The one task that it is about.
        task_ids: Others that it names. Wherever a message quotes something, all of them are shortened.

    Attributes:
        denial: What was said to it instead, where there was no such session.
    """

    def __init__(self, method: str, task_id: str | None = None, task_ids: Sequence[str] = ()) -> None:
        self._method = method
        self._task_id = task_id
        self.denial: RpcError | None = None
        self._task_ids = task_ids if task_id is None else (task_id, *task_ids)

    @property
    def of_call(self) -> bool:
        """Whether it is a request that must not be repeated."""
        return self._method == "tools/call"

    def mapped(self, failures: Failures = OF_HTTPX) -> _Mapped:
        """Turn what a library raises into :class:`SessionError`; everything else passes through."""
        return _Mapped(self, failures)

    def raise_mapped(self, error: BaseException, failures: Failures) -> NoReturn:
        """Raise what is to be raised in place of an error, or itself."""
        try:
            raise error
        except SessionError:
            raise
        except failures.not_sent as error:
            raise ConnectionLostError(
                f"{self._method} could not be sent: {self._reason(error, failures)}. "
                "Check the URL and the network, then try again.",
                retryable=True,
                not_executed=True,
            ) from failures.cause(error)
        except failures.unsendable:
            # Its text may be the credential.
            raise SessionError(
                f"{self._method} is no valid HTTP request. "
                "Check the headers that the session, its auth and its http_client add."
            ) from None
        except failures.decoding as error:
            raise self.malformed("the body does not match its Content-Encoding") from error
        except failures.bad_url as error:
            # What is made of a bad Location. The encoding errors are an auth flow's own.
            if isinstance(error, UnicodeEncodeError | UnicodeDecodeError):
                raise
            raise RemoteProtocolError(
                f"{self._method} was redirected to something that is no URL. Check the URL."
            ) from None
        except failures.by_status as error:
            response = error.response  # type: ignore[attr-defined]  # of either library
            wait_s = retry_after_s(response.headers.get("retry-after", ""))
            # Its text is the URL, whose query may be a credential.
            raise self.by_status(response.status_code, wait_s) from None
        except failures.lost as error:
            raise self.lost(self._reason(error, failures)) from failures.cause(error)

    def overdue(self, seconds: float) -> ConnectionLostError:
        """No whole reply within the time for the whole request."""
        return ConnectionLostError(
            f"{self._method} had no whole reply within {seconds:g} seconds. "
            "Try again later, or give the session a longer task_timeout_s.",
            retryable=True,
        )

    def lost(self, reason: str) -> ConnectionLostError:
        """No reply, for a reason that may pass."""
        return ConnectionLostError(
            f"The reply to {self._method} was lost: {self.clean(reason).rstrip('.')}. "
            "The server may have acted on it; a request that may be repeated can be sent again.",
            retryable=True,
        )

    def disconnected(self) -> ConnectionLostError:
        """No reply, and none to any request over this connection any more."""
        return ConnectionLostError(
            f"{self._method} has no reply: the connection is closed. Connect again, and resume() what is "
            "unfinished."
        )

    def session_ended(self, denial: RpcError) -> ConnectionLostError:
        """The session that the host's client has is none of the server's any more."""
        self.denial = denial
        return ConnectionLostError(
            f"{self._method} has no result: the server has ended the session, and the SDK begins no other by "
            "itself. Connect the host's client again; then repeat the call, or resume() what is unfinished.",
            not_executed=made_of_404(denial),  # a tool may have said the others
        )

    def denied_once(self, denial: RpcError) -> SessionError:
        """The session is there, though one of several servers has denied it."""
        if self._method == "tasks/result":  # unless it is the very error that the call has ended in
            error = self.by_code(denial, None, None)
            error.retryable = True
            return error
        return ConnectionLostError(
            f"{self._method} was answered {denial.message!r}, but the session is there. Try again later.",
            retryable=True,
        )

    def ended_early(self, status: int) -> ConnectionLostError:
        """An event stream without the response in it."""
        return ConnectionLostError(
            f"The stream that answers {self._method} ended before the response. "
            "The server may have acted on it; a request that may be repeated can be sent again.",
            retryable=True,
            http_status=status,
        )

    def fell_silent(self) -> ConnectionLostError:
        """A stream that is open, and tells nothing any more."""
        return ConnectionLostError(
            f"The stream of {self._method} fell silent, as broken connections do. Listen again; until then, "
            "polls tell what there is.",
            retryable=True,
        )

    def malformed(self, what: str, *, status: int | None = None) -> RemoteProtocolError:
        """A reply that is none: of something else on the way, or of a broken server."""
        return RemoteProtocolError(
            f"The reply to {self._method} cannot be used: {self.clean(what)}. "
            "Something between here and the server may have answered: try again, then check the URL.",
            retryable=True,
            http_status=status,
        )

    def wrong_encoding(self, status: int) -> RemoteProtocolError:
        """A body that is compressed in a way that was not offered, or more than once."""
        return RemoteProtocolError(
            f"The reply to {self._method} has a Content-Encoding that was not asked for. "
            "Turn that compression off at the server or at what stands before it.",
            http_status=status,
        )

    def too_large(self, max_bytes: int, status: int) -> RemoteProtocolError:
        """A body of more bytes than the session takes."""
        return RemoteProtocolError(
            f"The reply to {self._method} is larger than {max_bytes} bytes; raise max_response_bytes.",
            http_status=status,
        )

    def redirected(self, why: str, status: int) -> RemoteProtocolError:
        """A redirect that is not followed.

        307 and 308 say that nothing has happened yet. The others may be the answer to a request
        that was carried out.
        """
        return RemoteProtocolError(
            f"{self._method} was redirected (HTTP {status}) {why}",
            not_executed=status in (307, 308),
            http_status=status,
        )

    def by_status(self, status: int, wait_s: float | None) -> SessionError:
        """The error that an HTTP status stands for when no JSON-RPC reply came with it.

        Args:
            status: HTTP status.
            wait_s: Seconds that the server asked for.
        """
        if status in CREDENTIAL_STATUSES:
            return CredentialRefusedError(
                f"The server refused the credential of {self._method} (HTTP {status}). "
                "Renew it, or check that it may use this server, and try again.",
                not_executed=True,
                http_status=status,
                retry_after_s=wait_s,
            )
        retryable = status in _PASSING_STATUSES or status >= 500
        advice = "Try again later." if retryable else "Check the URL and what stands before the server."
        return SessionError(
            f"{self._method} was answered with HTTP {status} and no JSON-RPC reply. {advice}",
            retryable=retryable,
            not_executed=status == _TOO_MANY_REQUESTS,
            http_status=status,
            retry_after_s=wait_s,
        )

    def by_code(self, error: RpcError, status: int | None, wait_s: float | None) -> SessionError:
        """The error that a JSON-RPC error stands for.

        Args:
            error: What the server said.
            status: HTTP status that it came with; ``None`` where there is none to be seen.
            wait_s: Seconds that the server asked for.
        """
        # Whatever code a rate limiter or a gateway picks, its status says that asking later is all that is
        # needed; and a gateway cannot know what became of the request.
        limited = status == _TOO_MANY_REQUESTS or status in GATEWAY_STATUSES
        refused = error.code in REFUSED_CODES and status not in GATEWAY_STATUSES
        said = f"{self._method} was answered with JSON-RPC error {error.code}: {self.clean(error.message)!r}"
        kind: type[SessionError] = SessionError
        retryable = limited or not refused
        advice = "Try again later." if retryable else "The same request would be refused again: change it."
        if error.code == INVALID_PARAMS and self._task_id is not None:
            advice = "The server does not know the task, or does not take that in its present state."
        if limited:
            advice = "Try again later."
        elif error.code in _MISSING_CAPABILITY:
            kind, retryable = MissingCapabilityError, False
            advice = (
                "Give the client a callback for the capability that the error's data names; a client of the "
                "SDK or FastMCP declares only what it has callbacks for itself."
            )
        elif error.code == HEADER_MISMATCH:
            kind, retryable = RemoteProtocolError, False
            advice = "Headers were changed on the way, or the tool's schema was: fetch it and call again."
        elif error.code == UNSUPPORTED_VERSION:
            kind, retryable = RemoteProtocolError, False
            advice = "Use a session of a protocol version that the server speaks."
        return kind(
            f"{said}. {advice}",
            retryable=retryable,
            not_executed=refused or status == _TOO_MANY_REQUESTS,
            code=error.code,
            remote_message=error.message,
            data=error.data,
            http_status=status,
            retry_after_s=wait_s,
        )

    def clean(self, text: str) -> str:
        """``text`` as a message may quote it: no whole task ID, and no novel."""
        for task_id in self._task_ids:
            for form in _forms(task_id):
                text = text.replace(form, shorten(task_id))
        return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"

    def _reason(self, error: Exception, failures: Failures) -> str:
        name, text = type(error).__name__, self.clean(failures.words(error)).rstrip(".")
        return f"{name}, {text}" if text else name


class _Mapped:
    # No generator: each request is in such a block.
    __slots__ = ("_failures", "_faults")

    def __init__(self, faults: Faults, failures: Failures) -> None:
        self._faults = faults
        self._failures = failures

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._faults.raise_mapped(error, self._failures)


def _forms(task_id: str) -> Iterator[str]:
    """A task ID as it is, and as the server sees it in the Mcp-Name header."""
    yield task_id
    with suppress(MalformedError):
        yield header_value(task_id)
