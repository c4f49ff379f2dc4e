"""With whose credential our own requests go."""

from __future__ import annotations

import httpx
import pytest

from mcp_tasks_client.hosts.http.own_requests import HostRequest, InnerTransport, serving
from mcp_tasks_client.sessions.http.transport import Request

pytestmark = pytest.mark.anyio

URL = "http://server.test/mcp"


@pytest.mark.parametrize("is_one_user", [True, False])
async def test_what_outlives_its_call_goes_with_a_newer_credential_only_of_the_same_user(
    is_one_user: bool,
) -> None:
    sent: list[str] = []

    def note(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return httpx.Response(202)

    transport = InnerTransport(httpx, httpx.MockTransport(note))

    async def send() -> None:
        request = Request(verb="GET", headers={}, content=b"", silence_s=1.0)
        await transport.send(httpx.URL(URL), request)

    def host(credential: str) -> HostRequest:
        request = httpx.Request("POST", URL, headers={"Authorization": credential})
        return HostRequest.of(request, is_one_user=is_one_user)

    serving.set(host("old"))
    with transport.calling(URL):
        await send()
    await send()  # there is no newer one
    token = serving.set(host("new"))
    with transport.calling(URL):
        await send()
        serving.reset(token)
        await send()
    with transport.calling("http://elsewhere.test/mcp"):
        await send()
    assert sent == ["old", "old", "new", "new" if is_one_user else "old", "old"]
