"""A call alone, through each door: whichever client a host holds, tasks are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import fastmcp.exceptions
import pytest
from mcp.shared.exceptions import MCPError

from mcp_tasks_client import (
    InputUnansweredError,
    RemoteProtocolError,
    SqliteJournal,
    TaskCancelledError,
    TaskFailedError,
    TaskNotFoundError,
    TasksExtension,
    ToolError,
    WaitTimeoutError,
)
from tests._legacy_installs import python_with_legacy_sdk
from tests.kit.person import Person
from tests.legacy_servers import LegacyProgram, LegacyServer, installed
from tests.real_server import RealServer, listening
from tests.strict_server import StrictProcess

from .axes import DOORS, UNDER_HOST, Way, runs_on_trio
from .clients import Door, Opened, open_client
from .servers import LIMIT_S, Case, Older, Real, Strict, WaysServer, relayed

pytestmark = [
    pytest.mark.anyio,
    # The SDK's transport leaves a body that it has read to the garbage collector, which trio tells.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]

INVALID_PARAMS: Final = -32602
CLIENTS_ON_1: Final = Path(__file__).parents[1] / "servers" / "sdk_1_clients.py"
EVERY_MODE: Final = "native dropped wrapped beneath around"


@pytest.fixture(scope="module")
def servers(real_server: RealServer, strict_server: StrictProcess) -> Iterator[dict[str, WaysServer]]:
    with relayed() as relay:
        yield {"strict": Strict(strict_server, relay), "real": Real(real_server)}


@pytest.fixture(scope="module")
def older(legacy_python_server: LegacyServer, legacy_python_program: LegacyProgram) -> Older:
    return Older(legacy_python_server, legacy_python_program.stdio())


@pytest.fixture(scope="module")
def clients_on_1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Where the clients of mcp 1.x listen, on each event loop."""
    folder, python = tmp_path_factory.mktemp("clients-on-1"), installed(python_with_legacy_sdk)
    with ExitStack() as stack:
        yield {
            loop: stack.enter_context(listening(CLIENTS_ON_1, folder / loop, loop, interpreter=python))[0]
            for loop in ("asyncio", "trio")
        }


def doors(
    *,
    strict: bool = True,
    real: bool = True,
    older: bool = False,
    modes: str = "native dropped wrapped",
    waits: bool = True,
) -> pytest.MarkDecorator:
    """Parametrise a test over ways into the servers, on each event loop that matters.

    Only what waits for somebody, or is stopped, is tried on trio. The rest is the same code on either loop,
    and the cells make their calls on both.
    """
    cases = [
        pytest.param(loop, (server, way), id=f"{loop}-{server}-{way}")
        for loop in ("asyncio", "trio")
        for server, way in DOORS
        if way.mode in modes.split()
        and {"strict": strict, "real": real or way.on_1, "older": older}[server]
        and (loop == "asyncio" or (waits and runs_on_trio(server, way)))
    ]
    return pytest.mark.parametrize(("anyio_backend", "door"), cases, indirect=True)


@pytest.fixture
def door(
    request: pytest.FixtureRequest, servers: dict[str, WaysServer], anyio_backend_name: str, tmp_path: Path
) -> Door:
    name, way = request.param
    server = servers[name] if name in servers else request.getfixturevalue("older")
    if not way.on_1:
        return Door(way, server)
    where = request.getfixturevalue("clients_on_1")[anyio_backend_name]
    return Door(way, server, SqliteJournal(tmp_path / "journal.sqlite3"), where)


def content(result: Any) -> Any:
    assert not result.is_error, result
    return result.structured_content or result.content[0].text


def takes(way: Way, case: Case) -> bool:
    """Whether a host can make the call on this way."""
    # A bare session answers no question that comes before the task; its host would do that.
    asks_first = case.tool in ("ask_first", "ask_then_task")
    return not asks_first or str(way) != "session-http-dropped"


# ── ends ──


@doors(older=True, modes=EVERY_MODE)
async def test_a_result_is_what_the_server_made_whether_or_not_it_took_a_task(door: Door) -> None:
    said: list[str] = []
    slow = door.server.slow
    async with door.opened() as opened:
        for case in door.server.plain:
            assert content(await opened.call(case.tool, case.arguments)) == case.expected, case
        assert content(await opened.call(slow.tool, slow.arguments, said=said)) == slow.expected
    assert said
    assert said == sorted(set(said)), "each status message once, oldest first"


