"""A journal in memory whose operations a test counts, refuses, and holds up.

It knows the operations by their names alone, so that their arguments may change. Where any commit will do,
tests take :class:`mcp_tasks_client.testing.FaultPlan`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, Final

import anyio

from mcp_tasks_client import JournalError, MemoryJournal
from mcp_tasks_client.testing.probes import Deed, Moment

__all__ = ["FULL_DISK", "Held", "ProbedJournal"]

FULL_DISK: Final = JournalError("The disk is full. Make room and try again.")

_OPERATIONS: Final = (
    *("open", "aclose", "claim", "save", "remove", "by_id", "by_task_id", "records", "asking", "prune"),
    *("renew", "owners", "take", "take_pending", "principals", "release", "instruct", "instructions"),
    "durations",
)
"""The coroutine functions of a journal."""


@dataclass(slots=True)
class _Plan:
    deed: Deed
    when: Callable[..., Any]
    nth: int | None


class ProbedJournal(MemoryJournal):
    """The journal.

    Args:
        refuses: Operations that are refused; ``deliver`` may be among them.
        error: What they are refused with.

    Attributes:
        refuses: As given. A test changes it at any time.
        error: As given.
        counts: How often each operation was begun.
    """

    def __init__(self, *refuses: str, error: BaseException = FULL_DISK) -> None:
        super().__init__()
        self.refuses: Collection[str] = refuses
        self.error = error
        self.counts: Counter[str] = Counter()
        self._plans: dict[tuple[Moment, str], list[_Plan]] = {}

    def before(
        self,
        operation: str,
        deed: Deed,
        *,
        when: Callable[..., Any] = lambda *args, **options: True,
        nth: int | None = None,
    ) -> None:
        """Have something done before an operation. Whatever that raises, the operation raises.

        Args:
            operation: Which.
            deed: A coroutine function, such as those of :mod:`mcp_tasks_client.testing.probes`.
            when: Gets the arguments of the operation, and decides.
            nth: Of these operations the only one, from 1; ``None`` is each.
        """
        self._plan("before", operation, _Plan(deed, when, nth))

    def after(
        self,
        operation: str,
        deed: Deed,
        *,
        when: Callable[..., Any] = lambda done, *args, **options: True,
    ) -> None:
        """The same after an operation. ``when`` gets its result first, and then the arguments."""
        self._plan("after", operation, _Plan(deed, when, None))

    def _plan(self, moment: Moment, operation: str, plan: _Plan) -> None:
        assert operation in _OPERATIONS, f"{operation} would never come true"
        self._plans.setdefault((moment, operation), []).append(plan)

    async def _do(self, operation: str, *args: Any, **options: Any) -> Any:
        self.counts[operation] += 1
        await self._pass("before", operation, *args, **options)
        if operation in self.refuses:
            raise copy(self.error)  # ours would keep alive, by its traceback, whom it was raised at
        done = await getattr(super(), operation)(*args, **options)
        await self._pass("after", operation, done, *args, **options)
        return done

    async def _pass(self, moment: Moment, operation: str, *args: Any, **options: Any) -> None:
        for plan in self._plans.get((moment, operation), ()):
            if not plan.when(*args, **options):
                continue
            if plan.nth is not None:
                plan.nth -= 1
            if plan.nth in (None, 0):
                await plan.deed()

    def deliver(self, *args: Any, **options: Any) -> None:
        """As any journal, unless it is refused."""
        self.counts["deliver"] += 1
        if "deliver" in self.refuses:
            raise copy(self.error)
        super().deliver(*args, **options)


for _name in _OPERATIONS:
    setattr(ProbedJournal, _name, partialmethod(ProbedJournal._do, _name))


class Held:
    """A deed that holds an operation up until a test lets it go on.

    Attributes:
        reached: Set once an operation is held up.
        go_on: Lets it, and those that follow, go on.
    """

    def __init__(self) -> None:
        self.reached, self.go_on = anyio.Event(), anyio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.go_on.wait()
