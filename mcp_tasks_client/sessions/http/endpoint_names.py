"""The URLs that are taken for servers, and the names of servers in the journal, free of secrets.

A name is the same in every process and over every way in.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import httpx

__all__ = ["is_url", "name_of_command", "name_of_url", "origin_of", "parse_url"]

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def is_url(endpoint: str) -> bool:
    """Whether a server's name is to be read as a URL."""
    return endpoint.lower().startswith(("http://", "https://"))


def parse_url(url: str) -> httpx.URL:
    """The server's URL, normalized.

    Raises:
        ValueError: ``url`` is not an absolute ``http`` or ``https`` URL.
    """
    import httpx  # on use, since the name of a command needs no HTTP library

    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(
            f"the server's URL cannot be read ({error}); give one like https://host/mcp"
        ) from None
    if parsed.scheme not in _DEFAULT_PORTS or not parsed.raw_host:
        raise ValueError(
            "the server's URL must start with http:// or https:// and a host, like https://host/mcp; "
            f"its scheme is {parsed.scheme!r}"
        )
    return parsed


def origin_of(url: httpx.URL) -> str:
    """Scheme, host and port, in lower case, without the default port."""
    # httpx drops the default port only where the scheme is written in lower case.
    if url.port == _DEFAULT_PORTS.get(url.scheme):
        url = url.copy_with(port=None)
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def name_of_url(url: httpx.URL) -> str:
    """The URL without credentials, fragment and default port. The query appears only as a digest."""
    path = url.raw_path.partition(b"?")[0].decode("ascii")
    query = f"?sha256={_digest(url.query)}" if url.query else ""
    return f"{origin_of(url)}{path}{query}"


def name_of_command(command: str, arguments: Sequence[str], folder: str | os.PathLike[str] | None) -> str:
    """The command that starts a server. Its arguments and its working folder appear only as a digest.

    Arguments may be credentials. The environment does not count, because it differs from start to start.
    """
    where = os.fspath(folder) if folder is not None else None
    whole = json.dumps([command, list(arguments), where]).encode("ascii")
    return f"stdio:{Path(command).name}?sha256={_digest(whole)}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
