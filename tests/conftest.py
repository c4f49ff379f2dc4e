"""Fixtures that every test module shares."""

from __future__ import annotations

import gc
import json
import os
import socket
from typing import Any, Final

import hypothesis  # noqa: F401  # it asks who refers to what as it is imported, and nobody sees what is frozen
import pytest
from jsonschema import Draft202012Validator

from mcp_tasks_client.old.sessions import channel
from tests.legacy_servers import (
    legacy_node_program,
    legacy_node_server,
    legacy_program,
    legacy_python_program,
    legacy_python_server,
    legacy_server,
)
from tests.real_server import real_server
from tests.strict_server import strict_server

__all__ = [
    "anyio_backend",
    "legacy_node_program",
    "legacy_node_server",
    "legacy_program",
    "legacy_python_program",
    "legacy_python_server",
    "legacy_server",
    "over_httpx",
    "real_server",
    "schemas_checked_once",
    "strict_server",
    "unused_url",
]


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
def schemas_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of many lives that see the same schemas: each is looked up in the meta-schema once."""
    check = Draft202012Validator.check_schema

    def check_once(schema: Any) -> None:
        text = json.dumps(schema)
        if text not in _VALID:
            check(schema)
            _VALID.add(text)

    monkeypatch.setattr(Draft202012Validator, "check_schema", check_once)


_VALID: Final[set[str]] = set()


@pytest.fixture
def unused_url() -> str:
    """A loopback URL at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/mcp"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the campaigns in their long forms")


def pytest_collection_finish() -> None:
    """What was imported stays to the end, and need not be looked at each time garbage is looked for."""
    gc.collect()
    gc.freeze()


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, for many tests wait: for servers, for processes, for the disk."""
    return (os.cpu_count() or 1) + 1
