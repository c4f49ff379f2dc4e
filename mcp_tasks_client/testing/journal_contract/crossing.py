"""Two journals on one medium, as two processes have them, and the lease by which one sees the other live."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import ClassVar

import anyio
import pytest

from ...errors import DrivenElsewhereError
from ...journal.base import Instruction, Journal
from ...machine.record import TaskRecord
from ..samples import SCOPE, Heard, Source, finished, lease, observing, only, record

__all__ = ["CrossingTests"]


class CrossingTests:
    """Each journal goes by the other's writes."""

    shared: ClassVar[bool] = True

    @pytest.fixture
    async def pair(self, make_journal: Callable[[], Journal]) -> AsyncIterator[tuple[Journal, Journal]]:
        """Two that are open."""
        if not self.shared:
            pytest.skip("one journal at a time is on its medium")
        with anyio.fail_after(30):
            async with make_journal() as first, make_journal() as second:
                yield first, second

    async def test_of_two_who_claim_a_key_at_once_one_wins(self, pair: tuple[Journal, Journal]) -> None:
        told: dict[str, list[TaskRecord]] = {}

        async def claim(journal: Journal, key: str) -> None:
            told.setdefault(key, []).append(await journal.claim(record(idempotency_key=key)))

        first, second = pair
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                for journal in (first, second):
                    tasks.start_soon(claim, journal, f"order-{number}")
        stand = await first.records(SCOPE)

        assert sorted(one.idempotency_key or "" for one in stand) == sorted(told)
        assert told == {one.idempotency_key: [one, one] for one in stand}

    async def test_two_who_take_at_once_share_what_there_is(self, pair: tuple[Journal, Journal]) -> None:
        given = [record(state=observing(), created_at=float(number)) for number in range(100)]
        taken: dict[str, list[str]] = {"a/1": [], "b/1": []}

        async def take(journal: Journal, owner: str) -> None:
            while more := await journal.take_pending(SCOPE, owner, limit=7, leave=taken[owner]):
                new = [one.record.record_id for one in more if one.before is None]
                if not new:
                    return
                taken[owner] += new

        first, second = pair
        async with anyio.create_task_group() as tasks:
            for one in given:
                tasks.start_soon(first.save, one)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, first, "a/1")
            tasks.start_soon(take, second, "b/1")

        assert sorted(taken["a/1"] + taken["b/1"]) == sorted(one.record_id for one in given)

    async def test_what_one_has_taken_the_other_does_not_write(self, pair: tuple[Journal, Journal]) -> None:
        late = record(state=observing(), owner="a/1")
        first, second = pair
        await first.save(late)
        taken = await second.take(late.record_id, "b/1", {"a/1"})
        assert taken is not None
        with pytest.raises(DrivenElsewhereError):
            await first.save(replace(late, state=finished()), known=True)
        assert await only(first) == await only(second) == taken.record

    async def test_whoever_listens_is_told_of_what_another_leaves(
        self, pair: tuple[Journal, Journal]
    ) -> None:
        given, heard = record(state=observing()), Heard()
        first, second = pair
        await first.save(given)
        stop = second.listen(heard)
        await first.instruct(given.record_id, Instruction("answer", "{}", 7.0))
        assert await heard.wait_for(given.record_id)
        stop()

    async def test_what_asks_is_read_at_one_moment_with_what_was_left_for_it(
        self, pair: tuple[Journal, Journal]
    ) -> None:
        """An instruction is among those that were left, or part of the state."""
        first, second = pair
        await first.save(given := record(state=observing(status="input_required"), updated_at=0.0))
        rounds, left, over = 50, [0], anyio.Event()

        async def answer_and_heed() -> None:
            for number in range(1, rounds + 1):
                instruction = Instruction(str(number), "{}", 7.0)
                await first.instruct(given.record_id, instruction)
                left[0] = number
                heeded = instruction._replace(heeded=True)
                await first.save(replace(given, updated_at=float(number)), known=True, heeded=heeded)
            over.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_and_heed)
            while not over.is_set():
                before = left[0]
                (asking,) = await second.asking(SCOPE)
                assert asking.record.updated_at >= before or str(before) in asking.left

    async def test_a_lease_is_renewed_whenever_it_is_due_until_it_is_released(
        self, pair: tuple[Journal, Journal]
    ) -> None:
        first, second = pair
        assert first.identity == second.identity, "by which the clients of a process share a lease"
        source = Source()
        first.keep_renewing(source)
        told = [(100.0, True), (130.0, False), (160.5, True)]
        for renewed_at, _ in told:
            source.next = lease("a", renewed_at=renewed_at)
            await first.save(record())  # with which it may be renewed, so as to cost nothing
            with anyio.fail_after(10):
                while source.due() is not None:  # noqa: ASYNC110  # it is told by a thread
                    await anyio.sleep(0.02)
            assert await second.owners("a/1") == {"a/1": lease("a", renewed_at=renewed_at)}

        await first.release("a")
        source.next = lease("a", renewed_at=170.0)
        await first.save(record())
        assert await second.owners("a/1") == {"a/1": None}
        assert source.told == told

    async def test_what_an_owner_had_that_has_ended_without_a_word_is_released(
        self, pair: tuple[Journal, Journal]
    ) -> None:
        """After its own writes."""
        first, second = pair
        theirs, others = record(state=observing(), owner="a/1"), record(state=observing(), owner="a/2")
        source = Source()
        await first.renew(lease("a"))
        first.keep_renewing(source)
        for one in (theirs, others):
            await first.save(one)
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(first.save, replace(theirs, updated_at=theirs.updated_at + number))
            await anyio.wait_all_tasks_blocked()  # they are asked for, and wait for their commit
            source.gone = ["a/1"]
        first.keep_renewing(source)  # as a client does now and then
        with anyio.fail_after(10):
            while source.gone:  # noqa: ASYNC110  # it is told by a thread
                await anyio.sleep(0.02)
        owners = {one.record_id: one.owner for one in await second.records(theirs.scope)}
        assert (await second.owners(owners[theirs.record_id] or ""))[owners[theirs.record_id] or ""] is None
        assert owners[others.record_id] == "a/2"
        assert (await second.owners("a/2"))["a/2"] is not None

    async def test_so_is_what_an_owner_had_that_ends_as_the_journal_closes(
        self, make_journal: Callable[[], Journal]
    ) -> None:
        """Another client holds the lease, so that the record is released by itself."""
        if not self.shared:
            pytest.skip("nobody else looks at its records")

        class Asked(Source):
            times = 0

            def ended(self) -> list[str]:
                self.times += 1
                return super().ended()

        theirs, source = record(state=observing(), owner="a/1"), Asked()
        with anyio.fail_after(30):
            async with make_journal() as journal:
                await journal.renew(lease("a"))
                journal.keep_renewing(source)
                await journal.save(theirs)
                before = source.times
                while source.times == before:  # noqa: ASYNC110  # a thread asks, and then not for a while
                    await anyio.sleep(0.02)
                source.gone = ["a/1"]
            async with make_journal() as following:
                (found,) = await following.records(theirs.scope)
                owner = found.owner or ""
                assert (await following.owners(owner))[owner] is None

    @pytest.mark.parametrize("is_held", [True, False])
    async def test_a_lease_that_no_client_holds_ends_with_the_closing(
        self, make_journal: Callable[[], Journal], is_held: bool
    ) -> None:
        if not self.shared:
            pytest.skip("nobody else looks at its leases")
        source = Source()
        source.is_held = is_held
        with anyio.fail_after(30):
            async with make_journal() as journal:
                await journal.renew(lease("a"))
                journal.keep_renewing(source)
            async with make_journal() as following:
                assert await following.owners("a/1") == {"a/1": lease("a") if is_held else None}
