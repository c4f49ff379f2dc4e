"""One ``tools/call``: sent at most once, also if its caller goes away.

A caller that goes away before the request has left takes the call back, and nothing of it stays.
After that the reply is waited for a little longer, since it may hold a task ID; without one the
outcome is unknown.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

from ..errors import DrivenElsewhereError, InputUnansweredError, OutcomeUnknownError, TasksClientError
from ..machine.events import CallLost, CallRefused, Event
from ..machine.record import TaskRecord
from ..machine.replacing import replace
from ..machine.states import Calling, Gathering
from ..protocol import MalformedError
from ..sessions.base import BeforeSend
from ..sessions.request_errors import foreign_error

__all__ = ["ToolCallAttempt", "lost_reply", "missing_arguments"]

logger = logging.getLogger("mcp_tasks_client")


class ToolCallAttempt:
    """A ``tools/call`` from the decision to send it until its reply.

    Attributes:
        has_left: Whether the request may have reached the server, so that the tool may run.
    """

    __slots__ = ("_scope", "has_left")

    def __init__(self) -> None:
        self.has_left = False
        self._scope = anyio.CancelScope(shield=True)

    async def send(
        self, request: Callable[[BeforeSend], Awaitable[tuple[Event, Exception | None]]]
    ) -> tuple[Event, Exception | None]:
        """Send the request once. The request awaits the given function right before it leaves.

        Returns:
            The event, and the error to tell the caller. A request that was cut is ``CallLost`` if it had
            left and ``CallRefused`` if it had not, each without an error.

        Raises:
            DrivenElsewhereError: Another client has taken the record. Nothing was sent.
        """
        try:
            with self._scope:
                event, error = await request(self._before_send)
                if isinstance(event, CallRefused) and not self.has_left:
                    event = replace(event, for_good=False)  # the refusal was of listing the tools
                return event, error
        except DrivenElsewhereError:
            raise  # nothing has left
        except Exception as error:
            if isinstance(error, MalformedError) and not self.has_left:
                return CallRefused(), error  # of the caller: a name or an argument that no header can carry
            return self._unanswered(), foreign_error("tools/call", error, "repeat the call")
        return self._unanswered(), None

    def cut(self, grace_s: float) -> None:
        """The last caller has gone. The request is taken back if it has not left."""
        if self.has_left:
            self._scope.deadline = anyio.current_time() + grace_s
        else:
            self._scope.cancel()

    def wait_on(self) -> None:
        """Somebody waits for the reply again."""
        self._scope.deadline = math.inf

    async def _before_send(self) -> None:
        # A request that was cut goes no further than this.
        await anyio.lowlevel.checkpoint_if_cancelled()
        self.has_left = True

    def _unanswered(self) -> Event:
        return CallLost() if self.has_left else CallRefused()


def missing_arguments(record: TaskRecord) -> InputUnansweredError:
    """The error of a call that cannot go on here, since its arguments are not known here."""
    state = record.state
    questions = state.questions if isinstance(state, Gathering) else ()
    return InputUnansweredError(
        f"The server has not begun {record.tool!r} yet, and the arguments are not in the journal. "
        "Repeat the call with its arguments and its idempotency key; what was answered is kept.",
        keys=tuple(q.key for q in questions if q.unanswered),
    )


def lost_reply(record: TaskRecord, cause: Exception | None) -> Exception:
    """The error of a ``tools/call`` whose reply never came."""
    if record.idempotency_key is not None and not isinstance(record.state, Calling):
        error: Exception = OutcomeUnknownError(
            f"The reply to tools/call for {record.tool!r} was lost, so the tool may have run. "
            'Call again with on_unknown="resend" only if it may run twice.',
            record=record,
        )
        error.__cause__ = cause
        return error
    if record.idempotency_key is None:
        logger.warning(
            "The reply to tools/call for %r was lost. The tool may have run; without an idempotency key "
            "nothing is journaled before the reply, so there is nothing to resume.",
            record.tool,
        )
    return cause or TasksClientError(
        f"The call of {record.tool!r} was abandoned and its reply was lost; the tool may have run."
    )
