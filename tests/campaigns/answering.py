"""Somebody who answers from outside, in a process of its own: whatever is asked in a journal, by an inbox.

It answers each question once, some seconds after it was asked, or never. The question decides which, so that
two of these processes answer it at the same moment. Each answer has words of its own. The process prints
``ready``, writes down what it gets to know, and goes on until it is killed.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio

from mcp_tasks_client import (
    AlreadyAnsweredError,
    Inbox,
    JournalError,
    PostgresJournal,
    Question,
    QuestionWithdrawnError,
    SqliteJournal,
)

from .torture.evidence import Log

__all__ = ["answering"]

_LOOK_S: Final = 0.1


def answering(
    journal: Path | str,
    log: Path,
    life: int,
    *,
    share: float = 1.0,
    patience_s: tuple[float, float] = (0.0, 0.0),
) -> list[str]:
    """What runs such a process, for ``Program``.

    Args:
        journal: Where questions are asked: a file, or a database of PostgreSQL by ``host=…``.
        log: What it writes down.
        life: The number that is in its words.
        share: Of the questions, which share it answers at all.
        patience_s: Seconds that those wait for its answer, at least and at most.
    """
    options = [journal, log, life, share, *patience_s]
    return ["-m", __name__, *map(str, options)]


class Answerer:
    """Answers through an inbox, and keeps a log of it."""

    def __init__(
        self, inbox: Inbox, log: Log, life: str, share: float, patience_s: tuple[float, float]
    ) -> None:
        self._inbox = inbox
        self._log = log
        self._life = life
        self._share = share
        self._patience_s = patience_s
        self._seen: set[str] = set()
        self._counted: set[str] = set()

    async def answer_all(self) -> None:
        """Answer whatever anybody asks; see that nothing is shown again that was told to count."""
        async with anyio.create_task_group() as tasks:
            print("ready", flush=True)
            while True:
                counted = self._counted.copy()
                questions: list[Question] = []
                with suppress(JournalError):  # it is away, and comes back
                    questions = await self._inbox.questions()
                for question in questions:
                    if question.question_id in counted:
                        self._log.write("shown again", **_about(question))
                        self._counted.discard(question.question_id)  # once is enough
                    elif question.question_id not in self._seen:
                        self._seen.add(question.question_id)
                        words = f"answer {len(self._seen)} of life {self._life}"
                        tasks.start_soon(self._answer, question, words)
                await anyio.sleep(_LOOK_S)

    async def _answer(self, question: Question, words: str) -> None:
        chance = random.Random(question.question_id)
        if chance.random() >= self._share:
            return
        due_at = question.asked_at + chance.uniform(*self._patience_s)
        await anyio.sleep(max(0.0, due_at - time.time()))
        about = {"text": words, **_about(question)}
        self._log.write("giving", **about)
        try:
            required = question.params.requested_schema["required"]  # type: ignore[union-attr]  # a form
            await question.accept(dict.fromkeys(required, words))
        except AlreadyAnsweredError:
            self._log.write("came second", **about)
        except QuestionWithdrawnError:
            self._log.write("came late", **about)
        except Exception as error:
            self._log.write("error", **about | {"text": f"{type(error).__name__}: {error}"})
        else:
            self._counted.add(question.question_id)
            self._log.write("given", **about)


def _about(question: Question) -> dict[str, str]:
    message = question.params.message  # type: ignore[union-attr]  # a form
    intent = message.partition(":")[0]
    return {"intent": intent, "question": message, "question_id": question.question_id}


async def main(journal: str, log: str, life: str, share: str, at_least_s: str, at_most_s: str) -> None:
    patience_s = float(at_least_s), float(at_most_s)
    kept = PostgresJournal(journal) if journal.startswith("host=") else SqliteJournal(journal)
    async with kept, Inbox(kept) as inbox:  # it may be there before any client
        await Answerer(inbox, Log(Path(log)), life, float(share), patience_s).answer_all()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
