"""Measures this package against the peers that are installed beside it, and prints one table.

::

    python -m tests.benchmarks

Exits with 1 if a figure is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from .charts import PAGE, write_charts
from .figures import MEASUREMENTS
from .run import measured
from .table import as_json, markdown, pasted, results

__all__ = ["main"]

PEERS = ("fastmcp", "mcp", "httpx", "aiohttp")


def main() -> int:
    """Measure. Returns 1 if a figure is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [one.name for one in MEASUREMENTS]
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", choices=names, help=f"some of {', '.join(names)}"
    )
    parser.add_argument("--quick", action="store_true", help="smaller counts, and no repetitions")
    parser.add_argument("--json", metavar="FILE", type=Path, help="all that was found")
    parser.add_argument(
        "--page", action="store_true", help=f"write the table to {PAGE.name} as well, and draw its charts"
    )
    arguments = parser.parse_args()
    if arguments.page and (arguments.only or arguments.quick):
        parser.error("--page is for all that is measured, and not for --quick")

    chosen = [one for one in MEASUREMENTS if not arguments.only or one.name in arguments.only]
    runs = measured(
        chosen,
        quick=arguments.quick,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(runs), indent=1), encoding="utf-8")
    beside = ", ".join(f"{name} {version(name)}" for name in PEERS)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown"
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load}; beside {beside}."
    table = f"{markdown(runs)}\n\n{machine}"
    print(f"{table} Far fewer calls and tasks than the rows say." if arguments.quick else table)
    if arguments.page:
        page = pasted(PAGE.read_text(encoding="utf-8"), table)
        PAGE.write_text(page, encoding="utf-8")
        write_charts(page)
    return int(any(row.missed(result) for row, result, _ in results(runs)))


if __name__ == "__main__":
    raise SystemExit(main())
