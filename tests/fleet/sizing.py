"""``python -m tests.fleet.sizing``: what a fleet costs, and how fast it takes over, in tables.

It measures all parts, or those that are named. The database is one of its own on this machine, beside the
client, and syncs each commit. ``--page`` writes the tables into ``docs/benchmarks.md`` as well.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
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


PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"all, or some of {', '.join(PARTS)}")
    parser.add_argument("--size", type=float, default=1.0, help="fraction of the full size, as for a trial")
    parser.add_argument("--page", action="store_true", help=f"write the tables into {PAGE.name}")
    given = parser.parse_args()
    for name in given.parts or PARTS:
        with running_postgres() as server:
            sync_commits(server)
            head, *rows = PARTS[name](server, given.size)
        lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        print(f"\n{name}\n\n{table}", flush=True)
        if given.page:
            page = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(pasted(page, name, table), encoding="utf-8")


def pasted(page: str, name: str, table: str) -> str:
    """A page with another table between the markers of a part."""
    begin, end = f"<!-- sizing: {name} -->\n", f"\n<!-- /sizing: {name} -->"
    assert begin in page, f"{PAGE} has no place for {name}"
    return re.sub(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", lambda _: table, page, flags=re.S)


if __name__ == "__main__":
    main()
