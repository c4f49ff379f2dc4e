"""Stop a piece of work at the n-th moment, for every n: deterministic, on asyncio and trio alike.

A *moment* is where a task begins to run or comes to rest, and what is counted are the moments of
every task that the work starts, not only of its caller: a caller that just waits has few of its
own, while what it waits for is in the middle of things. Between two moments nothing of the work
can change, so stopping at each of them is stopping everywhere.

asyncio shows the steps of its tasks to a task factory, trio to an instrument; nothing of what is
tested is patched for it, except that :attr:`How.TIMEOUT` must get hold of the deadline's scope.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import anyio
import anyio.lowlevel
import trio

from mcp_tasks_client import Clock
from mcp_tasks_client.aio.signal import FutureSignal, Signal

__all__ = ["LIMIT_S", "TIMEOUT_S", "How", "QuickClock", "Stop", "Watch", "watched"]

LIMIT_S: Final = 60.0
"""Seconds after which something that should have ended is taken for hanging."""

TIMEOUT_S: Final = 86_399.5
"""The time-out of a call that is to time out at a moment of ours; a number nobody else uses."""

_OURS: Final = ("mcp_tasks_client", "campaigns")


class QuickClock(Clock):
    """Lets time pass as soon as somebody waits for it, and at no other time.

    A wait takes three turns of the event loop, so that what is under way meanwhile gets somewhere.

    Args:
        limit_s: Seconds after which what still waits is taken for hanging, and fails.
    """

    def __init__(self, limit_s: float = 300.0) -> None:
        self._now = 0.0
        self._limit_s = limit_s

    def time(self) -> float:
        return 1_800_000_000.0 + self._now

    def monotonic(self) -> float:
        return self._now

    async def wait(self, event: Signal, timeout_s: float | None) -> None:
        if timeout_s is None:
            await event.wait()
            return
        end = self._now + timeout_s
        if isinstance(event, FutureSignal):
            is_set = event.wait().done
        else:
            assert isinstance(event, anyio.Event)
            is_set = event.is_set
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
            if is_set():
                return
        self._now = max(self._now, end)
        assert self._now < self._limit_s, f"no end after {self._limit_s} s of the clock"


# ── watching ──────────────────────────────────────────────────────────────────────────────────


class Watch:
    """The tasks that began while it watched, and are not over."""

    def __init__(self, moment: Callable[[Any], None]) -> None:
        self.alive: dict[object, str] = {}
        self.moment = moment
        self._ended = anyio.Event()

    def began(self, task: object, name: str) -> None:
        self.alive[task] = name

    def ended(self, task: object) -> None:
        if self.alive.pop(task, None) is not None:
            self._ended.set()
            self._ended = anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; it is looked at whenever a task has ended.

        Raises:
            TimeoutError: It never did.
        """
        with anyio.fail_after(LIMIT_S):
            while not condition():
                await self._ended.wait()


@contextmanager
def watched(moment: Callable[[Any], None]) -> Iterator[Watch]:
    """Watch every task that is started within the block; ``moment`` gets the coroutine."""
    watch = Watch(moment)
    if trio.lowlevel.in_trio_run():
        instrument = _Instrument(watch)
        trio.lowlevel.add_instrument(instrument)
        try:
            yield watch
        finally:
            trio.lowlevel.remove_instrument(instrument)
    else:
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        loop.set_task_factory(
            lambda loop, coro, **options: asyncio.Task(_Stepped(coro, watch), loop=loop, **options)
        )
        try:
            yield watch
        finally:
            loop.set_task_factory(before)


