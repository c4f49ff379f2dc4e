"""The persons or programs that the questions of a call go to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

if TYPE_CHECKING:
    from mcp_types import ElicitResult

    import mcp_tasks_client as tasks

__all__ = ["Elicit", "Person", "Questions", "QuestionsOption", "callback_for", "is_terminal", "park"]

Elicit: TypeAlias = Callable[[Any, Any], Awaitable["ElicitResult | None"]] | Literal["later"]
"""The callback that a client takes as ``elicitation=``."""


class Questions(StrEnum):
    """The addressee of a call's questions: the person here, none, or others."""

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


def callback_for(
    questions: Questions | None,
    paused: Callable[[], AbstractContextManager[None]],
    elsewhere: Questions = Questions.FAIL,
) -> Elicit:
    """The callback for questions. Without a person at the terminal no question is declined.

    Args:
        questions: As given in the line; ``None`` if not.
        paused: Keeps the terminal free for a form.
        elsewhere: Used if the line gives none, and there is no terminal.
    """
    match questions or (Questions.ASK if is_terminal() else elsewhere):
        case Questions.ASK:
            return Person(paused).ask
        case Questions.LEAVE:
            return "later"
        case Questions.FAIL:
            return park
    raise AssertionError("one of the three")


def is_terminal() -> bool:
    """True if a person can fill in a form."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def park(context: Any, params: Any) -> None:
    """Have the call park. Its question stays open, and the command fails with the line that answers it."""
    raise RuntimeError("nobody is asked here")


class Person:
    """The person at the terminal, who has one form before them at a time."""

    def __init__(self, paused: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._turn = asyncio.Lock()
        self._paused = paused
        self._verb = asyncio.current_task()

    async def ask(self, context: tasks.InputContext, params: Any) -> ElicitResult | None:
        """Put a question of a call that is driven here. The library cancels this once it has an answer."""
        question = context.question
        return await self._put(
            params,
            asyncio.Event(),
            server=None if question is None else question.endpoint,
            tool=context.tool,
            label=context.label,
            refused=None if question is None else question.refused,
        )

    async def answer(self, question: tasks.Question, withdrawn: asyncio.Event) -> ElicitResult | None:
        """Put a question of any call. The caller sets the event once it has an answer."""
        return await self._put(
            question.params,
            withdrawn,
            server=question.endpoint,
            tool=question.tool,
            label=question.label,
            refused=question.refused,
        )

    async def _put(self, params: Any, withdrawn: asyncio.Event, **shown: Any) -> ElicitResult | None:
        from .form import ask

        async with self._turn:
            with self._paused():
                form = asyncio.ensure_future(
                    ask(params, **shown, withdrawn=withdrawn, is_leaving=self._is_leaving)
                )
                try:
                    return await asyncio.shield(form)
                except asyncio.CancelledError:
                    # The form ends itself: cancelling its task can leave the terminal without echo.
                    withdrawn.set()
                    await asyncio.wait([form])
                    raise

    def _is_leaving(self) -> bool:
        """True once SIGINT or SIGTERM has cancelled the verb."""
        return self._verb is not None and self._verb.cancelling() > 0
