"""Questions and ends, told for as long as a program iterates: ``inbox.asked()``, ``inbox.ended()``."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import anyio
import anyio.lowlevel
import pytest

from mcp_tasks_client import (
    BlockingInbox,
    BlockingQuestion,
    Environment,
    Inbox,
    Journal,
    JournalError,
    MemoryJournal,
    PostgresJournal,
    Question,
    Scope,
    SqliteJournal,
    TaskRecord,
    TasksClientError,
)
from mcp_tasks_client.engine import news
from mcp_tasks_client.machine.states import Observing
from mcp_tasks_client.testing import ManualClock, completed, input_required, raising, text_result, working
from mcp_tasks_client.testing.samples import SCOPE, finished, observing, record
from tests._forked import Program
from tests.engine.world import ASK, TASK, World
from tests.kit.probed_journal import ProbedJournal

pytestmark = pytest.mark.anyio

SOON_S: Final = 30.0
T = TypeVar("T")


def asks(**options: Any) -> TaskRecord:
    """A record whose server asks something."""
    from mcp_tasks_client.machine.states import AskedQuestion as Asked  # beside the public one

    state = observing(status="input_required", inputRequests={"k": ASK})
    asked = Asked(key="k", digest="d", request=ASK, asked_at=options.pop("asked_at", 1.0))
    given = {"state": replace(state, questions=(asked,)), **options}
    return record(**given)


class Told(Generic[T]):
    """A program that iterates, and keeps what it is given."""

    def __init__(self, items: AsyncIterator[T], most: int | None = None) -> None:
        self.items = items
        self.most = most
        self.given: list[T] = []
        self.ended = False

    async def run(self) -> None:
        async for one in self.items:
            self.given.append(one)
            if len(self.given) == self.most:
                return
        self.ended = True

    async def have(self, count: int, within_s: float = SOON_S) -> None:
        with anyio.fail_after(within_s):
            while len(self.given) < count:
                await anyio.sleep(0.005)
        assert len(self.given) == count

    @property
    def of(self) -> list[str]:
        """The records that it is about."""
        return [one.record_id for one in self.given]  # type: ignore[attr-defined]  # each has one


@asynccontextmanager
async def told(items: AsyncIterator[T]) -> AsyncIterator[Told[T]]:
    program = Told(items)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(program.run)
        yield program
        tasks.cancel_scope.cancel()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    """A journal that is open."""
    made: Journal = MemoryJournal()
    if request.param == "sqlite":
        made = SqliteJournal(tmp_path / "journal.sqlite3")
    if request.param == "postgres":
        made = PostgresJournal(request.getfixturevalue("postgres"), schema=f"told_{time.time_ns()}")
    with anyio.fail_after(60):
        async with made:
            yield made


# ── questions ─────────────────────────────────────────────────────────────────────────────────


async def test_each_question_is_told_once_the_oldest_first_and_new_ones_at_once(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "_LOOK_S", 1000.0)
    late, early = asks(asked_at=2.0), asks(asked_at=1.0)
    for one in (late, early):
        await journal.save(one)
    async with Inbox(journal) as inbox, told(inbox.asked()) as program:
        await program.have(2)
        assert program.of == [early.record_id, late.record_id]
        for number in range(3):
            new = asks(asked_at=3.0 + number)
            await journal.save(new)
            await program.have(3 + number)
            assert program.of[-1] == new.record_id
        (question,) = [one for one in program.given if one.record_id == early.record_id]
        await question.accept({"n": 3})
        await anyio.sleep(0.2)
        assert len(program.given) == 5


async def test_a_question_that_opens_again_is_told_again(journal: Journal) -> None:
    given = asks()
    await journal.save(given)
    async with Inbox(journal) as inbox, told(inbox.asked()) as program:
        await program.have(1)
        state = given.state
        assert isinstance(state, Observing)
        (asked,) = state.questions
        again = replace(asked, refusals=1, refusal="version 9.9 does not exist")
        await journal.save(replace(given, state=replace(state, questions=(again,))), known=True)
        await program.have(2)
        first, second = program.given
        assert (first.refused, second.refused) == (None, "version 9.9 does not exist")
        assert first.question_id != second.question_id


CHILD: Final = """
import sys, anyio
from mcp_tasks_client import SqliteJournal
from tests.test_being_told import asks, ends

