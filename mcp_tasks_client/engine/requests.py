"""One request of a live call becomes one event. Errors of the session become events, or typed errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Concatenate, Final, ParamSpec, TypeVar

from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
    UNSUPPORTED_PROTOCOL_VERSION,
    URL_ELICITATION_REQUIRED,
)

from ..errors import (
    CredentialRefusedError,
    DrivenElsewhereError,
    JournalError,
    MissingCapabilityError,
    SessionError,
    TaskFailedError,
)
from ..machine import events as ev
from ..machine.actions import Ask, SendCall
from ..machine.record import reference_of
from ..machine.replacing import replace
from ..machine.states import Observing
from ..protocol import JSONObject
from ..protocol.replies import Created, InputRequired, Returned, read_url_requests
from ..protocol.text import name_tool, shorten
from ..questions.answers import NoAnswerError
from ..questions.callbacks import InputContext, Inputs
from ..questions.question import Question
from ..sessions.base import (
    GATEWAY_STATUSES,
    INVALID_PARAMS,
    REFUSED_CODES,
    BeforeSend,
    Session,
    Snapshot,
    TaskRef,
)
from ..sessions.repetition import repeat
from ..sessions.request_errors import PASSING_STATUSES, TOO_MANY_REQUESTS, foreign_error
from .call_log import log_question
from .environment import Environment
from .live_call import LiveCall
from .observer import ASK, CALL, CANCEL, GET, UPDATE, ObservedSteps
from .owning import Owning

__all__ = ["Requests", "cut_from_inside"]

logger = logging.getLogger("mcp_tasks_client")

P = ParamSpec("P")
T = TypeVar("T")

_FORBIDDEN: Final = 403

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
"""Seconds before ``tasks/cancel`` is sent once more."""


class Requests:
    """Sends requests and puts questions, for all calls of one endpoint.

    ``owning`` confirms, right before each request, that no other process drives the call.
    """

    def __init__(
        self,
        session: Session,
        inputs: Inputs,
        owning: Owning,
        environment: Environment,
        application: str | None = None,
    ) -> None:
        self.session = session
        self.inputs = inputs
        self._owning = owning
        self._application = application
        self._clock = environment.clock
        self._jitter = environment.jitter
        self._observed = ObservedSteps(environment.observer)

    async def call(
        self, call: LiveCall, send: SendCall, before_send: BeforeSend
    ) -> tuple[ev.Event, Exception | None]:
        """Send ``tools/call``, once, with the additions of this round.

        Returns:
            The event, and for a refused or lost call the error to tell the caller.
        """
        assert call.tool_call is not None, "only a call that was made here can be sent"
        request = replace(call.tool_call, context=call.context)
        if send.input_responses or send.request_state is not None:
            request = replace(request, input_responses=send.input_responses, request_state=send.request_state)

        async def confirmed() -> None:
            await self._owning.confirm(call)
            await before_send()

        try:
            reply = await self._observed(call, CALL, self.session.call, request, confirmed)
        except SessionError as error:
            if error.not_executed:
                return self._call_refused(error), _refusal(error)
            urls = read_url_requests(error.data) if error.code == URL_ELICITATION_REQUIRED else None
            if urls is not None:
                return ev.InputAsked(requests=urls, request_state=None, now=self._clock.time()), None
            if error.code is not None and error.http_status not in GATEWAY_STATUSES:
                return ev.CallFailed(code=error.code, message=error.remote_message, data=error.data), None
            return ev.CallLost(), error
        match reply:
            case Returned(result):
                return ev.CallReturned(result=result), None
            case InputRequired(requests, state):
                return ev.InputAsked(requests=requests, request_state=state, now=self._clock.time()), None
            case Created(task, session_data):
                now, jitter = self._clock.time(), self._jitter()
                return ev.TaskCreated(task=task, session_data=session_data, now=now, jitter=jitter), None

    def _call_refused(self, error: SessionError) -> ev.Event:
        return ev.CallRefused(
            for_good=error.code in REFUSED_CODES and not error.retryable,
            limited=error.http_status == TOO_MANY_REQUESTS,
            why=str(error),
            retry_after_s=error.retry_after_s,
            now=self._clock.time(),
            jitter=self._jitter(),
        )

    async def get(self, call: LiveCall) -> tuple[ev.Event, Exception | None]:
        """Send ``tasks/get``, once.

        Returns:
            The event, and the error that the request failed with.
        """
        try:
            snapshot = await self._observed(call, GET, self._send, call, self.session.get)
        except SessionError as error:
            if _is_unknown(error):
                logger.debug("%s is not known to the server: %s", _name(call), error)
                now, jitter = self._clock.time(), self._jitter()
                denied = self._denial(call, error)
                missing = ev.TaskMissing(message=error.remote_message, now=now, jitter=jitter, denied=denied)
                return missing, denied or error
            if error.retryable and not self._is_end(call, error):
                logger.debug("%s will be polled again: %s", _name(call), error)
                failed = ev.PollFailed(
                    why=str(error),
                    now=self._clock.time(),
                    jitter=self._jitter(),
                    retry_after_s=error.retry_after_s,
                )
                return failed, error
            return self._refused(error), error
        except (DrivenElsewhereError, JournalError):
            raise
        except Exception as error:
            foreign = foreign_error("tasks/get", error, "resume the task")
            return self._refused(foreign), foreign
        observed = ev.Observed(
            task=snapshot.task,
            session_data=snapshot.session_data,
            now=self._clock.time(),
            jitter=self._jitter(),
        )
        return observed, None

    async def update(self, call: LiveCall, answers: Mapping[str, JSONObject]) -> Sequence[ev.Event]:
        """Send ``tasks/update``, once. The acknowledgement may bring the end of the task."""
        keys = tuple(answers)
        try:
            update = self.session.update
            said = await self._observed(call, UPDATE, self._send, call, update, answers)
        except SessionError as error:
            words = _refusal_of_answer(error)
            if words is not None:
                return [ev.UpdateRefused(keys=keys, words=words)]
            if error.retryable and not self._is_end(call, error):
                logger.debug("The answers to %s will be sent again: %s", _name(call), error)
                failed = ev.UpdateFailed(
                    why=str(error),
                    keys=keys,
                    now=self._clock.time(),
                    jitter=self._jitter(),
                    retry_after_s=error.retry_after_s,
                    untaken=error.not_executed,
                )
                return [failed]
            return [self._refused(error, keys if error.not_executed else ())]
        except (DrivenElsewhereError, JournalError):
            raise
        except Exception as error:
            return [self._refused(foreign_error("tasks/update", error, "resume the task"))]
        if isinstance(said, Snapshot):
            return [ev.UpdateAcknowledged(keys=keys), self.notify(said)]
        return [ev.UpdateAcknowledged(keys=keys, session_data=said)]

    async def cancel(self, call: LiveCall) -> tuple[ev.Event | None, SessionError | None]:
        """Send ``tasks/cancel``; up to three times, since saying it twice does no harm.

        Returns:
            The event, if there is one, and the error for the caller that wants the task cancelled.
        """

        async def send() -> None:
            if isinstance(call.record.state, Observing):  # else a poll has found that it is over
                await self._observed(call, CANCEL, self._send, call, self.session.cancel)

        def may_go_again(error: SessionError) -> bool:
            # A server that wants to be left alone is not asked again before the time that it names. And a
            # client that is closing may have released the call meanwhile: another one may drive it by now.
            return call.ours and error.retry_after_s is None

        now = self._clock.time
        try:
            await repeat(
                send,
                self._clock.sleep,
                first_s=_FIRST_PAUSE_S,
                longest_s=_LONGEST_PAUSE_S,
                jitter=self._jitter,
                may_go_again=may_go_again,
            )
        except SessionError as error:
            if _is_unknown(error):
                return ev.CancelRejected(now=now()), None
            told = copy(error)
            told.__cause__ = error
            if not error.retryable:
                return None, told
            failed = ev.CancelFailed(
                why=str(error), now=now(), jitter=self._jitter(), retry_after_s=error.retry_after_s
            )
            return failed, told
        except (DrivenElsewhereError, JournalError):
            raise
        except Exception as error:
            return None, foreign_error("tasks/cancel", error, "resume the task")
        return ev.CancelAcknowledged(now=now()), None

    async def _send(
        self,
        call: LiveCall,
        send: Callable[Concatenate[TaskRef, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        confirm = partial(self._owning.confirm, call)
        await confirm()  # a call that is in doubt takes no slot from other calls
        return await send(call.make_ref(confirm), *args, **kwargs)

    async def ask(self, call: LiveCall, ask: Ask, question: Question | None) -> ev.Event | None:
        """Put one question to the host.

        Returns:
            The event; ``None`` if a person answers the question later.
        """
        record = call.record
        log_question(record, str(ask.request.get("method")))
        context = InputContext(
            tool=record.tool,
            key=ask.key,
            task=record.task,
            label=record.label,
            question=question,
            idempotency_key=record.idempotency_key,
            reference=reference_of(record),
            context=call.context,
        )
        try:
            answer = await self._observed(call, ASK, self.inputs.answer, context, ask.request)
        except NoAnswerError as error:
            return ev.AnswerUnavailable(
                key=ask.key, why=str(error), cause=error.__cause__, refusals=ask.refusals
            )
        return None if answer is None else self.take_answer(ask.key, answer, ask.refusals)

    # ── events that no request brings ─────────────────────────────────────────────────────────

    def take_answer(self, key: str, answer: JSONObject, refusals: int) -> ev.AnswerReady:
        """The host has answered a question, of which the server had refused so many answers."""
        return ev.AnswerReady(key=key, answer=answer, now=self._clock.time(), refusals=refusals)

    def tick(self) -> ev.Event:
        """The wait for the next poll is over."""
        return ev.Tick(now=self._clock.time(), jitter=self._jitter())

    def notify(self, snapshot: Snapshot) -> ev.Event:
        """A snapshot came unasked."""
        return ev.Notified(task=snapshot.task, session_data=snapshot.session_data, now=self._clock.time())

    def fail_cancel(self) -> ev.Event:
        """``tasks/cancel`` got no answer in time."""
        why = "tasks/cancel got no answer in time"
        return ev.CancelFailed(why=why, now=self._clock.time(), jitter=self._jitter())

    def cut_poll(self) -> ev.Event:
        """A poll was cut off before its reply."""
        return ev.PollCut(now=self._clock.time())

    def _is_end(self, call: LiveCall, error: SessionError) -> bool:
        """True if a failure has lasted for longer than the ``patience`` of the error."""
        state = call.record.state
        before = state.failure if isinstance(state, Observing) else None
        if error.patience is None or before is None or not str(error).startswith(before.message):
            return False
        most, over_s = error.patience
        return before.count + 1 >= most and self._clock.time() - before.since >= over_s

    def _denial(self, call: LiveCall, error: SessionError) -> SessionError | None:
        """The error for a client that may not have the credential of a call; ``None`` for the call's own."""
        if call.record.application in (None, self._application):
            return None
        return SessionError(
            f"The server does not know the task of {name_tool(call.record.tool)}, or does not show it to "
            "this credential. The call stays as it is for the application that made it.",
            code=error.code,
            remote_message=error.remote_message,
            data=error.data,
        )

    def _refused(self, error: Exception, untaken: tuple[str, ...] = ()) -> ev.Event:
        return ev.ObservationRefused(error=error, now=self._clock.time(), untaken=untaken)

    def resume(self, call: LiveCall) -> ev.Event:
        """The call is taken up again, by us or after another owner."""
        now, jitter = self._clock.time(), self._jitter()
        return ev.Resumed(now=now, jitter=jitter, due_is_exact=call.due_is_exact)


