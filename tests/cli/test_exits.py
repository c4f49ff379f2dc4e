"""The exit code of each end: of ``call`` and ``wait``, ended now and before, under every flag."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import pytest

from mcp_tasks_client import (
    Environment,
    Inbox,
    Observer,
    Scope,
    SqliteJournal,
    TasksClient,
    TasksClientError,
)
from mcp_tasks_client.cli.exits import CommandError, Exit, as_command_error
from mcp_tasks_client.cli.following import follow
from mcp_tasks_client.cli.journal import Where
from mcp_tasks_client.cli.wait import receive
from mcp_tasks_client.testing import FaultPlan
from tests.kit.command import Command, form
from tests.kit.command import asking as one_that_asks
from tests.kit.current_server import (
    DONE,
    DROP,
    NEVER,
    QUESTION,
    TASK_ID,
    WORKING,
    CurrentServer,
    Fault,
    Http,
    asking,
    at_loopback,
    completed,
    working,
)
from tests.kit.terminal import Ran, run_command

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

FAILED: Final = {**working(), "status": "failed", "error": {"code": -32050, "message": "no quota"}}
CANCELLED: Final = {**working(), "status": "cancelled"}
BROKEN: Final = completed(result={"content": [{"type": "text", "text": "it broke"}], "isError": True})
MISSING: Final = Fault(-32602, "Unknown task")
REFUSED: Final = Http("401 Unauthorized")


class End(NamedTuple):
    """A way in which a task ends, or is followed no longer."""

    gets: Sequence[Any]
    exit: Exit
    is_over: bool = True
    """True if the journal has the end."""


ENDS: Final = {
    "result": End([WORKING, DONE], Exit.RESULT),
    "error of the tool": End([WORKING, BROKEN], Exit.TOOL_FAILED),
    "failed": End([WORKING, FAILED], Exit.TOOL_FAILED),
    "cancelled": End([WORKING, CANCELLED], Exit.CANCELLED),
    "not found": End([WORKING, MISSING], Exit.GONE),
    "credential refused": End([WORKING, REFUSED], Exit.CREDENTIAL_REFUSED, is_over=False),
    "asks": End([asking(one=QUESTION)], Exit.QUESTION_WAITS, is_over=False),
}


class World:
    """A server and a journal, on which the command runs."""

    def __init__(self, server: CurrentServer, url: str, journal: Path) -> None:
        self.server, self.url, self.journal = server, url, journal

    async def run(self, *arguments: str) -> Ran:
        """Run the command; ``URL`` stands for the server's."""
        given = [self.url if one == "URL" else one for one in arguments]
        return await anyio.to_thread.run_sync(partial(run_command, self.journal, *given))

    def client(self, application: str = "agent", observer: Observer | None = None) -> TasksClient:
        """A client of another program."""
        return TasksClient(
            self.url,
            journal=SqliteJournal(self.journal),
            application=application,
            elicitation="later",
            environment=Environment(observer=observer),
        )

    async def leave(self, *, application: str, key: str | None = None) -> str:
        """Have another program make a call, and end before it is over. Returns the call's ID."""
        async with self.client(application) as client:
            handle = await client.start_tool("tool", idempotency_key=key)
            return handle.reference["record_id"]


@asynccontextmanager
async def world(folder: Path, **replies: Any) -> AsyncIterator[World]:
    server = CurrentServer(**replies)
    async with at_loopback(server) as url:
        yield World(server, url, folder / "journal.sqlite3")


def check(ran: Ran, end: End, *, as_json: bool) -> None:
    """The exit code, and where the words stand."""
    assert ran.code == end.exit, ran
    if end.exit is Exit.RESULT:
        assert ran.err == ""
    elif as_json:
        assert ran.error["code"] == end.exit.name.lower()
    else:
        assert ran.err.startswith("mcp-tasks: ")
    if end.exit in (Exit.RESULT, Exit.TOOL_FAILED) and end.gets[-1] is not FAILED:
        text = end.gets[-1]["result"]["content"][0]["text"]
        assert (ran.document["result"]["content"][0]["text"] if as_json else ran.out.strip()) == text
    else:
        assert ran.out == ""


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("name", ENDS)
async def test_a_call_ends_with_the_code_of_its_end_and_the_same_line_again_with_the_same(
    name: str, as_json: bool, tmp_path: Path
) -> None:
    end = ENDS[name]
    options = ["--json"] if as_json else []
    async with world(tmp_path, gets=end.gets) as here:
        for _ in range(2):
            ran = await here.run("call", "URL", "tool", "--key", "k", "--questions", "fail", *options)
            check(ran, end, as_json=as_json)
    assert here.server.counts["tools/call"] == 1


