"""The inbox: what a journal holds of all servers, seen and answered without a session."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import (
    AlreadyAnsweredError,
    BlockingInbox,
    BlockingTasksClient,
    Environment,
    Inbox,
    InvalidAnswerError,
    Journal,
    JournalError,
    MemoryJournal,
    Question,
    QuestionWithdrawnError,
    Scope,
    SqliteJournal,
    TaskCancelledError,
    TaskHandle,
    TaskRecord,
    TasksClient,
    TasksClientError,
)
from mcp_tasks_client.testing import FaultPlan, input_required, raising, working
from mcp_tasks_client.testing.samples import finished, observing, record
from tests._results import text
from tests.engine.world import ASK, TASK, World
from tests.journal.files import timed
from tests.kit.probed_journal import ProbedJournal
from tests.other_host import OtherHost
from tests.real_server import RealServer

pytestmark = pytest.mark.anyio

ADA: Final = ElicitResult(action="accept", content={"name": "Ada"})
SECRET: Final = "a-secret-of-the-user"


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    return MemoryJournal() if request.param == "memory" else SqliteJournal(tmp_path / "journal.sqlite3")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that two processes share."""
    return tmp_path / "journal.sqlite3"


@asynccontextmanager
async def opened(server: RealServer, journal: Journal | Path, **options: Any) -> AsyncIterator[TasksClient]:
    with anyio.fail_after(30):
        async with TasksClient(server.url, journal=journal, **({"elicitation": "later"} | options)) as client:
            yield client


async def asked(client: TasksClient, tool: str = "ask_name", **options: Any) -> TaskHandle:
    """A call that waits for an answer."""
    handle = await client.start_tool(tool, **options)
    async for task in handle.updates():
        if task.status == "input_required":
            return handle
    raise AssertionError("it asks nothing")


async def ended(handle: TaskHandle) -> TaskHandle:
    """A call that has ended, and whose outcome nobody has had."""
    async for _ in handle.updates():
        pass
    assert handle.done
    return handle


async def only(inbox: Inbox) -> tuple[Question, TaskRecord]:
    """The only question and the only record."""
    (question,), (record,) = await inbox.questions(), await inbox.records()
    assert question.record_id == record.record_id
    return question, record


# ── seeing ────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_shown_are_the_calls_of_all_servers_and_principals(
    real_server: RealServer, journal: Journal
) -> None:
    async with (
        opened(real_server, journal, endpoint="one", principal="ada") as one,
        opened(real_server, journal, endpoint="two", principal="ada", application="payroll") as two,
        opened(real_server, journal, endpoint="two", principal="bob") as bobs,
        Inbox(journal) as inbox,
    ):
        first = await asked(one, label="lunch")
        second = await asked(two, label="dinner")
        third = await asked(bobs, label="lunch")
        await two.call_tool("fast", idempotency_key="done")

        def names(found: list[Any]) -> list[str]:
            return [one.record_id for one in found]

        a, b, c = (handle.reference["record_id"] for handle in (first, second, third))
        assert names(await inbox.records())[:3] == [a, b, c]
        assert [record.status for record in await inbox.records()][3:] == ["completed"]
        assert names(await inbox.records(pending=True)) == [a, b, c]
        assert names(await inbox.questions()) == [a, b, c]
        for find in (inbox.questions, lambda **by: inbox.records(pending=True, **by)):
            assert names(await find(endpoint="two")) == [b, c]
            assert names(await find(principal="ada")) == [a, b]
            assert names(await find(endpoint="two", principal="ada")) == [b]
            assert names(await find(label="lunch")) == [a, c]
            assert names(await find(label="lunch", principal="bob")) == [c]
            assert names(await find(endpoint="three")) == []
        assert [q.label for q in await inbox.questions()] == ["lunch", "dinner", "lunch"]


