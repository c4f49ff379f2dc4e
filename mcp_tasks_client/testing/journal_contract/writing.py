"""Writing: claims, states and deliveries, each kept or refused as a whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ...errors import DrivenElsewhereError, JournalError
from ...journal.base import Asking, Journal
from ...machine.record import Origin, Scope, TaskRecord
from ...machine.states import Calling, Completed, OutcomeUnknown
from ..samples import SCOPE, everybody, finished, observing, only, record, with_key

__all__ = ["ClaimTests", "DeliverTests", "SaveTests"]


class ClaimTests:
    """A new record, and the key that it may have."""

    async def test_a_new_record_is_stored_and_stands(self, journal: Journal) -> None:
        given = record(idempotency_key="order-42")

        assert await journal.claim(given) == given
        assert await with_key(journal, SCOPE, "order-42") == given

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
        assert await with_key(journal, SCOPE, "order-42") == first
        assert await with_key(journal, other, "order-42") == second

    async def test_records_without_a_key_never_meet(self, journal: Journal) -> None:
        given = [record() for _ in range(5)]

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


class SaveTests:
    """A record as it now is, unless it was taken since."""

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
            label="for Ada",
            application="payroll",
            origin=Origin("worker.py", "web-1", 4711),
        )
        await journal.save(now)

        assert await journal.records(SCOPE) == []
        assert await only(journal, now.scope) == now
        assert await with_key(journal, SCOPE, "order-42") is None

    @pytest.mark.parametrize("known", [False, True])
    async def test_what_is_saved_later_decides_what_is_found(self, journal: Journal, known: bool) -> None:
        save = partial(journal.save, known=known)
        await journal.save(given := record(idempotency_key="order-42"))
        assert await journal.records(SCOPE, pending=True) == []

        await save(working := replace(given, state=observing(ttl_ms=1_000), owner="a/1"))
        assert await journal.by_task_id(SCOPE, "task-1") == working
        assert await journal.records(SCOPE, pending=True) == [working]
        assert await journal.asking(SCOPE) == []

        await save(asks := replace(working, state=observing(status="input_required"), updated_at=2.0))
        assert await journal.asking(SCOPE) == [Asking(asks, [])]
        journal.deliver(9.0, {given.record_id: 0})
        assert await only(journal) == asks, "it is no outcome"

        await save(ended := replace(asks, state=finished(), owner=None))
        assert await only(journal) == ended
        assert await journal.asking(SCOPE) == []
        journal.deliver(9.0, {given.record_id: 0})
        assert await journal.records(SCOPE, pending=True) == []
        assert await journal.records(SCOPE, delivered_since=9.0) == [
            replace(ended, delivered_at=9.0, updated_at=9.0)
        ]

    @pytest.mark.parametrize("known", [False, True])
    async def test_a_time_to_live_that_has_changed_decides_what_is_kept(
        self, journal: Journal, known: bool
    ) -> None:
        prolonged = record(state=observing("prolonged", ttl_ms=1_000))
        shortened = record(state=observing("shortened"))
        ended = record(state=observing("ended", ttl_ms=1_000))
        for one in (prolonged, shortened, ended):
            await journal.save(one)

        kept = [
            replace(prolonged, state=observing("prolonged", ttl_ms=99_000)),
            replace(ended, state=replace(finished(), task=observing("ended").task)),
        ]
        for one in (*kept, replace(shortened, state=observing("shortened", ttl_ms=98_000))):
            await journal.save(one, known=known)

        assert await journal.prune(100.0, 100.0) == 1
        assert await journal.records(SCOPE) == kept

    @pytest.mark.parametrize("is_claimed", [False, True])
    async def test_all_that_a_new_record_says_is_kept(self, journal: Journal, is_claimed: bool) -> None:
        given = record(
            arguments_digest="ab" * 32,
            idempotency_key="order-42",
            state=finished(),
            delivered_at=103.0,
            owner="a/1",
            fence=7,
            label="for Ada",
            application="payroll",
            origin=Origin("worker.py", "web-1", 4711),
        )
        expired = record(state=observing(ttl_ms=98_000), created_at=1.0)
        for one in (given, expired):
            if is_claimed:
                assert await journal.claim(one) == one
            else:
                await journal.save(one)

        assert await journal.by_id(given.record_id) == given
        assert await journal.by_task_id(SCOPE, "task-1") == expired
        journal.deliver(9.0, {expired.record_id: 0})
        assert await journal.records(SCOPE) == [expired, given]
        assert await journal.claim(other := record(idempotency_key="order-42")) == given != other
        assert await journal.prune(100.0, 100.0) == 1
        assert await only(journal) == given

    async def test_a_key_that_another_record_holds_is_refused_and_nothing_changes(
        self, journal: Journal
    ) -> None:
        first, second = record(idempotency_key="order-42"), record(idempotency_key="order-43")
        await journal.save(first)
        await journal.save(second)

        for intruder in (replace(second, idempotency_key="order-42"), record(idempotency_key="order-42")):
            with pytest.raises(JournalError):
                await journal.save(intruder)

        assert await journal.records(SCOPE) == [first, second]
        assert await with_key(journal, SCOPE, "order-43") == second

    @pytest.mark.parametrize(
        ("nonsense", "error"),
        [
            ({"created_at": float("nan")}, ValueError),
            ({"updated_at": float("inf")}, ValueError),
            ({"delivered_at": float("nan")}, ValueError),
            ({"state": replace(observing(), due_at=float("nan"))}, ValueError),
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
            with pytest.raises(DrivenElsewhereError):
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

        with pytest.raises(DrivenElsewhereError):
            await journal.save(late, known=True)

        assert await journal.records(SCOPE) == []


class DeliverTests:
    """Outcomes that hosts have had."""

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
        assert await with_key(journal, SCOPE, "1.0") == first
        assert await journal.take(first.record_id, "b/1", await everybody(journal)) == (first, None)
        assert await journal.prune(9.5, 9.5) == 2

    async def test_a_delivery_comes_after_the_save_that_was_called_before_it(self, journal: Journal) -> None:
        await journal.save(given := record(state=observing(), idempotency_key="order-42"))
        ended = replace(given, state=finished())

        async with anyio.create_task_group() as tasks:
            for _ in range(20):  # so that the save has to wait for others
                tasks.start_soon(journal.save, record())
            tasks.start_soon(partial(journal.save, ended, known=True))
            await checkpoint()  # all of them have been called
            await checkpoint()
            journal.deliver(9.0, {given.record_id: 0})

        assert await journal.by_id(given.record_id) == replace(ended, delivered_at=9.0, updated_at=9.0)

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

    async def test_a_time_that_is_none_is_refused(self, journal: Journal) -> None:
        await journal.save(stays := record(state=finished()))
        with pytest.raises(ValueError):  # noqa: PT011  # in any words
            journal.deliver(float("nan"), {stays.record_id: 0})
        with pytest.raises(ValueError, match="finite"):
            journal.deliver(9.0, {stays.record_id: 0}, keep_until=float("nan"))
        with pytest.raises(ValueError, match="fence"):
            journal.deliver(9.0, {stays.record_id: 0, "other": 2**63})
        assert await only(journal) == stays
