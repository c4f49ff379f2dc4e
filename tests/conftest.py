"""Fixtures that every test module shares."""

from __future__ import annotations

import gc
import os
import socket
from typing import Any

import pytest

from mcp_tasks_client.sessions import channel
from tests.real_server import real_server
from tests.strict_server import strict_server

__all__ = ["anyio_backend", "over_httpx", "real_server", "strict_server", "unused_url"]


# Looking for garbage at every turn takes a tenth of the run. Whoever tests what is dropped collects it
# there and then.
gc.set_threshold(10_000, 20, 20)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both event loops that the package supports."""
    return request.param, {}


@pytest.fixture
def over_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    """respx sees what httpx sends. What aiohttp sends is seen where there are sockets."""
    monkeypatch.setattr(channel, "on_asyncio", lambda: False)


@pytest.fixture
def unused_url() -> str:
    """A loopback URL at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/mcp"


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, for many tests wait: for servers, for processes, for the disk."""
    return (os.cpu_count() or 1) + 1
