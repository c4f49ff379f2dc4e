"""Proxies and certificates that environment variables name, at a real proxy and a real TLS server."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import httpx
import httpx2
import pytest

from mcp_tasks_client import MemoryJournal, SessionError, TasksClient, tasks_http_client
from mcp_tasks_client.sessions.http.variables import transports_by_pattern
from tests.kit.json_rpc_host import LIMIT_S, QUICK, JsonRpcHost, asking_server
from tests.testing.asking import serve_app

pytestmark = pytest.mark.anyio

NAMES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir")
WAYS: Final = ("by URL", "by URL, httpx2", "httpx", "httpx2")
SECRET: Final = "s3cr3t"
NOBODY: Final = "http://127.0.0.1:9"


def has_ipv6_loopback() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


in_each_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a certificate for 127.0.0.1, signed by itself; its key is beside it, as ``.key``."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate")
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=loopback",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(path)]
    subprocess.run([*command, "-keyout", str(path.with_suffix(".key"))], check=True, capture_output=True)
    return path


@contextmanager
def serve_tls(certificate: Path) -> Iterator[str]:
    files = {"ssl_certfile": str(certificate), "ssl_keyfile": str(certificate.with_suffix(".key"))}
    # On trio a handshake that failed leaves the connection to the collector of garbage.
    with serve_app(asking_server().app, timeout_graceful_shutdown=1, **files) as url:
        yield url


class Proxy:
    """Passes on what comes with the right credential, be it a tunnel or one request after the other.

    Attributes:
        address: JsonRpcHost and port.
        asked: The first line of each connection that was let through.
    """

    def __init__(self) -> None:
        self.address = ""
        self.asked: list[str] = []

    async def serve(self, client: anyio.abc.SocketStream) -> None:
        async with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await client.receive()
            first, *lines = head.partition(b"\r\n\r\n")[0].decode().split("\r\n")
            credential = base64.b64encode(f"ada:{SECRET}".encode()).decode()
            if f"proxy-authorization: basic {credential}".lower() not in map(str.lower, lines):
                await client.send(
                    b"HTTP/1.1 407 Who are you\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                )
                return
            self.asked.append(first)
            verb, target, _ = first.split(" ")
            host, _, port = target.removeprefix("http://").partition("/")[0].rpartition(":")
            async with await anyio.connect_tcp(host, int(port)) as server:
                if verb == "CONNECT":
                    await client.send(b"HTTP/1.1 200 Connected\r\n\r\n")
                else:
                    await server.send(head)
                async with anyio.create_task_group() as group:
                    group.start_soon(self._pump, client, server, group.cancel_scope)
                    group.start_soon(self._pump, server, client, group.cancel_scope)

    @staticmethod
    async def _pump(
        source: anyio.abc.SocketStream, target: anyio.abc.SocketStream, scope: anyio.CancelScope
    ) -> None:
        try:
            async for data in source:
                await target.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        scope.cancel()


@asynccontextmanager
async def proxy() -> AsyncIterator[Proxy]:
    made = Proxy()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        made.address = f"127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, made.serve)
            yield made
            group.cancel_scope.cancel()


@asynccontextmanager
async def calling(way: str, url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """How a host makes a call that becomes a task. The call returns its text."""
    options: dict[str, Any] = {"journal": MemoryJournal(), "poll": QUICK}
    with anyio.fail_after(LIMIT_S):
        if way.startswith("by URL"):
            auth = httpx2.BasicAuth("bob", "hunter2") if way.endswith("httpx2") else None
            async with TasksClient(url, auth=auth, **options) as client:

                async def call() -> str:
                    result: Any = await client.call_tool("slow")
                    return str(result.content[0].text)

                yield call
        else:
            library: Any = way
            async with tasks_http_client(library=library, **options) as http:
                host = JsonRpcHost(http, url=url)

                async def call() -> str:
                    return await host.text("slow")

                yield call


@in_each_way
async def test_a_proxy_gets_the_credentials_of_its_url(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    with serve_app(asking_server().app) as url:
        async with proxy() as between:
            monkeypatch.setenv("HTTP_PROXY", f"http://ada:{SECRET}@{between.address}")
            async with calling(way, url) as call:
                assert await call() == "done"
            assert {line.split(" ")[0] for line in between.asked} == {"POST"}


async def test_a_proxy_that_refuses_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_app(asking_server().app) as url:
        async with proxy() as between:
            monkeypatch.setenv("HTTP_PROXY", f"http://ada:wrong-{SECRET}@{between.address}")
            async with calling("by URL", url) as call:
                with pytest.raises(SessionError, match="407") as caught:
                    await call()
            assert SECRET not in str(caught.value)


@in_each_way
async def test_a_server_with_tls_is_reached_through_the_proxy_for_all(
    monkeypatch: pytest.MonkeyPatch, way: str, certificate: Path
) -> None:
    with serve_tls(certificate) as url:
        async with proxy() as between:
            monkeypatch.setenv("ALL_PROXY", f"http://ada:{SECRET}@{between.address}")
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            async with calling(way, url) as call:
                assert await call() == "done"
            assert {line.split(" ")[0] for line in between.asked} == {"CONNECT"}


@in_each_way
async def test_a_certificate_is_trusted_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, way: str, certificate: Path
) -> None:
    with serve_tls(certificate) as url:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with calling(way, url) as call:
            assert await call() == "done"
        if way != "by URL":
            return  # the rest says of the certificate that nobody else trusts it
        monkeypatch.delenv("SSL_CERT_FILE")
        async with calling("by URL", url) as call:
            with pytest.raises(SessionError, match="could not be sent") as caught:
                await call()
        assert caught.value.not_executed


@in_each_way
@pytest.mark.parametrize("proxied", [True, False])
async def test_hosts_without_a_proxy_may_be_named_in_any_way(
    monkeypatch: pytest.MonkeyPatch, way: str, proxied: bool
) -> None:
    odd = "localhost, 127.0.0.1,::1,[::1],fd07:b51a:cc66:f0::/64,[fd07::]/16,::1/128,[::1]:8080,10.0.0.0/8"
    worse = (
        "[::1,::1/999,10.0.0.0/99,fe80::1%eth0,http://[,http://10.0.0.0/99,a:b:c,*.,xn--a,*.xn--zzz,http://xn--a,\u00fc"
        + "x" * 64
    )
    monkeypatch.setenv("NO_PROXY", f"{odd},{worse}")
    if proxied:
        monkeypatch.setenv("HTTP_PROXY", NOBODY)
        monkeypatch.setenv("https_proxy", NOBODY)
    with serve_app(asking_server().app) as url:
        async with calling(way, url) as call:
            assert await call() == "done"


@in_each_way
@pytest.mark.skipif(not has_ipv6_loopback(), reason="there is no ::1 here")
@pytest.mark.parametrize("entry", ["::1", "[::1]"])
async def test_an_ipv6_address_without_a_proxy_is_reached_directly(
    monkeypatch: pytest.MonkeyPatch, way: str, entry: str
) -> None:
    monkeypatch.setenv("NO_PROXY", f"fd07:b51a:cc66:f0::/64,{entry}")
    monkeypatch.setenv("HTTP_PROXY", NOBODY)
    with serve_app(asking_server().app, host="::1") as url:
        async with calling(way, url.replace("127.0.0.1", "[::1]")) as call:
            assert await call() == "done"


@in_each_way
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PROXY", f"http://ada:{SECRET}/@127.0.0.1:9"),
        ("http_proxy", f"ftp://ada:{SECRET}@127.0.0.1:9"),
        ("HTTPS_PROXY", f"http://127.0.0.1:port{SECRET}"),
        ("ALL_PROXY", f"http://ada:{SECRET}@[::1"),
        ("SSL_CERT_FILE", "/there/is/none.pem"),
        *([("ALL_PROXY", "socks5://127.0.0.1:9")] if find_spec("socksio") is None else []),
    ],
)
async def test_an_error_names_the_variable_and_no_credential(
    monkeypatch: pytest.MonkeyPatch, way: str, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    url = f"{'https' if name in ('HTTPS_PROXY', 'SSL_CERT_FILE') else 'http'}://127.0.0.1:9/mcp"
    with pytest.raises((SessionError, ValueError), match=name.upper()) as caught:
        async with calling(way, url) as call:
            await call()
    assert SECRET not in str(caught.value)
    if way.startswith("by URL"):
        assert isinstance(caught.value, SessionError)
        assert (caught.value.not_executed, caught.value.retryable) == (True, False)


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_a_host_without_a_proxy_may_be_named_in_punycode(
    monkeypatch: pytest.MonkeyPatch, library: Any
) -> None:
    def answering(text: str) -> Any:
        return library.MockTransport(lambda request: library.Response(200, text=text))

    monkeypatch.setenv("HTTP_PROXY", NOBODY)
    monkeypatch.setenv("NO_PROXY", "xn--mnchen-3ya.example")
    mounts = transports_by_pattern(library, lambda proxy: answering("by the proxy"))
    async with library.AsyncClient(transport=answering("directly"), mounts=mounts) as client:
        assert (await client.get("http://m\u00fcnchen.example/")).text == "directly"
        assert (await client.get("http://other.example/")).text == "by the proxy"
