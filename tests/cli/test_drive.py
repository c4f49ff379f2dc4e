"""``mcp-tasks drive``: what others left at a server is brought home, and stays for them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import psycopg
import pytest

from mcp_tasks_client import (
    Inbox,
    Journal,
    JournalError,
    PostgresJournal,
    SqliteJournal,
    TaskRecord,
    TasksClient,
)
from mcp_tasks_client.cli.drive import _Driving, _Lines
from mcp_tasks_client.cli.exits import Exit
from mcp_tasks_client.cli.journal import Where
from mcp_tasks_client.cli.output import Output
from mcp_tasks_client.testing import FaultPlan
from tests._results import text
from tests.cli.test_exits import World, world
from tests.kit.current_server import (
    DONE,
    LIMIT_S,
    QUESTION,
    WORKING,
    Fault,
    Http,
    asking,
    completed,
    working,
)
from tests.kit.terminal import COMMAND, run_command, surroundings
from tests.real_server import RealServer

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

FAILED: Final = {**working(), "status": "failed", "error": {"code": -32050, "message": "no quota"}}


@contextmanager
def running(journal: Path | str, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """The command beside the block, in a process of its own."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings(journal, **more),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def read_event(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of JSON on stdout."""
    assert process.stdout is not None
    with anyio.fail_after(2 * LIMIT_S):
        line = await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
    event: dict[str, Any] = json.loads(line)
    return event


async def end(process: subprocess.Popen[str], sent: int) -> tuple[int, str]:
    """Send a signal. Returns the exit code and stderr."""
    process.send_signal(sent)
    _, err = await anyio.to_thread.run_sync(partial(process.communicate, timeout=2 * LIMIT_S))
    return process.returncode, err


async def find_record(journal: Path | Journal) -> TaskRecord:
    """The only call of the journal, once it has a task."""
    with anyio.fail_after(2 * LIMIT_S):
        while True:
            with suppress(JournalError):  # there is none yet
                async with Inbox(journal) as inbox:
                    if found := await inbox.records():
                        return found[0]
            await anyio.sleep(0.05)


def resuming(here: World, application: str | None) -> TasksClient:
    return TasksClient(
        here.url, journal=SqliteJournal(here.journal), application=application, elicitation="later"
    )


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str], Journal]]:
    """A journal of each kind: as the command is told of it, with variables, and as this process opens it."""
    if request.param == "sqlite":
        path = tmp_path / "journal.sqlite3"
        yield str(path), {}, SqliteJournal(path)
        return
    dsn: str = request.getfixturevalue("postgres")
    schema = f"drive_{uuid.uuid4().hex[:12]}"
    yield dsn, {"MCP_TASKS_SCHEMA": schema}, PostgresJournal(dsn, schema=schema)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


async def test_the_task_of_a_program_that_was_killed_is_brought_home(
    real_server: RealServer, place: tuple[str, dict[str, str], Journal]
) -> None:
    (journal, variables, opened), mark = place, real_server.mark()
    call = ("call", real_server.url, "slow", "seconds=8", "--label", "of Ada")
    with running(journal, *call, **variables) as process:
        record = await find_record(opened)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    run = partial(run_command, journal, **variables)
    driven = await anyio.to_thread.run_sync(run, "drive", real_server.url, "--once", "--json")
    assert (driven.code, driven.err) == (0, "")
    common = {
        "record": record.record_id,
        "tool": "slow",
        "label": "of Ada",
        "application": "mcp-tasks",
        "error": None,
    }
    wait = f"mcp-tasks wait {record.record_id[:8]}"
    assert [json.loads(line) for line in driven.out.splitlines()] == [
        {"event": "taken_up", "state": "working", "next": None, **common},
        {"event": "ended", "state": "completed", "next": wait, **common},
    ]
    waited = await anyio.to_thread.run_sync(run, *shlex.split(wait)[1:])
    assert (waited.code, waited.out) == (0, "rested\n")
    assert len(real_server.witness(method="tools/call", since=mark)) == 1


async def test_the_lines_for_people_name_the_one_that_shows_the_outcome(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[WORKING, FAILED]) as here:
        record_id = await here.leave(application="mcp-tasks")
        ran = await here.run("drive", "URL", "--once")
    name = record_id[:8]
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.splitlines()[0] == f"{name}  tool  taken up"
    assert ran.err.splitlines()[1].startswith(f"{name}  tool  failed: ")
    assert ran.err.splitlines()[1].endswith(f"  mcp-tasks wait {name}")


