"""What differs between the HTTP libraries, and what they must do alike."""

from __future__ import annotations

import ssl
import sys
import threading

import anyio
import httpx
import pytest

from mcp_tasks_client.sessions.http.http_session import HttpSession

from .scripted import REF, HttpAnswers, send_call
from .sockets import Connection, also_over_httpx2, anyio_backend, connected, serving, whole

__all__ = ["anyio_backend"]

pytestmark = pytest.mark.anyio


@also_over_httpx2
async def test_cookies_are_sent_back_as_they_came() -> None:
    """One of them may tell a load balancer which server the session is to reach, quotes included."""
    cookies: list[str] = []

    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            lines = peer.head.decode().split("\r\n")
            cookies.append("".join(line for line in lines if line.lower().startswith("cookie:")))
            fields = ['Set-Cookie: AWSALB="a+b/c=="; Path=/', "Set-Cookie: other=1; Path=/elsewhere"]
            await peer.send(whole(peer.result(), *fields))

    async with serving(script) as server, connected(server) as session:
        await session.get(REF)
        await send_call(session)
        await session.get(REF)
    first, *others = [cookie.lower() for cookie in cookies]
    assert first == ""
    assert set(others) == {'cookie: awsalb="a+b/c=="'}
    assert len(others) >= 2, "calls and polls go over connections of their own"


@also_over_httpx2
async def test_a_cookie_of_the_hosts_own_is_the_only_one() -> None:
    cookies: list[str] = []

    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            lines = peer.head.decode().split("\r\n")
            cookies.extend(line for line in lines if line.lower().startswith("cookie:"))
            await peer.send(whole(peer.result(), "Set-Cookie: a=1"))

    async with serving(script) as server, connected(server, headers={"cookie": "own=1"}) as session:
        await session.get(REF)
        await session.get(REF)
    assert [cookie.lower() for cookie in cookies] == ["cookie: own=1"] * 2


async def test_certificates_are_loaded_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes some 30 milliseconds, and so does the import of aiohttp."""
    threads: list[threading.Thread] = []
    load = ssl.SSLContext.load_verify_locations

    def note(self: ssl.SSLContext, *args: str | None, **options: str | None) -> None:
        threads.append(threading.current_thread())
        load(self, *args, **options)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", note)
    monkeypatch.delitem(sys.modules, "mcp_tasks_client.sessions.http.transport_aiohttp", raising=False)
    session = HttpSession("https://127.0.0.1:9/mcp")
    with anyio.fail_after(20), pytest.raises(Exception, match="could not be sent"):
        await session.get(REF)
    await session.aclose()
    assert threads
    assert threading.current_thread() not in threads


async def test_one_transport_is_made_for_requests_that_begin_together() -> None:
    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            await peer.send(whole(peer.result()))

    async with serving(script) as server, connected(server) as session:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(session.get, REF)
        made = session.channel._transport
        await session.get(REF)
        assert session.channel._transport is made
        # Closed with the session: an unclosed one warns, and warnings are errors here.


async def test_hooks_and_auth_flows_see_what_is_sent(server: HttpAnswers) -> None:
    seen: list[bytes] = []

    async def note(request: httpx.Request) -> None:
        seen.append(request.content)

    class Signing(httpx.Auth):
        def auth_flow(self, request: httpx.Request):  # type: ignore[no-untyped-def]
            seen.append(request.content)
            yield request

    await server.session(http_client=server.client(event_hooks={"request": [note]}), auth=Signing()).get(REF)
    assert seen == [server.last.content] * 2
    assert b"tasks/get" in seen[0]
