"""Owners: the records that they take and release, and their leases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from ...journal.base import Journal
from ...machine.record import Scope, TaskRecord
from ...machine.states import Calling
from ..samples import SCOPE, SURROGATE, everybody, finished, lease, observing, only, record, without_lease

__all__ = ["LeaseTests", "TakePendingTests", "TakeTests"]


class TakeTests:
    """One record gets another owner."""

    async def test_a_free_record_is_taken_and_its_fence_grows(self, journal: Journal) -> None:
        given = record(state=observing(), fence=7)
        await journal.save(given)

        taken = await journal.take(given.record_id, "a/1")

        assert taken == (replace(given, owner="a/1", fence=8), None)
        assert await only(journal) == replace(given, owner="a/1", fence=8)

    async def test_taken_again_by_its_owner_its_fence_grows_again(self, journal: Journal) -> None:
        await journal.save(given := record(owner="a/1", fence=7))
        taken = await journal.take(given.record_id, "a/1")
        assert taken == (replace(given, fence=8), "a/1")

    async def test_the_record_of_an_owner_who_is_there_is_shown_and_left_alone(
        self, journal: Journal
    ) -> None:
        await journal.save(given := record(owner="a/1", fence=7))
        assert await journal.take(given.record_id, "b/1") == (given, "a/1")
        assert await only(journal) == given

    async def test_an_owner_is_judged_by_the_lease_that_covers_it(self, journal: Journal) -> None:
        await journal.save(given := record(owner="a/12", fence=7))
        await journal.renew(theirs := lease("a"))
        await journal.renew(lease("a/1"))
        await journal.renew(lease("b"))
        await journal.save(record(state=finished(), owner="c/1"))
        await journal.save(record(state=observing()))

        assert await journal.owners() == {"a/12": theirs, "c/1": None}
        assert await journal.owners("a/12", "b/7") == {"a/12": theirs, "b/7": lease("b")}
        assert await journal.take(given.record_id, "b/1", {"c/1"}) == (given, "a/12")
        taken = await journal.take(given.record_id, "b/1", {"a/12", "c/1"})

        assert taken == (replace(given, owner="b/1", fence=8), "a/12")

    async def test_what_is_not_there_is_not_taken(self, journal: Journal) -> None:
        assert await journal.take("nothing", "a/1", await everybody(journal)) is None

    async def test_of_many_who_take_at_once_one_does(self, journal: Journal) -> None:
        await journal.save(given := record(state=observing()))
        owners: list[str | None] = []

        async def take(owner: str) -> None:
            taken = await journal.take(given.record_id, owner)
            assert taken is not None
            owners.append(taken.record.owner)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(take, f"a/{number}")

        assert len(set(owners)) == 1
        assert (await only(journal)).fence == 1


class TakePendingTests:
    """Each record that is pending and free gets another owner."""

    async def test_all_that_is_pending_and_free_is_taken_oldest_first(self, journal: Journal) -> None:
        second = record(state=observing(), created_at=2.0)
        first = record(state=finished(), created_at=1.0, fence=3)
        mine = record(state=observing(), created_at=3.0, owner="a/1", fence=5)
        for given in (
            second,
            first,
            mine,
            record(state=observing(), owner="b/1"),
            record(state=finished(), delivered_at=1.0),
            record(),
            record(state=observing(), scope=Scope("https://other.example/")),
        ):
            await journal.save(given)

        taken = await journal.take_pending(SCOPE, "a/1")

        assert taken == [
            (replace(first, owner="a/1", fence=4), None),
            (replace(second, owner="a/1", fence=1), None),
            (mine, "a/1"),
        ]
        assert [one.owner for one in await journal.records(SCOPE)].count("a/1") == 3

    async def test_what_owners_who_are_gone_had_is_taken_too(self, journal: Journal) -> None:
        given = [record(state=observing(), owner=f"{name}/1", created_at=float(name)) for name in "123"]
        for one in given:
            await journal.save(one)
        await journal.renew(lease("1"))
        await journal.renew(lease("3"))

        taken = await journal.take_pending(SCOPE, "a/1", await without_lease(journal))

        assert taken == [(replace(given[1], owner="a/1", fence=1), "2/1")]

    async def test_no_more_are_taken_than_are_wanted_the_oldest_first(self, journal: Journal) -> None:
        given = [record(state=observing(), created_at=float(number)) for number in range(5)]
        for one in given:
            await journal.save(one)
        ids = [one.record_id for one in given]

        async def take(limit: int | None) -> list[str]:
            taken = await journal.take_pending(SCOPE, "a/1", limit=limit)
            return [one.record.record_id for one in taken]

        assert await take(0) == []
        assert await take(2) == ids[:2]
        assert await take(2) == ids[:4]  # with those that it has already, which do not count
        assert [one.fence for one in await journal.records(SCOPE)] == [1, 1, 1, 1, 0]
        assert await take(None) == ids

    async def test_what_is_not_free_counts_for_no_limit(self, journal: Journal) -> None:
        theirs = record(state=observing(), created_at=1.0, owner="b/1")
        left_alone = record(state=observing(), created_at=2.0)
        free = [record(state=finished(), created_at=3.0), record(state=observing(), created_at=4.0)]
        for one in (theirs, left_alone, *free):
            await journal.save(one)

        taken = await journal.take_pending(SCOPE, "a/1", limit=2, leave={left_alone.record_id, "unknown"})

        assert [one.record.record_id for one in taken] == [one.record_id for one in free]
        assert await journal.by_id(left_alone.record_id) == left_alone

    async def test_what_is_had_already_is_returned_though_it_is_to_be_left(self, journal: Journal) -> None:
        mine = record(state=observing(), owner="a/1", fence=5)
        await journal.save(mine)
        taken = await journal.take_pending(SCOPE, "a/1", leave={mine.record_id})
        assert taken == [(mine, "a/1")]

    @pytest.mark.parametrize("application", [None, "payroll", SURROGATE])
    async def test_an_application_takes_its_own_and_what_has_no_name(
        self, journal: Journal, application: str | None
    ) -> None:
        nobodys = record(state=observing(), created_at=1.0)
        payrolls = record(state=observing(), created_at=2.0, application="payroll")
        strange = record(state=finished(), created_at=3.0, application=SURROGATE, owner="a/1")
        for one in (nobodys, payrolls, strange):
            await journal.save(one)

        taken = await journal.take_pending(SCOPE, "a/1", application=application)

        names = [None] if application is None else [None, application]
        assert [one.record.application for one in taken] == names
        assert {one.record.owner for one in taken} == {"a/1"}
        others = [one for one in await journal.records(SCOPE) if one.application not in names]
        assert others == [one for one in (payrolls, strange) if one.application != application]

    @pytest.mark.parametrize("application", [None, "payroll"])
    async def test_the_principals_are_those_of_whose_records_some_would_be_taken(
        self, journal: Journal, application: str | None
    ) -> None:
        def of(principal: str, **options: Any) -> TaskRecord:
            scope = Scope(options.pop("endpoint", SCOPE.endpoint), principal)
            return record(scope=scope, **{"state": observing(), **options})

        for one in (
            *(of("ada"), of("ada", state=finished()), of(SURROGATE, state=finished()), of("")),
            *(of("bob", owner="b/1"), of("gone", owner="c/1"), of("payroll", application="payroll")),
            *(of("delivered", state=finished(), delivered_at=1.0), of("begun", state=Calling())),
            *(of("elsewhere", endpoint="https://other.example/"), of("other", application="other")),
        ):
            await journal.save(one)

        found = await journal.principals(SCOPE.endpoint, {"c/1"}, application=application)

        payroll = ["payroll"] if application else []
        assert sorted(found) == sorted(["", "ada", "gone", SURROGATE, *payroll])

    async def test_whoever_names_a_record_may_take_it_for_any_application(self, journal: Journal) -> None:
        await journal.save(given := record(state=observing(), application="payroll"))
        assert await journal.take(given.record_id, "a/1") is not None
        assert await journal.by_id(given.record_id) == replace(given, owner="a/1", fence=1)


class LeaseTests:
    """The leases that stand for owners, and the records that stay when these leave."""

    async def test_a_lease_is_kept_if_it_is_renewed_in_time(self, journal: Journal) -> None:
        assert not await journal.renew(lease("a", renewed_at=100.0))  # it was not there
        assert await journal.renew(lease("a", renewed_at=130.0))
        assert not await journal.renew(lease("a", renewed_at=160.5))  # it had run out
        assert await journal.renew(lease("a", renewed_at=161.0))

    async def test_what_an_owner_releases_is_let_go_of_if_it_is_an_outcome_or_is_anybodys(
        self, journal: Journal
    ) -> None:
        outcome = record(state=finished(), owner="a/1", created_at=1.0)
        others = [
            record(state=observing(), owner="a/1", created_at=2.0),
            record(state=Calling(), owner="a/1", created_at=3.0),
            record(state=finished(), owner="a/2", created_at=4.0),
        ]
        for one in (outcome, *others):
            await journal.save(one)

        await journal.release("a/1")

        task, call, another = others
        task, call = replace(task, owner="a/1/left"), replace(call, owner="a/1/left")
        assert await journal.records(SCOPE) == [replace(outcome, owner=None), task, call, another]
        await journal.renew(lease("a"))
        taken = await journal.take(task.record_id, "b/1", await without_lease(journal))
        assert taken == (replace(task, owner="b/1", fence=1), "a/1/left")

    async def test_a_lease_that_is_released_covers_nothing_any_more(self, journal: Journal) -> None:
        await journal.save(given := record(owner="a/1"))
        await journal.renew(lease("a"))
        await journal.renew(others := lease("b"))
        await journal.release("a")
        assert await journal.owners("a/1", "b/1") == {"a/1": None, "b/1": others}
        assert await journal.take(given.record_id, "b/1") == (given, "a/1")
