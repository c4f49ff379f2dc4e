"""``python -m tests.fleet.sizing``: what a fleet costs, and how fast it takes over, in tables.

It measures all parts, or those that are named. The database is one of its own on this machine, beside the
client, and syncs each commit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final

from tests.postgres import PostgresServer, running_postgres

from . import commits, costs, many_records, takeover
from .database import sync_commits

PARTS: Final[dict[str, Callable[[PostgresServer, float], Sequence[Sequence[str]]]]] = {
    "commits": commits.rows,
    "task": costs.of_a_task,
    "idle": costs.of_an_idle_replica,
    "takeover": takeover.rows,
    "waiting": many_records.waiting,
    "finished": many_records.finished,
}
"""What measures each: with the second argument below 1 as much less. It gives a table, the head first."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"all, or some of {', '.join(PARTS)}")
    parser.add_argument("--size", type=float, default=1.0, help="fraction of the full size, as for a trial")
    given = parser.parse_args()
    for name in given.parts or PARTS:
        with running_postgres() as server:
            sync_commits(server)
            head, *rows = PARTS[name](server, given.size)
        print(f"\n{name}\n")
        for cells in (head, ["---", *["--:"] * (len(head) - 1)], *rows):
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