async def test_an_inbox_is_bounded_by_what_it_is_for(real_server: RealServer, journal: Journal) -> None:
    async with (
        opened(real_server, journal, endpoint="one", principal="ada") as one,
        opened(real_server, journal, endpoint="two", principal="bob", application="payroll") as two,
    ):
        await asked(one)
        handle = await asked(two)
        async with Inbox(journal) as every:
            (_, bobs) = await every.records()
            (_, question) = await every.questions()
        bounds: list[dict[str, str]] = [{"endpoint": "one"}, {"principal": "ada"}, {"application": "ledger"}]
        for bound in bounds:
            async with Inbox(journal, **bound) as inbox:
                assert [record.scope.principal for record in await inbox.records()] == ["ada"]
                assert [one.principal for one in await inbox.questions()] == ["ada"]
                assert await inbox.records(endpoint="two", principal="bob") == []
                with pytest.raises(QuestionWithdrawnError):
                    await inbox.answer(question.question_id, ADA)
                for refused in (inbox.cancel, inbox.acknowledge):
                    with pytest.raises(ValueError, match="other calls"):
                        await refused(bobs)
        async with Inbox(journal, endpoint="two", principal="bob", application="payroll") as inbox:
            assert await only(inbox) == (question, bobs)
        assert len(await handle.questions()) == 1


async def test_one_question_is_found_by_its_id(real_server: RealServer, journal: Journal) -> None:
    async with (
        opened(real_server, journal, endpoint="one", principal="ada") as client,
        Inbox(journal) as inbox,
        Inbox(journal, principal="bob") as bobs,
    ):
        first, second = await asked(client), await asked(client)
        for handle in (first, second):
            (question,) = await handle.questions()
            assert await inbox.question(question.question_id) == question
            assert await bobs.question(question.question_id) is None
        found = await inbox.question(question.question_id)
        assert found is not None
        await found.accept({"name": "Ada"})
        assert await inbox.question(question.question_id) is None, "it has its answer"
        assert text(await second) == "Hello, Ada"
        assert await inbox.question(question.question_id) is None, "its call is over"
        assert await inbox.question(f"{'0' * 32}-{'0' * 16}") is None
        for wrong in ("no question", first.reference["record_id"]):
            assert await inbox.question(wrong) is None, "as from a link"
        (left,) = await inbox.questions()
        (record,) = await inbox.records(pending=True)
        await inbox.cancel(record)
        assert await inbox.question(left.question_id) is None, "its call is being cancelled"


# ── a long history, in pages ──────────────────────────────────────────────────────────────────────


