"""The page on the loopback to which a browser comes back from a login, once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import parse_qs, urlsplit

from mcp_tasks_client.foreign_text import one_line

from .exits import CommandError, Exit

__all__ = ["Callback", "listen"]

_PATH: Final = "/callback"
_LONGEST_REQUEST: Final = 32_768
_REQUEST_S: Final = 10.0
"""Seconds in which a browser sends its request. Some connect ahead, and send none."""

_DONE: Final = "mcp-tasks has the answer, and the terminal tells what became of it. This page may be closed."
_WRONG: Final = "This is not the answer to the login that mcp-tasks waits for."
_NOTHING: Final = "There is nothing here."


class Callback:
    """Waits for a browser.

    Attributes:
        url: The address of the page.
        state: The text that the answer has to repeat; ``None`` as long as no answer can come.
    """

    def __init__(self) -> None:
        self.url = ""
        self.state: str | None = None
        self._answer: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def wait(self) -> dict[str, str]:
        """The parameters of the answer: ``code``, and ``iss`` if the server gives it.

        Raises:
            CommandError: The login was refused, or the answer is not of this login.
        """
        return await self._answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a browser."""
        try:
            with suppress(EOFError, asyncio.LimitOverrunError, OSError, ValueError):
                async with asyncio.timeout(_REQUEST_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    status, page = self._take(head.split(b"\r\n", 1)[0].decode("latin-1"))
                    writer.write(_response(status, page))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.close()

    def _take(self, line: str) -> tuple[str, str]:
        """Take the answer out of the first line of a request. Returns the status and the text of the page."""
        method, _, rest = line.partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        if method != "GET" or target.path != _PATH or self.state is None or self._answer.done():
            return "404 Not Found", _NOTHING
        given = {name: values[0] for name, values in parse_qs(target.query).items()}
        if not secrets.compare_digest(given.get("state", "").encode(), self.state.encode()):
            words = "The answer that came back is not of this login, so it does not count. Log in again."
            self._answer.set_exception(CommandError(Exit.CREDENTIAL_REFUSED, words))
            return "400 Bad Request", _WRONG
        if "code" in given:
            self._answer.set_result(given)
        else:
            said = " ".join(filter(None, (given.get("error"), given.get("error_description"))))
            words = f"The login was refused: {one_line(said) or 'no reason was given'}."
            self._answer.set_exception(CommandError(Exit.CREDENTIAL_REFUSED, words))
        return "200 OK", _DONE


@asynccontextmanager
async def listen() -> AsyncIterator[Callback]:
    """Listen on the loopback, at a free port, as long as the block lasts."""
    callback = Callback()
    server = await asyncio.start_server(callback.serve, "127.0.0.1", 0, limit=_LONGEST_REQUEST)
    try:
        callback.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{_PATH}"
        yield callback
    finally:
        server.close()


def _response(status: str, page: str) -> bytes:
    body = page.encode()
    head = (
        f"HTTP/1.1 {status}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Referrer-Policy: no-referrer",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body
