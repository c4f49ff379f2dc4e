"""A host on mcp 1.x, in an environment of its own, whose HTTP client of httpx has the transport."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tests._legacy_installs import python_with_legacy_sdk
from tests.legacy_servers import LegacyServer, installed
from tests.real_server import RealServer

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)]

LIMIT_S: Final = 30.0
HOST_ON_1: Final = Path(__file__).parents[2] / "servers" / "sdk_1_host.py"


@pytest.fixture(scope="session")
def host_on_1() -> Path:
    return installed(python_with_legacy_sdk)


async def play(host_on_1: Path, url: str, tools: dict[str, Any]) -> Any:
    """What a host's calls of some tools bring, one after the other."""
    command = [str(host_on_1), str(HOST_ON_1), "calls_over_http", json.dumps([url, tools]), "asyncio"]
    with anyio.fail_after(LIMIT_S):
        done = await anyio.run_process(command, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


async def test_at_a_server_of_2026_07_28(host_on_1: Path, real_server: RealServer) -> None:
    before = len(real_server.witness(method="tools/call"))
    tools = {"slow": {"seconds": 0.3}, "ask_name": {}, "fail_tool": {}, "fail_rpc": {}, "plain": {"x": 3}}
    assert await play(host_on_1, real_server.url, tools) == {
        "slow": {"result": "rested"},
        "ask_name": {"result": "Hello, Ada"},
        "fail_tool": "the tool said no",
        "fail_rpc": [-32050, "quota exceeded"],
        "plain": {"result": 3},
        "asked": ["What is your name?"],
    }
    calls = real_server.witness(method="tools/call")[before:]
    assert [call.subject for call in calls] == list(tools)
    assert [call.task_id is not None for call in calls] == [True, True, True, True, False]


async def test_at_a_server_of_the_older_generation(
    host_on_1: Path, legacy_python_server: LegacyServer
) -> None:
    quick = {"hint_ms": 50}
    tools = {"slow": quick, "asks": quick, "samples": quick, "fails": {"how": "result", **quick}, "plain": {}}
    assert await play(host_on_1, legacy_python_server.url, tools) == {
        "slow": "rested",
        "asks": "Hello, Ada",
        "samples": "4",
        "fails": "the tool said no",
        "plain": "plain",
        "asked": ["What is your name?", "model"],
    }