async def history(journal: Journal, count: int = 24) -> list[TaskRecord]:
    """Calls of two principals at two servers, of two applications, with two labels, half of them over."""
    made = [
        record(
            record_id=f"record-{number:02}",
            scope=Scope(f"https://{'ab'[number // 2 % 2]}.example/", ("ada", "bob")[number % 2]),
            application=(None, "payroll", "ledger")[number % 3],
            label=("lunch", "dinner")[number // 3 % 2],
            created_at=float(number // 2),
            state=observing() if number % 4 < 2 else finished(),
            delivered_at=None if number % 4 < 2 else 99.0,
        )
        for number in range(count)
    ]
    async with journal:
        for one in made:
            await journal.save(one)
    return made


BOUNDS: Final[list[dict[str, Any]]] = [
    {},
    {"endpoint": "https://a.example/"},
    {"principal": "ada"},
    {"principal": "ada", "endpoint": "https://b.example/"},
    {"label": "lunch"},
    {"pending": True},
    {"pending": True, "label": "dinner", "principal": "bob"},
    {"label": "nobody's"},
]


@pytest.mark.parametrize("application", [None, "payroll"])
@pytest.mark.parametrize("by", BOUNDS, ids=lambda by: ", ".join(by) or "all")
async def test_a_page_comes_short_only_where_there_are_no_more(
    journal: Journal, by: dict[str, Any], application: str | None
) -> None:
    """Whatever the page is bounded by: each page is full, and no call is left out or shown twice."""
    await history(journal)
    async with Inbox(journal, application=application) as inbox:
        every = await inbox.records(**by)
        for size in (1, 5, 100):
            pages: list[list[TaskRecord]] = []
            before: TaskRecord | None = None
            while page := await inbox.records(**by, limit=size, before=before):
                pages.append(page)
                before = page[0]
            assert [one for page in reversed(pages) for one in page] == every, "oldest first, as ever"
            assert all(len(page) == size for page in pages[:-1])


async def test_a_link_to_older_calls_holds_when_its_call_was_forgotten(journal: Journal) -> None:
    made = await history(journal)
    async with Inbox(journal) as inbox, journal:
        page = await inbox.records(limit=4)
        assert page == made[-4:]
        await journal.remove(page[0])
        for place in (page[0], page[0].created_at):
            assert await inbox.records(limit=4, before=place) == made[-8:-4]
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="at least 1"):
                await inbox.records(limit=wrong)


async def test_a_page_reads_no_more_than_it_shows(path: Path) -> None:
    """Counted in rows that were read: of a long history, as of a short one."""
    journal = SqliteJournal(path)
    await history(journal, 400)
    read: list[int] = []

    class Counting(SqliteJournal):
        async def records(self, *args: Any, **options: Any) -> list[TaskRecord]:
            found = await super().records(*args, **options)
            read.append(len(found))
            return found

    async with Inbox(Counting(path)) as inbox:
        page = await inbox.records(limit=50)
        assert len(await inbox.records(limit=50, before=page[0])) == 50
        assert read == [50, 50]
        assert len(await inbox.records(limit=50, principal="ada")) == 50
        assert read == [50, 50, 50]


# ── questions of many calls, at one moment ────────────────────────────────────────────────────────


@pytest.mark.parametrize("by", ["inbox", "client"])
async def test_the_questions_of_many_calls_are_read_at_once(by: str) -> None:
    journal = ProbedJournal()
    asks = {f"task-{n}": input_required(f"task-{n}", {"k": ASK}, poll_interval_ms=1000) for n in range(3)}
    calls = [working(task_id, poll_interval_ms=1000) for task_id in asks]
    world = World(calls=calls, gets={task_id: [one] for task_id, one in asks.items()})
    world.journal = journal
    async with world.client(elicitation="later") as client, Inbox(journal) as inbox:
        for _ in range(3):
            await client.start_tool("tool")
        await world.clock.advance(5)
        before = journal.counts.copy()
        assert len(await (inbox if by == "inbox" else client).questions()) == 3
        assert journal.counts - before == {"asking": 1}


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["question", "inbox"])
async def test_an_answer_reaches_a_call_that_a_client_here_drives(
    real_server: RealServer, journal: Journal, way: str
) -> None:
    async with opened(real_server, journal) as client:
        handle = await asked(client)
        async with Inbox(journal) as inbox:
            question, _ = await only(inbox)
            if way == "question":
                await question.accept({"name": "Ada"})
            else:
                await inbox.answer(question.question_id, ADA)
            assert await inbox.questions() == [], "it has its answer"
        assert text(await handle) == "Hello, Ada"


async def test_an_answer_reaches_a_call_that_another_process_drives(
    real_server: RealServer, path: Path
) -> None:
    with anyio.fail_after(60), OtherHost.calling(real_server.url, path, "ask_name") as host:
        assert await host.line() == "asked"
        async with Inbox(path) as inbox:
            question, record = await only(inbox)
            await question.accept({"name": "Ada"})
            assert await host.line() == "Hello, Ada"
            with pytest.raises(QuestionWithdrawnError):
                await question.accept({"name": "Bob"})
    assert record.task_id is not None
    (update,) = real_server.witness(record.task_id, "tasks/update")
    assert len(update.input_keys) == 1


async def test_a_call_is_driven_while_the_process_that_has_it_lives(
    real_server: RealServer, path: Path
) -> None:
    with anyio.fail_after(60), OtherHost.calling(real_server.url, path, "cancelable") as host:
        assert await host.line() == "asked"
        async with Inbox(path) as inbox:
            (record,) = await inbox.records()
            assert await inbox.is_driven(record)
            host.kill()
            assert not await inbox.is_driven(record)


