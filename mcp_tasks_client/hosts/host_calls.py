"""Makes the calls that are taken out of a host's traffic, and decides their replies.

The transport of an HTTP client, or the relay between a session and its streams, takes each call, and brings
its reply back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from mcp_types import INTERNAL_ERROR, URL_ELICITATION_REQUIRED

from ..engine.audience import OnUpdate
from ..engine.endpoint import Endpoint, HostLine
from ..engine.engine import Engine
from ..engine.live_call import LiveCall
from ..engine.outcome import as_rpc_error
from ..errors import CredentialRefusedError, InputUnansweredError, JournalError, TasksClientError
from ..handle import detached
from ..machine.states import Gathering, Observing
from ..policy import PollPolicy
from ..protocol import JSONObject
from ..protocol.replies import Reply, RpcError, is_url_key
from ..questions.kinds import can_be_asked
from ..questions.question import words_of_refusal
from ..sessions.base import INVALID_PARAMS, Limits
from .host_call import HostCall, questions_for, result_for
from .questions import tell_refusal

__all__ = ["HostCalls", "MadeCall", "make_limits", "refuse"]

logger = logging.getLogger("mcp_tasks_client")

_DECLINED: Final = "A URL has to be visited before the call, and that was declined. Nothing was called."

_CALLS_IN_FLIGHT: Final = 2**31
"""No limit: a host limits its calls itself, and may give some up without a notification."""


def make_limits(policy: PollPolicy) -> Limits:
    """The limits of a session over which a host's own calls are made."""
    return Limits(tasks_in_flight=policy.polls_in_flight, calls_in_flight=_CALLS_IN_FLIGHT)


class MadeCall:
    """The reply to a host's call. A subclass notes whether the host has read the outcome in it."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    def deliver(self) -> None:
        """Note that the host has read the reply."""

    async def drop(self) -> None:
        """Note that the host never read the reply. The next ``resume()`` returns the outcome."""


def refuse(fault: str) -> MadeCall:
    """The reply to a call that is not made because of a fault in its request."""
    return MadeCall(RpcError(INVALID_PARAMS, fault, None))


class HostCalls:
    """The calls of one host, each made in the task that asks for it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._unread: set[MadeCall] = set()

    async def make(self, call: HostCall, endpoint: Endpoint, listeners: Sequence[OnUpdate]) -> MadeCall:
        """Make a call, or continue one, and return the reply to the host.

        The context of ``call.tool_call`` goes with each request. The listeners get each changed snapshot.

        Raises:
            CredentialRefusedError: The host's credential is refused. Every other error is the reply.
        """
        if call.fault is not None:
            return refuse(call.fault)
        if call.declined:
            return MadeCall(as_rpc_error(InputUnansweredError(_DECLINED)))
        try:
            await self._engine.open_journal()
        except JournalError as error:
            return MadeCall(as_rpc_error(error))
        made: MadeCall | None = None
        try:
            made = await self._make(call, endpoint, listeners)
        finally:
            if made not in self._unread:  # else the journal stays open until the outcome is read
                self._engine.leave_journal()
        return made

    async def _make(self, call: HostCall, endpoint: Endpoint, listeners: Sequence[OnUpdate]) -> MadeCall:
        begin = partial(endpoint.begin, call.tool_call, call.key, call.on_unknown)
        if call.record_id is not None:
            begin = partial(endpoint.answer_and_continue, call.tool_call, call.record_id, call.answers)
        context = call.tool_call.context
        line = HostLine(listeners, context, call.on_unknown)
        reply: Reply
        try:
            await endpoint.enter(line, begin)
            try:
                reply = result_for(call, await endpoint.outcomes.read_raw(line.begun, context))
            except TasksClientError as error:
                reply = as_rpc_error(error)
        except CredentialRefusedError as error:
            error.handle = None if line.call is None else detached(endpoint, line.call)
            raise
        except InputUnansweredError as error:
            return MadeCall(await self._ask_or_refuse(call, endpoint, line.begun, error))
        except TasksClientError as error:
            return MadeCall(as_rpc_error(error))
        except (ValueError, TypeError) as error:
            return MadeCall(RpcError(INVALID_PARAMS, str(error), None))
        except Exception as error:
            logger.exception("A call could not be made")
            return MadeCall(RpcError(INTERNAL_ERROR, repr(error), None))
        except BaseException:
            if line.call is not None and line.call.record.finished:
                await endpoint.outcomes.release(line.call)
            raise
        return _Outcome(reply, self._engine, endpoint, line.begun, self._unread)

    async def _ask_or_refuse(
        self, call: HostCall, endpoint: Endpoint, live: LiveCall, error: InputUnansweredError
    ) -> Reply:
        """The reply to a host whose call waits for answers: the questions, if it can answer, or an error."""
        state = live.record.state
        questions: dict[str, JSONObject] = {}
        if isinstance(state, Observing | Gathering):
            questions = {
                q.key: tell_refusal(q.request, words_of_refusal(live.record, q))
                for q in state.questions
                if live.is_open(q.key) and q.request
            }
        urls = [q.get("params") for key, q in questions.items() if is_url_key(key)]
        answerable = all(can_be_asked(q, call.capabilities or {}) for q in questions.values())
        asks = endpoint.inputs.leaves_questions and call.is_current and bool(questions) and answerable
        if urls or not asks:
            await endpoint.outcomes.release(live)  # any process may take the record
        if not asks and urls and not error.declined:
            # A host that knows this code of the server's asks its person by itself.
            return RpcError(URL_ELICITATION_REQUIRED, str(error), {"elicitations": urls})
        if not asks:
            return as_rpc_error(error)
        record_id = live.record.record_id if live.journaled else None
        server_state = state.request_state if isinstance(state, Gathering) else None
        return questions_for(questions, state=server_state, record_id=record_id)

    async def aclose(self) -> None:
        """Drop the replies that were never read, once all calls have ended, and release everything."""
        for made in list(self._unread):
            await made.drop()
        await self._engine.aclose()


class _Outcome(MadeCall):
    """A reply that is the outcome of a call. The journal stays open until it is read or dropped."""

    def __init__(
        self, reply: Reply, engine: Engine, endpoint: Endpoint, live: LiveCall, unread: set[MadeCall]
    ) -> None:
        super().__init__(reply)
        self._engine = engine
        self._endpoint = endpoint
        self._live = live
        self._unread = unread
        unread.add(self)

    def deliver(self) -> None:
        if self in self._unread:
            self._unread.remove(self)
            try:
                self._endpoint.outcomes.note_delivery(self._live)
            finally:
                self._engine.leave_journal()

    async def drop(self) -> None:
        if self in self._unread:
            self._unread.remove(self)
            try:
                await self._endpoint.outcomes.release(self._live)
            finally:
                self._engine.leave_journal()
