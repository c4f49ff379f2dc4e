"""A credential that expires, before any application that serves HTTP."""

from __future__ import annotations

from typing import Any

__all__ = ["ExpiringToken"]


class ExpiringToken:
    """A bearer token, and a guard that refuses every other one with HTTP 401.

    ::

        token = ExpiringToken()
        app = token.guard(server.app)  # or any other ASGI application
        async with TasksClient(url, headers=token.headers) as client: ...

    Args:
        requests: How many requests a token is good for. It expires when the next one comes. ``None`` leaves
            that to :meth:`expire`.

    Attributes:
        refused: How many requests were refused.

    Raises:
        ValueError: ``requests`` is less than 1.
    """

    def __init__(self, *, requests: int | None = None) -> None:
        if requests is not None and requests < 1:
            raise ValueError(f"a token is good for at least one request, not {requests}")
        self.refused = 0
        self._requests = requests
        self._left = requests
        self._number = 1

    @property
    def value(self) -> str:
        """The token that is valid now."""
        return f"token-{self._number}"

    def headers(self) -> dict[str, str]:
        """The headers of a request that has the valid token."""
        return {"Authorization": f"Bearer {self.value}"}

    def expire(self) -> None:
        """Have the token that was valid be refused from now on, and another one be valid."""
        self._number += 1
        self._left = self._requests

    def guard(self, app: Any) -> Any:
        """The ASGI application behind the guard. Refused requests do not reach it."""

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and not self._admits(dict(scope["headers"])):
                self.refused += 1
                headers = [(b"www-authenticate", b'Bearer error="invalid_token"'), (b"content-length", b"0")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
            await app(scope, receive, send)

        return guarded

    def _admits(self, headers: dict[bytes, bytes]) -> bool:
        if headers.get(b"authorization") != f"Bearer {self.value}".encode():
            return False
        if self._left is not None:
            if self._left == 0:
                self.expire()
                return False
            self._left -= 1
        return True