async def test_a_call_is_driven_until_its_client_closes(real_server: RealServer, journal: Journal) -> None:
    async with journal, Inbox(journal) as inbox:
        async with opened(real_server, journal) as client:
            await asked(client)
            (record,) = await inbox.records()
            assert await inbox.is_driven(record)
        (left,) = await inbox.records()
        assert not await inbox.is_driven(record)
        assert not await inbox.is_driven(left)


async def test_an_answer_waits_for_whoever_takes_the_call_up(
    real_server: RealServer, journal: Journal
) -> None:
    async with opened(real_server, journal) as client:
        await asked(client)
    async with Inbox(journal) as inbox:
        question, _ = await only(inbox)
        await question.accept({"name": "Ada"})
        for name, same in (("Bob", False), ("Ada", True)):
            with pytest.raises(AlreadyAnsweredError) as caught:
                await question.accept({"name": name})
            assert caught.value.same == same
    async with opened(real_server, journal) as client:
        (handle,) = await client.resume()
        assert text(await handle) == "Hello, Ada"


async def test_an_answer_waits_when_the_process_is_dead(real_server: RealServer, path: Path) -> None:
    with anyio.fail_after(60), OtherHost.calling(real_server.url, path, "ask_name") as host:
        assert await host.line() == "asked"
        host.kill()
        async with Inbox(path) as inbox:
            question, _ = await only(inbox)
            await question.accept({"name": "Ada"})
        async with opened(real_server, path) as client:
            (handle,) = await client.resume()
            assert text(await handle) == "Hello, Ada"


async def test_a_question_before_there_is_a_task_is_answered_too(
    real_server: RealServer, journal: Journal
) -> None:
    """Of a keyed call, which alone is in the journal by then."""
    async with opened(real_server, journal) as client, anyio.create_task_group() as tasks:
        results: list[str] = []

        async def call() -> None:
            results.append(text(await client.call_tool("ask_then_task", idempotency_key="k")))

        tasks.start_soon(call)
        async with Inbox(journal) as inbox:
            while not (questions := await inbox.questions()):
                await anyio.sleep(0.02)
            await questions[0].accept({"name": "Ada"})
    assert results == ["tea, after a question"]


# ── cancelling ────────────────────────────────────────────────────────────────────────────────────


async def test_a_cancellation_reaches_a_call_that_a_client_here_drives(
    real_server: RealServer, journal: Journal
) -> None:
    async with opened(real_server, journal) as client:
        handle = await client.start_tool("cancelable")
        async with Inbox(journal) as inbox:
            (record,) = await inbox.records()
            await inbox.cancel(record)
            await inbox.cancel(record)
            with pytest.raises(TaskCancelledError):
                await handle.result()
            await inbox.cancel(record)  # there is nothing to cancel any more
    assert record.task_id is not None
    assert len(real_server.witness(record.task_id, "tasks/cancel")) == 1


async def test_a_cancellation_reaches_a_call_that_another_process_drives(
    real_server: RealServer, path: Path
) -> None:
    with anyio.fail_after(60), OtherHost.calling(real_server.url, path, "cancelable") as host:
        assert await host.line() == "asked"
        async with Inbox(path) as inbox:
            (record,) = await inbox.records()
            await inbox.cancel(record)
            assert await host.line() == "TaskCancelledError"
    assert record.task_id is not None
    assert len(real_server.witness(record.task_id, "tasks/cancel")) == 1


async def test_a_cancellation_waits_for_whoever_takes_the_call_up(
    real_server: RealServer, journal: Journal
) -> None:
    async with opened(real_server, journal) as client:
        await client.start_tool("cancelable")
    async with Inbox(journal) as inbox:
        (record,) = await inbox.records()
        await inbox.cancel(record)
    assert record.task_id is not None
    assert real_server.witness(record.task_id, "tasks/cancel") == []
    async with opened(real_server, journal) as client:
        (handle,) = await client.resume()
        with pytest.raises(TaskCancelledError):
            await handle.result()
    assert len(real_server.witness(record.task_id, "tasks/cancel")) == 1


