"""Instructions: a client that does not drive a call leaves them in the journal for the one that does."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import anyio
import pytest

from ...errors import DrivenElsewhereError
from ...journal.base import Instruction, Journal
from ...machine.states import Gathering
from ..samples import SURROGATE, Heard, everybody, finished, observing, record

__all__ = ["InstructionTests"]

YES: Final = Instruction("answer: name", '{"action":"accept"}', 1_800_000_002.0)
NO: Final = Instruction("answer: name", '{"action":"decline"}', 1_800_000_003.0)
AS_HEEDED: Final = YES._replace(body="a digest", heeded=True)
CANCEL: Final = Instruction("cancel", "{}", 1_800_000_004.0)
STRANGE: Final = Instruction(f"answer: {SURROGATE}\0'", '"\\ud83d"', 1_800_000_005.0)


class InstructionTests:
    """The first of a name counts, until the call has ended."""

    async def test_the_first_instruction_of_a_name_is_the_one_that_counts(self, journal: Journal) -> None:
        given = record(state=observing())
        await journal.save(given)

        assert await journal.instruct(given.record_id, YES) == YES
        assert await journal.instruct(given.record_id, NO) == YES
        assert await journal.instruct(given.record_id, CANCEL) == CANCEL
        assert await journal.instruct(given.record_id, STRANGE) == STRANGE
        assert await journal.instructions(given.record_id) == [YES, CANCEL, STRANGE]

    async def test_of_many_instructions_at_once_one_counts_and_all_are_told_the_same(
        self, journal: Journal
    ) -> None:
        given = record(state=observing())
        await journal.save(given)
        told: list[Instruction | None] = []

        async def answer(number: int) -> None:
            told.append(await journal.instruct(given.record_id, YES._replace(body=str(number))))

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(answer, number)

        assert len(set(told)) == 1
        assert await journal.instructions(given.record_id) == [told[0]]

    async def test_what_was_heeded_still_counts_and_has_the_body_that_it_is_given(
        self, journal: Journal
    ) -> None:
        given = record(state=observing())
        await journal.save(given)
        await journal.instruct(given.record_id, YES)
        await journal.instruct(given.record_id, CANCEL)

        await journal.save(replace(given, updated_at=5.0), known=True, heeded=AS_HEEDED)

        assert await journal.instructions(given.record_id) == [CANCEL]
        assert await journal.instruct(given.record_id, NO) == AS_HEEDED

    async def test_whoever_does_not_own_a_record_heeds_nothing(self, journal: Journal) -> None:
        given = record(state=observing())
        await journal.save(given)
        await journal.instruct(given.record_id, YES)
        await journal.take(given.record_id, "host/1", await everybody(journal))

        with pytest.raises(DrivenElsewhereError):
            await journal.save(given, known=True, heeded=AS_HEEDED)

        assert await journal.instructions(given.record_id) == [YES]

    async def test_a_call_that_asks_before_there_is_a_task_takes_instructions(self, journal: Journal) -> None:
        given = record(state=Gathering(round=0, request_state=None, questions=()), idempotency_key="order-42")
        await journal.save(given)

        assert await journal.instruct(given.record_id, YES) == YES

    @pytest.mark.parametrize("delivered", [False, True])
    async def test_a_call_that_has_ended_takes_none_and_keeps_none(
        self, journal: Journal, delivered: bool
    ) -> None:
        given = record(state=observing(), idempotency_key="order-42")
        await journal.save(given)
        await journal.instruct(given.record_id, YES)

        ended = replace(given, state=finished(), delivered_at=6.0 if delivered else None)
        await journal.save(ended, known=True)

        assert await journal.instructions(given.record_id) == []
        assert await journal.instruct(given.record_id, NO) is None

    async def test_whoever_follows_a_call_leaves_nothing_to_heed(self, journal: Journal) -> None:
        given = record(state=observing(), idempotency_key="order-42")
        await journal.save(given)
        for _ in range(2):
            for record_id in (given.record_id, "nobody's"):
                await journal.follow(record_id)
        assert await journal.instructions(given.record_id) == []
        assert await journal.instruct(given.record_id, YES) == YES

        await journal.save(replace(given, state=finished()), known=True)
        await journal.follow(given.record_id)
        assert await journal.instructions(given.record_id) == []

    async def test_an_instruction_may_have_any_name_of_a_followed_call_too(self, journal: Journal) -> None:
        await journal.save(given := record(state=observing()))
        await journal.follow(given.record_id)
        named = YES._replace(name="follow")
        assert await journal.instruct(given.record_id, named) == named
        assert await journal.instructions(given.record_id) == [named]

    async def test_a_record_that_is_not_there_takes_none(self, journal: Journal) -> None:
        assert await journal.instruct("nobody's", YES) is None
        assert await journal.instructions("nobody's") == []

    async def test_a_record_that_is_forgotten_leaves_none(self, journal: Journal) -> None:
        given = record(state=observing())
        await journal.save(given)
        await journal.instruct(given.record_id, YES)
        await journal.remove(given)
        await journal.save(given)

        assert await journal.instructions(given.record_id) == []
        assert await journal.instruct(given.record_id, NO) == NO

    async def test_an_instruction_needs_a_time(self, journal: Journal) -> None:
        given = record(state=observing())
        await journal.save(given)
        with pytest.raises(ValueError):  # noqa: PT011  # in any words
            await journal.instruct(given.record_id, YES._replace(at=float("nan")))
        assert await journal.instructions(given.record_id) == []

    # ── who is told ───────────────────────────────────────────────────────────────────────────

    async def test_whoever_listens_is_told_at_once_of_what_is_left_in_this_process(
        self, journal: Journal
    ) -> None:
        given, heard = record(state=observing()), Heard()
        await journal.save(given)
        stop = journal.listen(heard)
        await journal.instruct(given.record_id, YES)
        assert await heard.wait_for(given.record_id)
        stop()

    async def test_whoever_begins_to_listen_is_told_of_what_there_is(self, journal: Journal) -> None:
        first, second, heard = record(state=observing("a")), record(state=observing("b")), Heard()
        for given in (first, second):
            await journal.save(given)
            await journal.instruct(given.record_id, YES)
        await journal.save(first, known=True, heeded=AS_HEEDED)
        stop = journal.listen(heard)
        assert await heard.wait_for(second.record_id)
        assert not await heard.wait_for(first.record_id, 0.1)
        stop()

    async def test_a_listener_that_was_given_twice_is_told_until_both_are_stopped(
        self, journal: Journal
    ) -> None:
        await journal.save(given := record(state=observing()))
        heard = Heard()
        stop, _ = journal.listen(heard), journal.listen(heard)
        stop()
        await journal.instruct(given.record_id, YES)
        assert await heard.wait_for(given.record_id)

    async def test_whoever_has_stopped_to_listen_is_told_nothing(self, journal: Journal) -> None:
        given, heard, other = record(state=observing()), Heard(), Heard()
        await journal.save(given)
        journal.listen(heard)()
        stop = journal.listen(other)
        await journal.instruct(given.record_id, YES)
        assert await other.wait_for(given.record_id)
        assert not await heard.wait_for(given.record_id, 0.1)
        stop()
