"""Forgetting: by name, or because a record is old."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...journal.base import LEASES_KEPT_S, Journal, Lease
from ...machine.record import Scope
from ...machine.states import AskedQuestion, Gathering, OutcomeUnknown
from ..samples import SCOPE, finished, lease, observing, only, record, with_key

__all__ = ["PruneTests", "RemoveTests"]


class RemoveTests:
    """A record that is forgotten by name."""

    async def test_a_removed_record_is_forgotten_and_its_key_is_free(self, journal: Journal) -> None:
        first, second = record(idempotency_key="order-42", state=observing()), record()
        await journal.save(first)
        await journal.save(second)

        await journal.remove(first)

        assert await journal.records(SCOPE) == [second]
        assert await journal.records(SCOPE, pending=True) == []
        assert await journal.by_task_id(SCOPE, "task-1") is None
        assert await with_key(journal, SCOPE, "order-42") is None
        again = record(idempotency_key="order-42")
        assert await journal.claim(again) == again

    async def test_removing_what_is_not_there_does_nothing(self, journal: Journal) -> None:
        await journal.save(given := record())
        await journal.remove(record())
        assert await only(journal) == given


class PruneTests:
    """Old records, of any scope."""

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
        assert await with_key(journal, SCOPE, "old") is None
        assert await journal.prune(100.0, 200.0) == 0

    async def test_a_task_whose_time_to_live_had_passed_is_forgotten(self, journal: Journal) -> None:
        """No client came back for it, and the server has dropped it."""
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
                state=replace(asked, questions=(AskedQuestion(key="a", digest="d", stage="answered"),)),
                updated_at=50.0,
            ),
        ]
        for one in (*kept, record(idempotency_key="old", state=asked, updated_at=50.0)):
            await journal.save(one)
        assert await journal.prune(100.0, 200.0) == 1
        assert await journal.records(SCOPE) == kept

    @pytest.mark.parametrize("noted_by", ["deliver", "save"])
    @pytest.mark.parametrize("kept_until", [149.0, 150.0])
    async def test_what_was_kept_after_its_delivery_is_forgotten_when_its_time_is_over(
        self, journal: Journal, kept_until: float, noted_by: str
    ) -> None:
        given = record(state=finished())
        keyed = record(state=finished(), idempotency_key="order-42")
        for one in (given, keyed):
            await journal.save(one)
            if noted_by == "deliver" or one is keyed:
                journal.deliver(140.0, {one.record_id: 0}, keep_until=kept_until)
            else:
                await journal.save(replace(one, delivered_at=140.0), known=True, keep_until=kept_until)

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

    async def test_a_time_that_is_none_forgets_nothing(self, journal: Journal) -> None:
        await journal.save(stays := record(state=finished(), delivered_at=5.0, idempotency_key="order-42"))
        for times in ((float("nan"), 9.0), (9.0, float("nan"))):
            with pytest.raises(ValueError):  # noqa: PT011  # in any words
                await journal.prune(*times)
        assert await only(journal) == stays

    async def test_a_lease_that_has_run_out_long_ago_is_forgotten_too(self, journal: Journal) -> None:
        await journal.renew(lease("old", renewed_at=60.0))
        await journal.renew(new := lease("new", renewed_at=80.0))

        await journal.prune(100.0 + LEASES_KEPT_S, 100.0 + LEASES_KEPT_S)

        assert await covering(journal, "old/1") is None
        assert await covering(journal, "new/1") == new


async def covering(journal: Journal, owner: str) -> Lease | None:
    """The lease that covers an owner, as a client is told that judges whether the owner lives."""
    return (await journal.owners(owner))[owner]
