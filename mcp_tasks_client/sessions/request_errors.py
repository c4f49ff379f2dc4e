"""The failures of one request as this package's errors, over any transport.

All failures of requests are told in one place, so that all messages have the same three parts: the event,
whether the server may have acted, and the remedy. No message quotes a header or a whole task ID, and each
foreign text in it is shortened and escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from mcp_types import HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION

from ..errors import (
    ConnectionLostError,
    CredentialRefusedError,
    MissingCapabilityError,
    RemoteProtocolError,
    SessionError,
)
from ..protocol import MalformedError
from ..protocol.replies import RpcError
from ..protocol.text import header_value, quote, shorten
from .base import GATEWAY_STATUSES, INVALID_PARAMS, REFUSED_CODES

__all__ = [
    "CREDENTIAL_STATUSES",
    "PASSING_STATUSES",
    "TOO_MANY_REQUESTS",
    "UNDECIDED_STATUSES",
    "RequestErrors",
    "foreign_error",
]

CREDENTIAL_STATUSES: Final = frozenset({401, 403})
TOO_MANY_REQUESTS: Final = 429

# Of the client errors, those that a deployment, a slow network or a race can cause by themselves.
PASSING_STATUSES: Final = frozenset({404, 408, 409, 425, TOO_MANY_REQUESTS})

UNDECIDED_STATUSES: Final = frozenset({408, *range(500, 600)})
"""HTTP statuses that leave open, by themselves, whether a request was carried out."""

_TWICE: Final = (2, 0.0)
"""The patience with a reply that is the same each time that it is sent."""

_LONG_ENOUGH: Final = (5, 3600.0)
"""Failures in a row, and seconds, after which polling ends where the session hides whether a failure passes.
Most outages are over by then. A refusal is not."""

_LATER: Final = "Try again later."
_PATH: Final = "Check the path of the URL, often /mcp."
_CHANGE: Final = "The same request would be refused again: change it."
_MAY_RUN: Final = "The tool may still be running: see what it has done before you call it again."

_MISSING: Final = (
    MissingCapabilityError,
    "Give TasksClient or the host's client a callback for the capability that the error's data names, since "
    "only what has a callback is declared.",
)
_REFUSALS: Final[Mapping[int | None, tuple[type[SessionError], str]]] = {
    MISSING_REQUIRED_CLIENT_CAPABILITY: _MISSING,
    -32003: _MISSING,  # formerly
    HEADER_MISMATCH: (
        RemoteProtocolError,
        "Headers were changed on the way, or the tool's schema was: call again.",
    ),
    UNSUPPORTED_PROTOCOL_VERSION: (
        RemoteProtocolError,
        "Use a session of a protocol version that the server speaks.",
    ),
}
"""The errors that some of ``REFUSED_CODES`` become, and the advice in their messages."""


class RequestErrors:
    """Makes the errors of one request.

    Args:
        method: JSON-RPC method, for the messages.
        task_id: The task that the request is about; ``None`` if it is about none.
        secrets: Further task IDs, or other credentials, to be shortened wherever a message quotes something.
        server: Its name, for the log.

    Attributes:
        runs_tool: Whether a tool may have run when the request fails, so that it must not be repeated.
    """

    __slots__ = ("_secrets", "_task_id", "method", "runs_tool", "server")

    def __init__(
        self,
        method: str,
        task_id: str | None = None,
        secrets: Sequence[str] = (),
        server: str = "the server",
    ) -> None:
        self.method = method
        self.runs_tool = method == "tools/call"
        self.server = server
        self._task_id = task_id
        self._secrets = secrets

    # ── no reply, or not a whole one ──────────────────────────────────────────────────────────

    def closed(self, subject: str, *, sent: bool) -> ConnectionLostError:
        """The session or the HTTP client was closed before the request, or during it."""
        became = "has no reply" if sent else "was not sent"
        return ConnectionLostError(
            f"{self.method} {became}: the {subject} is closed. Keep it open as long as it is used.",
            retryable=sent,  # by the next process, or the next session
            not_executed=not sent,
        )

    def timed_out(self, seconds: float) -> ConnectionLostError:
        """No whole reply within the time for the whole request."""
        return ConnectionLostError(
            f"{self.method} had no whole reply within {seconds:g} seconds. "
            "Try again later, or raise the session's task_timeout_s.",
            retryable=True,
        )

    def lost(self, reason: str, status: int | None = None) -> ConnectionLostError:
        """No reply, for a reason that may pass."""
        return ConnectionLostError(
            f"The reply to {self.method} was lost: {self.quote(reason).rstrip('.')}. "
            "The server may have acted on it; a request that may be repeated can be sent again.",
            retryable=True,
            http_status=status,
        )

    def hidden(self, reason: str) -> ConnectionLostError:
        """No reply, and nothing tells whether the reason passes, because the host's session hides it."""
        lost = self.lost(reason)
        error = ConnectionLostError(
            f"{lost} The host's session does not show what the server said: TasksClient(url).resume() does.",
            retryable=True,
        )
        error.patience = _LONG_ENOUGH
        return error

    # ── a reply that cannot be used ───────────────────────────────────────────────────────────

    def malformed(self, fault: str, *, status: int | None = None) -> RemoteProtocolError:
        """A reply that makes no sense: from a gateway on the way, or from a broken server."""
        again = _MAY_RUN if self.runs_tool else "Try again."
        return RemoteProtocolError(
            f"The reply to {self.method} cannot be used: {self.quote(fault)}. Something between here and the "
            f"server may have answered: check the URL. {again}",
            retryable=True,
            http_status=status,
        )

    def unread(self, words: str) -> RemoteProtocolError:
        """A reply of the server's that the SDK's parser refuses. Ours reads it, or says why not."""
        again = f" {_MAY_RUN}" if self.runs_tool else ""
        error = RemoteProtocolError(
            f"The reply to {self.method} is JSON that the SDK of the host's session cannot read: "
            f"{self.quote(words)}. TasksClient(url).resume() reads it.{again}",
            retryable=True,
        )
        error.patience = _TWICE
        return error

    def wrong_encoding(self, status: int) -> RemoteProtocolError:
        """A body that is compressed in a way that was not offered, or more than once."""
        return RemoteProtocolError(
            f"The reply to {self.method} has a Content-Encoding that was not asked for. "
            "Turn that compression off at the server or at what stands before it.",
            http_status=status,
        )

    def too_large(
        self, max_bytes: int, status: int | None, setting: str | None = None
    ) -> RemoteProtocolError:
        """A body, or an event, of more bytes than the session takes.

        ``setting`` names where the host can raise the limit, if it can.
        """
        remedy = "have the server answer with less, such as a link" if setting is None else f"raise {setting}"
        return RemoteProtocolError(
            f"The reply to {self.method} is larger than {max_bytes} bytes; {remedy}.",
            http_status=status,
        )

    def too_deep(self, status: int) -> RemoteProtocolError:
        """JSON that is nested beyond what Python reads."""
        return RemoteProtocolError(
            f"The reply to {self.method} is nested too deeply. Report it to the server's author.",
            http_status=status,
        )

    def redirected(self, why: str, status: int | None) -> RemoteProtocolError:
        """A redirect that is not followed. ``status`` is ``None`` where it cannot be seen.

        307 and 308 say that nothing has happened yet. The others may be the answer to a request
        that was carried out.
        """
        by = "" if status is None else f" (HTTP {status})"
        return RemoteProtocolError(
            f"{self.method} was redirected{by} {why}",
            not_executed=status in (307, 308),
            http_status=status,
        )

    # ── a refusal ─────────────────────────────────────────────────────────────────────────────

    def for_status(self, status: int, retry_after_s: float | None, challenge: str = "") -> SessionError:
        """The error that an HTTP status stands for when no JSON-RPC reply came with it."""
        if status in CREDENTIAL_STATUSES:
            refused = CredentialRefusedError(
                f"The server refused the credential of {self.method} (HTTP {status}). "
                "Renew it, or check that it may use this server, and try again.",
                not_executed=True,
                http_status=status,
                retry_after_s=retry_after_s,
            )
            refused.challenge = challenge
            return refused
        retryable = status in PASSING_STATUSES or status >= 500
        advice = "Check the URL and what stands before the server."
        if status == 404:
            advice = _PATH
        elif retryable:
            advice = _MAY_RUN if self.runs_tool and status in UNDECIDED_STATUSES else _LATER
        return SessionError(
            f"{self.method} was answered with HTTP {status} and no JSON-RPC reply. {advice}",
            retryable=retryable,
            not_executed=status == TOO_MANY_REQUESTS,
            http_status=status,
            retry_after_s=retry_after_s,
        )

    def for_rpc_error(
        self, error: RpcError, status: int | None = None, retry_after_s: float | None = None
    ) -> SessionError:
        """The error that a JSON-RPC error stands for.

        ``status`` is the HTTP status that it came with; ``None`` where there is none to be seen.
        """
        # Under any code of a rate limiter or a gateway, the status says that asking later is all that is
        # needed; and a gateway cannot know whether the request was carried out.
        limited = status == TOO_MANY_REQUESTS or status in GATEWAY_STATUSES
        refused = error.code in REFUSED_CODES and status not in GATEWAY_STATUSES
        kind, advice = SessionError, _LATER
        if limited:
            advice = _MAY_RUN if self.runs_tool and status in GATEWAY_STATUSES else _LATER
        elif error.code == INVALID_PARAMS and self._task_id is not None:
            advice = "The server does not know the task, or does not take that in its present state."
        elif refused:
            kind, advice = _REFUSALS.get(error.code, (SessionError, _CHANGE))
        said = f"JSON-RPC error {error.code}: {self.quote(error.message)!r}"
        return kind(
            f"{self.method} was answered with {said}. {advice}",
            retryable=limited or not refused,
            not_executed=refused or status == TOO_MANY_REQUESTS,
            code=error.code,
            remote_message=error.message,
            data=error.data,
            http_status=status,
            retry_after_s=retry_after_s,
        )

    def quote(self, text: str) -> str:
        """``text`` as a message may quote it: shortened, escaped, without a whole task ID."""
        text = text[:_QUOTED_AT_MOST]
        for secret in self._secrets if self._task_id is None else (self._task_id, *self._secrets):
            for form in _forms(secret):
                text = text.replace(form, shorten(secret))
        return quote(text)


_QUOTED_AT_MOST: Final = 4096
"""Characters of a foreign text that are searched for task IDs; a message quotes far fewer."""


def _forms(task_id: str) -> Iterator[str]:
    """A task ID as it is, and as the server sees it in the Mcp-Name header."""
    yield task_id
    with suppress(MalformedError):
        yield header_value(task_id)


def foreign_error(method: str, cause: Exception, then: str) -> SessionError:
    """The error for an exception of a session, an auth flow or a hook, when ``method`` was to be sent.

    ``then`` is the next step once the cause is mended.
    """
    # Its text may quote a credential, and the journal keeps this error's.
    error = SessionError(
        f"{method} could not be sent, since code of the host raised {type(cause).__name__}. The error's "
        f"__cause__ says more. Mend that, then {then}."
    )
    error.__cause__ = cause
    return error
