"""Every exception this package raises, in one tree.

::

    TasksClientError                 .handle (None where there is no task yet)
    ├ TaskError
    │ ├ TaskFailedError              .code .message .data: the call ended in a JSON-RPC error
    │ ├ TaskCancelledError           the task was cancelled; never asyncio's CancelledError
    │ ├ TaskExpiredError             the server dropped it after its ttlMs
    │ └ TaskNotFoundError            the server does not know it
    ├ ToolError                      .result .tool: the tool raised; only with raise_on_error=True
    ├ WaitTimeoutError               .last_failure (also TimeoutError) we stopped waiting; the task lives
    ├ InputUnansweredError           .questions .keys: a question of the server's has no answer yet
    ├ AlreadyAnsweredError           .same: the question has an answer, and the first one counts
    ├ QuestionWithdrawnError         the question waits for no answer
    ├ InvalidAnswerError             (also ValueError) the answer does not fit the question
    ├ FormError                      .field (also ValueError) a typed text is no value of its field
    ├ OutcomeUnknownError            .record: tools/call was sent and its reply was lost
    ├ IdempotencyConflictError       the key belongs to another tool or other arguments
    ├ DrivenElsewhereError           another client has taken the call over
    ├ SessionError                   .retryable .code .data .http_status .retry_after_s
    │ ├ ConnectionLostError          no reply, or not a whole one
    │ ├ CredentialRefusedError       HTTP 401 or 403
    │ ├ RemoteProtocolError          a reply that the protocol does not allow
    │ └ MissingCapabilityError       the server wants a capability that was not declared
    └ JournalError
      ├ CallForgottenError           another client has brought the call to its end
      ├ JournalLockedError           another process holds the file
      ├ JournalCodecError            a record that the codec= of the journal cannot encode or decode
      ├ JournalCorruptError          not a database, or a damaged one
      └ JournalSchemaError           another program's file, or a newer version's

Each message names the next step. All of them pickle: a handle travels as its reference and
can be attached again on the other side. Wrong arguments of the caller's own are
``ValueError`` and ``TypeError``, as everywhere in Python.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import mcp_types

if TYPE_CHECKING:
    from .machine.record import TaskRecord, TaskReference
    from .machine.states import LastFailure

__all__ = [
    "AlreadyAnsweredError",
    "CallForgottenError",
    "ConnectionLostError",
    "CredentialRefusedError",
    "DrivenElsewhereError",
    "FormError",
    "IdempotencyConflictError",
    "InputUnansweredError",
    "InvalidAnswerError",
    "JournalCodecError",
    "JournalCorruptError",
    "JournalError",
    "JournalLockedError",
    "JournalSchemaError",
    "MissingCapabilityError",
    "OutcomeUnknownError",
    "QuestionWithdrawnError",
    "RemoteProtocolError",
    "SessionError",
    "TaskCancelledError",
    "TaskError",
    "TaskExpiredError",
    "TaskFailedError",
    "TaskNotFoundError",
    "TasksClientError",
    "ToolError",
    "WaitTimeoutError",
]


class Handle(Protocol):
    """The call of an error: a :class:`TaskHandle`, which is made far above this module."""

    @property
    def reference(self) -> TaskReference:
        """A token for :meth:`TasksClient.attach`, here or elsewhere."""

    @property
    def task_id(self) -> str | None:
        """The server's ID; ``None`` while there is no task."""

    @property
    def tool(self) -> str | None:
        """The tool's name; ``None`` if the task was attached by its bare ID."""

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""

    async def result(self, timeout: float | None = None) -> mcp_types.CallToolResult:
        """Wait for the outcome and return it."""

    async def cancel(self) -> None:
        """Ask the server to cancel the task."""

    def __await__(self) -> Generator[Any, Any, mcp_types.CallToolResult]:
        """``await handle`` is ``await handle.result()``."""


