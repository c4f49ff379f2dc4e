"""A bridge answers a host that starts it before it has imported what only calls need."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.campaigns.torture.run import Servers, servers
from tests.kit.piped_bridge import OLDER, piped_bridge
from tests.kit.terminal import surroundings

# Writes down what is loaded as the first reply goes out, in the thread that writes it.
_WATCHED: Final = """
import os, sys
from pathlib import Path
found, write = Path(sys.argv.pop(1)), os.write

def watched(descriptor, content):
    if bytes(content).startswith(b'{"jsonrpc"') and not found.exists():
        found.write_text(" ".join(sys.modules))
    return write(descriptor, content)

os.write = watched
from mcp_tasks_client.cli import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(0, tmp_path_factory.mktemp("servers")) as running:
        yield running


def _initialize() -> bytes:
    info = {"name": "host", "version": "1"}
    params = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": info}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode() + b"\n"


def test_the_host_is_answered_before_the_http_client_is_loaded(server: Servers, tmp_path: Path) -> None:
    url, journal, found = server.endpoint("fastmcp"), tmp_path / "journal.sqlite3", tmp_path / "found"
    with piped_bridge(url, journal) as bridge:
        bridge.ask("tools/list")
        said = Path(f"{journal}.servers")
        while not (said.is_dir() and [*said.glob("*.json")]):
            bridge.ask("tools/list")
    command = [sys.executable, "-c", _WATCHED, str(found), "bridge", url, "--journal", str(journal)]
    ran = subprocess.run(
        command,
        input=_initialize(),
        capture_output=True,
        env=surroundings(journal),
        timeout=60,
        check=True,
    )
    told: dict[str, Any] = json.loads(ran.stdout.splitlines()[0])["result"]
    assert told["serverInfo"]["name"] == "torture"
    loaded = set(found.read_text().split())
    assert "mcp_tasks_client.bridge" in loaded
    assert not loaded & {"aiohttp", "httpx", "jsonschema_rs", "mcp_tasks_client.sessions.http.http_session"}


def test_a_url_that_makes_no_sense_is_told_to_each_request(tmp_path: Path) -> None:
    with piped_bridge("http:///mcp", tmp_path / "journal.sqlite3", introduced=False) as bridge:
        for _ in range(2):
            bridge.write(_initialize())
            assert "the server's URL must start with" in bridge.reply_to(1)["error"]["message"]
