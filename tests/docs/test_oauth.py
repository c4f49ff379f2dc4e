"""OAuth by the official SDK's providers: the example of the page, and a program without a user."""

from __future__ import annotations

import ast
import asyncio
import json
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import httpx2
import pytest
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from mcp_tasks_client import MemoryJournal, TasksClient
from mcp_tasks_client.testing import ExpiringToken, ScriptedServer, complete, text_result, work
from tests._results import text
from tests.kit.ports import unused_port

from .pages import PORT, ROOT, blocks_of
from .server import running

PAGE: Final = ROOT / "docs" / "guides" / "credentials.md"
LIMIT_S: Final = 60.0

WITH_USERS: Final = """\
from fastmcp.server.auth.auth import ClientRegistrationOptions
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider


class Users(InMemoryOAuthProvider):
    async def exchange_authorization_code(self, *given):
        return (await super().exchange_authorization_code(*given)).model_copy(update={"expires_in": 1})

    async def exchange_refresh_token(self, *given):
        return (await super().exchange_refresh_token(*given)).model_copy(update={"expires_in": 1})


registration = ClientRegistrationOptions(enabled=True)
users = Users(base_url="http://127.0.0.1:{port}", client_registration_options=registration)
mcp = FastMCP("deployments", auth=users)
"""
"""In the tutorial's server: users who log in, and tokens that expire while a task works."""


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser was opened at. Its user agrees to everything at once."""
    urls: list[str] = []

    def visit(url: str) -> None:
        urls.append(url)
        options = {"follow_redirects": True, "trust_env": False, "timeout": LIMIT_S}
        threading.Thread(target=httpx.get, args=(url,), kwargs=options).start()

    monkeypatch.setattr(webbrowser, "open", visit)
    return urls


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example of the page, with a port of its own for the browser to come back to."""
    monkeypatch.chdir(tmp_path)
    (found,) = [block for block in blocks_of(PAGE) if "OAuthClientProvider" in block]
    return found.replace("PORT = 3030", f"PORT = {unused_port()}")


def test_the_sdk_s_provider_has_the_user_log_in_once_and_renews_the_token(
    tmp_path: Path, visited: list[str], example: str
) -> None:
    changes = {'mcp = FastMCP("deployments")\n': WITH_USERS, "STEP_S = 0.3 ": "STEP_S = 3 "}
    with running(tmp_path, changes) as at:
        run = program(example.replace(PORT, at))
        assert text(run()) == "web is built"
        assert (tmp_path / "server.log").read_text().count("POST /token") > 2, "it was renewed meanwhile"
        assert len(visited) == 1, "and without the user"
        stored = tmp_path / "tokens.json"
        assert stored.stat().st_mode & 0o777 == 0o600
        assert text(run()) == "web is built"
        assert len(visited) == 1
        stored.write_text(json.dumps({**json.loads(stored.read_text()), "access_token": "expired"}))
        assert text(run()) == "web is built"
        assert len(visited) == 2, "a token that is refused has the user log in again"


def test_a_user_who_declines_ends_the_example(
    tmp_path: Path, example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decline(url: str) -> None:
        asked = httpx.URL(url).params
        back = httpx.URL(asked["redirect_uri"], params={"error": "access_denied", "state": asked["state"]})
        options = {"trust_env": False, "timeout": LIMIT_S}
        threading.Thread(target=httpx.get, args=(back,), kwargs=options).start()

    monkeypatch.setattr(webbrowser, "open", decline)
    with (
        running(tmp_path, {'mcp = FastMCP("deployments")\n': WITH_USERS}) as at,
        pytest.raises(OAuthFlowError, match="No authorization code"),
    ):
        program(example.replace(PORT, at))()


def program(source: str) -> Callable[[], Any]:
    """The example as a program, which returns its result."""
    code = compile("from mcp_tasks_client import TasksClient\n" + source, str(PAGE), "exec", _TOP_LEVEL_AWAIT)

    def run() -> Any:
        names: dict[str, Any] = {}
        asyncio.run(asyncio.wait_for(eval(code, names), LIMIT_S))
        return names["result"]

    return run


_TOP_LEVEL_AWAIT: Final = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class InMemory:
    """The tokens of one process."""

    tokens = client = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client: Any) -> None:
        self.client = client


@pytest.mark.anyio
async def test_a_program_without_a_user_gets_a_new_token_in_the_middle_of_a_task() -> None:
    issuer, url = "http://server.test", "http://server.test/mcp"
    token, given = ExpiringToken(requests=3), list[str]()

    async def resource(request: Request) -> JSONResponse:
        return JSONResponse({"resource": url, "authorization_servers": [issuer]})

    async def metadata(request: Request) -> JSONResponse:
        ends = {"authorization_endpoint": f"{issuer}/authorize", "token_endpoint": f"{issuer}/token"}
        return JSONResponse({"issuer": issuer, "response_types_supported": ["code"], **ends})

    async def give(request: Request) -> JSONResponse:
        assert (await request.form())["grant_type"] == "client_credentials"
        given.append(token.value)
        return JSONResponse({"access_token": token.value, "token_type": "Bearer", "expires_in": 3600})

    server = ScriptedServer()
    server.tool("build", [work(3.0), complete(text_result("built"))], poll_interval_ms=20)
    app = Starlette(
        routes=[
            Route("/.well-known/oauth-protected-resource/mcp", resource),
            Route("/.well-known/oauth-authorization-server", metadata),
            Route("/token", give, methods=["POST"]),
            Mount("/", token.guard(server.app)),
        ]
    )
    oauth = ClientCredentialsOAuthProvider(url, InMemory(), "agent", "secret", issuer=issuer)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as http:
        client = TasksClient(url, http_client=http, auth=oauth, journal=MemoryJournal())
        with anyio.fail_after(LIMIT_S):
            async with client:
                assert text(await client.call_tool("build")) == "built"
    assert len(given) > 2
    server.witness.check(at_most_once=True)
