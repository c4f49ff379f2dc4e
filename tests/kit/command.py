"""The command over a journal of either kind, without a terminal; and calls that are in that journal."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from time import monotonic, sleep, time
from typing import Any, Final, TypeVar

import anyio

from mcp_tasks_client import BlockingInbox, Journal, JournalError, PostgresJournal, SqliteJournal, TaskRecord
from mcp_tasks_client.machine.states import AskedQuestion
from mcp_tasks_client.testing.samples import observing, record
from tests._forked import make_command

from .current_server import LIMIT_S
from .terminal import COMMAND, Ran, run_command, surroundings

__all__ = ["Command", "asking", "form", "until"]

T = TypeVar("T")

_LOOK_S: Final = 0.05


def until(look: Callable[[], T | None], limit_s: float = 4 * LIMIT_S) -> T:
    """What ``look`` returns once it is true."""
    deadline = monotonic() + limit_s
    while not (found := look()):
        assert monotonic() < deadline, "not seen in time"
        sleep(_LOOK_S)
    return found


class Command:
    """The command over one journal.

    Attributes:
        journal: A file, or the address of a database.
        variables: Further variables of its environment.
    """

    def __init__(self, journal: Path | str, **variables: str) -> None:
        self.journal, self.variables = journal, variables

    def __call__(self, *arguments: str, given: str = "") -> Ran:
        """Run it to its end, with a text on its stdin."""
        return run_command(self.journal, *arguments, given=given, **self.variables)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Popen[str]]:
        """Have it run beside the block."""
        process = Popen(
            make_command(*COMMAND[1:], *arguments),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            text=True,
            env=surroundings(self.journal, **self.variables),
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def opened(self) -> Journal:
        """The same journal for this process, to be opened."""
        if isinstance(self.journal, Path):
            return SqliteJournal(self.journal)
        return PostgresJournal(self.journal, schema=self.variables["MCP_TASKS_SCHEMA"])

    def write(self, *records: TaskRecord) -> None:
        """Write records, as another program has."""

        async def save() -> None:
            async with self.opened() as journal:
                for one in records:
                    await journal.save(one)

        anyio.run(save)

    def left(self, record_id: str) -> dict[str, str]:
        """What was left for the driver of a call: the body of each instruction, by its name."""

        async def look() -> dict[str, str]:
            async with self.opened() as journal:
                return {one.name: one.body for one in await journal.instructions(record_id)}

        return anyio.run(look)

    def wait_for_question(self, count: int = 1) -> str:
        """The ID of the oldest question, once so many are open."""

        def look() -> list[str] | None:
            # The program that makes the journal may not have begun.
            with suppress(JournalError), BlockingInbox(self.opened()) as inbox:
                found = [one.question_id for one in inbox.questions()]
                return found if len(found) >= count else None
            return None

        return until(look)[0]


def form(message: str = "Name?", required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """The request for a form, on the wire."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def asking(*requests: dict[str, Any], refusal: str | None = None, **changes: Any) -> TaskRecord:
    """A call of a program that has ended, whose server asks these questions."""
    keyed = {f"k{number}": one for number, one in enumerate(requests)}
    state = observing(status="input_required", inputRequests=keyed, ttl_ms=None)
    refused = {} if refusal is None else {"refusal": refusal, "refusals": 1}
    questions = tuple(
        AskedQuestion(key=key, digest="d", asked_at=time() - 60, request=one, **refused)
        for key, one in keyed.items()
    )
    given = {"record_id": uuid.uuid4().hex, "created_at": time() - 90, "updated_at": time() - 60, **changes}
    return record(state=replace(state, questions=questions), **given)
