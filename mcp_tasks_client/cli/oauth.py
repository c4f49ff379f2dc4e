"""Tokens of a server by the SDK's OAuth: got from the user in a browser, renewed without, and revoked.

The SDK's provider is not given to the HTTP client, since it lets one request through at a time and would
open a browser. Its flow is carried out here, as far as the token.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import one_line

from .exits import CommandError, Exit
from .logins import Login, LoginFile, login_refused

if TYPE_CHECKING:
    import httpx2
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthToken

__all__ = ["authorize", "log_in", "revoke"]

_NEEDED: Final = "A login needs mcp, of the extra [mcp]: pip install mcp"
_REQUEST_S: Final = 30.0
_RENEW_S: Final = 40.0
_REVOKE_S: Final = 10.0
_MOST_BYTES: Final = 1_000_000
_PASSING: Final = (408, 425, 429)
_PROBE: Final = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
"""A request that changes nothing at a server of any version."""

_PROBE_HEADERS: Final = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-06-18",
}
_LONG_AGO: Final = 1.0


async def authorize(file: LoginFile) -> dict[str, str]:
    """The headers of a request to a server, with the token of its login, which is renewed if it has expired.

    The user is not asked. Without a login there are no headers.

    Raises:
        CredentialRefusedError: The login cannot be used.
        ConnectionLostError: The login could not be renewed now.
        SessionError: It can never be renewed here.
    """
    login = file.read()
    if login is not None and login.is_expired:
        # A refresh token may be good for one use, so the next one is kept even if the caller is cancelled.
        renewing = asyncio.ensure_future(_renew(file))
        try:
            login = await asyncio.shield(renewing)
        except asyncio.CancelledError:
            await asyncio.wait([renewing])
            if not renewing.cancelled():
                renewing.exception()
            raise
    return {} if login is None else login.headers


async def _renew(file: LoginFile) -> Login | None:
    async with file.locked():
        login = file.read()  # another process may have renewed it
        if login is None or not login.is_expired:
            return login
        if not login.renews:
            raise login_refused("The login has expired, and the server gave no token that renews it.")
        login = await _refresh(login)
        file.write(login)
        return login


async def _refresh(login: Login) -> Login:
    """The login with new tokens."""
    try:
        from httpx2 import HTTPError, Request
        from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata
    except ImportError:
        raise tasks.SessionError(_NEEDED, not_executed=True) from None
    metadata, resource = login.authorization_server, login.resource
    try:
        storage = _Storage(login)
        context = (provider := _make_provider(login.server, storage)).context
        context.oauth_metadata = None if metadata is None else OAuthMetadata.model_validate(metadata)
        context.protected_resource_metadata = (
            None if resource is None else ProtectedResourceMetadata.model_validate(resource)
        )
    except ValueError:  # without its text, which may quote a token
        raise login_refused("The login is damaged, so that it cannot be renewed.") from None
    context.token_expiry_time = _LONG_AGO
    request = Request("POST", login.server, headers=_PROBE_HEADERS)
    said = None
    try:
        with anyio.fail_after(_RENEW_S):
            async with _open_http() as http, aclosing(provider.async_auth_flow(request)) as flow:
                outgoing = await anext(flow)
                while outgoing is not request:
                    said = await _send(http, outgoing)
                    outgoing = await flow.asend(said)
    except (HTTPError, TimeoutError) as error:
        raise _not_now(type(error).__name__) from None
    if "Authorization" in request.headers and storage.is_new:
        return replace(
            login,
            tokens=_dump(storage.tokens),
            expires_at=context.token_expiry_time,
        )
    if said is None or not 400 <= said.status_code < 500 or said.status_code in _PASSING:
        raise _not_now("nothing was sent" if said is None else f"HTTP {said.status_code}")
    raise login_refused(f"The login has expired, and its renewal was refused{_words_of(said)}.")


def _not_now(why: str) -> tasks.ConnectionLostError:
    return tasks.ConnectionLostError(
        f"The login could not be renewed ({why}). Try again later.", retryable=True, not_executed=True
    )


async def log_in(
    file: LoginFile, headers: Mapping[str, str], visit: Callable[[str], Awaitable[None]], timeout_s: float
) -> Login:
    """Have the user log in, and keep the tokens.

    Args:
        file: Of the server.
        headers: Of requests to the server, beside the token.
        visit: Shows the user the URL of the page where to log in.
        timeout_s: Seconds that the user may take.

    Raises:
        CommandError: The login failed; the message says why.
        SessionError: The login could not be kept.
    """
    try:
        from httpx2 import HTTPError, Request
        from mcp.client.auth import AuthorizationCodeResult, OAuthFlowError
    except ImportError:
        raise CommandError(Exit.USAGE, _NEEDED) from None
    from .callback import listen  # on use, as all that only a login needs

    storage, said = _Storage(), None
    async with file.locked():
        pass  # that the login can be kept is known before the user takes the trouble
    async with listen() as callback, _open_http() as http:

        async def ask(page: str) -> None:
            callback.state = _state_of(page)
            await visit(page)

        async def answer() -> AuthorizationCodeResult:
            try:
                with anyio.fail_after(timeout_s):
                    given = await callback.wait()
            except TimeoutError:
                words = f"Nobody has logged in within {timeout_s:g} s."
                raise CommandError(Exit.TIMED_OUT, words) from None
            return AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given.get("iss"))

        provider = _make_provider(file.server, storage, callback.url, ask, answer)
        request = Request("POST", file.server, headers={**headers, **_PROBE_HEADERS}, content=_PROBE)
        try:
            async with aclosing(provider.async_auth_flow(request)) as flow:
                outgoing = await anext(flow)
                while True:
                    said = await _send(http, outgoing)
                    outgoing = await flow.asend(said)
        except StopAsyncIteration:
            pass
        except HTTPError as error:
            raise CommandError(Exit.UNREACHABLE, f"No login: {one_line(str(error))}.") from None
        except OAuthFlowError as error:
            raise CommandError(Exit.UNEXPECTED, _tell_failure(error, said)) from None
        except ValueError:  # the SDK could not read a reply; its text may quote a token
            raise CommandError(
                Exit.UNEXPECTED, f"No login: a reply makes no sense{_words_of(said)}."
            ) from None
    assert said is not None, "the flow sends the request"
    context = provider.context
    if storage.tokens is None or storage.client is None:
        raise _no_login(said)
    if said.status_code in (401, 403):
        words = f"The login was given, and the server refuses its token{_words_of(said)}."
        raise CommandError(Exit.CREDENTIAL_REFUSED, words)
    login = Login(
        server=file.server,
        client=_dump(storage.client),
        tokens=_dump(storage.tokens),
        expires_at=context.token_expiry_time,
        authorization_server=_dump(context.oauth_metadata),
        resource=_dump(context.protected_resource_metadata),
    )
    async with file.locked():
        file.write(login)
    return login


async def revoke(login: Login) -> bool | None:
    """Have the server forget the tokens of a login.

    Returns:
        True if it has, False if it could not be told, ``None`` if it has no endpoint for that.
    """
    endpoint = (login.authorization_server or {}).get("revocation_endpoint")
    if endpoint is None:
        return None
    kind = "refresh_token" if login.renews else "access_token"
    try:
        from httpx2 import HTTPError, InvalidURL, Request

        storage = _Storage(login)
        context = _make_provider(login.server, storage).context
    except (ImportError, ValueError):
        return False
    context.client_info = storage.client
    asked = {
        "token": login.tokens[kind],
        "token_type_hint": kind,
        "client_id": str(login.client.get("client_id")),
    }
    data, headers = context.prepare_token_auth(asked, {})
    try:
        with anyio.fail_after(_REVOKE_S):
            async with _open_http() as http:
                said = await _send(http, Request("POST", str(endpoint), data=data, headers=headers))
    except (HTTPError, InvalidURL, TimeoutError):
        return False
    return said.status_code == 200


# ── the SDK's provider ────────────────────────────────────────────────────────────────────────────


class _Storage:
    """The client and the tokens that the provider begins with, and those that it has got."""

    def __init__(self, login: Login | None = None) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self.is_new = False
        if login is not None:
            from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

            self.tokens = OAuthToken.model_validate(login.tokens)
            self.client = OAuthClientInformationFull.model_validate(login.client)

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens, self.is_new = tokens, True

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def _make_provider(
    server: str,
    storage: _Storage,
    callback: str = "http://127.0.0.1/",
    ask: Callable[[str], Awaitable[None]] | None = None,
    answer: Callable[[], Awaitable[AuthorizationCodeResult]] | None = None,
) -> OAuthClientProvider:
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata
    from pydantic import AnyUrl

    # It logs replies that it cannot read, which may hold a token.
    logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL + 1)
    metadata = OAuthClientMetadata(client_name="mcp-tasks", redirect_uris=[AnyUrl(callback)])
    return OAuthClientProvider(server, metadata, storage, ask, answer)


@asynccontextmanager
async def _open_http() -> AsyncIterator[httpx2.AsyncClient]:
    from httpx2 import AsyncClient

    async with AsyncClient(timeout=_REQUEST_S, follow_redirects=False) as http:
        yield http


async def _send(http: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """Send a request once. A body of an absurd size is cut off.

    Raises:
        HTTPError: There is no reply.
    """
    from httpx2 import Response

    reply = await http.send(request, stream=True)
    try:
        body = bytearray()
        if reply.headers.get("Content-Type", "").partition(";")[0].strip() != "text/event-stream":
            async for chunk in reply.aiter_bytes():
                body += chunk
                if len(body) > _MOST_BYTES:
                    break
    finally:
        await reply.aclose()
    encoded = ("content-encoding", "content-length", "transfer-encoding")
    kept = [(name, value) for name, value in reply.headers.multi_items() if name.lower() not in encoded]
    whole = Response(reply.status_code, headers=kept, content=bytes(body), request=request)
    whole.next_request = reply.next_request
    return whole


def _dump(value: Any) -> Any:
    """A model of the SDK as JSON; ``None`` stays."""
    return None if value is None else value.model_dump(mode="json", exclude_none=True)


def _state_of(page: str) -> str:
    from httpx2 import URL

    return URL(page).params["state"]


# ── words ─────────────────────────────────────────────────────────────────────────────────────────


def _no_login(said: httpx2.Response) -> CommandError:
    """The error of a server that has not asked for a login."""
    if said.status_code >= 500 or said.status_code in _PASSING:
        return CommandError(Exit.UNREACHABLE, f"The server has answered with HTTP {said.status_code}.")
    return CommandError(
        Exit.UNEXPECTED,
        "The server asks for no login: a request without a credential was answered with HTTP "
        f"{said.status_code}.",
    )


def _tell_failure(error: Exception, said: httpx2.Response | None) -> str:
    """The reason why the SDK gave up. The SDK's words may quote a token of a reply that it could not read."""
    from mcp.client.auth import OAuthRegistrationError, OAuthTokenError

    if isinstance(error, OAuthRegistrationError):
        return f"No login: the server has not registered mcp-tasks as its client{_words_of(said)}."
    if isinstance(error, OAuthTokenError):
        return f"No login: the server has given no token{_words_of(said)}."
    return f"No login: {one_line(str(error))}."


def _words_of(said: httpx2.Response | None) -> str:
    """The error of a reply, by the two fields that OAuth has for it."""
    if said is None:
        return ""
    try:
        document = json.loads(said.content)
    except ValueError:
        document = None
    fields = document if isinstance(document, dict) else {}
    words = [fields[name] for name in ("error", "error_description") if isinstance(fields.get(name), str)]
    return f" (HTTP {said.status_code}{': ' if words else ''}{one_line(' '.join(words))})"
