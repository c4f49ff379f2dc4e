"""All parts of the contract in one class, and what a journal says of itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from ...journal.base import Journal
from .crossing import CrossingTests
from .forgetting import PruneTests, RemoveTests
from .instructing import InstructionTests
from .opening import OpeningTests
from .owning import LeaseTests, TakePendingTests, TakeTests
from .reading import ListTests, LookupTests, StateTests
from .writing import ClaimTests, DeliverTests, SaveTests

__all__ = ["JournalContract"]


class JournalContract(
    ClaimTests,
    SaveTests,
    DeliverTests,
    RemoveTests,
    PruneTests,
    LookupTests,
    ListTests,
    StateTests,
    TakeTests,
    TakePendingTests,
    LeaseTests,
    InstructionTests,
    CrossingTests,
    OpeningTests,
):
    """The tests that every journal passes, whatever it keeps its records in.

    Subclass it under a name that pytest collects, and override the fixture :meth:`make_journal`.

    All of it happens in one process. Two things are left to whoever writes a journal: that what is written
    survives the death of the process, and that another process sees it.

    Attributes:
        loops: Event loops, by anyio's names for them, that use one journal object at the same time, each in a
            thread of its own. Empty for a journal that only one event loop at a time may use.
    """

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def make_journal(self) -> Callable[[], Journal]:
        """Makes journals that are not open. To be overridden.

        All that it makes for one test are on the same medium, which is empty at first. Two of them stand for
        two processes. Where there can only be one journal, as in memory, it returns that one each time.
        """
        raise NotImplementedError("override make_journal: it returns what makes a journal on an empty medium")

    @pytest.fixture
    async def journal(self, make_journal: Callable[[], Journal]) -> AsyncIterator[Journal]:
        """A journal that is open."""
        with anyio.fail_after(30):
            async with make_journal() as opened:
                yield opened
