"""Ends of calls, given to a store of the host's own and acknowledged: ``deliver()``.

The calls come from an :class:`Adoption`. For each there is one task, which waits for the end of the call, has
it stored, and acknowledges it:

- A store that raises is asked again after a growing pause. It takes no place from others meanwhile.
- A coroutine function that has not returned in time counts as one that has raised. The thread of a plain one
  cannot be stopped: it is waited for, and its place is given to others.
- An acknowledgement that fails leaves the end undelivered. The adoption brings it once more.
- Before each attempt the fence is looked at: a call that another process has taken is left to that process.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import anyio
from anyio.abc import TaskGroup
from mcp_types import CallToolResult

from ..aio.host_code import call_host, describe, is_async, was_cancelled_from_inside
from ..errors import DrivenElsewhereError, JournalError, TasksClientError
from ..machine.record import TaskRecord
from ..policy import growing_delay
from .adoption import Adoption, pause_between_looks
from .audience import InHand
from .endpoint import Endpoint
from .live_call import LiveCall

__all__ = ["Store", "deliver", "deliver_for_all"]

logger = logging.getLogger("mcp_tasks_client")

Store: TypeAlias = Callable[[TaskRecord, CallToolResult | TasksClientError], Awaitable[object] | object]
"""Stores the end of a call: its record, and its result or the error that it ended in."""

_AT_ONCE: Final = 50
"""Stores that run at the same time: each may need a thread, and a connection of the host's database."""

_PATIENCE_S: Final = 60.0
"""Seconds after which a store, or ``client_of``, that has not returned is given up."""

_FOUND_AT_ONCE: Final = 10
"""Users whose clients are opened at the same time."""

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
"""Seconds before a store that has raised is asked again."""

_USERS_PAUSE_S: Final = 2.0
_USERS_FACTOR: Final = 100
"""Seconds between looks for users whose calls no client delivers, or so many times the duration of a look."""


async def deliver(endpoint: Endpoint, store: Store, limit: int | None) -> None:
    """Have the end of each call stored that no caller waits for; see :meth:`TasksClient.deliver`.

    Returns once the client is closed.
    """
    adoption = Adoption(endpoint, limit, _take_in_hand)
    async with anyio.create_task_group() as tasks:
        delivery = _Delivery(endpoint, store, tasks)
        while True:
            try:
                call, in_hand = await anext(adoption)
            except StopAsyncIteration:
                break
            except JournalError as error:
                logger.warning("No call can be taken up. The next look tries again: %s", error)
            else:
                tasks.start_soon(delivery.see_through, call, in_hand)
                # This frame must not hold them: the call could not be taken up again.
                del call, in_hand
        tasks.cancel_scope.cancel()


def _take_in_hand(call: LiveCall) -> tuple[LiveCall, InHand]:
    """The call, and the object that keeps it from being taken up once more."""
    return call, call.audience.take_in_hand()