def cut_from_inside() -> SessionError:
    """The error of a request that the host's own code has cancelled, and not we."""
    return SessionError("A request was cancelled from inside of the session. Resume the task.")


def _refusal(error: SessionError) -> Exception:
    """A plain JSON-RPC error is the call's own failure, as it would be from a ``failed`` task."""
    if type(error) is not SessionError or error.code is None or error.retryable:
        return error  # also a rate limiter's, which may speak JSON-RPC: the call was not made, and can be
    failed = TaskFailedError(
        str(error), code=error.code, message=error.remote_message, data=error.data, handle=error.handle
    )
    failed.__cause__ = error
    return failed


def _is_unknown(error: SessionError) -> bool:
    """True for -32602: the server denies the task, or another param. A rate limiter denies neither."""
    return error.code == INVALID_PARAMS and not error.retryable


_NOT_OF_THE_ANSWER: Final = frozenset(
    {INTERNAL_ERROR, REQUEST_TIMEOUT, METHOD_NOT_FOUND, HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION}
)
"""JSON-RPC errors to ``tasks/update`` that say nothing of its answers."""


def _refusal_of_answer(error: SessionError) -> str | None:
    """The words with which a server refused an answer; ``None`` if it did not say that it refuses."""
    status = error.http_status
    passing = status is not None and (status >= 500 or status in PASSING_STATUSES)
    if error.retryable and (error.code is None or passing):
        return None
    if isinstance(error, MissingCapabilityError) or error.code in _NOT_OF_THE_ANSWER:
        return None
    if error.code is not None:
        return error.remote_message or f"JSON-RPC error {error.code}"
    if isinstance(error, CredentialRefusedError) and status != _FORBIDDEN:
        return None
    return None if status is None or not 400 <= status < 500 else f"HTTP {status}"


def _name(call: LiveCall) -> str:
    task_id = call.record.task_id
    return f"task {shorten(task_id)}" if task_id else f"the call of {call.record.tool!r}"
