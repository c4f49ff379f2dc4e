"""What a host's client tells about itself: whether it is one of the SDK's, and where its server is."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

__all__ = ["Address", "address_of", "is_client", "sdk_has_extensions"]

_PACKAGES: Final = frozenset({"mcp", "fastmcp"})
_CLASSES: Final = frozenset({"Client", "ClientSession"})


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is.

    Attributes:
        endpoint: Its name in the journal.
        ephemeral: Whether it runs, with its tasks, as long as the connection to it.
    """

    endpoint: str
    ephemeral: bool


def is_client(candidate: object) -> bool:
    """Whether it is a client or a session of the official SDK or FastMCP. Imports neither."""
    return any(
        kind.__name__ in _CLASSES and kind.__module__.partition(".")[0] in _PACKAGES
        for kind in type(candidate).__mro__
    )


def sdk_has_extensions() -> bool:
    """Whether the installed SDK is one of 2.x. For those who have a client of it."""
    return find_spec("mcp.client.extension") is not None


def address_of(client: Any) -> Address | None:
    """The address of a client's server; ``None`` of one in this process, and where it cannot be seen.

    Raises:
        ValueError: The URL is not an absolute ``http`` or ``https`` URL.
    """
    # Imported on use: it needs httpx, which can take as long to import as all of this package.
    from .endpoints import command_endpoint, parse_url, url_endpoint

    # ``mcp.Client`` keeps what it was given, ``fastmcp.Client`` what it has made of it.
    for server in (getattr(client, "server", None), getattr(client, "transport", None)):
        url = server if isinstance(server, str) else getattr(server, "url", None)
        if isinstance(url, str):
            return Address(url_endpoint(parse_url(url)), ephemeral=False)
        command = getattr(server, "command", None)
        if isinstance(command, str):
            arguments = list(getattr(server, "args", None) or ())
            endpoint = command_endpoint(command, arguments, getattr(server, "cwd", None))
            return Address(endpoint, ephemeral=True)
    return None
