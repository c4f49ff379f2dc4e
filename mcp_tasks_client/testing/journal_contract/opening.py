"""Opened, closed and left: by several users, on several event loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import ClassVar, Final

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from ...errors import JournalError
from ...journal.base import Instruction, Journal
from ...machine.record import TaskRecord
from ..samples import SCOPE, lease, observing, record

__all__ = ["OpeningTests"]


CALLS: Final[tuple[Callable[[Journal], Awaitable[object]], ...]] = (
    lambda journal: journal.claim(record()),
    lambda journal: journal.save(record()),
    lambda journal: journal.remove(record(record_id="r")),
    lambda journal: journal.by_id("r"),
    lambda journal: journal.by_task_id(SCOPE, "t"),
    lambda journal: journal.records(SCOPE),
    lambda journal: journal.asking(SCOPE),
    lambda journal: journal.prune(1.0, 1.0),
    lambda journal: journal.renew(lease("a")),
    lambda journal: journal.owners(),
    lambda journal: journal.take("r", "a/1", {"b/1"}),
    lambda journal: journal.take_pending(SCOPE, "a/1"),
    lambda journal: journal.release("a/1"),
    lambda journal: journal.instruct("r", Instruction("n", "{}", 1.0)),
    lambda journal: journal.instructions("r"),
)


class OpeningTests:
    """A journal serves for as long as a user has it open."""

    loops: ClassVar[Sequence[str]] = ("asyncio", "trio" if find_spec("trio") else "asyncio")

    async def test_a_journal_that_is_not_open_says_so(self, make_journal: Callable[[], Journal]) -> None:
        async def refuse_all() -> None:
            for call in CALLS:
                with pytest.raises(JournalError, match="not open"):
                    await call(journal)
            with pytest.raises(JournalError, match="not open"):
                journal.deliver(9.0, {"r": 0})
            with pytest.raises(JournalError, match="not open"):
                journal.listen(lambda record_ids: None)

        journal = make_journal()
        with anyio.fail_after(30):
            await refuse_all()
            async with journal:
                for call in CALLS:
                    await call(journal)
            await refuse_all()

    async def test_it_closes_with_the_last_of_its_users(self, make_journal: Callable[[], Journal]) -> None:
        journal = make_journal()
        with anyio.fail_after(30):
            async with journal:
                async with journal, journal:
                    await journal.save(record())
                await journal.save(record())
            with pytest.raises(JournalError):
                await journal.save(record())

    async def test_whoever_opens_it_next_finds_what_there_was(
        self, make_journal: Callable[[], Journal]
    ) -> None:
        given = record(idempotency_key="order-42", state=observing(), owner="a/1")
        left, theirs = Instruction("answer", "{}", 7.0), lease("a")
        with anyio.fail_after(30):
            async with make_journal() as journal:
                await journal.claim(given)
                await journal.renew(theirs)
                await journal.instruct(given.record_id, left)
                taken = await journal.take(given.record_id, "a/1")
                assert taken is not None
            for following in (journal, make_journal()):
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(following.open)
                assert await following.records(SCOPE, pending=True) == [taken.record]
                assert await following.claim(record(idempotency_key="order-42")) == taken.record
                assert await following.owners() == {"a/1": theirs}
                assert await following.instructions(given.record_id) == [left]
                for _ in range(3):
                    await following.aclose()

    async def test_what_is_there_is_opened_for_those_who_look(
        self, make_journal: Callable[[], Journal]
    ) -> None:
        """A process with the right to write writes."""
        given, later = record(), record()
        with anyio.fail_after(30):
            async with make_journal() as journal:
                await journal.save(given)
            for looking in (journal, make_journal()):
                for _ in range(2):
                    await looking.open_existing()
                await looking.aclose()
                assert given in await looking.records(SCOPE)
                await looking.save(later)
                await looking.aclose()
                with pytest.raises(JournalError, match="not open"):
                    await looking.records(SCOPE)
            async with journal:
                assert await journal.records(SCOPE) == [given, later]

    async def test_left_without_waiting_it_is_closed_and_can_be_opened_again(
        self, make_journal: Callable[[], Journal]
    ) -> None:
        journal = make_journal()
        stays_open = type(journal).aclose_soon is Journal.aclose_soon
        with anyio.fail_after(30):
            for number in range(3):
                await journal.open()
                await journal.save(record(record_id=str(number)))
                journal.aclose_soon()
                if not stays_open:
                    with pytest.raises(JournalError, match="not open"):
                        await journal.save(record())
            async with journal:
                assert [one.record_id for one in await journal.records(SCOPE)] == ["0", "1", "2"]

    async def test_closing_once_too_often_does_no_harm(self, make_journal: Callable[[], Journal]) -> None:
        journal = make_journal()
        with anyio.fail_after(30):
            for _ in range(2):
                await journal.aclose()
                async with journal:
                    await journal.save(record())
                with pytest.raises(JournalError, match="not open"):
                    await journal.save(record())
                await journal.aclose()

    async def test_closing_while_cancelled_still_finishes_what_was_asked_for(
        self, make_journal: Callable[[], Journal]
    ) -> None:
        journal, given = make_journal(), [record() for _ in range(50)]
        with anyio.fail_after(30):
            with anyio.CancelScope() as scope:
                async with journal, anyio.create_task_group() as tasks:
                    for one in given:
                        tasks.start_soon(journal.save, one)
                    await checkpoint()
                    scope.cancel()
            async with journal:
                assert {one.record_id for one in await journal.records(SCOPE)} == {
                    one.record_id for one in given
                }

    async def test_several_event_loops_share_one_journal(self, journal: Journal) -> None:
        if not self.loops:
            pytest.skip("one event loop at a time uses it")
        given = [[record() for _ in range(50)] for _ in self.loops]

        async def write(mine: list[TaskRecord]) -> None:
            with anyio.fail_after(30):
                async with journal, anyio.create_task_group() as tasks:
                    for one in mine:
                        tasks.start_soon(journal.save, one)

        def loop(backend: str, mine: list[TaskRecord]) -> None:
            anyio.run(write, mine, backend=backend)

        async with anyio.create_task_group() as tasks:
            for backend, mine in zip(self.loops, given, strict=True):
                tasks.start_soon(to_thread.run_sync, loop, backend, mine)

        stored = {one.record_id for one in await journal.records(SCOPE)}
        assert stored == {one.record_id for mine in given for one in mine}
