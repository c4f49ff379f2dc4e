"""A login at a real authorization server on the loopback, in front of a real MCP server at another origin."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

import anyio
import httpx
import pytest
import uvicorn
from fastmcp import FastMCP
from fastmcp.server.auth import RemoteAuthProvider
from fastmcp.server.auth.auth import TokenVerifier
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from mcp.server.auth.provider import TokenError
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.responses import JSONResponse

from mcp_tasks_client import CredentialRefusedError, Scope
from mcp_tasks_client.cli.exits import Exit
from mcp_tasks_client.cli.logins import LoginFile
from mcp_tasks_client.cli.oauth import authorize
from mcp_tasks_client.testing.samples import observing, record
from tests.kit.command import Command
from tests.kit.ports import unused_port
from tests.kit.terminal import Ran, in_terminal

LIMIT_S: Final = 60.0
OWNS_FILES: Final = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such rights")


# ── the servers ───────────────────────────────────────────────────────────────────────────────────


class Users(InMemoryOAuthProvider):
    """Users who agree to everything at once. A refresh token is good for one use.

    Attributes:
        renewals: How often a token was renewed.
        held: A renewal is answered when this is set.
        fails: The HTTP status of the token endpoint, if it is to fail; 0 if it is not.
    """

    def __init__(self, url: str) -> None:
        super().__init__(base_url=url)
        self.renewals = 0
        self.held = threading.Event()
        self.held.set()
        self.fails = 0
        self.denies = False

    async def authorize(self, client: Any, params: Any) -> str:
        if self.denies:
            return f"{params.redirect_uri}?error=access_denied&state={params.state}"
        return await super().authorize(client, params)

    async def exchange_refresh_token(self, *given: Any) -> Any:
        self.renewals += 1
        while not self.held.is_set():
            await asyncio.sleep(0.01)
        if given[1].token not in self.refresh_tokens:
            raise TokenError("invalid_grant", "used twice")
        return await super().exchange_refresh_token(*given)


class Verifier(TokenVerifier):
    def __init__(self, users: Users) -> None:
        super().__init__()
        self._users = users

    async def verify_token(self, token: str) -> Any:
        return await self._users.verify_token(token)


class Site:
    """An authorization server, an MCP server that sends its users there, and another MCP server.

    Attributes:
        users: Those of the authorization server.
        url: Of the MCP server.
        other: Of another one, with the same users.
        seen: The requests: port, path and ``Authorization`` of each.
    """

    def __init__(self, opened: ExitStack) -> None:
        listeners = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        self.ports = [one.getsockname()[1] for one in listeners]
        issuer, here, there = (f"http://127.0.0.1:{port}" for port in self.ports)
        self.users, self.url, self.other = Users(issuer), f"{here}/mcp", f"{there}/mcp"
        self.seen: list[tuple[int, str, str]] = []
        routes = create_auth_routes(
            self.users,
            AnyHttpUrl(issuer),
            client_registration_options=ClientRegistrationOptions(enabled=True),
            revocation_options=RevocationOptions(enabled=True),
        )
        apps = [Starlette(routes=routes), *(make_server(self.users, issuer, one) for one in (here, there))]
        for listener, app in zip(listeners, apps, strict=True):
            opened.enter_context(serving(listener, self._noting(app)))

    def _noting(self, app: Any) -> Any:
        async def noting(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                headers = dict(scope["headers"])
                port, path = scope["server"][1], scope["path"]
                self.seen.append((port, path, headers.get(b"authorization", b"").decode()))
                if path == "/token" and self.users.fails:
                    answer = JSONResponse({"error": "invalid_grant"}, self.users.fails)
                    return await answer(scope, receive, send)
            return await app(scope, receive, send)

        return noting


def make_server(users: Users, issuer: str, url: str) -> Any:
    server = FastMCP(
        "sums",
        auth=RemoteAuthProvider(Verifier(users), [AnyHttpUrl(issuer)], base_url=url),
    )

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    return server.http_app(path="/mcp")


@contextmanager
def serving(listener: socket.socket, app: Any) -> Iterator[None]:
    config = uvicorn.Config(app, log_config=None, log_level="critical", ws="none", lifespan="on")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    try:
        yield
    finally:
        running.should_exit = True
        thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def site() -> Iterator[Site]:
    with ExitStack() as opened:
        yield Site(opened)


# ── the command ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def command(tmp_path: Path, state: Path) -> Command:
    return Command(tmp_path / "journal.sqlite3", XDG_STATE_HOME=str(state))


def read_page(process: Popen[str]) -> str:
    """The URL that the user is to visit."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("  http"):
            return line.strip()
    raise AssertionError("no URL on stderr")


