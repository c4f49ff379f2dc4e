"""The exceptions of HTTP libraries, and ``Retry-After``, as this package's errors know them."""

from __future__ import annotations

import email.utils
import math
import re
import time
from datetime import UTC
from typing import Final, NoReturn

from ...errors import ConnectionLostError, RemoteProtocolError, SessionError
from ..request_errors import RequestErrors
from .transport import Failures

__all__ = ["raise_for", "read_retry_after"]

_SECONDS: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def read_retry_after(value: str) -> float | None:
    """Seconds that a ``Retry-After`` header asks for; ``None`` if it is empty or makes no sense.

    Both forms are read, a number of seconds and a date. A time that has passed is 0.

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


def raise_for(errors: RequestErrors, error: Exception, failures: Failures) -> NoReturn:
    """Raise the :class:`SessionError` that an HTTP library's exception stands for.

    An exception that is none of the library's ``failures``, such as one of the host's auth flow, is raised as
    it is.
    """
    if failures.not_sent(error):
        raise ConnectionLostError(
            f"{errors.method} could not be sent: {_reason(errors, error, failures)}. "
            "Check the URL and the network, then try again.",
            retryable=True,
            not_executed=True,
        ) from failures.as_cause(error)
    try:
        raise error
    except failures.unsendable:
        # Its text may be the credential.
        raise SessionError(
            f"{errors.method} is no valid HTTP request. "
            "Check the headers that the session, its auth and its http_client add."
        ) from None
    except failures.decoding:
        raise errors.malformed("the body does not match its Content-Encoding") from error
    except failures.bad_url:
        # A bad Location. The encoding errors are an auth flow's own.
        if isinstance(error, UnicodeEncodeError | UnicodeDecodeError):
            raise
        raise RemoteProtocolError(
            f"{errors.method} was redirected to something that is no URL. Check the URL."
        ) from None
    except failures.by_status:
        response = error.response  # type: ignore[attr-defined]  # of either library
        retry_after_s = read_retry_after(response.headers.get("retry-after", ""))
        challenge = response.headers.get("www-authenticate", "")
        # Its text is the URL, whose query may be a credential.
        raise errors.for_status(response.status_code, retry_after_s, challenge) from None
    except failures.lost:
        raise errors.lost(_reason(errors, error, failures)) from failures.as_cause(error)


def _reason(errors: RequestErrors, error: Exception, failures: Failures) -> str:
    name, text = type(error).__name__, errors.quote(failures.describe(error)).rstrip(".")
    return f"{name}, {text}" if text else name
