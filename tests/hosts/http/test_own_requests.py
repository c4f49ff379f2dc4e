"""With whose headers our own requests go."""

from __future__ import annotations

import httpx
import pytest

from mcp_tasks_client.errors import ConnectionLostError
from mcp_tasks_client.hosts.http.own_requests import HostRequest, InnerTransport
from mcp_tasks_client.questions.context import CallContext
from mcp_tasks_client.sessions.http.transport import Request

pytestmark = pytest.mark.anyio

URL = "http://server.test/mcp"


def host(credential: str, **headers: str) -> HostRequest:
    return HostRequest.of(httpx.Request("POST", URL, headers={"Authorization": credential, **headers}))


async def send(context: CallContext | None) -> httpx.Request:
    """The request that reaches the host's transport."""
    sent: list[httpx.Request] = []

    def note(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(202)

    await send_over(InnerTransport(httpx, httpx.MockTransport(note)), context)
    (one,) = sent
    return one


async def send_over(transport: InnerTransport, context: CallContext | None) -> None:
    request = Request(headers={"Mcp-Method": "tasks/get"}, content=b"{}", silence_s=1.0, context=context)
    await transport.send(httpx.URL(URL), request)


async def test_a_request_goes_with_the_credential_of_the_call_for_whose_sake_it_is_sent() -> None:
    assert [(await send(host(one))).headers["authorization"] for one in ("old", "new")] == ["old", "new"]


@pytest.mark.parametrize("context", [None, CallContext()])
async def test_what_is_sent_for_the_sake_of_no_call_has_no_credential_and_is_not_sent(
    context: CallContext | None,
) -> None:
    with pytest.raises(ConnectionLostError, match="no credential") as caught:
        await send(context)
    assert caught.value.not_executed


async def test_what_says_something_of_the_hosts_own_request_does_not_go_with_ours() -> None:
    of_the_call = {
        "Mcp-Method": "tools/call",
        "Mcp-Name": "tool",
        "Mcp-Param-Region": "eu",
        "Mcp-Session-Id": "s",
        "Last-Event-Id": "7",
        "Accept-Encoding": "br",
    }
    sent = await send(host("token", **of_the_call, **{"X-Tenant": "t"}))
    assert sent.headers["mcp-method"] == "tasks/get"
    assert sent.headers["x-tenant"] == "t"
    for name in ("Mcp-Name", "Mcp-Param-Region", "Mcp-Session-Id", "Last-Event-Id", "Accept-Encoding"):
        assert name not in sent.headers


async def test_the_transport_knows_that_a_server_has_taken_the_credential_of_a_request() -> None:
    statuses = [401, 404, 401]
    transport = InnerTransport(httpx, httpx.MockTransport(lambda request: httpx.Response(statuses.pop(0))))
    request, other = host("token"), host("token")
    await send_over(transport, request)
    assert not transport.has_accepted(request)
    await send_over(transport, request)
    await send_over(transport, request)
    assert transport.has_accepted(request)
    assert not transport.has_accepted(other)
