"""The session that finds out, once, whether the server speaks another version of the protocol."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import anyio.lowlevel
import pytest
from mcp_types import Tool

from mcp_tasks_client import Limits, ObservedTasks, Session, Snapshot, TaskRef, ToolCall
from mcp_tasks_client.errors import CredentialRefusedError, SessionError
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import CallReply, Returned
from mcp_tasks_client.protocol.task import read_task
from mcp_tasks_client.sessions.base import BeforeSend
from mcp_tasks_client.sessions.by_url.discovery import DiscoveringSession
from mcp_tasks_client.sessions.http.http_session import HttpSession

from ..._observed import Observed
from .scripted import REF, TASK, HttpAnswers, Turnstile, error, fail_to_get, http, result

pytestmark = pytest.mark.anyio


class Other(Session):
    """A session of another version, which notes what is asked of it."""

    def __init__(self, http: HttpSession) -> None:
        self._http = http
        self.asked: list[str] = []
        self.runs = anyio.Event()

    @property
    def endpoint(self) -> str:
        return self._http.endpoint

    @property
    def limits(self) -> Limits:
        return self._http.limits

    async def tool(self, name: str, *, fresh: bool = False, context: object = None) -> Tool | None:
        self.asked.append(f"tool {fresh}")
        return None

    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        await before_send()
        self.asked.append("call")
        return Returned({})

    async def get(self, ref: TaskRef) -> Snapshot:
        self.asked.append("get")
        return Snapshot(read_task({**TASK, "status": "completed"}), "memo")

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        self.asked.append("update")

    async def cancel(self, ref: TaskRef) -> None:
        self.asked.append("cancel")

    async def run(self, observed: ObservedTasks) -> None:
        self.runs.set()
        await anyio.sleep_forever()

    async def aclose(self) -> None:
        self.asked.append("aclose")


class Maker:
    """Makes the other session, and keeps what it made."""

    def __init__(self) -> None:
        self.made: list[Other] = []

    def __call__(self, http: HttpSession) -> Session:
        self.made.append(Other(http))
        return self.made[-1]


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def discovering(session: HttpSession, maker: Maker) -> DiscoveringSession:
    return DiscoveringSession(session, maker)


async def test_a_server_that_speaks_2026_07_28_is_asked_once_and_no_other_session_is_made(
    server: HttpAnswers, discovering: DiscoveringSession, maker: Maker
) -> None:
    await discovering.get(REF)
    await discovering.cancel(REF)
    await discovering.update(REF, {})
    await discovering.call(ToolCall(name="deploy"), anyio.lowlevel.checkpoint)
    assert server.methods == [
        "server/discover",
        "tasks/get",
        "tasks/cancel",
        "tasks/update",
        "tools/list",
        "tools/call",
    ]
    await discovering.aclose()
    assert maker.made == []


async def test_every_member_is_that_of_the_other_session_once_the_server_speaks_another_version(
    server: HttpAnswers, session: HttpSession, discovering: DiscoveringSession, maker: Maker
) -> None:
    server.answers("server/discover", error(-32601, 404))
    assert (await discovering.get(REF)).session_data == "memo"
    await discovering.update(REF, {})
    await discovering.cancel(REF)
    await discovering.call(ToolCall(name="deploy"), anyio.lowlevel.checkpoint)
    await discovering.tool("deploy", fresh=True)
    assert (discovering.endpoint, discovering.limits) == (session.endpoint, session.limits)
    await discovering.aclose()
    (other,) = maker.made
    assert other.asked == ["get", "update", "cancel", "call", "tool True", "aclose"]
    assert server.methods == ["server/discover"]
    assert "session is closed" in str(await fail_to_get(session)), "the channel is closed by us"


async def test_requests_that_begin_together_share_one_decision(
    server: HttpAnswers, discovering: DiscoveringSession, maker: Maker
) -> None:
    gate = Turnstile(error(-32601, 404))
    server.answers("server/discover", gate)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(discovering.get, REF)
            await gate.holds(1)
            gate.open.set()
    assert server.methods == ["server/discover"]
    (other,) = maker.made
    assert other.asked == ["get"] * 20


async def test_requests_that_are_refused_together_try_the_other_version_once(
    server: HttpAnswers, discovering: DiscoveringSession, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(other: Other, name: str, **options: object) -> None:
        other.asked.append("tool")
        raise SessionError("refused")

    monkeypatch.setattr(Other, "tool", refuse)
    gate = Turnstile(http(401))
    server.answers("server/discover", gate)

    async def get() -> None:
        with pytest.raises(CredentialRefusedError, match="server/discover"):
            await discovering.get(REF)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(get)
            await gate.holds(1)
            gate.open.set()
    assert server.methods == ["server/discover"]
    (other,) = maker.made
    assert other.asked == ["tool", "aclose"], "it could not be asked either"


async def test_a_server_that_cannot_be_asked_decides_nothing(
    server: HttpAnswers, discovering: DiscoveringSession, maker: Maker
) -> None:
    async def before_send() -> None:
        raise AssertionError("nothing may be sent")

    server.answers("server/discover", http(503))
    with pytest.raises(SessionError, match="HTTP 503") as caught:
        await discovering.call(ToolCall(name="deploy"), before_send)
    assert (caught.value.retryable, caught.value.not_executed) == (True, True)
    server.answers("server/discover", result({"supportedVersions": ["2026-07-28"]}))
    await discovering.get(REF)
    assert maker.made == []


@pytest.mark.parametrize("speaks_other", [False, True])
async def test_run_waits_for_the_first_request_and_runs_the_session_that_stands(
    server: HttpAnswers, discovering: DiscoveringSession, maker: Maker, speaks_other: bool
) -> None:
    if speaks_other:
        server.answers("server/discover", error(-32601, 404))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(discovering.run, Observed())
            await anyio.wait_all_tasks_blocked()
            assert server.methods == [], "an idle client asks nothing"
            await discovering.get(REF)
            if speaks_other:
                await maker.made[0].runs.wait()
            group.cancel_scope.cancel()


async def test_closing_before_any_request_makes_no_session(
    discovering: DiscoveringSession, maker: Maker
) -> None:
    await discovering.aclose()
    assert maker.made == []
