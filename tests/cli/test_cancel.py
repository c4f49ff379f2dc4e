"""A cancellation is asked for, by whichever program drives the call; and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_tasks_client import Scope
from mcp_tasks_client.cli.exits import Exit
from mcp_tasks_client.machine.states import Calling
from mcp_tasks_client.testing.samples import finished, observing, record
from tests.cli.test_exits import CANCELLED, world
from tests.kit.command import Command, asking, form, until
from tests.kit.current_server import WORKING
from tests.real_server import RealServer


def detach(command: Command, url: str, tool: str = "cancelable", *options: str) -> str:
    """Begin a task and leave it. Returns the ID of its call."""
    return command("call", url, tool, "--detach", *options).out.strip()


def test_the_wish_for_a_call_that_nobody_drives_is_sent_from_here(
    real_server: RealServer, command: Command
) -> None:
    record_id = detach(command, real_server.url, "cancelable", "--key", "k")
    since = real_server.mark()
    ran = command("cancel", record_id[:8])
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == (
        "The server was asked to cancel the task. It may finish all the same:\n"
        f"  mcp-tasks wait {record_id[:8]}\n"
    )
    assert real_server.witness(method="tasks/cancel", since=since)
    assert command("wait", record_id).code == Exit.CANCELLED


def test_the_program_that_drives_the_call_sends_the_wish(real_server: RealServer, command: Command) -> None:
    since = real_server.mark()
    with command.running("call", real_server.url, "cancelable") as program:
        until(lambda: real_server.witness(method="tasks/get", since=since))
        (seen,) = command("ls", "--json").document
        ran = command("cancel", seen["record"])
        assert ran.code == 0
        assert "It may finish all the same" in ran.err
        assert program.wait(30) == Exit.CANCELLED
    assert real_server.witness(method="tasks/cancel", since=since)


def test_waiting_says_what_became_of_it(real_server: RealServer, over_file: Command) -> None:
    record_id = detach(over_file, real_server.url, "cancelable", "--key", "k")
    ran = over_file("cancel", record_id, "--wait")
    assert (ran.code, ran.out) == (Exit.CANCELLED, "")
    first, second = ran.err.splitlines()
    assert first == "The task is to be cancelled."
    assert second.startswith("mcp-tasks: The task of 'cancelable' was cancelled.")


def test_waiting_for_a_call_of_another_program_leaves_the_outcome_for_it(
    real_server: RealServer, over_file: Command
) -> None:
    with over_file.running("call", real_server.url, "ask_name", "--questions", "leave"):
        question = over_file.wait_for_question()
        ran = over_file("cancel", question[:8], "--wait", "--json")
    assert ran.code in (Exit.CANCELLED, Exit.GONE), "gone: its own program has received the outcome"
    assert ran.error["record"] == question.partition("-")[0]


@pytest.mark.parametrize("options", [(), ("--wait",)])
def test_a_call_that_had_ended_has_nothing_to_cancel(
    real_server: RealServer, over_file: Command, options: tuple[str, ...]
) -> None:
    over_file("call", real_server.url, "fast", "x=3", "--key", "k")
    (seen,) = over_file("ls", "--all", "--json").document
    since = real_server.mark()
    ran = over_file("cancel", seen["record"], *options)
    assert ran.code == 0
    assert ran.err.startswith("The call had ended before")
    assert ran.out == ("3\n" if options else "")
    if not options:
        assert ran.err.splitlines()[1] == f"  mcp-tasks wait {seen['record'][:8]}"
    assert real_server.mark() == since


def test_the_questions_of_the_call_are_withdrawn(real_server: RealServer, over_file: Command) -> None:
    over_file("call", real_server.url, "ask_name", "--questions", "fail")
    question = over_file.wait_for_question()
    assert over_file("cancel", question[:8]).code == 0
    assert over_file("questions", "--json").document == []


def test_where_no_url_is_known_the_error_says_how_to_name_one_and_nothing_is_left(over_file: Command) -> None:
    over_file.write(asking(form(), record_id="f00d", scope=Scope("my-gateway", "")))
    ran = over_file("cancel", "f00d")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert "'my-gateway' is no address. Give --server" in ran.err
    assert over_file.left("f00d") == {}


def test_the_server_of_the_call_can_be_named(real_server: RealServer, over_file: Command) -> None:
    state: Any = observing("0" * 8)
    over_file.write(record(record_id="f00d", scope=Scope("my-gateway", ""), state=state))
    since = real_server.mark()
    over_file("cancel", "f00d", "--server", real_server.url)
    assert real_server.witness(method="tasks/cancel", since=since)


def test_a_server_that_is_not_reached_leaves_the_wish_in_the_journal(
    over_file: Command, unused_url: str
) -> None:
    over_file.write(record(record_id="f00d", scope=Scope(unused_url, ""), state=observing()))
    ran = over_file("cancel", "f00d")
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert "The wish is in the journal, and goes with the next poll:\n  mcp-tasks wait f00d" in ran.err


def test_a_call_without_a_reply_has_no_task_to_cancel(over_file: Command, unused_url: str) -> None:
    over_file.write(
        record(record_id="f00d", scope=Scope(unused_url, ""), state=Calling(), idempotency_key="k")
    )
    ran = over_file("cancel", "f00d")
    assert ran.code == Exit.OUTCOME_UNKNOWN
    assert "may have run" in ran.err


def test_an_unknown_call_is_gone(over_file: Command) -> None:
    over_file.write(record(record_id="f00d", state=finished()))
    assert over_file("cancel", "beef").code == Exit.GONE


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_json_of_a_cancellation_has_these_fields(tmp_path: Path) -> None:
    # Where the server cancels at once, the task may be cancelled before the command looks.
    async with world(tmp_path, gets=[WORKING]) as here:
        record_id = await here.leave(application="agent", key="k")
        ran = await here.run("cancel", record_id, "--json")
        assert (ran.code, ran.err) == (0, "")
        go_on = f"mcp-tasks wait {record_id[:8]}"
        assert ran.document == {"record": record_id, "asked": True, "state": "working", "next": go_on}
        here.server.replies["tasks/get"] = CANCELLED
        ran = await here.run("cancel", record_id, "--wait", "--json")
        assert ran.error["code"] == "cancelled"
        ran = await here.run("cancel", record_id, "--json")
        assert ran.document == {"record": record_id, "asked": False, "state": "cancelled", "next": go_on}