async def main():
    async with SqliteJournal(sys.argv[1]) as journal:
        for made in (asks, ends):
            await journal.save(made())

anyio.run(main)
"""


async def test_what_another_process_of_the_machine_writes_is_told_within_a_second_or_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's thread looks once a second whether the file has changed."""
    monkeypatch.setattr(news, "_LOOK_S", 1000.0)
    path = tmp_path / "journal.sqlite3"

    def write() -> None:
        with Program("-c", CHILD, path) as child:
            assert child.wait(60) == 0

    async with (
        SqliteJournal(path),
        Inbox(path) as inbox,
        told(inbox.asked()) as asked,
        told(inbox.ended()) as ended,
    ):
        await anyio.sleep(0.5)
        await anyio.to_thread.run_sync(write)
        await asked.have(1)
        await ended.have(1)


# ── ends ──────────────────────────────────────────────────────────────────────────────────────


def ends(**options: Any) -> TaskRecord:
    """A record of a call that has ended, and whose outcome nobody has received."""
    return record(**{"state": finished(), "updated_at": 1.0, **options})


async def test_each_end_is_told_once_also_if_its_outcome_is_received_meanwhile(journal: Journal) -> None:
    now = time.time()
    old = ends(idempotency_key="old", delivered_at=now - 3600.0)
    there = [ends(updated_at=number, owner="a/1") for number in (2.0, 1.0)]
    at_work = record(state=observing(), owner="a/1", idempotency_key="at work")
    for one in (old, *there, at_work):
        await journal.save(one)
    async with Inbox(journal) as inbox, told(inbox.ended()) as program:
        await program.have(2)
        assert program.of == [there[1].record_id, there[0].record_id]
        ended = replace(at_work, state=finished(), updated_at=now)
        await journal.save(ended, known=True)
        await program.have(3)
        await journal.save(replace(ended, delivered_at=time.time(), owner=None), known=True)
        # Received before anybody has looked:
        quick = ends(idempotency_key="quick", delivered_at=time.time() + 0.01)
        await journal.save(quick)
        await program.have(4)
        assert program.of[2:] == [at_work.record_id, quick.record_id]
        await anyio.sleep(0.2)
        assert len(program.given) == 4


# ── which, and until when ─────────────────────────────────────────────────────────────────────


async def test_only_what_is_asked_for_is_told_and_nothing_that_the_inbox_does_not_show(
    journal: Journal,
) -> None:
    ada, bob = Scope(SCOPE.endpoint, "ada"), Scope(SCOPE.endpoint, "bob")
    async with (
        Inbox(journal, principal="ada") as inbox,
        told(inbox.asked()) as hers,
        told(inbox.asked(label="lunch")) as lunches,
        told(inbox.ended()) as her_ends,
        told(inbox.ended(principal="bob")) as none,
    ):
        for scope in (ada, bob):
            for label in ("dinner", "lunch"):
                await journal.save(asks(scope=scope, label=label))
                await journal.save(ends(scope=scope, label=label))
        await hers.have(2)
        await lunches.have(1)
        await her_ends.have(2)
        await anyio.sleep(0.1)
        assert {one.scope.principal for one in her_ends.given} == {"ada"}
        assert {one.principal for one in hers.given} == {"ada"}
        assert (lunches.given[0].label, none.given) == ("lunch", [])


@pytest.mark.parametrize("which", ["asked", "ended"])
async def test_the_loop_ends_when_the_inbox_closes(
    journal: Journal, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "_LOOK_S", 1000.0)
    async with anyio.create_task_group() as tasks:
        async with Inbox(journal) as inbox:
            program: Told[Any] = Told(getattr(inbox, which)())
            tasks.start_soon(program.run)
            await anyio.sleep(0.1)
        with anyio.fail_after(30):
            while not program.ended:
                await anyio.sleep(0.005)
        assert [one async for one in program.items] == []


