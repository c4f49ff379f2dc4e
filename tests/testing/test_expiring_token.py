"""A token that expires, and the guard that refuses every other one."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from mcp_tasks_client.testing import ExpiringToken

pytestmark = pytest.mark.anyio


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def get(token: ExpiringToken, headers: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(token.guard(app))) as client:
        return await client.get("http://server.test/", headers=headers)


async def test_every_other_token_is_refused_by_name() -> None:
    token = ExpiringToken()
    old = token.headers()
    assert (await get(token, old)).status_code == 204
    token.expire()
    for headers in ({}, old):
        refused = await get(token, headers)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (
            401,
            'Bearer error="invalid_token"',
        )
    assert (await get(token, token.headers())).status_code == 204
    assert token.refused == 2


async def test_a_token_is_good_for_so_many_requests() -> None:
    token = ExpiringToken(requests=2)
    statuses = [(await get(token, token.headers())).status_code for _ in range(6)]
    assert statuses == [204, 204, 401, 204, 204, 401]