class OpenQuestion(Protocol):
    """A question as errors carry it: a :class:`Question`, which is made above this module.

    Its methods are awaited, except those of a :class:`BlockingQuestion`, which an error of a blocking client
    carries.
    """

    @property
    def question_id(self) -> str:
        """Opaque, and safe in a page or a URL."""

    @property
    def method(self) -> str:
        """Such as ``elicitation/create``."""

    @property
    def params(self) -> mcp_types.RequestParams | None:
        """The params of the question, in the SDK's class."""

    @property
    def refused(self) -> str | None:
        """The server's words, where it has refused the last answer."""

    def answer(self, answer: Any) -> Any:
        """Answer the question; see :meth:`Question.answer`."""

    def accept(self, content: dict[str, Any] | None = None) -> Any:
        """Accept an elicitation."""

    def decline(self) -> Any:
        """Decline an elicitation."""


# Every ``__init__`` takes one positional message and keyword-only rest, so that the default
# ``Exception.__reduce__`` (class, args, __dict__) rebuilds it exactly.
class TasksClientError(Exception):
    """Base of everything this package raises on purpose.

    Attributes:
        handle: The task it is about; ``None`` where no task exists yet.
    """

    handle: Handle | None

    def __init__(self, message: str, *, handle: Handle | None = None) -> None:
        super().__init__(message)
        self.handle = handle


class TaskError(TasksClientError):
    """The task ended, and not with a result."""


class TaskFailedError(TaskError):
    """The tool call ended in a JSON-RPC error, at once or as a ``failed`` task.

    Attributes:
        code: JSON-RPC error code; ``None`` if the server reported a failure without one.
        message: The server's message, unchanged.
        data: The server's ``data``, unchanged.
        status_message: The task's ``statusMessage``; ``None`` if absent.
    """

    def __init__(
        self,
        text: str,
        *,
        code: int | None = None,
        message: str = "",
        data: Any = None,
        status_message: str | None = None,
        handle: Handle | None = None,
    ) -> None:
        super().__init__(text, handle=handle)
        self.code = code
        self.message = message
        self.data = data
        self.status_message = status_message


class TaskCancelledError(TaskError):
    """The task reached ``cancelled``. An error of its own: nothing local was cancelled."""


class TaskExpiredError(TaskError):
    """The ``ttlMs`` of the task has passed, and the server no longer knows it.

    With :attr:`PollPolicy.past_ttl_s`, also: and the server has called it ``working`` for too long since.
    """


class TaskNotFoundError(TaskError):
    """The server does not know the task, though its ``ttlMs`` has not passed."""


class ToolError(TasksClientError):
    """The tool raised: its result has ``is_error``. Only with ``raise_on_error=True``.

    No :class:`TaskError`, since there is a result. It counts as delivered, as a result that was returned.

    Attributes:
        result: The server's result, unchanged.
        tool: The tool's name; ``None`` if the task was attached by its bare ID.
    """

    def __init__(
        self,
        message: str,
        *,
        result: mcp_types.CallToolResult | None = None,
        tool: str | None = None,
        handle: Handle | None = None,
    ) -> None:
        super().__init__(message, handle=handle)
        # While it is unpickled there is none yet.
        self.result = mcp_types.CallToolResult(content=[], is_error=True) if result is None else result
        self.tool = tool


class WaitTimeoutError(TasksClientError, TimeoutError):
    """Waiting ended by its time limit. The task goes on; ``handle`` picks it up again.

    Attributes:
        last_failure: Why the task was not seen, and since when; ``None`` while requests got through.
    """

    def __init__(
        self, message: str, *, last_failure: LastFailure | None = None, handle: Handle | None = None
    ) -> None:
        super().__init__(message, handle=handle)
        self.last_failure = last_failure


class InputUnansweredError(TasksClientError):
    """The server asked something that got no answer it can use. The task waits for it.

    Attributes:
        questions: Those that can still be answered, by anybody who has the journal.
        keys: The server's keys of the questions without a usable answer.
        declined: Whether it is a URL to be visited before the call, and the answer was no.
    """

    def __init__(
        self,
        message: str,
        *,
        questions: Sequence[OpenQuestion] = (),
        keys: Sequence[str] = (),
        declined: bool = False,
        handle: Handle | None = None,
    ) -> None:
        super().__init__(message, handle=handle)
        self.questions = tuple(questions)
        self.keys = tuple(keys)
        self.declined = declined


class AlreadyAnsweredError(TasksClientError):
    """The question has its answer. The first one counts, and is never changed.

    Attributes:
        same: Whether that answer is the same as the one that was refused now.
    """

    def __init__(self, message: str, *, same: bool = False, handle: Handle | None = None) -> None:
        super().__init__(message, handle=handle)
        self.same = same


