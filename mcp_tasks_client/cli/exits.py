"""The exit codes, and the one that each end of a call and each error has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import mcp_tasks_client as tasks

__all__ = ["CommandError", "Exit", "as_command_error", "reading_options"]


class Exit(IntEnum):
    """How the command ended. The names, in lower case, are the codes of errors in ``--json``."""

    RESULT = 0
    UNEXPECTED = 1
    USAGE = 2
    CREDENTIAL_REFUSED = 3
    UNREACHABLE = 4
    TOOL_FAILED = 5
    QUESTION_WAITS = 6
    TIMED_OUT = 7
    CANCELLED = 8
    GONE = 9
    OUTCOME_UNKNOWN = 10
    JOURNAL_UNUSABLE = 11
    INTERRUPTED = 130
    TERMINATED = 143


class CommandError(Exception):
    """The command ends with an exit code other than 0, a message and the command that comes next.

    Attributes:
        exit: The exit code.
        record: The ``record_id`` of the call; ``None`` if it is about none.
        next: A line for the shell; ``None`` if there is nothing to be done.
    """

    def __init__(
        self, exit: Exit, message: str, *, record: str | None = None, next: str | None = None
    ) -> None:
        super().__init__(message)
        self.exit = exit
        self.record = record
        self.next = next

    def document(self) -> dict[str, str | None]:
        """The error for programs."""
        return {
            "code": self.exit.name.lower(),
            "message": str(self),
            "record": self.record,
            "next": self.next,
        }


@contextmanager
def reading_options() -> Iterator[None]:
    """Have the library read options. An option that makes no sense is an error of the line.

    Raises:
        CommandError: An option makes no sense.
    """
    try:
        yield
    except tasks.TasksClientError:
        raise
    except ValueError as error:
        raise CommandError(Exit.USAGE, str(error)) from None


def _exit_of(error: tasks.TasksClientError, *, has_task: bool) -> Exit:
    """The exit code for an error.

    Args:
        error: Of the library.
        has_task: True if the server has made a task of the call, which runs on. A call without one may have
            run if its reply was lost.
    """
    match error:
        case tasks.CallForgottenError():  # as a call that is not found
            return Exit.GONE
        case tasks.JournalError():
            return Exit.JOURNAL_UNUSABLE
        case tasks.CredentialRefusedError():
            return Exit.CREDENTIAL_REFUSED
        case tasks.ToolError() | tasks.TaskFailedError():
            return Exit.TOOL_FAILED
        case tasks.InputUnansweredError():
            return Exit.QUESTION_WAITS
        case tasks.TaskCancelledError():
            return Exit.CANCELLED
        case tasks.TaskExpiredError() | tasks.TaskNotFoundError() | tasks.QuestionWithdrawnError():
            return Exit.GONE
        case tasks.OutcomeUnknownError():
            return Exit.OUTCOME_UNKNOWN
        case tasks.IdempotencyConflictError() | tasks.AlreadyAnsweredError():
            return Exit.USAGE
        case tasks.WaitTimeoutError():
            return Exit.TIMED_OUT if has_task else Exit.OUTCOME_UNKNOWN
        case tasks.SessionError(code=-32602) if has_task:
            return Exit.GONE
        case tasks.SessionError() if not has_task:
            return _exit_before_task(error)
        case _:  # an argument that makes no sense is a ValueError, too
            return Exit.USAGE if isinstance(error, ValueError) else Exit.UNEXPECTED


def _exit_before_task(error: tasks.SessionError) -> Exit:
    passes = error.retryable or isinstance(error, tasks.ConnectionLostError)
    if not passes:
        return Exit.UNEXPECTED  # the server has refused, and says why
    return Exit.UNREACHABLE if error.not_executed else Exit.OUTCOME_UNKNOWN


def as_command_error(error: tasks.TasksClientError) -> CommandError:
    """The error of the command for one of the library."""
    reference = None if error.handle is None else error.handle.reference
    record_id = None if reference is None else reference["record_id"]
    has_task = reference is not None and reference["task_id"] is not None
    if isinstance(error, tasks.OutcomeUnknownError) and error.record is not None:
        record_id = error.record.record_id
    message = str(error)
    if isinstance(error, tasks.OutcomeUnknownError):
        message = message.replace('on_unknown="resend"', "--resend")
    return CommandError(_exit_of(error, has_task=has_task), message, record=record_id)
