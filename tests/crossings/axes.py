"""The axes of the matrix: of calls that cross each other, and of calls alone at servers of others.

A cell is one word of each axis. :data:`IMPOSSIBLE` says which cells there are not, each with its reason.
The short run takes a few, in which each two words meet that can, and some threes (:func:`meetings`).

A door is a server of others and a way into it (:data:`DOORS`). A way is a client and a mode. *Dropped in*,
the host calls tools with its own client, which has the extension; *wrapped*, with ``TasksClient(client)``.
*Native* is ``TasksClient(url)``. *Beneath*, the HTTP client of the host's client has the transport; *around*,
its MCP transport is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import combinations, product
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tests._versions import SDK_STARTS_COMMANDS

__all__ = [
    "AXES",
    "DOORS",
    "IMPOSSIBLE",
    "UNDER_HOST",
    "WAYS",
    "Cell",
    "Way",
    "all_cells",
    "cells",
    "meetings",
    "runs_on_trio",
    "short_run",
]


class Cell(NamedTuple):
    """One crossing. Each field is an axis."""

    way: str
    version: str
    company: str
    users: str
    key: str
    questions: str
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
        # Each task asks its user for a name before it works.
        "questions": ("no question", "a question"),
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
    "a response at 2025-11-25 that has asked has begun, so no credential is renewed, says the same page": (
        lambda c: (
            c.questions == "a question"
            and c.fate == "renewed"
            and c.older
            and not {"http", "httpx"}.isdisjoint((c.way, c.other_way))
        )
    ),
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
        (cell.way, cell.older, cell.questions),
        (cell.company, cell.fate, cell.questions),
        (cell.way, cell.company, cell.users),
        (cell.one_http_client, cell.fate, cell.key == "no key"),
    }


# ── doors ──

Kind: TypeAlias = Literal[
    "native",
    "mcp-http",
    "mcp-stdio",
    "mcp-in-process",
    "fastmcp-http",
    "session-http",
    "httpx",
    "httpx2",
    "mcp-1-http",
    "mcp-1-stdio",
]


@dataclass(frozen=True, slots=True)
class Way:
    """One way in."""

    kind: Kind
    mode: Literal["native", "dropped", "wrapped", "beneath", "around"]

    def __str__(self) -> str:
        return self.kind if self.kind == self.mode else f"{self.kind}-{self.mode}"

    @property
    def over_http(self) -> bool:
        return self.kind not in ("mcp-stdio", "mcp-in-process", "mcp-1-stdio")

    @property
    def on_1(self) -> bool:
        """Whether the client is one of mcp 1.x, which negotiates 2025-11-25."""
        return self.kind in ("mcp-1-http", "mcp-1-stdio")


_STDIO: Final[tuple[Kind, ...]] = ("mcp-stdio",) if SDK_STARTS_COMMANDS else ()
_KINDS: Final[tuple[Kind, ...]] = ("mcp-http", *_STDIO, "mcp-in-process", "fastmcp-http", "session-http")
WAYS: Final = (Way("native", "native"), *(Way(k, m) for k in _KINDS for m in ("dropped", "wrapped")))
UNDER_HOST: Final = (
    *(Way(kind, "beneath") for kind in ("mcp-http", "httpx", "httpx2", "mcp-1-http")),
    *(Way(kind, "around") for kind in ("mcp-http", *_STDIO, "mcp-1-http", "mcp-1-stdio")),
)
"""The host's own client, which knows nothing of us, over a transport of ours."""


def _may_meet(server: str, way: Way) -> bool:
    """Whether a client finds a server that it can talk to, and that has tasks for it."""
    match server:
        case "strict":
            return not way.on_1  # it is refused: the server speaks nothing older
        case "real":
            return way.over_http and not (way.on_1 and way.mode == "around")  # no tasks in that version
        case _:
            return way.mode in ("native", "beneath", "around") and way.kind not in ("httpx", "httpx2")


DOORS: Final = [
    (server, way)
    for server in ("strict", "real", "older")
    for way in (*WAYS, *UNDER_HOST)
    if _may_meet(server, way)
]


def runs_on_trio(server: str, way: Way) -> bool:
    """Whether a way is tried on trio as well. The strict server sees the same client on both loops."""
    if way.kind == "fastmcp-http":
        return False  # FastMCP's client runs on asyncio only
    if server == "older" and way.kind == "mcp-http":
        return False  # the SDK's own stream for this version leaves generators of httpx2 unclosed there
    return server != "real" or way.on_1  # the real server is the slower of the two
