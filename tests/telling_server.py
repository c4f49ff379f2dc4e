"""The real servers of ``servers/telling_server.py`` as a fixture: each kind once for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .real_server import listening

__all__ = ["SCRIPT", "telling_fastmcp", "telling_sdk"]

SCRIPT = Path(__file__).parent / "servers" / "telling_server.py"


@pytest.fixture(scope="session")
def telling_sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the official SDK's server."""
    with listening(SCRIPT, tmp_path_factory.mktemp("sdk") / "stderr.log", "--kind", "sdk") as (url, _):
        yield url


@pytest.fixture(scope="session")
def telling_fastmcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of FastMCP's server."""
    log = tmp_path_factory.mktemp("fastmcp") / "stderr.log"
    with listening(SCRIPT, log, "--kind", "fastmcp") as (url, _):
        yield url
