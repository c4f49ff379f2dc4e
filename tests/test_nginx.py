"""nginx in front of real servers: it gives up a request that takes too long, and a task goes on."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urljoin, urlsplit

import anyio
import pytest
from mcp import MCPError

from mcp_tasks_client import OutcomeUnknownError, SessionError, idempotency_key

from ._results import text
from .crossings.axes import Way
from .crossings.clients import Door, Opened
from .crossings.servers import Older, Real
from .kit.person import Person
from .legacy_servers import LegacyServer
from .real_server import STOP_LIMIT_S, RealServer

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 2
"""Seconds that nginx waits for a server."""

Urls: TypeAlias = Mapping[str, str]
"""Where a server is found behind nginx, by buffering. Each test is at both at once, since it mostly waits."""

NATIVE: Final = Way("native", "native")
DROPPED: Final = Way("mcp-http", "dropped")
BENEATH: Final = Way("mcp-http", "beneath")


def through(*ways: Way) -> pytest.MarkDecorator:
    """Each way on asyncio, the native one on trio as well: there the SDK's streams are left unclosed."""
    cases = [
        (loop, way) for way in ways for loop in ("asyncio", "trio") if loop == "asyncio" or way == NATIVE
    ]
    return pytest.mark.parametrize(("anyio_backend", "way"), cases, ids=str, indirect=["anyio_backend"])


CONFIGURATION: Final = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {servers}
}}
"""

SERVER: Final = """
    server {{
        listen 127.0.0.1:{port};
        proxy_read_timeout {limit}s;
        {buffering}
        location / {{ proxy_pass {url}; }}
    }}
"""

BUFFERING: Final = {
    "on": "",  # as it comes, with HTTP/1.0 to the server
    "off": 'proxy_buffering off; proxy_http_version 1.1; proxy_set_header Connection "";',
}


def unused_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def wait_until_it_listens(port: int, folder: Path) -> None:
    deadline = time.monotonic() + STOP_LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > deadline:
                pytest.fail(f"nginx did not start: {(folder / 'error.log').read_text()}")
            time.sleep(0.02)
        else:
            return


@contextmanager
def in_front_of(url: str, program: str, folder: Path) -> Iterator[Urls]:
    """nginx in front of the server at a URL."""
    ports = dict(zip(BUFFERING, unused_ports(len(BUFFERING)), strict=True))
    servers = [
        SERVER.format(port=port, limit=LIMIT_S, buffering=BUFFERING[buffering], url=urljoin(url, "/")[:-1])
        for buffering, port in ports.items()
    ]
    (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, servers="".join(servers)))
    command = [program, "-p", str(folder), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]
    with subprocess.Popen(command) as process:
        try:
            for port in ports.values():
                wait_until_it_listens(port, folder)
            yield {how: f"http://127.0.0.1:{port}{urlsplit(url).path}" for how, port in ports.items()}
        finally:
            process.terminate()
            process.wait(STOP_LIMIT_S)


@pytest.fixture(scope="session")
def nginx_program() -> str:
    program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if program is None:
        pytest.skip("there is no nginx; on Debian: apt-get install nginx-light")
    return program


@pytest.fixture(scope="module")
def current(
    nginx_program: str, real_server: RealServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Urls]:
    """Where the server of 2026-07-28 is found behind nginx."""
    with in_front_of(real_server.url, nginx_program, tmp_path_factory.mktemp("nginx")) as urls:
        yield urls


@pytest.fixture(scope="module")
def older(
    nginx_program: str, legacy_python_server: LegacyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Urls]:
    """The same for the server of 2025-11-25."""
    with in_front_of(legacy_python_server.url, nginx_program, tmp_path_factory.mktemp("nginx")) as urls:
        yield urls


async def in_each(urls: Urls, act: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    """Act at each URL, at the same time."""
    async with anyio.create_task_group() as acts:
        for url in urls.values():
            acts.start_soon(act, url)


@through(NATIVE, DROPPED, BENEATH)
async def test_a_task_and_its_question_outlive_the_limit(
    current: Urls, real_server: RealServer, way: Way
) -> None:
    async def act(url: str) -> None:
        async with Door(way, Real(replace(real_server, url=url))).opened(Person()) as door:
            await outlive(door, slow={"seconds": LIMIT_S + 1}, ask_name={"seconds": LIMIT_S / 2})

    await in_each(current, act)


@through(NATIVE, BENEATH)
async def test_what_became_of_a_call_beyond_the_limit_is_not_known(
    current: Urls, real_server: RealServer, way: Way
) -> None:
    async def act(url: str) -> None:
        tokens = {key: uuid.uuid4().hex for key in ("", "key")}
        async with Door(way, Real(replace(real_server, url=url))).opened() as door:

            async def call(key: str, told: str) -> None:
                keyed = idempotency_key(key) if key else nullcontext()
                with keyed, pytest.raises((SessionError, OutcomeUnknownError, MCPError), match=told):
                    await door.call("nap", {"token": tokens[key], "seconds": 2 * LIMIT_S})

            async with anyio.create_task_group() as calls:
                calls.start_soon(call, "", "HTTP 504.*The tool may still be running")
                calls.start_soon(call, "key", "may have run")
            await call("key", "may have run")
            for token in tokens.values():
                assert text(await door.call("runs", {"token": token})) == "1"

    await in_each(current, act)


async def test_a_task_of_2025_11_25_and_its_question_outlive_the_limit(
    older: Urls, legacy_python_server: LegacyServer
) -> None:
    async def act(url: str) -> None:
        async with Door(NATIVE, Older(replace(legacy_python_server, url=url), [])).opened(Person()) as door:
            slow, asks = {"duration_ms": 1000 * (LIMIT_S + 1)}, {"duration_ms": 500 * LIMIT_S}
            await outlive(door, slow=slow, asks=asks)

    await in_each(older, act)


async def outlive(door: Opened, **calls: Mapping[str, Any]) -> None:
    """Two calls at once, by tool: one takes longer than the limit, and the other asks for a name."""
    results: list[str] = []

    async def call(tool: str) -> None:
        results.append(text(await door.call(tool, calls[tool])))

    async with anyio.create_task_group() as group:
        for tool in calls:
            group.start_soon(call, tool)
    assert sorted(results) == ["Hello, Ada", "rested"]
