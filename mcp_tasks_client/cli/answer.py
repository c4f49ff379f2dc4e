"""``mcp-tasks answer``: answer a question of a server, whichever program made the call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import typer

import mcp_tasks_client as tasks

from .arguments import read_json
from .asking import Person, is_terminal
from .completion import complete_question
from .exits import CommandError, Exit
from .journal import JournalOption, KeysOption, PrincipalOption, SchemaOption, Where, find_question
from .lines import short_id, short_question
from .output import Output
from .questions import tell_url
from .running import run

if TYPE_CHECKING:
    from mcp_types import ElicitResult

__all__ = ["answer"]

_LOOK_S: Final = 0.5
"""Seconds between looks for an answer of somebody else, while a form is open."""


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
        typer.Option("--accept", help="Accept the form as it is, with its defaults; or: the URL was visited."),
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
            result = await _ask(inbox, asked, where) if given.is_form else given.result_for(asked, where)
            await _commit(asked, result, where)
            await _tell_sent(inbox, asked, result, where, output)

    run(main, output, where)


class _Given:
    """An answer as the command line has it."""

    def __init__(
        self, pairs: Sequence[str], input_json: str | None, *, accept: bool, decline: bool, cancel: bool
    ) -> None:
        self._pairs, self._input_json = pairs, input_json
        self._actions = [
            name for name, is_given in (("accept", accept), ("decline", decline), ("cancel", cancel)) if is_given
        ]

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
            CommandError: It has several answers; or none, and nobody sits at a terminal.
        """
        if len(self._actions) + self._has_values > 1:
            raise CommandError(Exit.USAGE, "Give values, or one of --accept, --decline and --cancel.")
        if self.is_form and not is_terminal():
            raise CommandError(
                Exit.USAGE,
                "There is no terminal for a form. Give the values as field=value or by --input-json, or one of "
                "--accept, --decline and --cancel.",
            )

    def result_for(self, question: tasks.Question, where: Where) -> ElicitResult:
        """The answer to a question.

        Raises:
            CommandError: A value does not fit, or the question takes none.
        """
        _check_kind(question, where)
        if not self._has_values:
            return self.result({})
        if not hasattr(question.params, "requested_schema"):
            raise CommandError(
                Exit.USAGE,
                "The question has no form to fill in. "
                + " ".join((*_tell_url_of(question), "Give one of --accept, --decline and --cancel.")),
                record=question.record_id,
            )
        return self.result(question.params.requested_schema)

    def result(self, schema: dict[str, Any]) -> ElicitResult:
        """The answer to a form of this schema.

        Raises:
            CommandError: A value does not fit, or the form has no such field.
        """
        from mcp_types import ElicitResult

        from mcp_tasks_client.forms import read_pairs

        if not self._has_values:
            # Not validated here: the class would quote the answer.
            content = {} if self._actions == ["accept"] else None
            return ElicitResult.model_construct(action=self._actions[0], content=content)
        content = {} if self._input_json is None else read_json(self._input_json)
        content |= read_pairs(self._pairs, schema)
        _check_names(content, schema)
        return ElicitResult.model_construct(action="accept", content=content)


def _check_kind(question: tasks.Question, where: Where) -> None:
    """Refuse a question that is for a program.

    Raises:
        CommandError: It is no form and no URL.
    """
    if question.method != "elicitation/create":
        raise CommandError(
            Exit.USAGE,
            f"This question is {question.method}, which the program of the call answers. Forms and URLs are "
            "answered here.",
            record=question.record_id,
            next=where.line("show", short_id(question.record_id)),
        )


def _tell_url_of(question: tasks.Question) -> list[str]:
    url = getattr(question.params, "url", None)
    return [] if url is None else [line if line.endswith(".") else f"{line} ." for line in tell_url(url)]


def _check_names(content: dict[str, Any], schema: dict[str, Any]) -> None:
    """Refuse a value for which a form has no field: many a schema would let a misspelt one pass.

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
