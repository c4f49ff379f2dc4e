"""The axes along which calls cross each other, and the cells of their product.

A cell is one word of each axis. :data:`IMPOSSIBLE` says which cells there are not, each with its reason.
The short run takes a few, in which each two words meet that can, and some threes (:func:`meetings`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import combinations, product
from typing import Any, Final, NamedTuple

__all__ = ["AXES", "IMPOSSIBLE", "Cell", "all_cells", "cells", "meetings", "short_run"]


class Cell(NamedTuple):
    """One crossing. Each field is an axis."""

    way: str
    version: str
    company: str
    users: str
    key: str
    fate: str
    loop: str

    def __str__(self) -> str:
        way = f"{self.way} beside {self.other_way}" if self.company == "two ways" else self.way
        return ", ".join((way, *self[1:]))

    @property
    def older(self) -> bool:
        return self.version != "2026-07-28"

    @property
    def crowded(self) -> bool:
        """Whether there are two clients."""
        return self.company != "alone"

    @property
    def other_way(self) -> str:
        """The way of the second client: the same, or the next one that there is."""
        if self.company != "two ways":
            return self.way
        after = AXES.way[AXES.way.index(self.way) + 1 :] + AXES.way
        return next(
            way for way in after if not any(is_so(self._replace(way=way)) for is_so in NO_WAY.values())
        )

    @property
    def one_http_client(self) -> bool:
        """Whether both clients stand on one HTTP client of ours: it is what has the journal object."""
        return self.way in ("http", "httpx") and self.company == "one journal"


AXES: Final[Any] = Cell(  # the words of each field
    **{
        # `url`: TasksClient(url). `extension`: mcp.Client with a TasksExtension; for a call with a key, which
        # the SDK would send, TasksClient(client). `http`, `httpx`: TasksHttpTransport, beneath an mcp.Client
        # or a host that has no SDK. `stream`: TasksTransport around the transport of an mcp.Client.
        # `bridge`: an mcp.Client whose server is a bridge.
        "way": ("url", "extension", "http", "httpx", "stream", "bridge"),
        # The last kind of server hands out no Mcp-Session-Id.
        "version": ("2026-07-28", "2025-11-25", "2025-11-25 stateless"),
        # Two clients on one journal object; on two objects on one file; the same by another way; in two
        # processes on one file.
        "company": ("alone", "one journal", "two journals", "two ways", "two processes"),
        # Two users have a credential each, and use the same key.
        "users": ("one user", "two users"),
        # An argument of the call, the block `idempotency_key`, or an entry in `_meta`.
        "key": ("no key", "argument", "block", "meta"),
        # What happens to the call: its time is over; its asyncio task is cancelled, or its process killed,
        # while the tool works or before the server has replied; its credential expires and is renewed; its
        # server is upgraded.
        "fate": (
            "given up",
            "cancelled",
            "cancelled unanswered",
            "killed",
            "killed unanswered",
            "renewed",
            "upgraded",
        ),
        "loop": ("asyncio", "trio"),
    }
)

NO_WAY: Final[dict[str, Callable[[Cell], bool]]] = {
    "the SDK asks no extension at 2025-11-25": lambda c: c.way == "extension" and c.older,
    "the SDK's own stream at 2025-11-25 leaves generators of httpx2 unclosed on trio": lambda c: (
        c.way in ("http", "stream") and c.older and c.loop == "trio"
    ),
}
IMPOSSIBLE: Final[dict[str, Callable[[Cell], bool]]] = {
    **NO_WAY,
    "only asyncio cancels natively; trio has nothing but scopes, which anyio's are": lambda c: (
        c.fate.startswith("cancelled") and c.loop == "trio"
    ),
    "a host's own call has no argument for a key": lambda c: (
        c.key == "argument" and c.way in ("http", "httpx", "stream", "bridge")
    ),
    "a block does not reach a transport around the session, as docs/guides/hosts.md says": lambda c: (
        c.key == "block" and c.way in ("stream", "bridge")
    ),
    "nobody else is there": lambda c: c.users == "two users" and not c.crowded,
    "there is no newer version": lambda c: c.fate == "upgraded" and not c.older,
}


def all_cells() -> Iterator[Cell]:
    """The product, with the cells that there are not."""
    return (Cell(*words) for words in product(*AXES))


def cells() -> Iterator[Cell]:
    """All that there are."""
    return (cell for cell in all_cells() if not any(is_so(cell) for is_so in IMPOSSIBLE.values()))


def short_run() -> list[Cell]:
    """Cells that have between them every meeting which any cell has. Greedy, and the same each time."""
    # Each in its turn is the first of those with the most of what is missing. What a cell once had is the
    # most that it can ever have, so few have to be looked at again.
    of = {number: (cell, meetings(cell)) for number, cell in enumerate(cells())}
    missing, chosen = set[Any]().union(*(met for _, met in of.values())), list[Cell]()
    queue = sorted((-len(met), number) for number, (_, met) in of.items())
    while missing:
        had, number = heappop(queue)
        cell, met = of[number]
        has = -len(missing & met)
        if has == had:
            chosen.append(cell)
            missing -= met
        elif has:
            heappush(queue, (has, number))
    return chosen


def meetings(cell: Cell) -> set[Any]:
    """Every two words of a cell, and three where calls have crossed each other badly."""
    return set(combinations(enumerate(cell), 2)) | {
        (cell.way, cell.older, cell.key),
        (cell.way, cell.older, cell.fate),
        (cell.way, cell.company, cell.users),
        (cell.one_http_client, cell.fate, cell.key == "no key"),
    }