@pytest.mark.parametrize("options", [(), ("--take",)], ids=["left", "taken"])
@pytest.mark.parametrize("ends_before", [False, True])
@pytest.mark.parametrize("name", ENDS)
async def test_waiting_for_the_call_of_another_program_ends_at_every_end_and_leaves_the_outcome(
    name: str, ends_before: bool, options: Sequence[str], tmp_path: Path
) -> None:
    end = ENDS[name]
    async with world(tmp_path, gets=end.gets) as here:
        record_id = await here.leave(application="agent")
        if ends_before:
            await here.run("wait", record_id[:8], "--questions", "fail")
        ran = await here.run("wait", record_id[:8], "--questions", "fail", *options)
        check(ran, end, as_json=False)
        again = await here.run("wait", record_id, "--json", "--questions", "fail")
        if options and end.is_over:
            assert again.code == Exit.GONE, "a call without a key is forgotten once its outcome is received"
            return
        check(again, end, as_json=True)
        async with TasksClient(
            here.url, journal=SqliteJournal(here.journal), application="agent", elicitation="later"
        ) as client:
            left = await client.resume()
            assert [one.reference["record_id"] for one in left] == [record_id]


async def test_a_detached_call_of_its_own_is_received_by_the_wait_that_writes_it(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        detached = await here.run("call", "URL", "tool", "--detach")
        assert detached.code == 0
        assert f"mcp-tasks wait {detached.out[:8]}" in detached.err
        waited = await here.run("wait", detached.out.strip())
        assert (waited.code, waited.out) == (0, "done\n")
        assert (await here.run("wait", detached.out.strip())).code == Exit.GONE
        assert (await here.run("ls", "--all", "--json")).document == []


async def test_several_calls_are_one_document_and_the_first_failure_is_the_code(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[FAILED]) as here:
        failed = await here.leave(application="agent")
        here.server.replies["tasks/get"] = completed()
        here.server.replies["tools/call"] = working("task-another-0123456789")
        good = await here.leave(application="agent")
        here.server.replies["tasks/get"] = lambda _, params: (
            FAILED if params["taskId"] == TASK_ID else completed(params["taskId"])
        )
        ran = await here.run("wait", good, failed, "--json")
    assert ran.code == Exit.TOOL_FAILED
    assert [one["record"] for one in ran.document] == [good, failed]
    assert ran.document[0]["result"]["content"][0]["text"] == "done"
    assert ran.document[1]["error"]["code"] == "tool_failed"


async def test_the_first_end_is_enough_for_any(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[WORKING]) as here:
        slow = await here.leave(application="agent")
        here.server.replies["tools/call"] = working("task-another-0123456789")
        good = await here.leave(application="agent")
        here.server.replies["tasks/get"] = lambda _, params: (
            WORKING if params["taskId"] == TASK_ID else completed(params["taskId"])
        )
        ran = await here.run("wait", slow, good, "--any", "--json")
    assert ran.code == 0
    assert [one["record"] for one in ran.document] == [good]


async def test_a_call_that_another_program_has_received_meanwhile_is_gone(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[WORKING]) as here:
        await here.leave(application="agent")
        plan = FaultPlan()
        async with here.client(observer=plan) as second, SqliteJournal(here.journal) as journal:
            (record,) = await second.records()
            plan.at("commit: take", "before", partial(journal.remove, record))
            with pytest.raises(TasksClientError) as caught:
                await follow(await second.attach(record), Where())
    assert as_command_error(caught.value).exit is Exit.GONE


@pytest.mark.parametrize(
    "endpoint",
    ["http://h\x1b/mcp", "http://h:99999/mcp", "http://[::1/mcp", "http:///mcp", "a command"],
    ids=repr,
)
async def test_an_address_that_cannot_be_read_keeps_no_other_call_from_its_end(
    endpoint: str, tmp_path: Path
) -> None:
    async with world(tmp_path) as here:
        good = await here.leave(application="agent")
        odd = one_that_asks(form(), scope=Scope(endpoint, ""))
        await anyio.to_thread.run_sync(Command(here.journal).write, odd)
        ran = await here.run("wait", odd.record_id, good, "--timeout", "30", "--json")
        assert ran.code == Exit.USAGE
        told = {one["record"]: one for one in ran.document}
        assert told[good]["result"]["content"][0]["text"] == "done"
        assert told[odd.record_id]["error"]["code"] == "usage"
        alone = await here.run("wait", odd.record_id, "--json")
        assert (alone.code, alone.error["record"]) == (Exit.USAGE, odd.record_id)
        assert "Traceback" not in ran.err + alone.err


async def test_an_error_that_quotes_a_question_shortens_the_task_s_id_in_it(tmp_path: Path) -> None:
    params = {**QUESTION["params"], "message": f"May {TASK_ID} go on?"}
    async with world(tmp_path, gets=[asking(one={**QUESTION, "params": params})]) as here:
        called = await here.run("call", "URL", "tool", "--questions", "fail")
        record_id = (await here.run("ls", "--json")).document[0]["record"]
        waited = await here.run("wait", record_id, "--questions", "fail", "--json")
    for ran in (called, waited):
        assert ran.code == Exit.QUESTION_WAITS
        assert f"May {TASK_ID[:7]}" in ran.err
        assert TASK_ID not in ran.err


async def test_only_an_outcome_that_was_written_is_received(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.leave(application="agent")
        async with here.client() as client:
            (handle,) = await client.resume()
            written = await handle.peek()
        async with Inbox(here.journal) as inbox:
            (record,) = await inbox.records()
            await receive(inbox, record, CommandError(Exit.TIMED_OUT, "It has ended since."))
            await receive(inbox, record, None)
            assert await inbox.records() == [record]
            await receive(inbox, record, written)
            assert await inbox.records() == []


async def test_calls_at_several_servers_share_no_credential(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with world(tmp_path) as here, world(tmp_path / "other") as other:
        other.journal = here.journal
        ids = [await one.leave(application="agent") for one in (here, other)]
        for options in (["--header", "X-Team: builds"], ["--server", "URL"]):
            asked = here.server.counts["tasks/get"], other.server.counts["tasks/get"]
            ran = await here.run("wait", *ids, *options)
            assert (ran.code, "several servers" in ran.err) == (Exit.USAGE, True)
            assert asked == (here.server.counts["tasks/get"], other.server.counts["tasks/get"])
        assert (await here.run("wait", *ids)).code == 0


# ── before there is a task ────────────────────────────────────────────────────────────────────────


async def test_a_server_that_is_away_was_sent_nothing(tmp_path: Path) -> None:
    ran = await anyio.to_thread.run_sync(
        run_command, tmp_path / "journal.sqlite3", "call", "http://127.0.0.1:9/mcp", "tool"
    )
    assert ran.code == Exit.UNREACHABLE


@pytest.mark.parametrize("key", [(), ("--key", "k")], ids=["no key", "key"])
async def test_a_reply_that_is_lost_leaves_the_outcome_unknown(key: Sequence[str], tmp_path: Path) -> None:
    async with world(tmp_path, calls=[DROP]) as here:
        ran = await here.run("call", "URL", "tool", "--json", *key)
        assert ran.code == Exit.OUTCOME_UNKNOWN
        assert ran.error["code"] == "outcome_unknown"
        if not key:
            return
        (seen,) = (await here.run("ls", "--json")).document
        assert seen["state"] == "outcome_unknown"
        again = await here.run("call", "URL", "tool", "--json", *key)
        for told in (ran.error, again.error):
            assert "--resend" in told["message"]
            assert "on_unknown" not in told["message"]
            assert told["next"] == f"mcp-tasks show {seen['record'][:8]}"
        assert (await here.run("wait", seen["record"])).code == Exit.OUTCOME_UNKNOWN
        assert (await here.run("call", "URL", "tool", *key)).code == Exit.OUTCOME_UNKNOWN
        assert here.server.counts["tools/call"] == 1
        here.server.replies["tools/call"] = WORKING
        again = await here.run("call", "URL", "tool", "--resend", *key)
        assert (again.code, again.out) == (0, "done\n")


async def test_a_credential_that_is_refused_has_its_own_code(tmp_path: Path) -> None:
    async with world(tmp_path, calls=[REFUSED]) as here:
        assert (await here.run("call", "URL", "tool")).code == Exit.CREDENTIAL_REFUSED


async def test_a_wait_that_is_over_says_if_there_is_a_task(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[WORKING]) as here:
        # Within these seconds the server has replied, on a busy machine too.
        ran = await here.run("call", "URL", "tool", "--timeout", "8", "--json")
        assert (ran.code, ran.error["code"]) == (Exit.TIMED_OUT, "timed_out")
        record_id = ran.error["record"]
        assert ran.error["next"] == f"mcp-tasks wait {record_id[:8]}"
        for options in ([], ["--take"]):
            ran = await here.run("wait", record_id, "--timeout", "0.5", "--json", *options)
            assert ran.code == Exit.TIMED_OUT
            assert ran.error["next"] == " ".join(["mcp-tasks", "wait", record_id[:8], *options])
        here.server.replies["tools/call"] = NEVER
        assert (await here.run("call", "URL", "tool", "--timeout", "8")).code == Exit.OUTCOME_UNKNOWN


async def test_a_server_that_lists_no_tools_in_time_was_sent_no_call(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.server.replies["tools/list"] = NEVER
        ran = await here.run("call", "URL", "tool", "n=1", "--timeout", "4")
    assert (ran.code, here.server.counts["tools/call"]) == (Exit.UNREACHABLE, 0)
    assert "The tool was not called." in ran.err


@pytest.mark.parametrize("has_key", [False, True])
async def test_a_question_before_the_task_names_the_line_that_goes_on(has_key: bool, tmp_path: Path) -> None:
    asks = {"resultType": "input_required", "inputRequests": {"one": QUESTION}, "requestState": "s"}
    line = ["call", "URL", "tool", "--json", *(["--key", "k"] if has_key else [])]
    async with world(tmp_path, calls=[asks]) as here:
        ran = await here.run(*line, "--questions", "fail")
        assert ran.code == Exit.QUESTION_WAITS
        if not has_key:
            assert ran.error["next"] is None
            assert "make a new call" in ran.error["message"]
            return
        late = await here.run(*line, "--questions", "leave", "--timeout", "8")
        assert late.code == Exit.OUTCOME_UNKNOWN
        assert "The same line, run again, goes on" in late.error["message"]
        here.server.replies["tools/call"] = WORKING
        answer = shlex.split(ran.error["next"])[1:]
        assert (await here.run(*answer, "--input-json", "{}")).code == 0
        assert (await here.run(*line)).code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("call", "URL", "tool", "=x"),
        ("call", "URL", "tool", "--input-json", "[1]"),
        ("call", "URL", "tool", "--bearer-env", "NO_SUCH_VARIABLE"),
        ("call", "URL", "tool", "--header", "nonsense"),
        ("call", "ftp://127.0.0.1/", "tool"),
        ("call", "http://127.0.0.1:99999/mcp", "tool"),
        ("tools", "http://[::1/mcp"),
        ("doctor", "http://127.0.0.1:99999/mcp"),
        ("call", "URL", "tool", "--header", "X: \x01"),
        ("doctor", "URL", "--header", "X: \x01"),
        ("call", "URL", "tool", "--label", "x" * 201),
        ("call", "URL", "tool", "--key", ""),
        ("call", "URL", "tool", "--input-json", '{"a": NaN}'),
        ("call", "URL", "tool", "--timeout", "nan"),
        ("wait", "abc", "--timeout", "nan"),
        ("call", "URL"),
        ("call", "URL", "tool", "--nonsense"),
        ("wait",),
        ("nonsense",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("as_json", [False, True])
async def test_a_line_that_makes_no_sense_sends_nothing(
    arguments: Sequence[str], as_json: bool, tmp_path: Path
) -> None:
    async with world(tmp_path) as here:
        ran = await here.run(*arguments, *(["--json"] if as_json else []))
    assert ran.code == Exit.USAGE, ran
    assert not as_json or ran.error["code"] == "usage"
    assert not here.server.counts["tools/call"]


@pytest.mark.parametrize(
    ("option", "value"), [("--log-file", "/no/such/folder/log"), ("--answer-within", "nan")]
)
async def test_an_option_of_a_bridge_that_makes_no_sense_is_named(
    option: str, value: str, tmp_path: Path
) -> None:
    async with world(tmp_path) as here:
        ran = await here.run("bridge", "URL", option, value)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert option.strip("-").replace("-", "_") in ran.err.replace("-", "_")


async def test_a_key_of_another_call_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        assert (await here.run("call", "URL", "tool", "a=1", "--key", "k")).code == 0
        assert (await here.run("call", "URL", "tool", "a=2", "--key", "k")).code == Exit.USAGE


@pytest.mark.parametrize(
    "verb", [("call", "URL", "tool"), ("ls",), ("wait", "abc"), ("show", "abc")], ids=" ".join
)
async def test_a_journal_that_is_none_has_its_own_code_and_names_the_doctor(
    verb: Sequence[str], tmp_path: Path
) -> None:
    async with world(tmp_path) as here:
        here.journal.write_text("This is no journal. " * 1000)
        ran = await here.run(*verb, "--json")
    assert (ran.code, ran.error["code"]) == (Exit.JOURNAL_UNUSABLE, "journal_unusable")
    assert ran.error["next"] == "mcp-tasks doctor"
    assert not here.server.received


# ── what a server may send ────────────────────────────────────────────────────────────────────────


async def test_a_time_to_live_of_ages_is_shown_in_every_list(tmp_path: Path) -> None:
    ages = working(ttlMs=10**15)
    async with world(tmp_path, calls=[ages], gets=[ages]) as here:
        detached = await here.run("call", "URL", "tool", "--detach")
        assert (detached.code, "until at least the year 9999" in detached.err) == (0, True)
        (seen,) = (await here.run("ls", "--json")).document
        assert seen["expires_at"] is None
        shown = await here.run("show", seen["record"])
        assert (shown.code, "until at least the year 9999" in shown.out) == (0, True)
        assert (await here.run("doctor")).code == Exit.UNEXPECTED, "nobody drives the call"
        assert (await here.run("wait", seen["record"], "--timeout", "1")).code == Exit.TIMED_OUT