class _Instrument(trio.abc.Instrument):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self._watch.began(task, task.name)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self._watch.ended(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self._watch.alive:
            self._watch.moment(task.coro)

    after_task_step = before_task_step


class _Stepped(Coroutine[Any, Any, Any]):
    """A coroutine that is seen when its task steps; for asyncio the coroutine itself."""

    def __init__(self, inner: Any, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch
        # What closes an abandoned asynchronous generator has no name.
        watch.began(self, getattr(inner, "__qualname__", type(inner).__name__))

    def send(self, value: Any) -> Any:
        return self._step(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._inner.throw, *error)

    def close(self) -> None:
        self._watch.ended(self)
        self._inner.close()

    def __await__(self) -> Any:
        raise AssertionError("a task steps its coroutine, and does not await it")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _step(self, resume: Callable[..., Any], *args: Any) -> Any:
        self._watch.moment(self._inner)
        try:
            yielded = resume(*args)
        except BaseException:
            self._watch.ended(self)
            raise
        self._watch.moment(self._inner)
        return yielded


# ── stopping ──────────────────────────────────────────────────────────────────────────────────


class How(enum.Enum):
    """What is stopped, and by what means."""

    BLOCK = "block"
    """A cancel scope around the whole client, its opening and closing included."""

    CALL = "call"
    """A cancel scope around the work; the client stays open, comes to rest and takes it up again."""

    AT_ONCE = "call, again at once"
    """The same, but it is taken up without a pause."""

    NATIVE_BLOCK = "native block"
    """``asyncio.Task.cancel()``, which knows no shield, of a task that is all of the client."""

    NATIVE_CALL = "native call"
    """``asyncio.Task.cancel()`` during the work, caught outside of it, as ``asyncio.timeout`` does."""

    TIMEOUT = "timeout"
    """The call's own ``timeout`` is over."""

    @property
    def native(self) -> bool:
        return self in (How.NATIVE_BLOCK, How.NATIVE_CALL)

    @property
    def whole(self) -> bool:
        return self in (How.BLOCK, How.NATIVE_BLOCK)


class Stop:
    """A stop at the ``at``-th moment of what is within :meth:`block` or :meth:`call`.

    Attributes:
        fired: Whether there were that many moments.
        where: What was at its moment then, for the message of a failure.
        meanwhile: What ``look`` returned then.
    """

    def __init__(self, how: How, at: int, look: Callable[[], frozenset[str]] = frozenset) -> None:
        self.how = how
        self.at = at
        self.fired = False
        self.where = ""
        self.meanwhile: frozenset[str] = frozenset()
        self._look = look
        self._count = 0
        self._cancel: Callable[[], object] | None = None

    def moment(self, coroutine: Any) -> None:
        if self._cancel is None or self.fired:
            return
        self._count += 1
        if self._count == self.at:
            self.fired = True
            self.where = _where(coroutine)
            self.meanwhile = self._look()
            self._cancel()

    @asynccontextmanager
    async def block(self) -> AsyncIterator[None]:
        """Stopped here if it is the whole client that is stopped."""
        async with self._guard(self.how.whole):
            yield

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Stopped here if only the work is stopped."""
        async with self._guard(not self.how.whole):
            yield

    @asynccontextmanager
    async def _guard(self, here: bool) -> AsyncIterator[None]:
        if not here:
            yield
        elif self.how.native:
            async with self._natively():
                yield
        elif self.how is How.TIMEOUT:
            with patch.object(anyio, "move_on_after", self._move_on_after):
                try:
                    yield
                finally:
                    self._cancel = None
        else:
            with anyio.CancelScope() as scope:
                self._cancel = scope.cancel
                try:
                    yield
                finally:
                    self._cancel = None

    @asynccontextmanager
    async def _natively(self) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._cancel = task.cancel
        try:
            yield
            self._cancel = None
            if self.fired:
                await anyio.lowlevel.checkpoint()  # where a cancellation at the very end arrives
        except asyncio.CancelledError:
            if not self.fired:
                raise
            task.uncancel()
        finally:
            self._cancel = None

    def _move_on_after(self, delay: float | None, shield: bool = False) -> anyio.CancelScope:
        scope = _move_on_after(delay, shield)
        if delay == TIMEOUT_S:
            self._cancel = scope.cancel
        return scope


_move_on_after: Final = anyio.move_on_after


def _where(coroutine: Any) -> str:
    """The functions a coroutine is in, as far as they are ours."""
    names = []
    while coroutine is not None:
        code = getattr(coroutine, "cr_code", None)
        if code is not None and any(part in Path(code.co_filename).parts for part in _OURS):
            names.append(code.co_qualname)
        coroutine = getattr(coroutine, "cr_await", None)
    return " > ".join(names) or "the event loop"