@doors(older=True, modes=EVERY_MODE, waits=False)
async def test_a_tool_error_is_a_result_and_a_json_rpc_failure_keeps_everything(door: Door) -> None:
    async with door.opened() as opened:
        result = await opened.call(door.server.tool_error.tool, door.server.tool_error.arguments)
        with pytest.raises((TaskFailedError, MCPError)) as caught:
            await opened.call(door.server.rpc_failure.tool, door.server.rpc_failure.arguments)
    assert result.is_error
    assert "the tool said no" in result.content[0].text
    error: Any = caught.value
    assert (error.code, error.message, error.data) == door.server.failure
    assert isinstance(error, MCPError) == (door.way in UNDER_HOST), "what the host's own session raises"
    if isinstance(error, TaskFailedError):
        assert error.handle is not None
        assert error.handle.task_id is not None


@doors(older=True, waits=False)
async def test_a_tool_error_is_raised_as_the_client_that_is_called_does_it(door: Door) -> None:
    """By ours if asked for; by FastMCP's own unless asked not to; by the SDK's never."""
    tool, arguments = door.server.tool_error.tool, dict(door.server.tool_error.arguments)
    async with door.opened() as opened:
        if opened.ours is not None:
            with pytest.raises(ToolError, match="the tool said no") as caught:
                await opened.ours.call_tool(tool, arguments, raise_on_error=True)
            assert caught.value.result.is_error
        elif door.way.kind == "fastmcp-http":
            with pytest.raises(fastmcp.exceptions.ToolError, match="the tool said no"):
                await opened.client.call_tool(tool, arguments)
        else:
            assert (await opened.call(tool, arguments)).is_error


@doors(real=False)
async def test_a_handle_cancels_its_task(door: Door) -> None:
    async with door.opened() as opened, opened.durable() as durable:
        handle = await durable.start_tool(door.server.endless)
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()


@doors(waits=False)
async def test_a_task_that_the_server_does_not_know_is_not_found(door: Door) -> None:
    async with door.opened(refusals=[INVALID_PARAMS]) as opened, opened.durable() as durable:
        handle = await durable.attach("no-such-task-was-ever-made")
        with pytest.raises(TaskNotFoundError):
            await handle.result()


@doors(real=False, waits=False)
async def test_a_result_that_breaks_the_output_schema_of_its_tool_is_an_error(door: Door) -> None:
    async with door.opened() as opened:
        if str(door.way) == "session-http-dropped":
            # The SDK leaves this to the host: it has `session.validate_tool_result` for that.
            assert content(await opened.call("bad_result")) == {"polls": "many"}
        else:
            # What the extension hands back is checked by the SDK, which has an error of its own.
            expected = RuntimeError if door.way.mode == "dropped" else RemoteProtocolError
            with pytest.raises(expected, match="polls"):
                await opened.call("bad_result")


# ── questions ──


def asks_by_result(way: Way) -> bool:
    """Whether questions reach the SDK's own session, of 2.x, in the result of the call."""
    return way in UNDER_HOST and way.kind in ("mcp-http", "mcp-stdio")


def forms(asked: Sequence[str]) -> list[str]:
    return [one for one in asked if one not in ("model", "roots")]


@doors(older=True, modes=EVERY_MODE)
async def test_the_hosts_own_callbacks_answer_one_form_after_the_other(door: Door) -> None:
    host = Person()
    async with door.opened(host) as opened:
        for case in door.server.asking:
            if takes(door.way, case):
                host.asked.clear()
                assert content(await opened.call(case.tool, case.arguments)) == case.expected, case
                assert sorted(host.asked) == sorted(case.asks)
                # In the order in which they came; FastMCP's server shuffles those that it asks together.
                if isinstance(door.server, Strict) and door.way not in UNDER_HOST:
                    assert forms(host.asked) == forms(case.asks)
    # As the guides say: at 2026-07-28 the SDK's own session asks at once what one result asks together.
    assert host.at_once == 1 or (asks_by_result(door.way) and not isinstance(door.server, Older))


