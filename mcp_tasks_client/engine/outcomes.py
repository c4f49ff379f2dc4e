"""The outcomes of one endpoint's calls, as hosts receive them: read, noted as delivered, or put back."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

from mcp_types import CallToolResult

from ..aio.uncut import run_to_its_end
from ..errors import TasksClientError
from ..protocol import JSONObject
from ..protocol.text import name_tool
from ..questions.context import CallContext
from ..sessions.base import Session
from .engine import Engine
from .live_call import LiveCall
from .outcome import read_outcome, read_raw_outcome

__all__ = ["Outcomes"]

logger = logging.getLogger("mcp_tasks_client")


class Outcomes:
    """The outcomes of the calls of one endpoint."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self._engine = engine
        self._session = session

    async def deliver(
        self, call: LiveCall, deadline: float | None, *, raise_on_error: bool = False
    ) -> CallToolResult:
        """Give the host the outcome of a finished call, and only then note that the host has it.

        Until the deadline the output schema may be asked for; ``None`` leaves the result unchecked.

        Raises:
            TasksClientError: The end is an error.
        """
        result = await self.read(call, deadline, raise_on_error=raise_on_error)
        self.note_delivery(call)
        return result

    async def read(
        self, call: LiveCall, deadline: float | None, *, raise_on_error: bool = False
    ) -> CallToolResult:
        """The result of a finished call, checked as by :meth:`deliver`. Only an error counts as delivered.

        Raises:
            TasksClientError: The end is an error.
        """
        with self.awaited(call):
            try:
                return await self._read(call, deadline, raise_on_error=raise_on_error)
            except TasksClientError:
                self.note_delivery(call)
                raise

    @contextmanager
    def awaited(self, call: LiveCall) -> Iterator[None]:
        """Count a caller that reads the outcome of a finished call, so that no store gets it meanwhile."""
        call.audience.add()
        try:
            yield
        finally:
            call.audience.remove()

    async def read_end(self, call: LiveCall) -> CallToolResult | TasksClientError:
        """The result of a finished call, or the error that it ended in. Nothing is noted."""
        try:
            return await self._read(call, math.inf)
        except TasksClientError as error:
            return error

    async def _read(
        self, call: LiveCall, deadline: float | None, *, raise_on_error: bool = False
    ) -> CallToolResult:
        session = None if self._engine.closed else self._session
        return await read_outcome(
            call.record,
            session,
            deadline,
            output_schema=self._engine.output_schema,
            raise_on_error=raise_on_error,
        )

    async def read_raw(self, call: LiveCall, context: CallContext | None = None) -> JSONObject:
        """The result of a finished call as it came, checked as by :meth:`deliver`. Nothing is noted.

        Raises:
            TasksClientError: The end is an error.
        """
        return await read_raw_outcome(call.record, self._session, context, self._engine.output_schema)

    def note_delivery(self, call: LiveCall) -> None:
        """Note that the host has the outcome of a call."""
        if not self._engine.closed:  # else the journal is closed, and the next client hands it out again
            # A dropped-in way in has passed the outcome to the session of a host, which may lose it.
            self._engine.store.ends.deliver(call, may_be_lost=not self._engine.in_background)

    async def acknowledge(self, call: LiveCall, *, keep: bool = False) -> None:
        """Note for good that the host has an outcome; see :meth:`TaskHandle.acknowledge`.

        Raises:
            TasksClientError: The call has not ended, or the client is closed.
        """
        self._engine.check_open()
        if not await self._engine.store.ends.acknowledge(call, keep=keep):
            raise TasksClientError(
                f"The call of {name_tool(call.record.tool)} has not ended, so that there is no outcome to "
                "acknowledge. Await error.handle.result() first."
            )

    async def release(self, call: LiveCall) -> None:
        """Give up a call whose outcome or question did not reach the host. Any process may resume it.

        Not cancellable.
        """
        if call.wanted:
            return
        try:
            if call.record.finished or await self._engine.store.owning.take(call):
                await self._engine.store.owning.release(call)
        except TasksClientError as error:
            logger.warning("%r could not be released: %s", call.record, error)

    async def release_anew(self, call: LiveCall) -> None:
        """Give up a call, as :meth:`release`, where nothing has the journal open."""
        async with self._engine.using_journal():
            await self.release(call)

    async def put_back(self, call: LiveCall) -> None:
        """Release an outcome that did not reach the host, unless the call is looked after."""
        if not (self._engine.closed or call.looked_after):
            await run_to_its_end(self.release_anew, call)