def visit(page: str) -> httpx.Response:
    return httpx.get(page, follow_redirects=True, trust_env=False, timeout=LIMIT_S)


def log_in(command: Command, url: str, *options: str, browse: Callable[[str], Any] = visit) -> Ran:
    with command.running("login", url, *options) as process:
        page = read_page(process)
        browse(page)
        out, err = process.communicate(timeout=LIMIT_S)
        return Ran(process.returncode, out, err)


def call(command: Command, url: str, *options: str) -> Ran:
    return command("call", url, "add", "a:=1", "b:=2", "--json", *options)


def files(state: Path) -> list[Path]:
    return sorted(state.rglob("*.json"))


def stored(state: Path) -> Any:
    (file,) = files(state)
    return json.loads(file.read_text())


def change(state: Path, **fields: Any) -> None:
    (file,) = files(state)
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def login_line(url: str) -> str:
    return f"mcp-tasks login {url}"


def refuses(ran: Ran, url: str, *words: str) -> None:
    """The command has ended with the line that logs in."""
    assert (ran.code, ran.error["next"]) == (Exit.CREDENTIAL_REFUSED, login_line(url))
    assert all(one in ran.error["message"] for one in words), ran.error["message"]


# ── a login, and the calls with it ────────────────────────────────────────────────────────────────


def test_a_login_is_kept_for_the_user_alone_and_calls_go_with_it(
    site: Site, command: Command, state: Path
) -> None:
    refuses(call(command, site.url), site.url)
    ran = log_in(command, site.url, "--json")
    assert ran.code == 0, ran.err
    made = stored(state)
    assert set(ran.document) == {"server", "expires_at", "renews"}
    assert ran.document["server"] == site.url
    assert ran.document["renews"] is True
    assert ran.document["expires_at"].endswith("+00:00")
    (file,) = files(state)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert all(stat.S_IMODE(one.stat().st_mode) == 0o700 for one in (file.parent, file.parent.parent))

    called = call(command, site.url)
    assert called.code == 0, called.err
    assert called.document["result"]["structuredContent"] == {"result": 3}
    doctor = command("doctor", site.url, "--json")
    assert doctor.document["server"]["credential"] == "accepted"
    assert doctor.document["server"]["login"] == {"expires_at": ran.document["expires_at"], "renews": True}
    told = command("doctor", site.url).out
    assert ", login until 20" in told
    shown = [ran.out, ran.err, called.out, called.err, doctor.out, doctor.err, told]
    secrets = [made["tokens"]["access_token"], made["tokens"]["refresh_token"]]
    assert not [one for one in secrets for text in shown if one in text]
    assert not any(one in repr(LoginFile(site.url)) for one in secrets)


def test_a_second_login_takes_the_place_of_the_first(site: Site, command: Command, state: Path) -> None:
    log_in(command, site.url)
    first = stored(state)
    ran = log_in(command, site.url.upper().replace("/MCP", "/mcp"))
    assert "You are logged in at" in ran.out
    assert stored(state)["tokens"] != first["tokens"]


def test_a_credential_in_the_line_is_used_in_its_place(site: Site, command: Command) -> None:
    log_in(command, site.url)
    for options in (["--header", "authorization: Bearer mine"], ["--bearer-env", "MINE"]):
        site.seen.clear()
        mine = Command(command.journal, **command.variables, MINE="mine")
        ran = call(mine, site.url, *options)
        assert (ran.code, ran.error["next"]) == (Exit.CREDENTIAL_REFUSED, None)
        assert {given for port, _, given in site.seen if port == site.ports[1]} == {"Bearer mine"}
    site.seen.clear()
    assert call(command, site.url, "--header", "X-Team: builds").code == 0, "another header goes with it"