async def deliver_for_all(
    endpoint: Endpoint,
    own: Callable[[], Awaitable[None]],
    find: Callable[[str], Awaitable[Callable[[], Awaitable[None]] | None]],
) -> None:
    """Deliver for one principal, and for each other one at the server with calls that no other process has.

    Returns once ``own()`` has returned. ``find(principal)`` gives a function that delivers for another one
    until it is cancelled, or ``None``. If there is none, or it ends, a later look finds it again.
    """
    engine, served = endpoint.engine, {endpoint.scope.principal}
    clock, longest_s = engine.environment.clock, pause_between_looks(engine.environment)
    places = anyio.CapacityLimiter(_FOUND_AT_ONCE)

    async def run(principal: str) -> None:
        try:
            async with places:
                with anyio.fail_after(_PATIENCE_S):
                    serve = await find(principal)
            if serve is not None:
                await serve()
        except anyio.get_cancelled_exc_class():
            if not was_cancelled_from_inside():
                raise
            logger.warning(
                "The calls of one user are left alone for now: client_of was cancelled from inside."
            )
        except Exception as error:
            logger.warning("The calls of one user are left alone for now: %s", describe(error), exc_info=True)
        finally:
            served.discard(principal)

    async def look() -> None:
        while True:
            began = clock.monotonic()
            try:
                found = await engine.store.owning.principals(endpoint.scope.endpoint, engine.application)
            except TasksClientError as error:
                if engine.closed:
                    return
                found = []
                logger.warning("No calls of other users can be looked for: %s", error)
            for principal in {*found} - served:
                served.add(principal)
                tasks.start_soon(run, principal)
            took_s = clock.monotonic() - began
            await clock.sleep(min(longest_s, max(_USERS_PAUSE_S, _USERS_FACTOR * took_s)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        await own()
        tasks.cancel_scope.cancel()


class _Delivery:
    def __init__(self, endpoint: Endpoint, store: Store, tasks: TaskGroup) -> None:
        self._endpoint = endpoint
        self._store = store
        self._tasks = tasks
        self._clock = endpoint.engine.environment.clock
        self._places = anyio.CapacityLimiter(_AT_ONCE)

    async def see_through(self, call: LiveCall, in_hand: InHand) -> None:
        """Wait for the end of a call, have it stored, and acknowledge it. Raises nothing.

        ``in_hand`` is held until then, and no longer: it keeps the adoption from bringing the call once more.
        """
        try:
            while not call.over:
                self._endpoint.drive_in_background(call)
                await call.audience.change()
            # A parked call comes again; the log has its reason.
            if call.record.finished and await self._has_stored(call):
                await self._endpoint.outcomes.acknowledge(call)
        except DrivenElsewhereError:
            pass
        except TasksClientError as error:
            if not self._endpoint.engine.closed:
                logger.warning("%r was not delivered, and comes again: %s", call.record, error)
        finally:
            del in_hand

    async def _has_stored(self, call: LiveCall) -> bool:
        """Ask the store until it has stored the end of a call. False if the end goes to another.

        Raises:
            DrivenElsewhereError: Another process has taken the call.
            JournalError: The journal cannot say which process has it.
        """
        end, failures = await self._endpoint.outcomes.read_end(call), 0
        while True:
            async with self._places:
                await self._endpoint.engine.store.owning.confirm(call)
                if call.audience.waiters or call.record.delivered_at is not None:
                    return False  # a caller awaits it, or has had it
                try:
                    await self._ask(call.record, end)
                    return True
                except Exception as error:
                    failures += 1
                    pause_s = growing_delay(_FIRST_PAUSE_S, failures, _LONGEST_PAUSE_S)
                    logger.log(
                        logging.WARNING if failures == 1 else logging.INFO,
                        "%r is not stored, and the store is asked again in %.0f s: %s",
                        call.record,
                        pause_s,
                        describe(error),
                        exc_info=failures == 1,
                    )
            await self._clock.sleep(pause_s)

    async def _ask(self, record: TaskRecord, end: CallToolResult | TasksClientError) -> None:
        """Have the store store one end.

        Raises:
            Exception: It has not.
        """
        limit_s, returned = math.inf, anyio.Event()
        if is_async(self._store):
            limit_s = _PATIENCE_S
        else:
            self._tasks.start_soon(self._make_room, record, returned)
        try:
            with anyio.move_on_after(limit_s) as patience:
                await call_host(self._store, "store", record, end)
        except anyio.get_cancelled_exc_class():
            if not was_cancelled_from_inside():
                raise
            raise TasksClientError("It was cancelled from inside.") from None
        finally:
            returned.set()
        if patience.cancelled_caught:
            raise TimeoutError(f"It has not returned within {_PATIENCE_S:.0f} s.")

    async def _make_room(self, record: TaskRecord, returned: anyio.Event) -> None:
        """Have one more end stored at the same time while a plain function hangs.

        A thread cannot be stopped, so that each further attempt would leave one more.
        """
        with anyio.move_on_after(_PATIENCE_S):
            await returned.wait()
            return
        logger.warning("%r: the store has not returned yet. Others are stored meanwhile", record)
        self._places.total_tokens += 1
        try:
            await returned.wait()
        finally:
            self._places.total_tokens -= 1