@doors()
async def test_a_question_that_the_host_refuses_parks_the_task_until_somebody_answers(door: Door) -> None:
    case = door.server.refused_question
    host = Person(refuses=True)
    async with door.opened(host) as opened:
        with pytest.raises(InputUnansweredError, match="nobody at home") as caught:
            await opened.call(case.tool, case.arguments)
        assert len(caught.value.keys) == 1
        assert caught.value.handle is not None
        host.refuses = False
        async with opened.durable() as durable:
            handles = await durable.resume()
            while not handles:  # the call is released a moment after its error is told
                await anyio.lowlevel.checkpoint()
                handles = await durable.resume()
            (handle,) = handles
            assert handle.task_id == caught.value.handle.task_id
            assert content(await handle.result()) == case.expected
    assert host.asked == [*case.asks] * 2


@doors(real=False, modes=EVERY_MODE)
async def test_a_caller_that_is_cancelled_leaves_no_prompt_and_a_task_to_resume(door: Door) -> None:
    if door.way == Way("mcp-stdio", "around"):
        pytest.skip("a command that only the host's client has started cannot be reached otherwise")
    hesitant, case = Person(hesitates=True), door.server.question
    async with door.opened(hesitant) as opened:
        async with anyio.create_task_group() as calls:
            calls.start_soon(opened.call, case.tool, case.arguments)
            await hesitant.prompted.wait()
            calls.cancel_scope.cancel()
        if not door.way.on_1:  # which reads nothing while a callback runs, so nobody can withdraw a prompt
            await hesitant.withdrawn.wait()
        hesitant.hesitates = False
        async with opened.durable() as durable:
            handles = await durable.resume()
            with anyio.fail_after(LIMIT_S):
                # A host of mcp 1.x runs in a process of its own, and nothing says when the notification that
                # gives its call up has arrived there.
                while door.way.on_1 and not handles:
                    await anyio.lowlevel.checkpoint()
                    handles = await durable.resume()
            (handle,) = handles
            assert content(await handle.result()) == case.expected
    assert hesitant.asked == [*case.asks] * 2


@doors(real=False, modes="wrapped", waits=False)
async def test_a_callback_that_the_client_has_not_itself_is_declared_by_our_own_calls(door: Door) -> None:
    """The strict server refuses to ask for anything that the request does not declare."""
    host = Person()
    extension = TasksExtension(journal=door.journal, endpoint="s", **host.ours)
    with anyio.fail_after(LIMIT_S):
        async with (
            open_client(door.way, door.server.address(door.way), None, extension) as client,
            Opened(door.way, client, None).durable() as durable,
        ):
            assert not (await durable.call_tool("ask")).is_error
    assert host.asked


@doors(modes="native wrapped", waits=False)
async def test_what_hosts_do_with_a_session_besides_calls_works_on_a_client_as_well(door: Door) -> None:
    case = door.server.question
    async with door.opened(Person()) as opened, opened.durable() as durable:
        said = await durable.initialize()
        assert said.protocol_version == "2026-07-28"
        assert said.capabilities.tools is not None
        assert said.server_info.name
        page = await durable.list_tools()
        assert case.tool in [tool.name for tool in page.tools]
        await durable.send_ping()


# ── time-outs, and connections that come and go ──


@doors(real=False)
async def test_a_time_out_leaves_a_task_that_the_next_connection_brings_home(door: Door) -> None:
    case, hesitant, host = door.server.question, Person(hesitates=True), Person()
    async with door.opened(hesitant) as opened:
        with pytest.raises(WaitTimeoutError) as caught:
            # Nobody answers, so the time-out comes in any case; the task must have been made by then.
            await opened.call(case.tool, case.arguments, timeout=3.0)
    assert caught.value.handle is not None
    gone = door.way.kind == "mcp-stdio"  # the server died with the connection
    refusals = {INVALID_PARAMS} if gone else set[int]()
    async with door.opened(host, refusals=refusals) as opened, opened.durable() as durable:
        (handle,) = await durable.resume()
        assert handle.task_id == caught.value.handle.task_id
        if gone:
            with pytest.raises(TaskNotFoundError):
                await handle.result()
        else:
            assert content(await handle.result()) == case.expected
    assert host.asked == list(case.asks) or gone
