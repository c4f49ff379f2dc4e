"""How long the last tasks of a tool ran, noted by the save that ends each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar

import anyio
import pytest

from ...errors import DrivenElsewhereError
from ...journal.base import Journal
from ...machine.record import Scope, TaskRecord
from ...machine.states import Cancelled, Completed, Failed, Outcome
from ..samples import SCOPE, SURROGATE, TEXTS, finished, observing, record

__all__ = ["DurationTests"]


class DurationTests:
    """Durations, if the journal keeps any."""

    durations: ClassVar[bool] = True

    @pytest.fixture
    def timed(self, journal: Journal) -> Journal:
        """A journal that is open, and keeps durations."""
        if not self.durations:
            pytest.skip("it keeps no durations")
        return journal

    async def test_of_a_tool_of_which_none_has_completed_none_is_known(self, journal: Journal) -> None:
        await journal.save(record(state=observing()))
        assert await journal.durations(SCOPE, "report") == []

    async def test_the_save_that_ends_a_task_notes_how_long_it_ran(self, timed: Journal) -> None:
        for took_s in (3.5, 0.0, 1e9):
            await end(timed, await begin(timed), took_s)
        assert await timed.durations(SCOPE, "report") == [3.5, 0.0, 1e9]

    async def test_other_tools_servers_and_principals_do_not_see_it(self, timed: Journal) -> None:
        await end(timed, await begin(timed), 3.5)
        for scope in (Scope("https://other.example/", "alice"), Scope(SCOPE.endpoint, "bob")):
            assert await timed.durations(scope, "report") == []
        assert await timed.durations(SCOPE, "Report") == []

    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    async def test_a_tool_and_a_principal_may_have_any_name(self, timed: Journal, text: str) -> None:
        scope = Scope(text, text)
        await end(timed, await begin(timed, scope=scope, tool=text), 3.5)
        await end(timed, await begin(timed, scope=scope, tool=f"{text}{SURROGATE}"), 7.0)
        assert await timed.durations(scope, text) == [3.5]

    @pytest.mark.parametrize(
        "outcome",
        [Failed(code=1, message="no"), Cancelled(), Completed(result={"isError": True})],
        ids=["failed", "cancelled", "not known"],
    )
    async def test_an_end_without_a_time_notes_nothing(self, timed: Journal, outcome: Outcome) -> None:
        await timed.save(replace(await begin(timed), state=finished(outcome)), known=True)
        await end(timed, await begin(timed, tool=None), 3.5)
        assert await timed.durations(SCOPE, "report") == []

    async def test_only_an_end_that_was_not_stored_yet_notes_it(self, timed: Journal) -> None:
        ended = await end(timed, await begin(timed), 3.5)
        await timed.save(replace(ended, updated_at=9.0), known=True)
        await timed.save(ended)
        assert await timed.durations(SCOPE, "report") == [3.5]

    async def test_a_call_that_was_answered_at_once_notes_nothing(self, timed: Journal) -> None:
        await end(timed, record(), 3.5)
        await timed.save(keyed := record(idempotency_key="order-42"))
        await end(timed, keyed, 7.0)
        assert await timed.durations(SCOPE, "report") == []

    async def test_a_late_owner_notes_nothing(self, timed: Journal) -> None:
        late = await begin(timed, owner="gone/1")
        assert await timed.take(late.record_id, "host/1", {"gone/1"}) is not None
        with pytest.raises(DrivenElsewhereError):
            await end(timed, late, 3.5)
        assert await timed.durations(SCOPE, "report") == []

    async def test_of_each_tool_the_last_fifty_are_known(self, timed: Journal) -> None:
        for number in range(103):
            await end(timed, await begin(timed), float(number))
            if number < 3:
                await end(timed, await begin(timed, tool="deploy"), float(number))
        assert await timed.durations(SCOPE, "report") == [float(number) for number in range(53, 103)]
        assert await timed.durations(SCOPE, "deploy") == [0.0, 1.0, 2.0]

    async def test_of_many_that_end_at_once_fifty_are_known(self, timed: Journal) -> None:
        begun = [await begin(timed, tool=tool) for tool in ("report", "deploy") * 70]
        failed = [await begin(timed) for _ in range(70)]
        async with anyio.create_task_group() as tasks:
            for number, one in enumerate(begun):
                tasks.start_soon(end, timed, one, float(number))
            for one in failed:
                cancelled = replace(one, state=finished(Cancelled()))
                tasks.start_soon(partial(timed.save, cancelled, known=True))
        for rest, tool in enumerate(("report", "deploy")):
            known = await timed.durations(SCOPE, tool)
            assert len(known) == len(set(known)) == 50
            assert {took_s % 2 for took_s in known} == {rest}

    async def test_it_stays_when_the_record_is_forgotten(self, timed: Journal) -> None:
        delivered, removed = [await end(timed, await begin(timed), took_s) for took_s in (3.5, 7.0)]
        timed.deliver(9.0, {delivered.record_id: 0})
        await timed.remove(removed)
        assert await timed.records(SCOPE) == []
        assert await timed.durations(SCOPE, "report") == [3.5, 7.0]

    async def test_it_is_there_when_the_journal_is_opened_again(
        self, make_journal: Callable[[], Journal]
    ) -> None:
        if not self.durations:
            pytest.skip("it keeps no durations")
        async with make_journal() as journal:
            await end(journal, await begin(journal), 3.5)
        async with make_journal() as journal:
            assert await journal.durations(SCOPE, "report") == [3.5]

    async def test_no_number_is_no_time(self, timed: Journal) -> None:
        with pytest.raises(ValueError):  # noqa: PT011  # in any words
            await end(timed, await begin(timed), float("nan"))
        assert await timed.durations(SCOPE, "report") == []


async def begin(journal: Journal, **changes: object) -> TaskRecord:
    """A task that is observed."""
    await journal.save(given := record(state=observing(), **changes))
    return given


async def end(journal: Journal, given: TaskRecord, took_s: float) -> TaskRecord:
    """The same, which has completed after some seconds."""
    ended = replace(given, state=finished(Completed(result={}, took_s=took_s)))
    await journal.save(ended, known=given.due_at is not None)
    return ended