async def test_an_inbox_that_is_not_open_tells_nothing() -> None:
    inbox = Inbox(MemoryJournal())
    for which in (inbox.asked, inbox.ended):
        with pytest.raises(TasksClientError, match="not open"):
            which()


async def test_a_journal_that_fails_is_said_and_the_iterator_may_be_taken_up_again() -> None:
    journal = ProbedJournal()
    journal.before("asking", raising(JournalError("The disk is full.")), nth=1)
    async with journal, Inbox(journal) as inbox:
        await journal.save(given := asks())
        asked = inbox.asked()
        with pytest.raises(JournalError, match="full"):
            await anext(asked)
        assert (await anext(asked)).record_id == given.record_id


async def test_after_a_look_that_was_long_or_failed_the_next_one_comes_within_some_seconds() -> None:
    clock, journal, takes_s = ManualClock(), ProbedJournal(), [60.0]
    journal.before("asking", lambda: clock.sleep(takes_s[0]), when=lambda *_, **__: takes_s[0])
    async with Inbox(journal, environment=Environment(clock=clock)) as inbox:
        asked = inbox.asked()
        async with told(asked) as program:
            await clock.advance(61)  # an outage
            takes_s[0] = 0.0
            await journal.save(asks())
            await clock.advance(6)
            assert len(program.given) == 1
        journal.before("asking", raising(JournalError("The disk is full.")))
        looks = journal.counts["asking"]
        async with anyio.create_task_group() as tasks:

            async def insist() -> None:
                while True:
                    with suppress(JournalError):
                        await anext(asked)

            tasks.start_soon(insist)
            await clock.advance(10)
            assert journal.counts["asking"] - looks <= 12
            tasks.cancel_scope.cancel()


async def test_a_question_that_was_not_asked_for_a_moment_is_told_once() -> None:
    async with MemoryJournal() as journal, Inbox(journal) as inbox, told(inbox.asked()) as program:
        await journal.save(given := asks())
        await program.have(1)
        for number in range(2):
            await journal.save(replace(given, state=observing()), known=True)
            await journal.save(other := asks())
            await program.have(2 + 2 * number)
            assert program.of[-1] == other.record_id
            await journal.save(given, known=True)
            await journal.save(asks())  # which tells that there was another look
            await program.have(3 + 2 * number)
        assert program.of.count(given.record_id) == 1


async def test_several_tasks_may_share_one_iterator() -> None:
    async with MemoryJournal() as journal, Inbox(journal) as inbox, anyio.create_task_group() as tasks:
        asked = inbox.asked()
        programs = [Told(asked, most=2) for _ in range(3)]
        for program in programs:
            tasks.start_soon(program.run)
        given = {(await save(journal)).record_id for _ in range(6)}
        with anyio.fail_after(SOON_S):
            while sum(len(program.given) for program in programs) < 6:
                await anyio.sleep(0.005)
        assert [len(program.given) for program in programs] == [2, 2, 2]
        assert {one for program in programs for one in program.of} == given
        tasks.cancel_scope.cancel()


async def save(journal: Journal) -> TaskRecord:
    await journal.save(one := asks())
    await anyio.sleep(0.01)
    return one


# ── what it costs ─────────────────────────────────────────────────────────────────────────────


async def test_while_nothing_happens_the_journal_is_looked_into_every_few_seconds() -> None:
    clock, journal = ManualClock(), ProbedJournal()
    async with Inbox(journal, environment=Environment(clock=clock)) as inbox, told(inbox.asked()):
        await clock.advance(1)
        before = journal.counts["asking"]
        await clock.advance(60)
        assert 10 <= journal.counts["asking"] - before <= 12


async def test_however_much_happens_looks_take_a_fifth_of_the_time() -> None:
    clock, journal = ManualClock(), ProbedJournal()
    journal.before("asking", lambda: clock.sleep(0.1))
    async with Inbox(journal, environment=Environment(clock=clock)) as inbox, told(inbox.asked()) as program:
        for _ in range(100):
            await journal.save(asks())
            await clock.advance(0.1)
        assert journal.counts["asking"] <= 10 / 0.5 + 2
        await clock.advance(1)
        assert len(program.given) == 100


