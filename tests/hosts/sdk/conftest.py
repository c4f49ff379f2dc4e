"""Clients of either package."""

from __future__ import annotations

import fastmcp
import mcp
import pytest

from tests.kit.current_server import Made


@pytest.fixture(params=["mcp", "fastmcp"])
def made(request: pytest.FixtureRequest, anyio_backend_name: str) -> Made:
    """Makes a client of either package for a URL."""
    if request.param == "mcp":
        return mcp.Client
    if anyio_backend_name == "trio":
        pytest.skip("FastMCP's client is for asyncio alone")
    return fastmcp.Client
