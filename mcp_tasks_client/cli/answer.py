"""``mcp-tasks answer``: answer a question of a server, for a call of any program."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import typer

import mcp_tasks_client as tasks

from .arguments import read_json
from .asking import Person, is_terminal
from .completion import complete_question
from .exits import CommandError, Exit
from .journal import (
    JournalOption,
    KeysOption,
    PrincipalOption,
    SchemaOption,
    Where,
    find_question,
    find_record,
)
from .lines import short_id, short_question
from .output import Output
from .running import run

if TYPE_CHECKING:
    from mcp_types import ElicitResult

__all__ = ["answer"]

_LOOK_S: Final = 0.5
"""Seconds between looks for another answer, while a form is open."""


def answer(
    question: Annotated[
        str,
        typer.Argument(
            help="Its ID; a beginning is enough, and the call's where it asks one question.",
            autocompletion=complete_question,
        ),
    ],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[field=v] [field:=json]", help="Values: texts, by the form, or JSON."),
    ] = None,
    input_json: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", help="All values, as a JSON object.")
    ] = None,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Accept the form with its defaults; or, the URL was visited."),
    ] = False,
    decline: Annotated[bool, typer.Option("--decline", help="Say no.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Dismiss the question without a choice. The task goes on.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON object that says who sends it.")] = False,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
    principal: PrincipalOption = None,
) -> None:
    """Answer a question. Without values and options, in a terminal, it is put as a form.

    The answer is in the journal when this returns. The program that drives the call sends it. The first
    answer to a question is the one that counts.
    """
    where, output = Where(journal, schema, keys, principal), Output(as_json=json)
    given = _Given(pairs or (), input_json, accept=accept, decline=decline, cancel=cancel)

    async def main() -> None:
        given.check()
        async with where.inbox() as inbox:
            try:
                asked = await find_question(inbox, question)
            except CommandError as error:
                if error.exit is Exit.GONE:
                    await _tell_gone(inbox, question, given, where)
                raise
            again = where.line("answer", short_question(asked.question_id))
            try:
                result = await _ask(inbox, asked, where) if given.is_form else given.result_for(asked, where)
            except asyncio.CancelledError:
                with suppress(OSError):
                    output.note("Nothing was sent. The question waits for an answer:")
                    output.next(again)
                raise
            await _commit(asked.answer(result), asked.record_id, again, where)
            await _tell_sent(inbox, asked, result, where, output)

    run(main, output, where)


class _Given:
    """An answer as the command line has it."""

    def __init__(
        self, pairs: Sequence[str], input_json: str | None, *, accept: bool, decline: bool, cancel: bool
    ) -> None:
        self._pairs, self._input_json = pairs, input_json
        actions = {"accept": accept, "decline": decline, "cancel": cancel}
        self._actions = [name for name, is_given in actions.items() if is_given]

    @property
    def has_texts(self) -> bool:
        """True if a value is a text that the form may read as another type."""
        return any(not pair.partition("=")[0].endswith(":") for pair in self._pairs)

    @property
    def _has_values(self) -> bool:
        return bool(self._pairs) or self._input_json is not None

    @property
    def is_form(self) -> bool:
        """True if the line has no answer, so that a form asks for one."""
        return not (self._has_values or self._actions)

    def check(self) -> None:
        """Refuse a line that makes no sense.

        Raises:
            CommandError: It has several answers; or none, and there is no terminal.
        """
        if len(self._actions) + self._has_values > 1:
            raise CommandError(Exit.USAGE, "Give values, or one of --accept, --decline and --cancel.")
        if self.is_form and not is_terminal():
            raise CommandError(
                Exit.USAGE,
                "There is no terminal for a form. Give values as field=value or by --input-json, or one of "
                "--accept, --decline and --cancel.",
            )

    def result_for(self, question: tasks.Question, where: Where) -> ElicitResult:
        """The answer to a question.

        Raises:
            CommandError: A value does not fit, or the question takes none.
        """
        _check_kind(question, where)
        schema: dict[str, Any] | None = getattr(question.params, "requested_schema", None)
        if self._has_values and schema is None:
            raise CommandError(
                Exit.USAGE,
                "The question has no form to fill in. Give one of --accept, --decline and --cancel.",
                record=question.record_id,
            )
        return self.result(schema or {})

    def result(self, schema: dict[str, Any]) -> ElicitResult:
        """The answer to a form of this schema.

        Raises:
            CommandError: A value does not fit, or the form has no such field.
        """
        from mcp_types import ElicitResult

        from mcp_tasks_client.forms import read_pairs

        if not self._has_values:
            # Not validated here: the class would quote the answer.
            return ElicitResult.model_construct(action=self._actions[0])
        content: dict[str, Any] = {} if self._input_json is None else read_json(self._input_json)
        content |= read_pairs(self._pairs, schema)
        _check_names(content, schema)
        return ElicitResult.model_construct(action="accept", content=content)


def _check_kind(question: tasks.Question, where: Where) -> None:
    """Refuse a question that is for a program.

    Raises:
        CommandError: It is no form and no URL.
    """
    if not question.asks_person:
        raise CommandError(
            Exit.USAGE,
            f"This question is {question.method}, which the program of the call answers. Forms and URLs are "
            "answered here.",
            record=question.record_id,
            next=where.line("show", short_id(question.record_id)),
        )


def _check_names(content: dict[str, Any], schema: dict[str, Any]) -> None:
    """Refuse a value for which a form has no field: many schemas would let a misspelt one pass.

    Raises:
        CommandError: There is one.
    """
    properties = schema.get("properties")
    if not isinstance(properties, dict) or schema.get("additionalProperties"):
        return
    for name in content:
        if name not in properties:
            known = ", ".join(map(str, properties)) or "none"
            raise CommandError(Exit.USAGE, f"The form has no field {name!r}. It has: {known}.")


async def _ask(inbox: tasks.Inbox, question: tasks.Question, where: Where) -> ElicitResult:
    """The answer of the person at the terminal.

    Raises:
        CommandError: The question has another answer; or the person has given none, and it is still open.
    """
    _check_kind(question, where)
    result: ElicitResult | None = None
    withdrawn = asyncio.Event()
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while True:
                if not await _is_open(inbox, question):
                    withdrawn.set()
                await anyio.sleep(_LOOK_S)

        group.start_soon(watch)
        with suppress(EOFError):  # there is no person
            result = await Person().answer(question, withdrawn)
        group.cancel_scope.cancel()
    if result is not None:
        return result
    if await _is_open(inbox, question):
        raise CommandError(
            Exit.QUESTION_WAITS,
            "Nothing was sent. The question waits for an answer:",
            record=question.record_id,
            next=where.line("answer", short_question(question.question_id)),
        )
    raise CommandError(
        Exit.GONE,
        "The question waits for no answer any more.",
        record=question.record_id,
        next=where.line("wait", short_id(question.record_id)),
    )


async def _is_open(inbox: tasks.Inbox, question: tasks.Question) -> bool:
    try:
        return await inbox.question(question.question_id) is not None
    except tasks.JournalError:  # it may be read the next time, and a form must not go away for it
        return True


async def _commit(answering: Awaitable[None], record_id: str, again: str, where: Where) -> None:
    """Leave an answer in the journal.

    Raises:
        CommandError: It does not fit, or the question is not open.
        JournalError: It could not be committed.
    """
    name = short_id(record_id)
    try:
        await answering
    except tasks.InvalidAnswerError as error:
        raise CommandError(Exit.USAGE, str(error), record=record_id, next=again) from None
    except tasks.AlreadyAnsweredError as error:
        raise _AnsweredError(str(error), record_id, where.line("wait", name), is_same=error.same) from None
    except tasks.QuestionWithdrawnError as error:
        raise CommandError(Exit.GONE, str(error), record=record_id, next=where.line("show", name)) from None


class _AnsweredError(CommandError):
    """The question had an answer before."""

    def __init__(self, message: str, record_id: str, next: str, *, is_same: bool) -> None:
        super().__init__(Exit.USAGE, message, record=record_id, next=next)
        self.is_same = is_same


async def _tell_gone(inbox: tasks.Inbox, question_id: str, given: _Given, where: Where) -> None:
    """Say why a question is not open, if the journal still has its call.

    Raises:
        CommandError: Its call is over, or it has an answer: the same or another one.
        JournalError: The journal could not be read.
    """
    try:
        record = await find_record(inbox, question_id.partition("-")[0])
    except CommandError:
        return  # nothing is known of the call
    if not record.finished and not given.is_form:
        # Without the form, so that a number may stand here as a text.
        result = given.result({})

        async def answer_again() -> None:
            # Nor is an answered question found by less than its whole ID.
            with suppress(tasks.InvalidAnswerError, ValueError):
                await inbox.answer(question_id, result)

        try:
            await _commit(answer_again(), record.record_id, "", where)
        except _AnsweredError as error:
            if error.is_same or not given.has_texts:
                raise
            message = "This question has an answer already, and the first one counts."
            raise CommandError(error.exit, message, record=error.record, next=error.next) from None
    raise CommandError(
        Exit.GONE,
        "The call of this question has ended."
        if record.finished
        else "This question waits for no answer: it has one, or the server does not ask it any more.",
        record=record.record_id,
        next=where.line("show" if record.finished else "wait", short_id(record.record_id)),
    )


async def _tell_sent(
    inbox: tasks.Inbox, question: tasks.Question, result: ElicitResult, where: Where, output: Output
) -> None:
    """Say whether a program sends the answer, and how to go on."""
    record = await inbox.record(question.record_id)
    is_driven = record is not None and await inbox.is_driven(record)
    left = [one for one in await inbox.questions() if one.record_id == question.record_id]
    go_on = where.line("wait", short_id(question.record_id))
    if output.as_json:
        output.document(
            {
                "question": question.question_id,
                "record": question.record_id,
                "action": result.action,
                "driven": is_driven,
                "next": where.line("answer", short_question(left[0].question_id)) if left else go_on,
            }
        )
        return
    output.note(
        "The answer is in the journal. The program that drives the call sends it. To follow the call:"
        if is_driven
        else "The answer is in the journal. No living program drives the call, so nobody sends it yet. To "
        "send it and go on with the call:"
    )
    output.next(go_on)
    if left:
        output.note("The call asks more:")
        output.next(where.line("answer", short_question(left[0].question_id)))
