"""Kills client processes at named stops and random instants, and says what became of their tasks.

Meanwhile other processes answer what those ask.

::

    python -m tests.campaigns.torture --kills 500
    python -m tests.campaigns.torture --kills 200 --through http

Exits with 1 if a promise was broken; it then says which and where, and keeps the journals and the logs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path

from .figures import Figures, Verdict
from .run import torture
from .verdict import judge

__all__ = ["main", "table"]


def table(figures: Figures) -> str:
    """The figures as Markdown; what must be 0 is marked."""
    rows = [(f"**{name}**" if never else name, f"{number:,}") for name, number, never in figures.rows()]
    return "\n".join(["| | |", "|---|---:|", *(f"| {name} | {number} |" for name, number in rows)])


def main() -> int:
    """Run. Returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=500, help="processes to kill (default: 500)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument(
        "--through",
        choices=["client", "http", "transport", "extension", "each"],
        default="client",
        help="calls by a TasksClient, an mcp.Client over tasks_http_client or a TasksTransport, one with an "
        "extension for each call, or by each of these in turn (default: client)",
    )
    arguments = parser.parse_args()

    print(f"seed {arguments.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    begun_at, verdict = time.monotonic(), Verdict()
    for evidence in torture(arguments.kills, arguments.seed, folder, arguments.through):
        one = judge(evidence)
        print(
            f"{evidence.scenario}: {one.figures.killed} killed, {one.figures.started} tasks, "
            f"{len(one.breaches)} breaches",
            flush=True,
        )
        verdict += one
    seconds = time.monotonic() - begun_at
    print(f"\n{table(verdict.figures)}\n\nseed {arguments.seed}, {seconds:.0f} s; what is bold must be 0.")
    if verdict.breaches:
        print("\n".join(["", "broken:", *verdict.breaches, "", f"the evidence is in {folder}"]))
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