# ── by a client's own calls, and without an event loop ────────────────────────────────────────


async def test_a_question_and_the_end_of_a_call_are_told_as_they_come() -> None:
    world = World(
        calls=[working(TASK, poll_interval_ms=1000)],
        gets={TASK: [input_required(TASK, {"k": ASK}, poll_interval_ms=1000)]},
    )
    async with (
        world.client(elicitation="later") as client,
        Inbox(world.journal) as inbox,
        told(inbox.asked()) as asked,
        told(inbox.ended()) as ended,
    ):
        handle = await client.start_tool("tool", idempotency_key="k", label="lunch")
        await world.clock.advance(2)
        await asked.have(1)
        question = asked.given[0]
        assert isinstance(question, Question)
        assert question.label == "lunch"
        world.server.gets[TASK] = [completed(TASK, text_result("done"))]
        await question.accept({"n": 3})
        await world.clock.advance(2)
        await ended.have(1)
        assert (ended.given[0].status, ended.of) == ("completed", [handle.reference["record_id"]])


@pytest.mark.parametrize(("which", "reads", "make"), [("asked", "asking", asks), ("ended", "records", ends)])
async def test_the_loop_ends_at_once_also_while_it_rests_between_two_looks(
    which: str, reads: str, make: Callable[[], TaskRecord]
) -> None:
    """Also where the journal stays open for others, so that a look after the close succeeds."""
    clock, journal = ManualClock(), ProbedJournal()
    journal.before(reads, lambda: clock.sleep(10), nth=1)
    async with journal, anyio.create_task_group() as tasks:
        async with Inbox(journal, environment=Environment(clock=clock)) as inbox:
            await journal.save(make())
            program: Told[Any] = Told(getattr(inbox, which)())
            tasks.start_soon(program.run)
            await clock.advance(10)
            assert len(program.given) == 1
            await clock.advance(1)  # it rests
        with anyio.fail_after(30):
            while not program.ended:
                await anyio.lowlevel.checkpoint()


def test_without_an_event_loop_threads_share_one_iterator_and_an_error_does_not_end_it() -> None:
    journal = ProbedJournal()
    journal.before("asking", raising(JournalError("The disk is full.")), nth=1)
    given: queue.SimpleQueue[str] = queue.SimpleQueue()
    with BlockingInbox(journal) as inbox:
        anyio.run(journal.save, asks())
        asked = inbox.asked()
        with pytest.raises(JournalError, match="full"):
            next(asked)
        given.put(next(asked).record_id)

        def iterate() -> None:
            given.put(next(asked).record_id)

        threads = [threading.Thread(target=iterate) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in threads:
            anyio.run(journal.save, asks())
        for thread in threads:
            thread.join(SOON_S)
        assert len({given.get(timeout=SOON_S) for _ in range(4)}) == 4


def test_without_an_event_loop_they_block() -> None:
    journal, given = MemoryJournal(), list[Any]()
    with BlockingInbox(journal) as inbox:

        def iterate(ask: Callable[[], Any], count: int) -> None:
            for one in ask():
                given.append(one)
                if len(given) == count:
                    break

        anyio.run(journal.save, asks())
        iterate(inbox.asked, 1)
        anyio.run(journal.save, ends())
        iterate(inbox.ended, 2)
        assert isinstance(given[0], BlockingQuestion)
        assert isinstance(given[1], TaskRecord)
        given[0].accept({"n": 3})
        assert inbox.questions() == []
        begun = threading.Event()

        def ask() -> Iterator[BlockingQuestion]:
            asked = inbox.asked()
            begun.set()
            return asked

        waiting = threading.Thread(target=iterate, args=(ask, 0))
        waiting.start()
        assert begun.wait(SOON_S)
        time.sleep(0.05)  # for it to wait by then
    waiting.join(SOON_S)
    assert not waiting.is_alive()
