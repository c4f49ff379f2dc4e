"""All parts of the contract in one class, and the properties of a journal that bound them."""

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
from .timing import DurationTests
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
    DurationTests,
    CrossingTests,
    OpeningTests,
):
    """The tests that every journal passes, on any medium.

    Subclass it under a name that pytest collects, and override the fixture ``make_journal``. It returns a
    function without arguments that makes a journal, not open yet. All journals that it makes for one test are
    on the same medium, which is empty when the test begins. Of a medium that is the journal itself, as memory
    is, it returns that one each time.

    All of it happens in one process. The author of a journal has two things left to test: that a write
    survives the death of the process, and that another process sees it.

    Attributes:
        shared: Whether two journals on one medium may be open at the same time, as by two processes. Two of
            them are then made for one test, and leases are renewed.
        loops: Event loops, by anyio's names for them, that use one journal object at the same time, each in a
            thread of its own. Empty for a journal that only one event loop at a time may use.
        durations: Whether it keeps how long tasks ran (``durations()``).
    """

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def make_journal(self) -> Callable[[], Journal]:
        """Makes journals that are not open yet. To be overridden."""
        raise NotImplementedError("override make_journal: it returns what makes a journal on an empty medium")

    @pytest.fixture
    async def journal(self, make_journal: Callable[[], Journal]) -> AsyncIterator[Journal]:
        """A journal that is open."""
        with anyio.fail_after(30):
            async with make_journal() as opened:
                yield opened