def test_the_token_goes_to_its_own_server_alone(site: Site, command: Command, state: Path) -> None:
    log_in(command, site.url)
    site.seen.clear()
    refuses(call(command, site.other), site.other)
    assert {given for port, _, given in site.seen if port == site.ports[2]} == {""}
    # A file that was copied is that of its server all the same.
    (file,) = files(state)
    digest = hashlib.sha256(site.other.encode()).hexdigest()[:32]
    (file.parent / f"{digest}.json").write_bytes(file.read_bytes())
    (file.parent / f"{digest}.json").chmod(0o600)
    site.seen.clear()
    refuses(call(command, site.other), site.other, "another server")
    assert not [given for _, _, given in site.seen if given]


def test_a_browser_is_opened_in_a_terminal_alone(
    site: Site, command: Command, state: Path, tmp_path: Path
) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser.py"
    browser.write_text(
        "import sys, httpx, pathlib\n"
        f"pathlib.Path({str(opened)!r}).write_text(sys.argv[1])\n"
        f"httpx.get(sys.argv[1], follow_redirects=True, trust_env=False, timeout={LIMIT_S})\n"
    )
    variables = {"BROWSER": f"{shlex.join([sys.executable, str(browser)])} %s"}
    ran = log_in(Command(command.journal, **command.variables, **variables), site.url)
    assert ran.code == 0, ran.err
    assert not opened.exists(), "there is no terminal"
    given = {**command.variables, **variables}
    with in_terminal(
        command.journal, "login", site.url, "--no-browser", columns=2000, more=given
    ) as terminal:
        terminal.see("Log in on this page:", "http://", "code_challenge_method", "&resource=")
        visit(next(line.strip() for line in terminal.lines if line.startswith("  http://")))
        terminal.see("You are logged in")
        assert not opened.exists(), "it was forbidden"
    with in_terminal(command.journal, "login", site.url, more=given) as terminal:
        terminal.see("Log in on this page:", "You are logged in")
    assert opened.read_text().startswith(f"http://127.0.0.1:{site.ports[0]}/authorize?")


# ── renewal ───────────────────────────────────────────────────────────────────────────────────────


def test_an_expired_token_is_renewed_once_by_two_processes_at_once(
    site: Site, command: Command, state: Path
) -> None:
    log_in(command, site.url)
    before = stored(state)
    change(state, expires_at=time.time() - 1)
    site.users.held.clear()
    site.seen.clear()
    with ExitStack() as opened:
        started = [opened.enter_context(command.running("tools", site.url)) for _ in range(2)]
        wait_until(lambda: site.users.renewals > 0)
        time.sleep(2)  # in which the other one would come too; if it is slow, the test shows less
        site.users.held.set()
        for process in started:
            out, err = process.communicate(timeout=LIMIT_S)
            assert (process.returncode, "add" in out) == (0, True), err
    assert site.users.renewals == 1
    after = stored(state)
    assert after["tokens"]["refresh_token"] != before["tokens"]["refresh_token"]
    assert after["expires_at"] > time.time() + 60
    assert after["client"] == before["client"]
    token_requests = {port for port, path, _ in site.seen if path == "/token"}
    assert token_requests == {site.ports[0]}, "a refresh token goes to the server that gave it"


