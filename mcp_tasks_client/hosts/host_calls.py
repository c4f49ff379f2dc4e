"""Makes the calls of a host that are taken out of its traffic, and decides what the host is told of them.

How a call comes, and how its reply goes back, is the business of who takes it: the transport of an HTTP
client, or the relay between a session and its streams.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..engine.inline import InlineEngine
from ..engine.live_call import LiveCall, OnUpdate
from ..engine.outcome import as_rpc_error, read_raw_outcome
from ..engine.runner import Runner
from ..errors import CredentialRefusedError, TasksClientError
from ..machine.record import Scope
from ..machine.states import Gathering, Observing
from ..protocol import JSONObject
from ..protocol.replies import RpcError
from ..sessions.base import INVALID_PARAMS, ToolCall
from .host_call import ASKED_BY, HostCall, questions_for, result_for
from .idempotency_key import current_key

__all__ = ["HostCalls", "Made"]

logger = logging.getLogger("mcp_tasks_client")

_INTERNAL_ERROR: Final = -32603


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """What the host is told of a call."""

    reply: JSONObject | RpcError
    """The result or the error of its request."""

    live: LiveCall | None = None
    """Whose outcome the reply is, to be delivered or dropped; ``None`` if it is no outcome."""


class HostCalls:
    """The calls of one host, each made in the task that asks for it.

    Args:
        engine: Sees the calls through.
        asks_host: Whether the reply to a call may put the server's questions to the host.
    """

    def __init__(self, engine: InlineEngine, *, asks_host: bool) -> None:
        self._engine = engine
        self._asks_host = asks_host
        self._unread: set[Made] = set()

    async def make(
        self,
        call: HostCall,
        tool_call: ToolCall,
        *,
        runner: Runner,
        scope: Scope,
        record_id: str | None,
        listeners: Sequence[OnUpdate] = (),
    ) -> Made:
        """Make a call, or go on with one, and see it through to what the host is told.

        Args:
            call: The host's request.
            tool_call: What to call.
            runner: Drives the calls over the connection.
            scope: Under which the journal keeps the call.
            record_id: Of the call to go on with; ``None`` makes a call.
            listeners: Told of each changed snapshot.

        Raises:
            CredentialRefusedError: The host's credential is refused. Every other error is the reply.
        """
        key, on_unknown = current_key() or (None, "raise")
        try:
            live = await self._engine.call(
                tool_call,
                runner=runner,
                scope=scope,
                key=call.key or key,
                on_unknown=on_unknown,
                record_id=record_id,
                answers=call.answers,
                listeners=listeners,
            )
        except CredentialRefusedError:
            raise
        except TasksClientError as error:
            return Made(as_rpc_error(error))
        except (ValueError, TypeError) as error:
            return Made(RpcError(INVALID_PARAMS, str(error), None))
        except Exception as error:
            logger.exception("A call could not be made")
            return Made(RpcError(_INTERNAL_ERROR, repr(error), None))
        reply: JSONObject | RpcError
        if live.error is not None:
            reply = self._ask_or_refuse(call, live, live.error)
            # While the host asks its person, another process must not ask another one.
            await self._engine.drop(live, to_process=not isinstance(reply, RpcError))
            return Made(reply)
        try:
            reply = result_for(call, await read_raw_outcome(live.record, runner.session))
        except TasksClientError as error:
            reply = as_rpc_error(error)
        except BaseException:
            await self._engine.drop(live)
            raise
        made = Made(reply, live)
        self._unread.add(made)
        return made

    def _ask_or_refuse(self, call: HostCall, live: LiveCall, error: Exception) -> JSONObject | RpcError:
        """What the host is told of a call that waits for an answer: the questions, if it reads those."""
        state = live.record.state
        questions: dict[str, JSONObject] = {}
        if isinstance(state, Observing | Gathering):
            questions = {q.key: q.request for q in state.questions if live.is_open(q.key) and q.request}
        declared = call.capabilities or {}
        answerable = all(ASKED_BY.get(str(q.get("method"))) in declared for q in questions.values())
        if not (self._asks_host and call.is_current and questions and answerable):
            assert isinstance(error, TasksClientError)
            return as_rpc_error(error)
        record_id = live.record.record_id if live.journaled else None
        server_state = state.request_state if isinstance(state, Gathering) else None
        return questions_for(questions, state=server_state, record_id=record_id)

    # ── what becomes of an outcome ────────────────────────────────────────────────────────────

    def deliver(self, made: Made) -> None:
        """Note that the host has read what :meth:`make` returned."""
        if made.live is not None and made in self._unread:
            self._unread.discard(made)
            try:
                self._engine.deliver(made.live)
            except TasksClientError as error:
                logger.warning("%r will be given out once more: %s", made.live.record, error)

    async def drop(self, made: Made) -> None:
        """Note that the host never read what :meth:`make` returned. The next ``resume()`` gives it out."""
        if made.live is not None and made in self._unread:
            self._unread.discard(made)
            await self._engine.drop(made.live)

    async def aclose(self) -> None:
        """Drop what was never read, once all calls have ended, and own nothing any more."""
        for made in list(self._unread):
            await self.drop(made)
        await self._engine.aclose()