class QuestionWithdrawnError(TasksClientError):
    """The question waits for no answer: the server has taken it back, or its call is over or is cancelled.

    A question whose answer the server has refused waits under another ``question_id``.
    """


class InvalidAnswerError(TasksClientError, ValueError):
    """The answer does not fit the question. Nothing was committed; give another one.

    The message names the field, and quotes nothing of the answer.
    """


class FormError(TasksClientError, ValueError):
    """A typed text is no value that fits, or a form or URL cannot be put to a person. Nothing was sent.

    Of ``mcp_tasks_client.forms``. The message names the values that fit, and quotes nothing of the text.

    Attributes:
        field: The name of the field that it is about; ``None`` if it is about no single one.
    """

    def __init__(self, message: str, *, field: str | None = None, handle: Handle | None = None) -> None:
        super().__init__(message, handle=handle)
        self.field = field


class OutcomeUnknownError(TasksClientError):
    """``tools/call`` was sent under an idempotency key and its reply never arrived.

    The tool may have run. Only ``on_unknown="resend"`` sends it again.

    Attributes:
        record: The record of the call in the journal.
    """

    def __init__(
        self, message: str, *, record: TaskRecord | None = None, handle: Handle | None = None
    ) -> None:
        super().__init__(message, handle=handle)
        self.record = record


class IdempotencyConflictError(TasksClientError):
    """The idempotency key is taken by a call of another tool or with other arguments."""


class DrivenElsewhereError(TasksClientError):
    """Another client, mostly of another process, has taken the call over. Nothing of ours is written."""


class SessionError(TasksClientError):
    """Something between us and the server went wrong, or the server answered a JSON-RPC error.

    Attributes:
        retryable: Whether the same request may succeed later.
        not_executed: True if the server surely did nothing with the request that failed. That may be a poll:
            where ``handle`` has a task, the tool runs all the same.
        code: JSON-RPC error code, if the server answered one.
        remote_message: JSON-RPC error ``message``, unchanged.
        data: JSON-RPC error ``data``, unchanged.
        http_status: HTTP status, if there was one.
        retry_after_s: Seconds the server asked us to wait (``Retry-After``).
        patience: Where the session hides whether a failure passes: the failures in a row, and their seconds,
            after which polling ends. ``None``: polling goes on.
    """

    patience: tuple[int, float] | None = None

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        not_executed: bool = False,
        code: int | None = None,
        remote_message: str = "",
        data: Any = None,
        http_status: int | None = None,
        retry_after_s: float | None = None,
        handle: Handle | None = None,
    ) -> None:
        super().__init__(message, handle=handle)
        self.retryable = retryable
        self.not_executed = not_executed
        self.code = code
        self.remote_message = remote_message
        self.data = data
        self.http_status = http_status
        self.retry_after_s = retry_after_s


class ConnectionLostError(SessionError):
    """No reply arrived, or not a whole one."""


class CredentialRefusedError(SessionError):
    """The server refused our credential (HTTP 401 or 403).

    Attributes:
        challenge: The server's demand (``WWW-Authenticate``); ``""`` if there is none.
    """

    challenge: str = ""


class RemoteProtocolError(SessionError):
    """The server's reply is not one that the protocol allows."""


class MissingCapabilityError(SessionError):
    """The server requires a client capability that the request did not declare (-32021, once -32003)."""


class JournalError(TasksClientError):
    """The journal could not be read or written."""


class CallForgottenError(JournalError):
    """The journal had the call, and has it no more: mostly, another client has received its outcome.

    A journal that was set back, by a failover or from a backup, has forgotten it too.
    """


class JournalLockedError(JournalError):
    """Another process holds the journal file for longer than we wait."""


class JournalCodecError(JournalError):
    """A record or an answer that the journal's ``codec=`` cannot encode or decode, as without its key.

    The stored value is left as it is, and can be read with the right codec.
    """


class JournalCorruptError(JournalError):
    """The journal file is damaged, or no database at all. It is left as it is."""


class JournalSchemaError(JournalError):
    """The file belongs to another program or to a newer version of this one. It is left as it is."""
