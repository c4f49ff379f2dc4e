"""Whole clients, in the shapes that agent frameworks take."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Final

import httpx
import httpx2
import pytest

import mcp_tasks_client
from mcp_tasks_client import MemoryJournal, TasksHttpTransport, tasks_http_client, tasks_http_client_factory
from tests.kit.json_rpc_host import JsonRpcHost, asking_server

pytestmark = pytest.mark.anyio

PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_client_is_the_library_s_own_with_time_outs_as_the_sdk_has_them() -> None:
    client = tasks_http_client(journal=MemoryJournal(), headers={"X-Own": "1"}, http2=False)
    assert type(client) is httpx2.AsyncClient
    assert client.timeout == httpx2.Timeout(30.0, read=300.0)
    assert client.headers["x-own"] == "1"
    assert type(tasks_http_client(library="httpx", journal=MemoryJournal())) is httpx.AsyncClient


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
async def test_a_factory_makes_clients_as_the_sdk_calls_for_them(library: Any) -> None:
    lib: Any = {"httpx": httpx, "httpx2": httpx2}[library]
    server = asking_server()
    factory = tasks_http_client_factory(
        library=library,
        journal=MemoryJournal(),
        transport=lib.ASGITransport(server.app),
        headers={"X-Own": "1"},
        auth=lib.BasicAuth("ada", "secret"),
    )
    assert type(factory()) is lib.AsyncClient
    assert factory(follow_redirects=True).follow_redirects, "as FastMCP calls for them"
    auth = lib.BasicAuth("eve", "secret")
    async with factory(headers={"X-Host": "2"}, timeout=lib.Timeout(7.0), auth=auth) as client:
        assert (client.timeout, client.auth) == (lib.Timeout(7.0), auth)
        assert "x-own" not in client.headers, "what the host gives replaces what was given before"
        assert await JsonRpcHost(client).text("slow") == "done"


@pytest.mark.parametrize("options", [{"nonsense": 1}, {"transport": object()}])
def test_what_is_no_option_is_refused(options: Any) -> None:
    with pytest.raises(TypeError):
        tasks_http_client(journal=MemoryJournal(), **options)


def test_a_library_that_is_neither_is_refused() -> None:
    with pytest.raises(ValueError, match='"httpx2" or "httpx"'):
        tasks_http_client(library="requests")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='"httpx2" or "httpx"'):
        tasks_http_client_factory(library="requests")  # type: ignore[arg-type]


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
@pytest.mark.parametrize(
    ("variables", "proxied", "direct"),
    [
        ({}, [], ["http://a.test", "https://a.test"]),
        ({"http_proxy": "http://127.0.0.1:9"}, ["http://a.test"], ["https://a.test"]),
        ({"ALL_PROXY": "127.0.0.1:9"}, ["http://a.test", "https://a.test"], []),
        (
            {"all_proxy": "http://127.0.0.1:9", "no_proxy": "localhost, .b.test,10.0.0.1,::1,http://c.test"},
            ["http://a.test", "https://c.test"],
            ["http://localhost", "http://x.b.test", "http://10.0.0.1", "http://[::1]", "http://c.test"],
        ),
        ({"all_proxy": "http://127.0.0.1:9", "no_proxy": "*"}, [], ["http://a.test"]),
    ],
)
def test_the_proxies_of_the_environment_count_as_in_the_library_s_own_client(
    monkeypatch: pytest.MonkeyPatch,
    library: Any,
    variables: dict[str, str],
    proxied: list[str],
    direct: list[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    lib: Any = {"httpx": httpx, "httpx2": httpx2}[library]
    ours, own = tasks_http_client(library=library, journal=MemoryJournal()), lib.AsyncClient()
    for url in [*proxied, *direct]:
        # Private, and read here only to compare with what the library does by itself.
        chosen, as_own = (one._transport_for_url(lib.URL(url)) for one in (ours, own))
        assert isinstance(chosen, TasksHttpTransport), url
        pool = type(as_own._pool).__name__
        assert type(chosen._inner._pool).__name__ == pool, url
        assert ("Proxy" in pool) == (url in proxied), url
    assert not tasks_http_client(library=library, journal=MemoryJournal(), trust_env=False)._mounts


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_addresses_in_brackets_and_networks_have_no_proxy(
    monkeypatch: pytest.MonkeyPatch, library: Any
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "[::1],*.b.test,[fe80::1]:81,fd07:b51a:cc66:f0::/64,10.0.0.0/8,::2/128")
    direct = ["http://[::1]", "http://[::1]:8080", "http://x.b.test", "http://[fe80::1]:81", "http://[::2]"]
    in_networks = ["http://[fd07:b51a:cc66:f0::5]", "http://10.1.2.3"]
    proxied = ["http://b.test", "http://[fe80::1]", "http://[fd07::5]", "http://11.1.2.3"]
    # httpx has no patterns for networks.
    (direct if library == "httpx2" else proxied).extend(in_networks)
    lib: Any = {"httpx": httpx, "httpx2": httpx2}[library]
    client = tasks_http_client(library=library, journal=MemoryJournal())
    for url in [*direct, *proxied]:
        pool = type(client._transport_for_url(lib.URL(url))._inner._pool).__name__
        assert ("Proxy" in pool) == (url in proxied), url


def test_a_proxy_that_is_given_is_that_of_all_requests() -> None:
    client = tasks_http_client(journal=MemoryJournal(), proxy="http://127.0.0.1:9")
    assert type(client._transport._inner._pool).__name__ == "AsyncHTTPProxy"


def test_the_names_are_there_and_importing_the_package_loads_none_of_them() -> None:
    for name in ("TasksHttpTransport", "idempotency_key", "tasks_http_client", "tasks_http_client_factory"):
        assert name in mcp_tasks_client.__all__
        assert getattr(mcp_tasks_client, name).__name__ == name
    program = "import sys, mcp_tasks_client; print([n for n in sys.modules if 'hosts.http' in n])"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.strip() == "[]"
