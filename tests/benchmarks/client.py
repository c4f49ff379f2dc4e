"""One measurement, in a process of its own, which prints one line of JSON.

``python -m tests.benchmarks.client WHO WHAT --url URL --count N``; with ``--profile N``, the N functions
of a client's event loop that took most time are printed as well, on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .workloads import Found

__all__ = ["main"]


async def driven(
    who: str, what: str, url: str, folder: Path, count: int, watched: AbstractContextManager[object]
) -> Found:
    """Have a peer do some work."""
    from .peers import PEERS
    from .workloads import WITHOUT_IDLING, WORKLOADS

    peer = PEERS[who](url, folder, idles=what not in WITHOUT_IDLING)
    await peer.open()
    try:
        with watched:
            return await WORKLOADS[what](peer, count)
    finally:
        await peer.aclose()


async def committed(who: str, folder: Path, tasks: int) -> Found:
    """Have a journal commit."""
    from .commits import JOURNALS
    from .workloads import quantile

    taken = await JOURNALS[who](folder, tasks)
    return {"commit_p50_ms": 1000 * quantile(taken, 0.50), "commit_p99_ms": 1000 * quantile(taken, 0.99)}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("who")
    parser.add_argument("what")
    parser.add_argument("--url", default="", help="the server's; not needed for commits")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--profile", type=int, default=0)
    options = parser.parse_args()
    profile = cProfile.Profile() if options.profile else None
    # Where the temporary folder is decides what a durable commit costs: on tmpfs, nothing.
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        if options.what == "commits":
            work = committed(options.who, Path(name), options.count)
        else:
            watched = profile or nullcontext()
            work = driven(options.who, options.what, options.url, Path(name), options.count, watched)
        found = asyncio.run(work)
    print(json.dumps(found), flush=True)
    if profile is not None:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(options.profile)


if __name__ == "__main__":
    main()
