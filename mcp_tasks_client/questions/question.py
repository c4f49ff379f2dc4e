"""A question of the server's that waits for an answer, shown and answered by any process with the journal.

An answer is an instruction in the journal. The first one counts, be it of the host's callback, of a
form in a web page, or of another process. The driver of the call sends it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from mcp_types import ElicitResult

from ..errors import AlreadyAnsweredError, InvalidAnswerError, QuestionWithdrawnError, TasksClientError
from ..journal.base import Asking, Instruction, Journal
from ..machine import states
from ..machine.record import TaskRecord
from ..protocol import JSONObject
from ..protocol.replies import is_url_key
from ..protocol.text import digest, quote
from .answers import NoAnswerError, dump_answer, fit_answer, read_params
from .kinds import KINDS, Answer, QuestionParams

__all__ = [
    "CANCEL",
    "Question",
    "ShownQuestion",
    "TakesAnswers",
    "answer_instruction",
    "as_heeded",
    "asked_under",
    "find_instructed",
    "leave_answer",
    "open_questions",
    "read_questions",
    "record_of",
    "shown_by",
    "to_wire",
    "unanswered",
    "words_of_refusal",
]

CANCEL: Final = "cancel"
"""The name of the instruction to cancel a call. Its questions wait for no answer then."""

_ID_DIGITS: Final = 16


class TakesAnswers(Protocol):
    """Commits the answers to questions: a client, or an inbox."""

    async def take_answer(self, question_id: str, answer: JSONObject) -> None:
        """Commit the answer to a question, in its form on the wire; see :func:`leave_answer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQuestion:
    """A question as it is shown, without a way to answer it."""

    question_id: str
    """An opaque name, safe in pages and URLs. Neither the task's ID nor the server's key is in it."""

    record_id: str
    """The ID of the call's record."""

    endpoint: str
    """The server's name in the journal."""

    principal: str
    """On whose behalf the call is made."""

    tool: str | None
    """The tool that asks; ``None`` for a task that was attached by its bare ID."""

    label: str | None
    """The caller's short text about the call, for people."""

    method: str
    """``elicitation/create``, ``sampling/createMessage`` or ``roots/list``."""

    params: QuestionParams | None
    """The server's params, in the SDK's class; ``None`` if there are none, or none that could be read."""

    asked_at: float
    """When the question was first seen, in seconds since the epoch."""

    expires_at: float | None
    """When the time-to-live of the task has passed, likewise; ``None`` if it has none."""

    idempotency_key: str | None = None
    """The idempotency key of the call; ``None`` if it has none."""

    refused: str | None = None
    """The server's words, shortened, if it has refused the last answer; ``None`` if it has refused none."""

    @property
    def asks_person(self) -> bool:
        """True if a person answers it (a form, or a URL to visit), rather than the program of the call."""
        return self.method in KINDS and KINDS[self.method].asks_person

    def __reduce__(self) -> tuple[Any, ...]:
        # Not __getstate__: before Python 3.11.4 a dataclass with slots has its own in its place.
        return _detached, (type(self), shown_by(self))


def shown_by(question: ShownQuestion) -> dict[str, Any]:
    """The fields of a question that are shown, by their names."""
    return {name: getattr(question, name) for name in ShownQuestion.__dataclass_fields__}


def _detached(kind: type[ShownQuestion], shown: dict[str, Any]) -> ShownQuestion:
    """A question that was pickled or copied, without the client that it came from."""
    return kind(**shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(ShownQuestion):
    """A question that waits for an answer, of any call, driven by any process.

    It can be kept, pickled and shown. :meth:`answer` needs the client or the inbox that it came from to be
    open; elsewhere use ``question_id`` with :meth:`TasksClient.answer`.
    """

    _takes: TakesAnswers | None = field(default=None, repr=False, compare=False)

    async def answer(self, answer: Answer) -> None:
        """Answer the question. Returns when the answer is committed; the driver of the call sends it.

        Args:
            answer: The result of the kind that the question asks for.

        Raises:
            InvalidAnswerError: The answer does not fit the question. Nothing was committed.
            AlreadyAnsweredError: The question has an answer. Nothing was committed.
            QuestionWithdrawnError: The server does not wait for an answer, or the call is being cancelled.
                The answer is not sent.
            JournalError: The answer could not be committed.
            TasksClientError: The question was pickled, or its client is closed.
        """
        if self._takes is None:
            raise TasksClientError(
                "This question is detached. Use: await client.answer(question.question_id, answer)"
            )
        await self._takes.take_answer(self.question_id, to_wire(answer))

    async def accept(self, content: dict[str, Any] | None = None) -> None:
        """Accept an elicitation: with the content of its form, or without any if it asks for a URL.

        A required field that is left out has the form's default.

        Raises:
            TasksClientError: As from :meth:`answer`.
        """
        # Not validated here: the SDK's error would quote the answer.
        await self.answer(ElicitResult.model_construct(action="accept", content=content))

    async def decline(self) -> None:
        """Decline an elicitation.

        Raises:
            TasksClientError: As from :meth:`answer`.
        """
        await self.answer(ElicitResult(action="decline"))

    async def cancel(self) -> None:
        """Dismiss an elicitation without a choice. The task goes on.

        Raises:
            TasksClientError: As from :meth:`answer`.
        """
        await self.answer(ElicitResult(action="cancel"))


def to_wire(answer: Answer) -> JSONObject:
    """An answer in its form on the wire.

    Raises:
        InvalidAnswerError: It is no answer, or has no JSON form.
    """
    if not isinstance(answer, Answer):
        raise InvalidAnswerError(
            f"An answer is an ElicitResult, a CreateMessageResult or a ListRootsResult of mcp_types, "
            f"not {type(answer).__name__}."
        )
    try:
        return dump_answer(answer)
    except ValueError as error:
        raise InvalidAnswerError(f"The answer has no JSON form: {error}.") from None


# ── the open questions ────────────────────────────────────────────────────────────────────────────


def question_id(record_id: str, asked: states.AskedQuestion) -> str:
    """The public name of a question. One that a call asks anew under the same key has another name.

    So has one that opens again, since the first answer to each name counts.
    """
    named = [record_id, asked.key, asked.digest, float(asked.asked_at)]
    if asked.refusals:
        named.append(asked.refusals)
    return f"{record_id}-{digest(named)[:_ID_DIGITS]}"


def asked_under(record: TaskRecord, key: str) -> states.AskedQuestion | None:
    """The question of a call that has this key of the server's, answered or not."""
    return next((q for q in states.questions_of(record.state) if q.key == key), None)


def record_of(question_id: str) -> str:
    """The ``record_id`` of the call that a question belongs to.

    Raises:
        ValueError: It is not the ID of a question.
    """
    record_id, dash, rest = question_id.rpartition("-") if isinstance(question_id, str) else ("", "", "")
    if not (record_id and dash and len(rest) == _ID_DIGITS):
        raise ValueError("this is not a question_id; take it from a Question")
    return record_id


def open_questions(
    record: TaskRecord, takes: TakesAnswers | None, answered: Collection[str] = ()
) -> Iterator[Question]:
    """The questions of a call that wait for an answer, except those in ``answered``.

    ``takes`` commits the answers; ``None`` is for questions that are only shown. ``answered`` has the
    ``question_id`` of each question that has an answer in the journal.
    """
    for asked in _waiting(record):
        name = question_id(record.record_id, asked)
        if name not in answered:
            yield _read(record, asked, name, takes)


def words_of_refusal(record: TaskRecord, asked: states.AskedQuestion) -> str | None:
    """The server's words when it refused the last answer to a question, as people may read them."""
    return quote(asked.refusal, record.task_id) if asked.refusals else None


async def read_questions(journal: Journal, record: TaskRecord, takes: TakesAnswers) -> list[Question]:
    """The questions of a call that wait for an answer, and have none in the journal.

    Raises:
        JournalError: The journal could not be read.
    """
    if not list(open_questions(record, takes)):
        return []
    # In this order: an instruction that is heeded meanwhile is then part of the record.
    left = [instruction.name for instruction in await journal.instructions(record.record_id)]
    known = await journal.by_id(record.record_id)
    return unanswered(Asking(known or record, left), takes)


def unanswered(asking: Asking, takes: TakesAnswers) -> list[Question]:
    """The questions of a call that wait for an answer, and have none in the journal."""
    return [] if CANCEL in asking.left else list(open_questions(asking.record, takes, asking.left))


def _read(record: TaskRecord, asked: states.AskedQuestion, name: str, takes: TakesAnswers | None) -> Question:
    request = asked.request or {}
    params: QuestionParams | None = None
    with suppress(NoAnswerError):  # told to the first that answers it
        params = read_params(request)
    return Question(
        question_id=name,
        record_id=record.record_id,
        endpoint=record.scope.endpoint,
        principal=record.scope.principal,
        tool=record.tool,
        label=record.label,
        idempotency_key=record.idempotency_key,
        method=str(request.get("method")),
        params=params,
        asked_at=asked.asked_at or record.updated_at,
        expires_at=record.expires_at,
        refused=words_of_refusal(record, asked),
        _takes=takes,
    )


def _waiting(record: TaskRecord) -> list[states.AskedQuestion]:
    """The questions that can still be answered."""
    match record.state:
        case states.Gathering(questions=questions):
            return [q for q in questions if q.unanswered]
        case states.Observing(questions=questions, cancel="no") as state:
            return [q for q in questions if q.unanswered and q.key in state.outstanding]
        case _:
            return []


# ── answers as instructions ───────────────────────────────────────────────────────────────────────


def answer_instruction(
    record_id: str, asked: states.AskedQuestion, answer: JSONObject, at: float
) -> Instruction:
    """The instruction to send an answer."""
    return Instruction(question_id(record_id, asked), json.dumps(answer, sort_keys=True), at)


def as_heeded(instruction: Instruction) -> Instruction:
    """The instruction as it stands once it was heeded: instead of an answer, which is private, its digest.

    By the digest a person who was cut off learns whether the answer was the person's own.
    """
    if instruction.heeded:
        return instruction
    try:
        body = digest(json.loads(instruction.body))
    except (ValueError, RecursionError):
        body = ""  # a wish to cancel, or no answer at all
    return instruction._replace(body=body, heeded=True)


def find_instructed(record: TaskRecord, name: str) -> states.AskedQuestion | None:
    """The question that an instruction answers; ``None`` if it needs no answer."""
    questions = states.questions_of(record.state)
    return next((q for q in questions if q.unanswered and question_id(record.record_id, q) == name), None)


async def leave_answer(
    journal: Journal, record: TaskRecord | None, name: str, answer: JSONObject, at: float
) -> None:
    """Leave an answer, in its form on the wire, in the journal for the driver of the call.

    The record is as the journal has it now, and ``None`` if there is none. ``name`` is the ``question_id``,
    ``at`` the time now in seconds since the epoch.

    Raises:
        InvalidAnswerError: The answer does not fit the question.
        AlreadyAnsweredError: Another answer was first.
        QuestionWithdrawnError: The server no longer waits for an answer, or the call is being cancelled.
        JournalError: The answer could not be committed.
    """
    asked, answer = check_open(record, name, answer)
    assert record is not None
    left = answer_instruction(record.record_id, asked, answer, at)
    standing = await journal.instruct(record.record_id, left)
    if standing is None:
        raise QuestionWithdrawnError(
            "This question waits for no answer: its call has ended meanwhile. Your answer was not sent, "
            "unless the connection to the journal broke just now."
        )
    if standing not in (left, as_heeded(left)):
        raise _already_answered(same=as_heeded(standing).body == as_heeded(left).body)
    await _check_not_cancelled(journal, record.record_id, name)


async def _check_not_cancelled(journal: Journal, record_id: str, name: str) -> None:
    """Check that no wish to cancel the call came before the answer that was just left.

    The driver heeds the two in the order in which they were left. It sends no answer after a wish to cancel.

    Raises:
        QuestionWithdrawnError: Such a wish came before it.
        JournalError: The journal could not be read.
    """
    # In this order: an instruction that is heeded meanwhile is then part of the record.
    left = [one.name for one in await journal.instructions(record_id)]
    record = await journal.by_id(record_id)
    is_first = CANCEL in left and name in left[left.index(CANCEL) :]
    if is_first or (record is not None and _is_unsent(record, name)):
        raise _withdrawn("its call is being cancelled")


def _is_unsent(record: TaskRecord, name: str) -> bool:
    """Whether a call is being cancelled, and the answer to this question was not sent before."""
    match record.state:
        case states.Observing(cancel=cancel, questions=questions) if cancel != "no":
            asked = next((q for q in questions if question_id(record.record_id, q) == name), None)
            return asked is not None and (asked.unanswered or asked.stage == "answered")
        case states.Finished(outcome=states.Cancelled()):
            return True
        case _:
            return False


def check_open(
    record: TaskRecord | None, name: str, answer: JSONObject
) -> tuple[states.AskedQuestion, JSONObject]:
    """The question with this ``question_id``, and the answer to send, if it is open and the answer fits it.

    Raises:
        InvalidAnswerError: The answer does not fit the question.
        AlreadyAnsweredError: The question has an answer.
        QuestionWithdrawnError: The server no longer waits for an answer.
    """
    if record is None:
        raise _withdrawn("there is no such call here")
    if record.finished:
        raise _withdrawn("its call is over")
    questions = states.questions_of(record.state)
    asked = next((q for q in questions if question_id(record.record_id, q) == name), None)
    if asked is not None and not asked.unanswered:
        with suppress(NoAnswerError):
            answer = fit_answer(asked.request or {}, answer)
        raise _already_answered(same=digest(asked.answer) == digest(answer))
    if asked is None and any(_was_named(record.record_id, q, name) for q in questions):
        raise _withdrawn("the server has refused an answer to it. It is open again under another question_id")
    if asked is None or asked not in _waiting(record):
        raise _withdrawn("the server does not ask it any more")
    try:
        answer = fit_answer(asked.request or {}, answer)
    except NoAnswerError as error:
        raise InvalidAnswerError(f"The answer was not taken: {error}.") from None
    if is_url_key(asked.key) and answer.get("action") != "accept":
        raise InvalidAnswerError("A visit before the call cannot be declined to the server. Cancel the call.")
    return asked, answer


def _was_named(record_id: str, asked: states.AskedQuestion, name: str) -> bool:
    """Whether a question had that name before one of its answers was refused."""
    return any(name == question_id(record_id, replace(asked, refusals=n)) for n in range(asked.refusals))


def _withdrawn(why: str) -> QuestionWithdrawnError:
    return QuestionWithdrawnError(f"This question waits for no answer: {why}. Nothing was sent.")


def _already_answered(*, same: bool) -> AlreadyAnsweredError:
    which = "the same" if same else "another"
    return AlreadyAnsweredError(
        f"This question has {which} answer already, and the first one counts.", same=same
    )