@pytest.mark.parametrize("application", ["agent", None])
async def test_an_outcome_is_there_for_its_program_while_the_driver_goes_on(
    application: str | None, tmp_path: Path
) -> None:
    async with world(tmp_path, gets=[WORKING]) as here:
        async with resuming(here, application) as client:
            handle = await client.start_tool("tool", idempotency_key="k")
        options = [] if application is None else ["--application", application]
        with running(here.journal, "drive", here.url, "--json", *options) as process:
            assert (await read_event(process))["event"] == "taken_up"
            here.server.replies["tasks/get"] = completed()
            ended = await read_event(process)
            assert (ended["event"], ended["application"]) == ("ended", application)
            async with resuming(here, application) as client:
                (left,) = await client.resume()
                assert left == handle
                assert text(await left.result()) == "done"
            assert process.poll() is None


async def test_calls_of_applications_that_are_not_named_are_left_alone(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[WORKING]) as here:
        await here.leave(application="agent")
        assert (await here.run("drive", "URL", "--once")).err == ""
        assert (await here.run("drive", "URL", "--once", "--application", "other")).err == ""
        here.server.replies["tasks/get"] = completed()
        driven = await here.run("drive", "URL", "--once", "--application", "other", "--application", "agent")
    assert len(driven.err.splitlines()) == 2


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_lets_go_of_the_tasks_and_names_the_line_that_goes_on(
    sent: int, code: int, tmp_path: Path
) -> None:
    async with world(tmp_path, gets=[WORKING]) as here:
        await here.leave(application="agent")
        with running(
            here.journal,
            *("drive", here.url, "--json", "--header-env", "X-Key=SOME_KEY"),
            *("--application", "agent", "--questions", "leave", "--principal", ""),
            SOME_KEY="a-secret",
        ) as process:
            await read_event(process)
            assert await end(process, sent) == (
                code,
                "Let go of 1 call. The tasks run on. To go on:\n"
                f"  mcp-tasks drive {here.url} --header-env X-Key=SOME_KEY "
                "--application agent --questions leave --principal ''\n",
            )
        (seen,) = (await here.run("ls", "--json")).document
        assert (seen["state"], seen["driven"]) == ("working", False)


