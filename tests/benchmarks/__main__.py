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

from .figures import MEASUREMENTS
from .run import measured
from .table import as_json, markdown, results

__all__ = ["main"]

PEERS = ("fastmcp", "mcp", "httpx")


def main() -> int:
    """Measure. Returns 1 if a figure is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [one.name for one in MEASUREMENTS]
    parser.add_argument("--only", metavar="NAME", choices=names, help=f"one of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="smaller counts, and no repetitions")
    parser.add_argument("--json", metavar="FILE", type=Path, help="all that was found")
    arguments = parser.parse_args()

    chosen = [one for one in MEASUREMENTS if arguments.only in (None, one.name)]
    runs = measured(chosen, quick=arguments.quick, tell=lambda line: print(line, file=sys.stderr, flush=True))
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(runs), indent=1), encoding="utf-8")
    beside = ", ".join(f"{name} {version(name)}" for name in PEERS)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown"
    print(f"{markdown(runs)}\n")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load}; beside {beside}.")
    return int(any(row.missed(result) for row, result, _ in results(runs)))


if __name__ == "__main__":
    raise SystemExit(main())
