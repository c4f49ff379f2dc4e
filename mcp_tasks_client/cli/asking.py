"""Who is asked the questions of a call that the command drives."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

if TYPE_CHECKING:
    from mcp_types import ElicitResult

    import mcp_tasks_client as tasks

__all__ = ["Elicit", "Questions", "QuestionsOption", "callback_for"]

Elicit: TypeAlias = Callable[[Any, Any], Awaitable["ElicitResult | None"]] | Literal["later"]
"""What a client takes for ``elicitation=``."""


class Questions(StrEnum):
    """Who is asked."""

    ASK = "ask"
    FAIL = "fail"
    LEAVE = "leave"


QuestionsOption = Annotated[
    Questions | None,
    typer.Option(
        "--questions",
        help="`ask` here; `fail`, with exit code 6 and the line that answers; `leave` them to others, and "
        "wait. Without it: `ask` in a terminal, else `fail`.",
        show_default=False,
    ),
]


def callback_for(questions: Questions | None, elsewhere: Questions = Questions.FAIL) -> Elicit:
    """The callback for questions. No question is declined because nobody sits at the terminal.

    Args:
        questions: As the line says.
        elsewhere: If it says nothing, and there is no terminal.
    """
    match questions or (Questions.ASK if _is_terminal() else elsewhere):
        case Questions.ASK:
            return _Person().ask
        case Questions.LEAVE:
            return "later"
        case Questions.FAIL:
            return _leave
    raise AssertionError("one of the three")


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


async def _leave(context: Any, params: Any) -> None:
    """Leave the question to others. The call parks, and the command fails with its ID."""


class _Person:
    """The person at the terminal, who has one form before them at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def ask(self, context: tasks.InputContext, params: Any) -> ElicitResult | None:
        """Put a question. The library cancels this when somebody else has answered."""
        from .form import ask  # type: ignore[import-not-found]  # to come

        withdrawn = asyncio.Event()
        async with self._turn:
            form = asyncio.ensure_future(ask(context, params, withdrawn))
            try:
                return await asyncio.shield(form)
            except asyncio.CancelledError:
                # The form ends itself: cancelling its task can leave the terminal without echo.
                withdrawn.set()
                await asyncio.wait([form])
                raise