async def test_a_call_that_was_left_later_is_taken_up_too(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        with running(here.journal, "drive", here.url, "--json") as process:
            with anyio.fail_after(2 * LIMIT_S):
                while not here.journal.exists():
                    await anyio.sleep(0.05)
            record_id = await here.leave(application="mcp-tasks")
            events = [await read_event(process) for _ in range(2)]
    assert [(one["event"], one["record"]) for one in events] == [
        ("taken_up", record_id),
        ("ended", record_id),
    ]


async def test_a_call_that_its_program_receives_while_it_is_taken_up_ends_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.leave(application="agent")
        plan, where = FaultPlan(), Where(str(here.journal))
        async with (
            here.client(observer=plan) as client,
            where.inbox() as inbox,
            SqliteJournal(here.journal) as journal,
        ):
            (record,) = await client.records()
            plan.at("commit: take", "before", partial(journal.remove, record))
            driving = _Driving(client, inbox, where, Output(as_json=False), ["agent"], _Lines(), once=True)
            assert await driving.run() is Exit.RESULT
    assert plan.passed.count(("after", "commit: take")) == 1


@pytest.mark.parametrize("as_json", [False, True])
async def test_no_line_is_written_while_a_form_is_open(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with world(tmp_path) as here:
        record_id = await here.leave(application="agent")
        where, lines = Where(str(here.journal)), _Lines()
        async with here.client() as client, where.inbox() as inbox:
            driving = _Driving(client, inbox, where, Output(as_json=as_json), ["agent"], lines, once=True)
            with lines.paused():  # as a form does
                await driving.run()
                assert capsys.readouterr() == ("", "")
            told = "".join(capsys.readouterr())
    assert told.count(record_id[:8]) >= 2
    assert "taken" in told.splitlines()[0]


# ── what does not end well ────────────────────────────────────────────────────────────────────────


async def test_a_question_is_left_to_others_and_the_call_goes_on_with_their_answer(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[asking(one=QUESTION)]) as here:
        await here.leave(application="mcp-tasks")
        with running(here.journal, "drive", here.url, "--json", "--once") as process:
            assert (await read_event(process))["event"] == "taken_up"
            async with Inbox(here.journal) as inbox:
                with anyio.fail_after(2 * LIMIT_S):
                    while not (found := await inbox.questions()):
                        await anyio.sleep(0.05)
                here.server.replies["tasks/update"] = lambda *_: (
                    here.server.replies.update({"tasks/get": completed()}) or {"resultType": "complete"}
                )
                await found[0].accept({})
            assert (await read_event(process))["state"] == "completed"
            assert process.wait(2 * LIMIT_S) == 0


async def test_a_wait_for_a_call_that_another_program_drives_fails_at_its_open_question(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, gets=[asking(one=QUESTION)]) as here:
        record_id = await here.leave(application="mcp-tasks")
        with running(here.journal, "drive", here.url, "--json") as process:
            assert (await read_event(process))["event"] == "taken_up"
            async with Inbox(here.journal) as inbox:
                with anyio.fail_after(2 * LIMIT_S):
                    while not await inbox.questions():
                        await anyio.sleep(0.05)
            ran = await here.run("wait", record_id, "--json", "--questions", "fail", "--timeout", "20")
            assert process.poll() is None
    assert (ran.code, ran.error["code"]) == (Exit.QUESTION_WAITS, "question_waits")
    assert ran.error["record"] == record_id
    assert ran.error["next"].startswith(f"mcp-tasks answer {record_id[:8]}")


async def test_a_question_that_nobody_may_be_asked_parks_the_call_once(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[asking(one=QUESTION)]) as here:
        record_id = await here.leave(application="mcp-tasks")
        ran = await here.run("drive", "URL", "--once", "--json", "--questions", "fail")
    taken, parked = map(json.loads, ran.out.splitlines())
    assert ran.code == Exit.QUESTION_WAITS
    assert taken["event"] == "taken_up"
    answer = parked["next"]
    assert answer.startswith(f"mcp-tasks answer {record_id[:8]}-")
    assert parked == {
        "event": "parked",
        "record": record_id,
        "tool": "tool",
        "label": None,
        "application": "mcp-tasks",
        "state": parked["state"],
        "error": {
            "code": "question_waits",
            "message": parked["error"]["message"],
            "record": record_id,
            "next": answer,
        },
        "next": answer,
    }


async def test_a_call_that_is_parked_goes_on_once_its_question_has_an_answer(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[asking(one=QUESTION)]) as here:
        first = await here.leave(application="mcp-tasks")
        with running(here.journal, "drive", here.url, "--json", "--questions", "fail") as process:

            async def read_two() -> list[tuple[str, str]]:
                events = [await read_event(process) for _ in range(2)]
                return [(one["event"], one["record"]) for one in events]

            assert await read_two() == [("taken_up", first), ("parked", first)]
            here.server.replies["tools/call"] = working("task-another-0123456789")
            here.server.replies["tasks/get"] = completed("task-another-0123456789")
            second = await here.leave(application="mcp-tasks")
            assert await read_two() == [("taken_up", second), ("ended", second)], "the first one rests"
            async with Inbox(here.journal) as inbox:
                (question,) = await inbox.questions()
                here.server.replies["tasks/get"] = completed()
                await question.accept({})
            assert await read_two() == [("taken_up", first), ("ended", first)]


async def test_a_call_that_the_credential_does_not_show_rests_with_its_question_open(tmp_path: Path) -> None:
    line = ("drive", "URL", "--once", "--json", "--application", "agent", "--questions", "fail")
    async with world(tmp_path, gets=[asking(one=QUESTION)]) as here:
        await here.leave(application="agent")
        first = await here.run(*line)
        here.server.replies["tasks/get"] = Fault(-32602, "Unknown task")
        second = await here.run(*line)
    for ran in (first, second):
        assert [json.loads(one)["event"] for one in ran.out.splitlines()] == ["taken_up", "parked"]


async def test_a_credential_that_is_refused_ends_it(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[Http("401 Unauthorized")]) as here:
        await here.leave(application="mcp-tasks")
        ran = await here.run("drive", "URL", "--json")
    assert (ran.code, ran.error["code"]) == (Exit.CREDENTIAL_REFUSED, "credential_refused")


async def test_a_reader_that_has_gone_ends_it_and_loses_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[WORKING, DONE]) as here:
        record_id = await here.leave(application="mcp-tasks")
        with running(here.journal, "drive", here.url, "--json") as process:
            assert process.stdout is not None
            process.stdout.close()
            await anyio.to_thread.run_sync(partial(process.wait, 2 * LIMIT_S))
            assert process.returncode == Exit.UNEXPECTED
            process.stdout = None
        assert (await here.run("wait", record_id)).out == "done\n"