def test_a_renewal_that_nobody_waits_for_any_more_is_kept(
    site: Site, command: Command, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    log_in(command, site.url)
    before = stored(state)
    change(state, expires_at=1)
    site.users.held.clear()

    async def give_up() -> None:
        asking = asyncio.ensure_future(authorize(LoginFile(site.url)))
        await anyio.to_thread.run_sync(wait_until, lambda: site.users.renewals > 0)
        asking.cancel()
        await anyio.sleep(0.1)
        site.users.held.set()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(asyncio.wait_for(give_up(), LIMIT_S))
    assert stored(state)["tokens"]["refresh_token"] != before["tokens"]["refresh_token"]
    assert call(command, site.url).code == 0


def test_a_renewal_that_is_refused_names_the_line_that_logs_in(
    site: Site, command: Command, state: Path
) -> None:
    log_in(command, site.url)
    site.users.refresh_tokens.clear()
    change(state, expires_at=1)
    ran = call(command, site.url)
    refuses(ran, site.url, "refused", "invalid_grant")
    assert stored(state)["tokens"]["refresh_token"] not in ran.err
    refuses(command("tools", site.url, "--json"), site.url)
    doctor = command("doctor", site.url, "--json")
    assert doctor.document["server"]["credential"] == "refused"
    (found,) = [one for one in doctor.document["findings"] if one["about"] == "server"]
    assert found["next"] == login_line(site.url)


@pytest.mark.parametrize("verb", ["wait", "cancel", "drive"])
def test_calls_that_are_there_name_the_line_as_well(
    site: Site, command: Command, state: Path, verb: str
) -> None:
    log_in(command, site.url)
    site.users.refresh_tokens.clear()
    change(state, expires_at=1)
    scope = Scope(site.url, "")
    command.write(record(record_id="c0ffee", scope=scope, state=observing(), application="mcp-tasks"))
    refuses(command(verb, site.url if verb == "drive" else "c0ffee", "--json"), site.url, "refused")


def test_a_login_that_nothing_renews_names_the_same_line(site: Site, command: Command, state: Path) -> None:
    log_in(command, site.url)
    tokens = stored(state)["tokens"]
    change(state, expires_at=1, tokens={"access_token": tokens["access_token"]})
    refuses(call(command, site.url), site.url, "expired")


def test_an_authorization_server_that_is_away_asks_for_no_login(
    site: Site, command: Command, state: Path
) -> None:
    log_in(command, site.url)
    before = stored(state)
    change(state, expires_at=1)
    site.users.fails = 503
    ran = call(command, site.url)
    assert (ran.code, ran.error["next"]) == (Exit.UNREACHABLE, None)
    assert "HTTP 503" in ran.error["message"]
    site.users.fails = 0
    assert call(command, site.url).code == 0
    assert stored(state)["tokens"] != before["tokens"]


# ── no login ──────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_that_is_not_of_this_login_does_not_count(
    site: Site, command: Command, state: Path
) -> None:
    pages = list[int]()

    def forge(page: str) -> None:
        back = httpx.URL(httpx.URL(page).params["redirect_uri"])
        get = partial(httpx.get, trust_env=False, timeout=LIMIT_S)
        asked = get(back.copy_with(path="/favicon.ico"))
        forged = get(back.copy_merge_params({"code": "stolen", "state": "wrong"}))
        pages.extend([asked.status_code, forged.status_code])

    ran = log_in(command, site.url, "--json", browse=forge)
    refuses(ran, site.url, "not of this login")
    assert pages == [404, 400]
    assert not files(state)
    assert not [path for _, path, _ in site.seen if path == "/token"], "the code is not used"


def test_a_user_who_declines_is_told_so(site: Site, command: Command, state: Path) -> None:
    site.users.denies = True
    refuses(log_in(command, site.url, "--json"), site.url, "access_denied")
    assert not files(state)


def test_an_answer_that_never_comes_is_waited_for_so_long(site: Site, command: Command, state: Path) -> None:
    ran = log_in(command, site.url, "--json", "--timeout", "0.5", browse=lambda page: None)
    assert (ran.code, ran.error["next"]) == (Exit.TIMED_OUT, login_line(site.url))
    assert not files(state)


def test_a_code_that_is_refused_is_no_login(site: Site, command: Command, state: Path) -> None:
    site.users.fails = 400
    ran = log_in(command, site.url, "--json")
    assert (ran.code, ran.error["code"]) == (Exit.UNEXPECTED, "unexpected")
    assert "no token (HTTP 400: invalid_grant)" in ran.error["message"]
    assert "Traceback" not in ran.err
    assert not files(state)


def test_a_server_that_asks_for_no_login_is_told(real_server: Any, command: Command, unused_url: str) -> None:
    ran = command("login", real_server.url, "--json")
    assert ran.code == Exit.UNEXPECTED
    assert "asks for no login" in ran.error["message"]
    assert command("login", unused_url, "--json").code == Exit.UNREACHABLE


