"""Answers from elsewhere than a callback: committed at once, or left in the journal for the driver."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from ..aio.uncut import run_to_its_end
from ..journal.row import driven_elsewhere
from ..machine.record import Scope, TaskRecord
from ..machine.states import questions_of
from ..protocol import JSONObject
from ..protocol.text import quote
from ..questions.answers import NoAnswerError, fit_answer
from ..questions.question import (
    Question,
    check_open,
    open_questions,
    read_questions,
    record_of,
    unanswered,
)
from .engine import Engine
from .instructions import Instructions
from .live_call import LiveCall
from .performer import Performer

__all__ = ["Answering"]


class Answering:
    """The open questions of one endpoint and principal, and their answers."""

    def __init__(
        self, engine: Engine, scope: Scope, performer: Performer, instructions: Instructions
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._scope = scope
        self._performer = performer
        self._instructions = instructions

    def open_questions(self, record: TaskRecord) -> list[Question]:
        """The questions of a call that wait for an answer, as far as its record tells."""
        return list(open_questions(record, self))

    async def questions(self, call: LiveCall | None = None) -> list[Question]:
        """The questions that wait for an answer: of one call, or of all calls of this endpoint and principal.

        Raises:
            JournalError: The journal could not be read.
            TasksClientError: The client is closed.
        """
        self._engine.check_open()
        async with self._engine.using_journal():
            journal, applications = self._engine.journal, (None, self._engine.application)
            if call is not None:
                known = None if call.ours else await journal.by_id(call.record.record_id)
                return await read_questions(journal, known or call.record, self)
            registry = self._store.registry
            with registry.remembering():
                asking = await journal.asking(self._scope)
                kept = {one.record.record_id for one in asking}
                live = [one.record for one in registry.live.values() if one.record.scope == self._scope]
                # Most are not in the journal. If one is, the journal's copy is the newer.
                here = [record for record in live if record.record_id not in kept]
            found = [unanswered(one, self) for one in asking if one.record.application in applications]
            found += [
                await read_questions(journal, record, self)
                for record in here
                if record.application in applications
            ]
            return list(chain.from_iterable(found))

    async def take_answer(self, name: str, answer: JSONObject) -> None:
        """Commit the answer to a question of any call of this scope; see :meth:`Question.answer`.

        ``name`` is the ``question_id``. The answer is in its form on the wire.

        Raises:
            ValueError: It is no ``question_id``.
            TasksClientError: As from :meth:`Question.answer`.
        """
        self._engine.check_open()
        record_id = record_of(name)
        call = self._store.registry.live.get(record_id)
        if call is not None and not call.journaled:
            await run_to_its_end(self._answer_here, call, name, answer)
            return
        async with self._engine.using_journal():
            record = await self._engine.journal.by_id(record_id)
            mine = record if record is not None and record.scope == self._scope else None
            await run_to_its_end(self._store.steps.leave_answer, mine, name, answer)

    async def _answer_here(self, call: LiveCall, name: str, answer: JSONObject) -> None:
        # Of several at once the first counts: nothing is awaited between this look and the step.
        asked, answer = check_open(call.record, name, answer)
        await self._performer.answer(call, asked.key, answer)

    async def answer_all(self, call: LiveCall, answers: Mapping[str, JSONObject]) -> None:
        """Commit a host's answers to the open questions of a call, by the keys of the questions.

        First answers stay.

        Raises:
            TasksClientError: Another client has the call.
            ValueError: An answer does not fit its question. None of them was taken.
        """
        asked = {q.key: q.request or {} for q in questions_of(call.record.state) if q.unanswered}
        given = {key: answer for key, answer in answers.items() if key in asked}
        given = {
            key: _fit_given(quote(key, call.task_id), asked[key], answer) for key, answer in given.items()
        }
        if given and not await self._store.owning.take(call):
            raise driven_elsewhere(call.record.tool)
        if given:
            await run_to_its_end(
                self._instructions.catch_up, call
            )  # the instructions of others, which came first
        # No cancellation parts the answers that the host has given at once.
        await run_to_its_end(self._answer_all, call, given)

    async def _answer_all(self, call: LiveCall, given: Mapping[str, JSONObject]) -> None:
        for key, answer in given.items():
            await self._performer.answer(call, key, answer)


def _fit_given(named: str, request: JSONObject, answer: JSONObject) -> JSONObject:
    try:
        return fit_answer(request, answer)
    except NoAnswerError as error:
        raise ValueError(
            f"The answer to {named[:80]!r} was not taken: {error}. Answer again, with the same requestState."
        ) from error
