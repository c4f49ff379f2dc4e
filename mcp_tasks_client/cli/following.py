"""Following a call, new or old, to its end, and writing the end."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import mcp_tasks_client as tasks

from .exits import CommandError, Exit, as_command_error, reading_options
from .journal import Where
from .lines import short_id, short_question
from .output import Output, as_sent, read_result
from .seen import message_of
from .times import ahead, exact

if TYPE_CHECKING:
    from mcp_types import CallToolResult

__all__ = ["WISH_IN_JOURNAL", "End", "Receipts", "follow", "name_question", "waits_for"]

WISH_IN_JOURNAL: Final = "The wish is in the journal, and goes with the next poll:"
"""Said where the server could not be told to cancel. The line that polls follows."""

End: TypeAlias = Union["CallToolResult", "tasks.TasksClientError", CommandError]
"""The outcome of a call; or, as a ``CommandError``, the reason why the command has stopped following it."""


async def follow(handle: tasks.TaskHandle, where: Where) -> End:
    """Wait for the end of a call. This does not count its outcome as received."""
    try:
        return await handle.peek()
    except tasks.InputUnansweredError as error:
        return name_question(error, where)


def name_question(error: tasks.InputUnansweredError, where: Where) -> CommandError:
    """The error that names the line which answers an open question."""
    failure = as_command_error(error)
    if not error.questions:
        return failure
    task_id = None if error.handle is None else error.handle.reference["task_id"]
    return waits_for(error.questions[0], failure.record, task_id, where)


def waits_for(
    asked: tasks.OpenQuestion, record_id: str | None, task_id: str | None, where: Where
) -> CommandError:
    """The error of a call whose question is open. The task's ID, which the server may quote, is shortened."""
    return CommandError(
        Exit.QUESTION_WAITS,
        f"The call waits for an answer. The server asks: {message_of(asked, task_id)}",
        record=record_id,
        next=where.line("answer", short_question(asked.question_id)),
    )


class Receipts:
    """Writes the ends of calls, and how to go on with calls that have none.

    Args:
        where: The journal of the calls.
        output: Of the verb.
        options: Of ``wait``, for a line that goes on.
    """

    def __init__(self, where: Where, output: Output, *options: str) -> None:
        self._where, self._output, self._options = where, output, options

    async def begin(self, starting: Awaitable[tasks.TaskHandle], *, has_key: bool) -> tasks.TaskHandle:
        """Wait until the server has answered a call with a task or a result.

        Raises:
            CommandError: A question waits for an answer; or the label, the key or an argument makes no sense.
            TasksClientError: The call could not be made, or its outcome is unknown.
        """
        try:
            with reading_options():
                return await starting
        except tasks.InputUnansweredError as error:
            # Before there is a task, the journal has a call with a key alone.
            named = name_question(error, self._where) if has_key else as_command_error(error)
            raise named from error
        except tasks.OutcomeUnknownError as error:
            failure = as_command_error(error)
            if failure.record is not None:
                failure.next = self._where.line("show", short_id(failure.record))
            raise failure from error

    # ── receipts ──────────────────────────────────────────────────────────────────────────────

    def detach(self, record: tasks.TaskRecord) -> None:
        """Say how to go on with a task that runs on without us.

        Raises:
            OSError: The output could not be written.
        """
        self._output.note(f"The task runs on. {_kept_until(record)}Nobody polls it, so wait for it in time:")
        self._output.next(self._go_on(record))

    def let_go(self, records: Iterable[tasks.TaskRecord]) -> None:
        """Say how to go on with calls whose waiting was interrupted."""
        with suppress(OSError):
            for record in records:
                self._output.note(f"Let go. The task runs on. {_kept_until(record)}To go on:")
                self._output.next(self._go_on(record))

    def let_go_before_task(self, *, has_key: bool) -> None:
        """Say that the waiting was interrupted before the server had answered."""
        with suppress(OSError):
            self._output.note(f"The server has not answered yet. {_may_have_run(has_key)}")

    def tell_cancelled(self, record: tasks.TaskRecord) -> None:
        """Say that the server was asked to cancel."""
        with suppress(OSError):
            self._output.note("The server was asked to cancel the task. It may finish all the same:")
            self._output.next(self._go_on(record))

    def time_out_before_task(self, timeout: float | None, *, has_key: bool) -> CommandError:
        """The error of a call that the server has not answered in time."""
        return CommandError(
            Exit.OUTCOME_UNKNOWN, f"The server has not answered within {timeout} s. {_may_have_run(has_key)}"
        )

    def time_out(self, record: tasks.TaskRecord, timeout: float | None) -> CommandError:
        """The error of a wait that took too long."""
        if record.task_id is None and not record.finished:
            return self.time_out_before_task(timeout, has_key=record.idempotency_key is not None)
        return CommandError(
            Exit.TIMED_OUT,
            f"No outcome within {timeout} s. The task runs on. {_kept_until(record)}To wait on:",
            record=record.record_id,
            next=self._go_on(record),
        )

    def _go_on(self, record: tasks.TaskRecord) -> str:
        return self._where.line("wait", short_id(record.record_id), *self._options)

    # ── ends ──────────────────────────────────────────────────────────────────────────────────

    def write(self, record_id: str | None, end: End) -> Exit:
        """Write the end of a call: its result on stdout, an error on stderr.

        Returns:
            The exit code.

        Raises:
            OSError: The output could not be written, so that the outcome was not received.
        """
        failure = _failure_of(record_id, end)
        if not isinstance(end, Exception):
            if self._output.as_json:
                self._output.document(_document_of_end(record_id, end))
            else:
                self._output.text(read_result(end))
        if failure is None:
            return Exit.RESULT
        self._output.fail(failure)
        return failure.exit

    def write_all(self, records: Sequence[tasks.TaskRecord], ends: Mapping[str, End]) -> Exit:
        """Write the ends of several calls, in the order of the records. Calls without an end are left out.

        Returns:
            The first exit code that is not 0.

        Raises:
            OSError: The output could not be written, so that the outcomes were not received.
        """
        given = [(one.record_id, ends[one.record_id]) for one in records if one.record_id in ends]
        if len(records) == 1 or not self._output.as_json:
            codes = [self.write(*one) for one in given]
        else:
            self._output.document([_document_of_end(*one) for one in given])
            failures = [_failure_of(*one) for one in given]
            codes = [Exit.RESULT if one is None else one.exit for one in failures]
        return next((code for code in codes if code), Exit.RESULT)


def _failure_of(record_id: str | None, end: End) -> CommandError | None:
    """The error that the end of a call is; ``None`` for a good one."""
    if isinstance(end, CommandError):
        end.record = end.record or record_id
        return end
    if isinstance(end, tasks.TasksClientError):
        failure = as_command_error(end)
        failure.record = record_id
        return failure
    if end.is_error:
        return CommandError(Exit.TOOL_FAILED, "The tool returned an error.", record=record_id)
    return None


def _document_of_end(record_id: str | None, end: End) -> dict[str, Any]:
    """The end of a call for programs."""
    if isinstance(end, Exception):
        failure = _failure_of(record_id, end)
        assert failure is not None, "an error is no good end"
        return {"record": record_id, "error": failure.document()}
    return {"record": record_id, "result": as_sent(end)}


def _may_have_run(has_key: bool) -> str:
    return "The tool may have run." + (" The same line, run again, goes on with the call." if has_key else "")


def _kept_until(record: tasks.TaskRecord) -> str:
    """Until when the server keeps a task, as a sentence."""
    if record.expires_at is None:
        return ""
    return f"The server keeps it until {exact(record.expires_at)}, {ahead(record.expires_at)}. "
