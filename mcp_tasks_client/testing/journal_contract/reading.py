"""Reading: the same records as were given, in their order, and none of another scope."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
import pytest

from ...journal.base import Instruction, Journal
from ...machine.record import Origin, Scope, TaskRecord, dump_state
from ...machine.states import (
    AskedQuestion,
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
    State,
    Violated,
)
from ...protocol.task import read_task
from ..samples import SCOPE, SURROGATE, TEXTS, finished, observing, only, record

__all__ = ["ListTests", "LookupTests", "StateTests"]


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
QUESTION: Final = AskedQuestion(
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
    questions=(QUESTION, AskedQuestion(key="", digest="")),
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


class LookupTests:
    """One record, by one of its names."""

    async def test_an_unknown_task_or_record_is_none(self, journal: Journal) -> None:
        await journal.save(record(idempotency_key="order-42", state=observing("task-1")))

        assert await journal.by_task_id(SCOPE, "task-2") is None
        assert await journal.by_id("record") is None

    async def test_a_record_is_found_by_its_own_id(self, journal: Journal) -> None:
        await journal.save(given := record())
        await journal.save(record())
        assert await journal.by_id(given.record_id) == given

    async def test_a_lookup_needs_text(self, journal: Journal) -> None:
        with pytest.raises(TypeError):
            await journal.by_id(7)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await journal.by_task_id(SCOPE, 7)  # type: ignore[arg-type]

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
        assert await journal.by_id(text) == given
        assert await journal.claim(record(scope=scope, idempotency_key=text)) == given
        await journal.remove(record(record_id=text))
        assert await journal.records(scope) == []

    async def test_no_two_texts_are_taken_for_one(self, journal: Journal) -> None:
        texts = [*TEXTS.values(), "😀", r"\x00", "\\ud83d", "before"]
        for text in texts:
            await journal.save(record(idempotency_key=text))

        assert [one.idempotency_key for one in await journal.records(SCOPE)] == texts


class ListTests:
    """All records of a scope, or of all scopes."""

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

        assert [one.record for one in await journal.asking(SCOPE)] == [given[1], given[0]], "oldest first"
        assert [one.record for one in await journal.asking(None)] == [given[1], given[0], given[2]]

    async def test_what_asks_is_found_with_the_names_of_what_was_left_for_it(self, journal: Journal) -> None:
        asks = observing(status="input_required")
        first, second, third = (record(state=asks, created_at=float(number)) for number in range(3))
        for one in (first, second, third):
            await journal.save(one)
        left = [Instruction(name, "{}", 7.0) for name in ("b", f"a{SURROGATE}\0", "cancel")]
        for instruction in left:
            await journal.instruct(first.record_id, instruction)
        await journal.instruct(second.record_id, left[0])
        await journal.save(second, known=True, heeded=left[0]._replace(body="a digest", heeded=True))
        await journal.follow(third.record_id)

        found = await journal.asking(SCOPE)

        assert [one.record for one in found] == [first, second, third]
        assert [list(one.left) for one in found] == [[one.name for one in left], [], []]

    async def test_all_that_is_asked_for_holds_of_each_record(self, journal: Journal) -> None:
        asks = record(state=observing(status="input_required"), created_at=1.0)
        gathers = record(state=Gathering(round=1, request_state="1", questions=()), created_at=2.0)
        delivered = record(state=finished(), delivered_at=9.0, created_at=3.0)
        for one in (asks, gathers, delivered):
            await journal.save(one)
        assert await journal.records(SCOPE, pending=True) == [asks]
        assert await journal.records(SCOPE, pending=True, delivered_since=1.0) == []
        assert await journal.records(SCOPE, pending=True, limit=1) == [asks]
        assert await journal.records(SCOPE, pending=True, before=asks) == []
        assert await journal.records(SCOPE, delivered_since=1.0, limit=1) == [delivered]
        assert await journal.records(SCOPE, delivered_since=1.0, before=delivered) == []
        assert await journal.records(SCOPE, delivered_since=9.5, limit=1) == []
        with pytest.raises(ValueError):  # noqa: PT011  # in any words
            await journal.records(SCOPE, delivered_since=float("nan"))

    @pytest.mark.parametrize("scope", [SCOPE, None], ids=["of a scope", "of all"])
    @pytest.mark.parametrize("pending", [False, True])
    async def test_the_last_ones_come_in_pages_and_each_once(
        self, journal: Journal, scope: Scope | None, pending: bool
    ) -> None:
        """In the order of all, also among those of equal age."""
        times = [2.0, 1.0, 2.0, 0.5, 1.0, 2.0, 2.0]
        for time in times:
            await journal.save(record(created_at=time, state=observing()))
        await journal.save(record(created_at=1.5, state=observing(), scope=Scope("https://x.example/")))
        await journal.save(record(created_at=1.5, state=finished(), delivered_at=9.0))
        every = await journal.records(scope, pending=pending)
        assert len(every) == len(times) + (not pending) + (scope is None)

        for size in (1, 2, 3, len(every), len(every) + 1):
            pages: list[list[TaskRecord]] = []
            before: TaskRecord | None = None
            while page := await journal.records(scope, pending=pending, limit=size, before=before):
                pages.append(page)
                before = page[0]
            assert [one for page in reversed(pages) for one in page] == every
            assert all(len(page) == size for page in pages[:-1])
        assert await journal.records(scope, pending=pending, before=every[3]) == every[:3]

    @pytest.mark.parametrize("pending", [False, True])
    async def test_a_place_is_a_record_or_a_time(self, journal: Journal, pending: bool) -> None:
        given = [record(created_at=time, state=observing()) for time in (1.0, 2.0, 2.0, 3.0)]
        for one in given:
            await journal.save(one)
        records = partial(journal.records, SCOPE, pending=pending)
        assert await records(before=2.0) == given[:1]
        assert await records(before=2.5, limit=2) == given[1:3]
        assert await records(before=given[2]) == given[:2]
        await journal.remove(given[2])
        assert await records(before=given[2]) == given[:1], "it stands for its time"
        for no_time in (float("nan"), replace(given[0], created_at=float("nan"))):
            with pytest.raises(ValueError):  # noqa: PT011  # in any words
                await journal.records(SCOPE, before=no_time)

    @pytest.mark.parametrize("limit", [None, 1, 2])
    @pytest.mark.parametrize("pending", [False, True])
    async def test_records_are_found_by_what_people_know_of_them(
        self, journal: Journal, pending: bool, limit: int | None
    ) -> None:
        """A limit counts those that are found."""
        given = [
            record(
                scope=Scope(endpoint, principal),
                label=label,
                application=application,
                state=observing() if is_pending else finished(),
                delivered_at=None if is_pending else 9.0,
            )
            for endpoint in ("a", "b\\")
            for principal in ("", "ada")
            for label, application in ((None, None), ("", "x"), ("é\\", "y"), ("lunch", None))
            for is_pending in (True, False)
        ]
        for one in given:
            await journal.save(one)
        wanted: list[dict[str, Any]] = [
            *({"endpoint": text} for text in ("a", "b\\", "b", "")),
            *({"principal": text} for text in ("", "ada", "a")),
            *({"label": text} for text in ("", "é\\", "lunch", "\\", "lunch ")),
            *({"application": text} for text in ("x", "y", "", "\\")),
            {"endpoint": "a", "principal": "ada", "label": "lunch", "application": "x"},
        ]
        for by in wanted:
            found = [
                one
                for one in given
                if by.get("endpoint") in (None, one.scope.endpoint)
                and by.get("principal") in (None, one.scope.principal)
                and by.get("label") in (None, one.label)
                and ("application" not in by or one.application in (None, by["application"]))
                and (one.pending or not pending)
            ]
            expected = found if limit is None else found[-limit:]
            assert await journal.records(None, pending=pending, limit=limit, **by) == expected, by
            for scope in {one.scope for one in given}:
                mine = [one for one in found if one.scope == scope]
                assert await journal.records(scope, pending=pending, **by) == mine, by
        with pytest.raises(TypeError):
            await journal.records(None, label=7)  # type: ignore[arg-type]

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


class StateTests:
    """The fields of a record come back as they were."""

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
            by_task_id = await journal.by_task_id(SCOPE, "task-1")
            standing = await journal.claim(record(idempotency_key="order-42"))
            for found in (by_task_id, standing, await only(journal)):
                assert found is not None
                assert found.task is not None
                assert found.task.input_requests is not None
                params = found.task.input_requests["q"]["params"]
                assert params == {"n": [1]}
                params["n"].append(2)