# ── outcomes that the host has, and old ones ──────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ["order-42", None])
@pytest.mark.parametrize("is_open", [True, False], ids=["the client is open", "the client is closed"])
async def test_what_is_acknowledged_counts_as_delivered(
    real_server: RealServer, journal: Journal, key: str | None, is_open: bool
) -> None:
    async def acknowledge() -> None:
        async with Inbox(journal) as inbox:
            (record,) = await inbox.records()
            for _ in range(2):  # may be said again
                await inbox.acknowledge(record)
            assert await inbox.records(pending=True) == []
            assert [one.delivered_at is not None for one in await inbox.records()] == ([True] if key else [])

    async with opened(real_server, journal) as client:
        handle = await ended(await client.start_tool("fast", {"x": 3}, idempotency_key=key))
        if is_open:
            await acknowledge()
            assert text(await handle) == "3"
    if not is_open:
        await acknowledge()
    async with opened(real_server, journal) as client:
        assert await client.resume() == []
        if key:
            assert text(await client.call_tool("fast", {"x": 3}, idempotency_key=key)) == "3"


async def test_a_call_that_has_not_ended_cannot_be_acknowledged(
    real_server: RealServer, journal: Journal
) -> None:
    async with opened(real_server, journal) as client, Inbox(journal) as inbox:
        handle = await asked(client)
        question, record = await only(inbox)
        with pytest.raises(TasksClientError, match="has not ended"):
            await inbox.acknowledge(record)
        await question.accept({"name": "Ada"})
        assert text(await handle) == "Hello, Ada"


async def test_what_is_no_record_is_refused(real_server: RealServer, journal: Journal) -> None:
    async with opened(real_server, journal) as client, Inbox(journal) as inbox:
        handle = await asked(client)
        (record,) = await inbox.records()
        for wrong in (record.record_id, handle, None):
            for method in (inbox.cancel, inbox.acknowledge):
                with pytest.raises(TypeError, match=r"TaskRecord, as from inbox\.record\(\)"):
                    await method(wrong)  # type: ignore[arg-type]


async def test_one_call_is_shown_by_its_record_id(real_server: RealServer, journal: Journal) -> None:
    async with opened(real_server, journal, principal="ada") as client:
        await asked(client)
    async with Inbox(journal) as inbox, Inbox(journal, principal="bob") as bobs:
        (record,) = await inbox.records()
        assert await inbox.record(record.record_id) == record
        assert await inbox.record("another") is None
        assert await bobs.record(record.record_id) is None


@pytest.mark.parametrize("bound", ["endpoint", "principal", "application"])
async def test_an_inbox_that_shows_a_part_forgets_nothing(journal: Journal, bound: str) -> None:
    async with journal, Inbox(journal, **{bound: "ada"}) as inbox:
        with pytest.raises(TasksClientError, match="whole journal"):
            await inbox.prune(60)


async def test_what_is_old_is_forgotten_unless_a_client_drives_it() -> None:
    world = World(calls=[working(TASK, ttl_ms=1000)], gets={TASK: [working(TASK, ttl_ms=1000)]})
    inbox = Inbox(world.journal, environment=Environment(clock=world.clock))
    async with inbox, world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(7200)
        assert await inbox.prune(60) == 0
        with pytest.raises(ValueError, match="negative"):
            await inbox.prune(-1)
    async with inbox:
        assert await inbox.prune() == 0, "not for a week"
        assert await inbox.prune(60) == 1
        assert await inbox.records() == []


# ── what nobody is shown ──────────────────────────────────────────────────────────────────────────


