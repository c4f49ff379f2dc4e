"""What every journal promises, whatever it keeps its records in."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from mcp_tasks_client.errors import DrivenElsewhereError, JournalError
from mcp_tasks_client.journal.base import LEASES_KEPT_S, Journal, Lease
from mcp_tasks_client.machine.record import Origin, Scope, TaskRecord, dump_state
from mcp_tasks_client.machine.states import (
    Calling,
    Cancelled,
    Completed,
    Failed,
    Finished,
    Gathering,
    Gone,
    LastFailure,
    Observing,
    OutcomeUnknown,
    Question,
    State,
    Violated,
)
from mcp_tasks_client.protocol.task import read_task
from tests.journal.samples import SCOPE, everybody, finished, lease, observing, only, record, without_lease

pytestmark = pytest.mark.anyio

SURROGATE: Final = "\ud83d"

TEXTS: Final = {
    "empty": "",
    "quotes": "'; DROP TABLE records; -- \"`",
    "newlines": "a\r\nb\n\tc\x0bd",
    "nul": "before\0after",
    "escapes": r"\x41 \u0041 \N{DASH} \\ %20",
    "other scripts": "Aufträge 注文 😀",
    "lone surrogate": f"a{SURROGATE}b",
    "two halves of a pair": "\ud83d\ude00",
    "64 KiB": "x" * 65_536,
    "like": "%_*?",
}


class TestClaim:
    async def test_a_new_record_is_stored_and_stands(self, journal: Journal) -> None:
        given = record(idempotency_key="order-42")

        assert await journal.claim(given) == given
        assert await journal.by_key(SCOPE, "order-42") == given

    async def test_the_first_record_of_a_key_stands_unchanged(self, journal: Journal) -> None:
        first = record(idempotency_key="order-42")
        await journal.claim(first)

        assert await journal.claim(record(idempotency_key="order-42", tool="other")) == first
        assert await only(journal) == first

    @pytest.mark.parametrize("other", [Scope("https://mcp.example/x", "alice"), Scope(SCOPE.endpoint, "bob")])
    async def test_a_key_belongs_to_one_endpoint_and_principal(self, journal: Journal, other: Scope) -> None:
        first = await journal.claim(record(idempotency_key="order-42"))
        second = record(idempotency_key="order-42", scope=other)

        assert await journal.claim(second) == second
        assert await journal.by_key(SCOPE, "order-42") == first
        assert await journal.by_key(other, "order-42") == second

    async def test_records_without_a_key_never_meet(self, journal: Journal) -> None:
        given = [record(), record()]

        assert [await journal.claim(one) for one in given] == given
        assert await journal.records(SCOPE) == given

    async def test_claiming_a_record_again_gives_what_became_of_it(self, journal: Journal) -> None:
        for given in (record(idempotency_key="order-42"), record()):
            await journal.claim(given)
            now = replace(given, state=observing())
            await journal.save(now)

            assert await journal.claim(given) == now

    async def test_of_many_at_once_one_wins_and_all_are_told_the_same(self, journal: Journal) -> None:
        told: list[TaskRecord] = []

        async def claim(one: TaskRecord) -> None:
            told.append(await journal.claim(one))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(claim, record(idempotency_key="order-42"))

        assert told == [await only(journal)] * 50


class TestSave:
    async def test_a_record_is_stored_as_it_now_is(self, journal: Journal) -> None:
        given = record(idempotency_key="order-42")
        await journal.save(given)
        assert await only(journal) == given

        now = TaskRecord(
            record_id=given.record_id,
            scope=Scope("stdio:server", ""),
            tool=None,
            arguments_digest="ab" * 32,
            idempotency_key="order-43",
            state=finished(),
            created_at=1.0,
            updated_at=2.0,
            delivered_at=3.0,
            owner="host:4711",
        )
        await journal.save(now)

        assert await journal.records(SCOPE) == []
        assert await only(journal, now.scope) == now
        assert await journal.by_key(SCOPE, "order-42") is None

    async def test_a_key_that_another_record_holds_is_refused_and_nothing_changes(
        self, journal: Journal
    ) -> None:
        first, second = record(idempotency_key="order-42"), record(idempotency_key="order-43")
        await journal.save(first)
        await journal.save(second)

        for intruder in (replace(second, idempotency_key="order-42"), record(idempotency_key="order-42")):
            with pytest.raises(JournalError, match="idempotency key; read that one by its key"):
                await journal.save(intruder)

        assert await journal.records(SCOPE) == [first, second]
        assert await journal.by_key(SCOPE, "order-43") == second

    @pytest.mark.parametrize(
        ("nonsense", "error"),
        [
            ({"created_at": float("nan")}, ValueError),
            ({"updated_at": float("inf")}, ValueError),
            ({"delivered_at": float("nan")}, ValueError),
            ({"fence": -1}, ValueError),
            ({"fence": 2**63}, ValueError),
            ({"tool": 7}, TypeError),
            ({"idempotency_key": b"order"}, TypeError),
            ({"state": finished(Completed(result={"a": {1, 2}}))}, TypeError),
        ],
    )
    async def test_nonsense_is_refused_before_it_is_stored(
        self, journal: Journal, nonsense: dict[str, Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            await journal.save(record(**nonsense))
        with pytest.raises(error):
            await journal.claim(record(**nonsense))

        assert await journal.records(SCOPE) == []

    async def test_many_at_once_are_all_stored(self, journal: Journal) -> None:
        given = [record(created_at=float(number)) for number in range(200)]

        async with anyio.create_task_group() as tasks:
            for one in given:
                tasks.start_soon(journal.save, one)

        assert await journal.records(SCOPE) == given

    @pytest.mark.parametrize("known", [False, True])
    async def test_of_many_at_once_who_is_late_fails_alone(self, journal: Journal, known: bool) -> None:
        given = [record(state=observing(), owner="a/1", created_at=float(number)) for number in range(20)]
        for one in given:
            await journal.save(one)
        taken = await journal.take(given[7].record_id, "b/1", await everybody(journal))
        assert taken is not None
        late: list[str] = []

        async def save(one: TaskRecord) -> None:
            try:
                await journal.save(one, known=known)
            except DrivenElsewhereError:
                late.append(one.record_id)

        changed = [replace(one, state=finished(), updated_at=9.0) for one in given]
        async with anyio.create_task_group() as tasks:
            for one in changed:
                tasks.start_soon(save, one)

        assert late == [given[7].record_id]
        changed[7] = taken.record
        assert await journal.records(SCOPE) == changed

    @pytest.mark.parametrize("known", [False, True])
    async def test_of_many_writes_of_one_record_the_last_stays(self, journal: Journal, known: bool) -> None:
        given = record(state=observing())
        await journal.save(given)

        order: list[float] = []

        async def save(number: float) -> None:
            order.append(number)
            await journal.save(replace(given, updated_at=number), known=known)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(save, float(number))

        assert (await only(journal)).updated_at == order[-1]

    async def test_being_cancelled_while_waiting_does_not_undo_the_write(self, journal: Journal) -> None:
        saved, claimed = record(), record(idempotency_key="order-42")
        removed = record(scope=Scope("https://other.example/"))
        await journal.save(removed)
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: journal.save(saved),
            lambda: journal.claim(claimed),
            lambda: journal.remove(removed),
        ]

        for write in writes:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await write()
            assert scope.cancelled_caught

        assert await journal.records(SCOPE) == [saved, claimed]
        assert await journal.records(removed.scope) == []

    async def test_what_was_taken_since_is_not_written_by_a_late_owner(self, journal: Journal) -> None:
        late = record(state=observing(), owner="early/1")
        await journal.save(late)
        taken = await journal.take(late.record_id, "next/1", await everybody(journal))
        assert taken is not None

        for known in (False, True):
            with pytest.raises(
                DrivenElsewhereError, match="Another client has taken over the call of 'report'"
            ):
                await journal.save(replace(late, state=finished()), known=known)
        await journal.remove(late)

        assert await only(journal) == taken.record

    async def test_what_was_known_and_is_forgotten_is_not_stored_anew(self, journal: Journal) -> None:
        late = record(state=observing(), owner="early/1")
        await journal.save(late)
        await journal.save(replace(late, updated_at=2.0), known=True)
        assert await only(journal) == replace(late, updated_at=2.0)
        await journal.take(late.record_id, "next/1", await everybody(journal))
        await journal.save(
            replace(late, fence=late.fence + 1, state=finished(), delivered_at=3.0), known=True
        )
        assert await journal.prune(4.0, 4.0) == 1

        with pytest.raises(DrivenElsewhereError, match="Another client has taken over the call of 'report'"):
            await journal.save(late, known=True)

        assert await journal.records(SCOPE) == []


class TestRemove:
    async def test_a_removed_record_is_forgotten_and_its_key_is_free(self, journal: Journal) -> None:
        first, second = record(idempotency_key="order-42", state=observing()), record()
        await journal.save(first)
        await journal.save(second)

        await journal.remove(first)

        assert await journal.records(SCOPE) == [second]
        assert await journal.records(SCOPE, pending=True) == []
        assert await journal.by_task_id(SCOPE, "task-1") is None
        assert await journal.by_key(SCOPE, "order-42") is None
        again = record(idempotency_key="order-42")
        assert await journal.claim(again) == again

    async def test_removing_what_is_not_there_does_nothing(self, journal: Journal) -> None:
        await journal.save(given := record())
        await journal.remove(record())
        assert await only(journal) == given


class TestTake:
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


class TestTakePending:
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

    async def test_whoever_names_a_record_may_take_it_for_any_application(self, journal: Journal) -> None:
        await journal.save(given := record(state=observing(), application="payroll"))
        assert await journal.take(given.record_id, "a/1") is not None
        assert await journal.by_id(given.record_id) == replace(given, owner="a/1", fence=1)


class TestLeases:
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


class TestDeliver:
    async def test_an_outcome_that_was_delivered_is_nobodys_and_pending_no_more(
        self, journal: Journal
    ) -> None:
        first, second, other = (
            record(state=finished(), created_at=number, owner="a/1", fence=3, idempotency_key=str(number))
            for number in (1.0, 2.0, 3.0)
        )
        for given in (first, second, other):
            await journal.save(given)

        journal.deliver(9.0, {first.record_id: 3, second.record_id: 3})

        first, second = (
            replace(given, owner=None, delivered_at=9.0, updated_at=9.0) for given in (first, second)
        )
        assert await journal.records(SCOPE) == [first, second, other]
        assert await journal.records(SCOPE, pending=True) == [other]
        assert await journal.by_key(SCOPE, "1.0") == first
        assert await journal.take(first.record_id, "b/1", await everybody(journal)) == (first, None)
        assert await journal.prune(9.5, 9.5) == 2

    @pytest.mark.parametrize(
        "given",
        [
            {"state": finished(), "fence": 4},
            {"state": finished(), "fence": 3, "delivered_at": 5.0},
            {"state": observing(), "fence": 3},
            {"state": Calling(), "fence": 3},
            {"state": OutcomeUnknown(), "fence": 3},
        ],
        ids=["taken since", "delivered before", "a task", "a call", "of unknown outcome"],
    )
    async def test_anything_else_stays_as_it_is(self, journal: Journal, given: dict[str, Any]) -> None:
        await journal.save(stays := record(owner="a/1", **given))
        journal.deliver(9.0, {stays.record_id: 3, "forgotten": 3})
        assert await journal.records(SCOPE) == [stays]
        assert await journal.by_task_id(SCOPE, "forgotten") is None

    async def test_an_outcome_without_a_key_is_forgotten_once_it_was_delivered(
        self, journal: Journal
    ) -> None:
        given = record(state=replace(finished(), task=observing().task), fence=3)
        await journal.save(given)
        await journal.save(other := record(state=finished()))

        journal.deliver(9.0, {given.record_id: 3})

        assert await journal.records(SCOPE) == [other]
        assert await journal.by_id(given.record_id) is None
        assert await journal.by_task_id(SCOPE, "task-1") is None

    async def test_many_outcomes_are_delivered_each_by_its_own_kind(self, journal: Journal) -> None:
        keys = [None if number % 7 else f"order-{number}" for number in range(30)]
        given = [
            record(state=finished(), idempotency_key=key, created_at=float(number))
            for number, key in enumerate(keys)
        ]
        for one in given:
            await journal.save(one)

        journal.deliver(9.0, {one.record_id: 0 for one in given})

        assert await journal.records(SCOPE) == [
            replace(one, delivered_at=9.0, updated_at=9.0) for one in given if one.idempotency_key
        ]

    async def test_an_outcome_without_a_key_can_be_kept_after_it_was_delivered(
        self, journal: Journal
    ) -> None:
        given = record(state=replace(finished(), task=observing().task), fence=3, owner="a/1")
        await journal.save(given)

        journal.deliver(9.0, {given.record_id: 3}, keep_until=609.0)

        delivered = replace(given, owner=None, delivered_at=9.0, updated_at=9.0)
        assert await journal.records(SCOPE, pending=True) == []
        assert await journal.take_pending(SCOPE, "b/1", await everybody(journal)) == []
        assert await journal.records(SCOPE) == [delivered]
        assert await journal.by_id(given.record_id) == delivered
        assert await journal.by_task_id(SCOPE, "task-1") == delivered
        journal.deliver(10.0, {given.record_id: 3})
        assert await only(journal) == delivered, "it is delivered once"

    async def test_what_was_delivered_of_late_is_found(self, journal: Journal) -> None:
        elsewhere = Scope("https://other.example/")
        given = [
            record(state=finished(), delivered_at=8.0),
            record(state=finished(), delivered_at=9.0, created_at=3.0),
            record(state=finished(), delivered_at=10.0, created_at=2.0, idempotency_key="order-42"),
            record(state=finished(), delivered_at=10.0, scope=elsewhere),
            record(state=finished()),
            record(state=observing()),
        ]
        for one in given:
            await journal.save(one)

        assert await journal.records(SCOPE, delivered_since=9.0) == [given[2], given[1]], "oldest first"
        assert await journal.records(elsewhere, delivered_since=9.0) == [given[3]]
        assert await journal.records(SCOPE, delivered_since=11.0) == []

    async def test_what_asks_is_found(self, journal: Journal) -> None:
        elsewhere = Scope("https://other.example/")
        asks, before = (
            observing(status="input_required"),
            Gathering(round=1, request_state=None, questions=()),
        )
        given = [
            record(state=asks, created_at=2.0),
            record(state=before, created_at=1.0, idempotency_key="order-42"),
            record(state=asks, created_at=3.0, scope=elsewhere),
            record(state=observing()),
            record(state=finished()),
        ]
        for one in given:
            await journal.save(one)

        assert await journal.records(SCOPE, asking=True) == [given[1], given[0]], "oldest first"
        assert await journal.records(None, asking=True) == [given[1], given[0], given[2]]

    async def test_a_time_that_is_none_is_refused(self, journal: Journal) -> None:
        await journal.save(stays := record(state=finished()))
        with pytest.raises(ValueError, match="finite"):
            journal.deliver(float("nan"), {stays.record_id: 0})
        assert await only(journal) == stays


class TestPrune:
    async def test_what_was_delivered_before_the_time_is_forgotten(self, journal: Journal) -> None:
        old = record(state=finished(), delivered_at=99.0, idempotency_key="old")
        elsewhere = record(state=finished(), delivered_at=98.0, scope=Scope("https://other.example/"))
        kept = [
            record(state=finished(), delivered_at=100.0, created_at=1.0),
            record(state=finished(), created_at=2.0),
            record(state=observing(), created_at=3.0),
            record(state=OutcomeUnknown(), created_at=4.0),
        ]
        for one in (old, elsewhere, *kept):
            await journal.save(one)

        assert await journal.prune(100.0, 200.0) == 2

        assert await journal.records(SCOPE) == kept
        assert await journal.records(elsewhere.scope) == []
        assert await journal.by_key(SCOPE, "old") is None
        assert await journal.prune(100.0, 200.0) == 0

    async def test_a_task_whose_time_to_live_had_passed_is_forgotten(self, journal: Journal) -> None:
        """Nobody came back for it, and the server has dropped it."""
        expired = record(state=observing(ttl_ms=98_000), created_at=1.0)  # at 99.25 s
        kept = [
            record(state=observing("alive", ttl_ms=99_000), created_at=2.0),
            record(state=observing("endless"), created_at=3.0),
            record(state=replace(finished(), task=observing(ttlMs=1).task), created_at=4.0),
        ]
        for one in (expired, *kept):
            await journal.save(one)

        assert await journal.prune(100.0, 200.0) == 1
        assert await journal.records(SCOPE) == kept

    async def test_a_call_that_never_began_and_that_nobody_went_on_with_is_forgotten(
        self, journal: Journal
    ) -> None:
        asked = Gathering(round=1, request_state=None, questions=())
        kept = [
            record(idempotency_key="new", state=asked, updated_at=150.0),
            record(idempotency_key="may have run", state=replace(asked, again=True), updated_at=50.0),
            record(idempotency_key="owned", state=asked, updated_at=50.0, owner="host/1"),
            record(
                idempotency_key="answered",
                state=replace(asked, questions=(Question(key="a", digest="d", stage="answered"),)),
                updated_at=50.0,
            ),
        ]
        for one in (*kept, record(idempotency_key="old", state=asked, updated_at=50.0)):
            await journal.save(one)
        assert await journal.prune(100.0, 200.0) == 1
        assert await journal.records(SCOPE) == kept

    @pytest.mark.parametrize("kept_until", [149.0, 150.0])
    async def test_what_was_kept_after_its_delivery_is_forgotten_when_its_time_is_over(
        self, journal: Journal, kept_until: float
    ) -> None:
        given = record(state=finished())
        keyed = record(state=finished(), idempotency_key="order-42")
        for one in (given, keyed):
            await journal.save(one)
            journal.deliver(140.0, {one.record_id: 0}, keep_until=kept_until)

        assert await journal.prune(100.0, 150.0) == (kept_until < 150.0)

        there = [one.record_id for one in await journal.records(SCOPE)]
        assert there == ([given.record_id] if kept_until == 150.0 else []) + [keyed.record_id]
        assert await journal.prune(141.0, 142.0) == len(there), "by hand it is forgotten sooner"

    async def test_a_task_that_somebody_drives_is_not_forgotten_however_old_it_seems(
        self, journal: Journal
    ) -> None:
        expired = observing(ttl_ms=1_000)
        living = record(state=expired, owner="a/1", created_at=1.0)
        dead = record(state=expired, owner="b/1", created_at=2.0)
        without_lease = record(state=expired, owner="c/1", created_at=3.0)
        for one in (living, dead, without_lease):
            await journal.save(one)
        await journal.renew(theirs := lease("a"))
        await journal.renew(lease("b"))

        owners = await journal.owners()
        gone = {owner for owner, covering in owners.items() if covering != theirs}
        assert await journal.prune(100.0, 100.0, gone) == 2
        assert await only(journal) == living

    async def test_a_lease_that_has_run_out_long_ago_is_forgotten_too(self, journal: Journal) -> None:
        await journal.renew(lease("old", renewed_at=60.0))
        await journal.renew(new := lease("new", renewed_at=80.0))

        await journal.prune(100.0 + LEASES_KEPT_S, 100.0 + LEASES_KEPT_S)

        assert await covering(journal, "old/1") is None
        assert await covering(journal, "new/1") == new


async def covering(journal: Journal, owner: str) -> Lease | None:
    """The lease that covers an owner, as whoever judges is told."""
    return (await journal.owners(owner))[owner]


class TestLookups:
    async def test_an_unknown_key_or_task_is_none(self, journal: Journal) -> None:
        await journal.save(record(idempotency_key="order-42", state=observing("task-1")))

        assert await journal.by_key(SCOPE, "order-43") is None
        assert await journal.by_task_id(SCOPE, "task-2") is None
        assert await journal.by_id("record") is None

    async def test_a_record_is_found_by_its_own_id(self, journal: Journal) -> None:
        await journal.save(given := record())
        await journal.save(record())
        assert await journal.by_id(given.record_id) == given

    @pytest.mark.parametrize("lookup", ["by_key", "by_task_id"])
    async def test_a_lookup_needs_text(self, journal: Journal, lookup: str) -> None:
        with pytest.raises(TypeError):
            await getattr(journal, lookup)(SCOPE, 7)

    async def test_a_task_is_found_in_its_own_scope_alone(self, journal: Journal) -> None:
        await journal.save(given := record(state=observing("task-1")))

        assert await journal.by_task_id(SCOPE, "task-1") == given
        assert await journal.by_task_id(replace(SCOPE, principal="bob"), "task-1") is None
        assert await journal.by_task_id(replace(SCOPE, endpoint="https://x.example/"), "task-1") is None

    async def test_the_newest_record_of_a_task_is_found(self, journal: Journal) -> None:
        newest = record(state=observing(), created_at=3.0)
        await journal.save(record(state=observing(), created_at=2.0))
        await journal.save(record(state=observing(), created_at=3.0))
        await journal.save(newest)
        await journal.save(record(state=observing(), created_at=1.0))
        await journal.save(record(state=observing("task-2"), created_at=4.0))

        assert await journal.by_task_id(SCOPE, "task-1") == newest

    async def test_a_task_is_still_found_once_it_has_ended(self, journal: Journal) -> None:
        watched = record(state=observing("task-1"))
        await journal.save(watched)
        task = watched.task
        assert task is not None
        ended = replace(watched, state=Finished(outcome=Cancelled(), task=task), delivered_at=5.0)
        await journal.save(ended)

        assert await journal.by_task_id(SCOPE, "task-1") == ended

    async def test_task_ids_are_compared_byte_for_byte(self, journal: Journal) -> None:
        composed = "tâche"
        task_ids = [
            composed,
            unicodedata.normalize("NFD", composed),
            "TÂCHE",
            "tâche ",
            "tâche\0",
            r"t\xe2che",
            "x" * 65_536,
            "7",
            "7.0",
            "07",
        ]
        given = {task_id: record(state=observing(task_id)) for task_id in task_ids}
        for one in given.values():
            await journal.save(one)

        for task_id, one in given.items():
            assert await journal.by_task_id(SCOPE, task_id) == one
        assert await journal.by_task_id(SCOPE, SURROGATE) is None

    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    async def test_any_text_is_kept_and_found(self, journal: Journal, text: str) -> None:
        scope = Scope(text, text)
        given = record(
            record_id=text,
            scope=scope,
            tool=text,
            arguments_digest=text,
            idempotency_key=text,
            owner=text,
            label=text,
            application=text,
        )
        await journal.claim(given)

        assert await only(journal, scope) == given
        assert await journal.by_key(scope, text) == given
        assert await journal.by_id(text) == given
        assert await journal.claim(record(scope=scope, idempotency_key=text)) == given
        await journal.remove(record(record_id=text))
        assert await journal.records(scope) == []

    async def test_no_two_texts_are_taken_for_one(self, journal: Journal) -> None:
        texts = [*TEXTS.values(), "😀", r"\x00", "\\ud83d", "before"]
        for text in texts:
            await journal.save(record(idempotency_key=text))

        assert [one.idempotency_key for one in await journal.records(SCOPE)] == texts


class TestRecords:
    async def test_the_oldest_come_first_and_of_equal_age_those_that_arrived_first(
        self, journal: Journal
    ) -> None:
        times = [2.0, 1.0, 2.0, 0.5, 1.0]
        given = [record(created_at=time, state=observing()) for time in times]
        for one in given:
            await journal.save(one)
        await journal.save(given[0])  # being updated is no new arrival
        expected = [given[number] for number in (3, 1, 4, 0, 2)]

        assert await journal.records(SCOPE) == expected
        assert await journal.records(SCOPE, pending=True) == expected

    async def test_pending_is_what_must_be_watched_or_delivered(self, journal: Journal) -> None:
        states = [Calling(), OutcomeUnknown(), observing(), finished()]
        given = [record(state=state) for state in states]
        delivered = record(state=finished(), delivered_at=9.0)
        for one in (*given, delivered, record(state=observing(), scope=Scope("https://x.example/"))):
            await journal.save(one)

        assert await journal.records(SCOPE, pending=True) == given[2:]
        assert await journal.records(SCOPE) == [*given, delivered]

    async def test_what_is_delivered_is_pending_no_more(self, journal: Journal) -> None:
        given = record(state=observing())
        steps: list[tuple[State, float | None, bool]] = [
            (observing(), None, True),
            (finished(), None, True),
            (finished(), 9.0, False),
        ]
        for state, delivered_at, pending in steps:
            await journal.save(replace(given, state=state, delivered_at=delivered_at))
            assert bool(await journal.records(SCOPE, pending=True)) is pending

    @pytest.mark.parametrize("known", [False, True])
    async def test_what_a_record_says_of_whose_it_is_stays_through_its_life(
        self, journal: Journal, known: bool
    ) -> None:
        origin = Origin(program=f"wörker{SURROGATE}.py", host='a "host"\\', pid=2**22)
        given = record(idempotency_key="order-42", label="Bücher", application="payroll", origin=origin)
        assert await journal.claim(given) == given
        ended = replace(given, state=finished())
        for one in (replace(given, state=observing()), ended):
            await journal.save(one, known=known)
            assert await only(journal) == one

        journal.deliver(9.0, {given.record_id: 0})

        assert await only(journal) == replace(ended, delivered_at=9.0, updated_at=9.0)

    async def test_the_records_of_all_scopes_are_those_of_none_in_particular(self, journal: Journal) -> None:
        others = [Scope("https://other.example/"), replace(SCOPE, principal="bob"), SCOPE]
        given = [record(scope=scope, state=observing(), created_at=9.0 - n) for n, scope in enumerate(others)]
        delivered = record(state=finished(), delivered_at=5.0, created_at=1.0)
        for one in (*given, delivered):
            await journal.save(one)

        assert await journal.records(None) == [delivered, *reversed(given)]
        assert await journal.records(None, pending=True) == [*reversed(given)]
        assert await journal.records(None, delivered_since=5.0) == [delivered]
        assert await journal.records(None, delivered_since=5.5) == []


NASTY: Final = {
    "unknown": {"deep": [1, {"er": None}], "": SURROGATE},
    "big": 10**40,
    "float": 0.1 + 0.2,
    "nan": float("nan"),
    "inf": float("-inf"),
    # JSON cannot tell two halves from the pair, so none that was read holds them apart.
    "texts": [text for name, text in TEXTS.items() if name != "two halves of a pair"],
    SURROGATE: "\0",
}
QUESTION: Final = Question(
    key=f"q{SURROGATE}", digest="d", stage="answered", request={"params": NASTY}, answer=NASTY, refusal="no"
)
TASK: Final = read_task(
    {
        "taskId": "tâche\0'\n\\x00",
        "status": "paused\0'",
        "statusMessage": f"{SURROGATE}\r\n",
        "createdAt": "2026-07-28T00:00:00Z",
        "ttlMs": None,
        "pollIntervalMs": 0.5,
        "inputRequests": {SURROGATE: NASTY},
        "requestState": "x" * 65_536,
    }
)
OBSERVING: Final = Observing(
    task=TASK,
    received_at=1.25,
    due_at=2.5,
    wait_s=0.1,
    poll_interval_ms=0.5,
    ttl_ms=1e300,
    session_data=SURROGATE,
    unchanged=1,
    failure=LastFailure(message=SURROGATE, count=2, since=1.5),
    looks=3,
    questions=(QUESTION, Question(key="", digest="")),
    cancel="requested",
    reported=("b", "a"),
)
STATES: Final[dict[str, State]] = {
    "calling": Calling(round=3),
    "gathering": Gathering(round=1, request_state=SURROGATE, questions=(QUESTION,)),
    "outcome unknown": OutcomeUnknown(),
    "observing": OBSERVING,
    "completed": Finished(outcome=Completed(result=NASTY), task=TASK),
    "completed at once": finished(),
    "failed": Finished(outcome=Failed(code=-(10**30), message=SURROGATE, data=NASTY), task=TASK),
    "cancelled": Finished(outcome=Cancelled(status_message=SURROGATE), task=TASK),
    "gone": Finished(outcome=Gone(why="expired", message="\0"), task=TASK),
    "violated": Finished(outcome=Violated(message=SURROGATE), task=TASK),
}


class TestStates:
    @pytest.mark.parametrize("state", STATES.values(), ids=STATES)
    async def test_every_state_comes_back_as_it_was(self, journal: Journal, state: State) -> None:
        await journal.save(given := record(state=state))

        found = await only(journal)

        # As text, since NaN is not equal to itself.
        assert repr(found.state) == repr(state)
        assert dump_state(found.state) == dump_state(state)
        assert (found.task_id, found.status, found.pending) == (given.task_id, given.status, given.pending)
        if given.task_id is not None:
            by_task_id = await journal.by_task_id(SCOPE, given.task_id)
            assert repr(by_task_id) == repr(found)

    async def test_absent_and_null_stay_apart(self, journal: Journal) -> None:
        absent, null = observing("absent"), observing("null", ttlMs=None)
        await journal.save(record(state=absent))
        await journal.save(record(state=null))

        found = [one.task.to_wire() for one in await journal.records(SCOPE) if one.task]

        assert found == [
            {"taskId": "absent", "status": "working"},
            {"taskId": "null", "status": "working", "ttlMs": None},
        ]

    async def test_of_a_snapshot_only_what_the_protocol_names_is_kept(self, journal: Journal) -> None:
        """A server could fill the disk with the rest."""
        await journal.save(record(state=observing(vendor="x" * 1_000)))
        found = (await only(journal)).task
        assert found is not None
        assert found.to_wire() == {"taskId": "task-1", "status": "working"}

    @pytest.mark.parametrize("write", ["save", "claim"])
    async def test_later_changes_to_what_was_given_are_not_stored(self, journal: Journal, write: str) -> None:
        result = {"content": [{"text": "as it was"}]}
        given = record(state=finished(Completed(result=result)), idempotency_key="order-42")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(getattr(journal, write), given)
            await anyio.wait_all_tasks_blocked()  # asked for, and perhaps not yet done
            result["content"][0]["text"] = "changed"

        found = await only(journal)
        assert isinstance(found.state, Finished)
        assert found.state.outcome == Completed(result={"content": [{"text": "as it was"}]})

    async def test_changes_to_what_was_read_are_not_stored(self, journal: Journal) -> None:
        asked = {"q": {"method": "elicitation/create", "params": {"n": [1]}}}
        state = observing(status="input_required", inputRequests=asked)
        await journal.save(record(state=state, idempotency_key="order-42"))

        for _ in range(2):
            by_key = await journal.by_key(SCOPE, "order-42")
            by_task_id = await journal.by_task_id(SCOPE, "task-1")
            standing = await journal.claim(record(idempotency_key="order-42"))
            for found in (by_key, by_task_id, standing, await only(journal)):
                assert found is not None
                assert found.task is not None
                assert found.task.input_requests is not None
                params = found.task.input_requests["q"]["params"]
                assert params == {"n": [1]}
                params["n"].append(2)


class TestOpening:
    CALLS: Final[dict[str, Callable[[Journal], Any]]] = {
        "claim": lambda journal: journal.claim(record()),
        "save": lambda journal: journal.save(record()),
        "remove": lambda journal: journal.remove(record(record_id="r")),
        "by_key": lambda journal: journal.by_key(SCOPE, "k"),
        "by_task_id": lambda journal: journal.by_task_id(SCOPE, "t"),
        "records": lambda journal: journal.records(SCOPE),
        "take": lambda journal: journal.take("r", "a/1", {"b/1"}),
    }

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
    async def test_a_journal_that_is_not_open_says_so(
        self, make_journal: Callable[[], Journal], call: Callable[[Journal], Any]
    ) -> None:
        journal = make_journal()
        with anyio.fail_after(30):
            with pytest.raises(JournalError, match="is not open; open it first"):
                await call(journal)
            async with journal:
                await call(journal)
            with pytest.raises(JournalError, match="is not open; open it first"):
                await call(journal)

    async def test_it_closes_with_the_last_of_its_users(self, make_journal: Callable[[], Journal]) -> None:
        journal = make_journal()
        with anyio.fail_after(30):
            async with journal:
                async with journal, journal:
                    await journal.save(record())
                await journal.save(record())
            with pytest.raises(JournalError):
                await journal.save(record())

    async def test_opened_again_it_has_what_it_had(self, make_journal: Callable[[], Journal]) -> None:
        journal, given = make_journal(), record(idempotency_key="order-42", state=observing())
        with anyio.fail_after(30):
            async with journal:
                await journal.save(given)
            async with journal:
                assert await journal.records(SCOPE, pending=True) == [given]
                assert await journal.claim(record(idempotency_key="order-42")) == given

    async def test_left_without_waiting_it_is_closed_and_can_be_opened_again(
        self, make_journal: Callable[[], Journal]
    ) -> None:
        journal = make_journal()
        with anyio.fail_after(30):
            for number in range(3):
                await journal.open()
                await journal.save(record(record_id=str(number)))
                journal.aclose_soon()
                with pytest.raises(JournalError, match="is not open; open it first"):
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
                with pytest.raises(JournalError, match="is not open"):
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
        given = {backend: [record() for _ in range(50)] for backend in ("asyncio", "trio")}

        async def write(mine: list[TaskRecord]) -> None:
            with anyio.fail_after(30):
                async with journal, anyio.create_task_group() as tasks:
                    for one in mine:
                        tasks.start_soon(journal.save, one)

        def loop(backend: str) -> None:
            anyio.run(write, given[backend], backend=backend)

        async with anyio.create_task_group() as tasks:
            for backend in given:
                tasks.start_soon(to_thread.run_sync, loop, backend)

        stored = {one.record_id for one in await journal.records(SCOPE)}
        assert stored == {one.record_id for mine in given.values() for one in mine}