def test_what_can_have_no_login_is_a_usage_error(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    servers = {"one": {"url": "http://h/mcp", "headers": {"authorization": "x"}}, "two": {"command": "x"}}
    file.write_text(json.dumps({"mcpServers": servers}))
    for given in (f"{file}:one", f"{file}:two", "http://ada:pw@h/mcp", "http://[/mcp", "ftp://h/mcp"):
        for verb in ("login", "logout"):
            assert command(verb, given).code == Exit.USAGE, given


def test_without_the_sdk_the_extra_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['mcp'] = None; from mcp_tasks_client.cli import main; "
        "sys.exit(main(['login', 'http://127.0.0.1:1/mcp']))"
    )
    env = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}

    async def run() -> Any:
        return await anyio.run_process([sys.executable, "-c", program], check=False, env=env)

    ran = anyio.run(run)
    assert ran.returncode == Exit.USAGE
    assert ran.stderr.decode().strip() == "mcp-tasks: A login needs mcp, of the extra [mcp]: pip install mcp"


# ── the file ──────────────────────────────────────────────────────────────────────────────────────


@OWNS_FILES
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_read_or_write_is_not_used(
    site: Site, command: Command, state: Path, mode: int
) -> None:
    log_in(command, site.url)
    (file,) = files(state)
    file.chmod(mode)
    site.seen.clear()
    refuses(call(command, site.url), site.url, "Other users may", str(file))
    assert not [given for _, _, given in site.seen if given]
    assert log_in(command, site.url).code == 0, "a login mends it"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert call(command, site.url).code == 0


@OWNS_FILES
def test_a_folder_that_others_may_enter_is_mended(site: Site, command: Command, state: Path) -> None:
    folder = state / "mcp-tasks-client" / "logins"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    log_in(command, site.url)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"server": 1}', "[" * 100_000, '{"tokens": {"access_token": "s3cr3t"}}', "\x00\xff"],
)
def test_a_damaged_file_says_so_without_a_word_of_it(
    state: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    file = LoginFile("http://server.test/mcp")

    async def make_folder() -> None:
        async with file.locked():
            pass

    asyncio.run(make_folder())
    (lock,) = state.rglob("*.lock")
    lock.with_suffix(".json").write_text(content)
    lock.with_suffix(".json").chmod(0o600)
    with pytest.raises(CredentialRefusedError, match="damaged") as caught:
        file.read()
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_damaged_file_names_the_line_that_logs_in(site: Site, command: Command, state: Path) -> None:
    log_in(command, site.url)
    change(state, tokens={"refresh_token": 7})
    refuses(call(command, site.url), site.url, "damaged")
    change(state, tokens={"access_token": "a", "refresh_token": "b"}, client={}, expires_at=1)
    refuses(call(command, site.url), site.url, "damaged")


# ── logout ────────────────────────────────────────────────────────────────────────────────────────


def test_a_logout_removes_the_file_and_revokes_the_token(site: Site, command: Command, state: Path) -> None:
    log_in(command, site.url)
    assert site.users.refresh_tokens
    ran = command("logout", site.url, "--json")
    assert ran.document == {"server": site.url, "removed": True, "revoked": True}
    assert not files(state)
    assert not site.users.refresh_tokens
    assert not site.users.access_tokens
    refuses(call(command, site.url), site.url)
    assert command("logout", site.url, "--json").document == {
        "server": site.url,
        "removed": False,
        "revoked": None,
    }


def test_a_logout_needs_neither_a_server_nor_a_sound_file(site: Site, command: Command, state: Path) -> None:
    log_in(command, site.url)
    metadata = stored(state)["authorization_server"]
    nowhere = f"http://127.0.0.1:{unused_port()}/revoke"
    change(state, authorization_server={**metadata, "revocation_endpoint": nowhere})
    ran = command("logout", site.url, "--json")
    assert ran.document == {"server": site.url, "removed": True, "revoked": False}
    log_in(command, site.url)
    files(state)[0].write_text("{")
    assert "could not be told" in command("logout", site.url).out
    assert not files(state)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "not seen in time"
        time.sleep(0.01)