async def test_neither_the_tasks_id_nor_the_servers_key_nor_an_answer_is_said(
    real_server: RealServer, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mcp_tasks_client")
    said: list[str] = []
    async with opened(real_server, path) as client, Inbox(path) as inbox:
        handle = await asked(client, label="lunch")
        question, record = await only(inbox)
        said += [repr(inbox), repr(question), repr(record), question.question_id]
        with pytest.raises(InvalidAnswerError) as invalid:
            await question.accept({"name": {SECRET: SECRET}})
        with pytest.raises(TasksClientError, match="not ended") as early:
            await inbox.acknowledge(record)
        await question.accept({"name": SECRET})
        with pytest.raises((AlreadyAnsweredError, QuestionWithdrawnError)) as late:
            await question.accept({"name": SECRET + "!"})
        said += [repr(error.value) + str(error.value) for error in (invalid, early, late)]
        said += map(repr, await inbox.records())
        await ended(handle)
        await inbox.acknowledge(record)
    assert handle.task_id is not None
    (update,) = real_server.witness(handle.task_id, "tasks/update")
    told = "\n".join([*said, *(record.getMessage() for record in caplog.records)])
    assert "ask_name" in told
    for secret in (SECRET, handle.task_id, *update.input_keys):
        assert secret not in told
    kept = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert SECRET.encode() not in kept, "what is acknowledged is gone from the file"


@pytest.mark.parametrize("what", ["answer", "cancel"])
async def test_what_is_left_in_the_journal_passes_its_point(
    real_server: RealServer, journal: Journal, what: str
) -> None:
    plan = FaultPlan()
    plan.at("commit: instruct", "before", raising(JournalError("The disk is full.")))
    async with opened(real_server, journal) as client:
        await asked(client)
        async with Inbox(journal, environment=Environment(observer=plan)) as inbox:
            question, record = await only(inbox)
            leave = question.decline if what == "answer" else partial(inbox.cancel, record)
            with pytest.raises(JournalError, match="full"):
                await leave()
            assert await inbox.questions() == [question]
            await leave()
            assert await inbox.questions() == []


# ── opening and closing ───────────────────────────────────────────────────────────────────────────


async def test_an_inbox_is_used_while_it_is_open(journal: Journal) -> None:
    async with journal:
        pass  # it is made
    inbox = Inbox(journal)
    for refused in (inbox.records, inbox.questions, inbox.prune):
        with pytest.raises(TasksClientError, match="not open"):
            await refused()
    with pytest.raises(TasksClientError, match="not open"):
        await inbox.answer("no question", ADA)
    for _ in range(2):
        async with inbox:
            assert await inbox.records() == []
            with pytest.raises(ValueError, match="not a question_id"):
                await inbox.answer("no question", ADA)
            with pytest.raises(TasksClientError, match="open already"):
                await inbox.__aenter__()


async def test_nothing_of_a_closed_inbox_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, linger_s=1000.0)

    def of_journals() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "mcp-tasks-journal"}

    before = of_journals()
    for opening in (SqliteJournal(path), Inbox(path)):  # the first one makes it
        async with opening:
            assert of_journals() - before
        with anyio.fail_after(30):
            while of_journals() - before:
                await anyio.sleep(0.02)


async def test_a_journal_that_cannot_be_opened_says_why(path: Path) -> None:
    path.write_bytes(b"This is no database." * 100)
    inbox = Inbox(path)
    with pytest.raises(JournalError):
        await inbox.__aenter__()
    path.unlink()
    async with SqliteJournal(path), inbox:
        assert await inbox.records() == []


def test_an_inbox_without_an_event_loop(real_server: RealServer, path: Path) -> None:
    with (
        BlockingTasksClient(real_server.url, journal=path, elicitation="later") as client,
        BlockingInbox(path, principal="") as inbox,
    ):
        handle = client.start_tool("ask_name", label="lunch")
        ends_at = time.monotonic() + 30
        while not (questions := inbox.questions(label="lunch")):
            assert time.monotonic() < ends_at
            time.sleep(0.02)
        inbox.answer(questions[0].question_id, ADA)
        assert text(handle.result()) == "Hello, Ada"
        client.start_tool("cancelable")
        (record,) = inbox.records()
        with pytest.raises(TasksClientError, match="has not ended"):
            inbox.acknowledge(record)
        inbox.cancel(record)
        with pytest.raises(TasksClientError, match="whole journal"):
            inbox.prune()
    with pytest.raises(TasksClientError, match="BlockingInbox"):
        inbox.records()
