"""Has clients go through bad weather to the real servers of 2025-11-25, and says what became of their calls.

::

    python -m tests.campaigns.storm --voyages 400

Exits with 1 if a promise was broken; it then says which, and what happened on the way. The same seed
draws the same weather, but time does not come again.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from typing import Final, get_args

from tests._legacy_installs import NODE_SERVER, node_modules, python_with_legacy_sdk
from tests.legacy_servers import Kind, LegacyProgram, LegacyServer, anywhere

from .run import is_for_us, storm
from .verdict import breaches, unheard

__all__ = ["main"]

INTERVAL_MS: Final = 150


def main() -> int:
    """Run. Returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--voyages", type=int, default=400, help="calls to make (default: 400)")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().getrandbits(24), help="the first one's"
    )
    parser.add_argument("--receiving", action="store_true", help="only voyages with tasks of the client's")
    parser.add_argument("--at", choices=get_args(Kind), help="only voyages to this kind of server")
    parser.add_argument("--debug", action="store_true", help="keep what the clients log")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    print(f"seed {arguments.seed}, in {folder}", flush=True)
    # Looking for garbage in all that was imported would stop the proxies for a tenth of a second, and polls
    # that come in that time would seem to have come at its end.
    gc.freeze()
    begun = time.monotonic()
    with ExitStack() as running:
        servers = [
            running.enter_context(one.listening(folder / one.kind, "--poll-interval-ms", str(INTERVAL_MS)))
            for one in programs()
            if arguments.at in (None, one.kind)
        ]
        broken, kinds = asyncio.run(sail(arguments, servers, folder))
    print(f"{arguments.voyages} voyages, {broken} broken, {time.monotonic() - begun:.0f} s; {dict(kinds)}")
    return 1 if broken else 0


def programs() -> list[LegacyProgram]:
    """The two servers, and one of them with tasks that are known in any session."""
    python = LegacyProgram("python", str(python_with_legacy_sdk()), NODE_SERVER.parent / "legacy_python.py")
    node = LegacyProgram("node", "node", NODE_SERVER / "server.mjs", ("--installed", str(node_modules())))
    return [python, node, anywhere(node)]


async def sail(
    arguments: argparse.Namespace, servers: list[LegacyServer], folder: Path
) -> tuple[int, Counter[str]]:
    """Make the voyages, and tell of those on which something was broken."""
    broken, kinds = 0, Counter[str]()
    these = (seed for seed in count(arguments.seed) if not arguments.receiving or is_for_us(seed))
    seeds = list(islice(these, arguments.voyages))
    async for voyage in storm(seeds, servers, folder, interval_ms=INTERVAL_MS, debug=arguments.debug):
        found = list(breaches(voyage))
        kinds["voyages with a question that nobody heard"] += unheard(voyage)
        kinds["of these, without an end"] += not voyage.ended and unheard(voyage)
        kinds["calls"] += len(voyage.calls)
        kinds.update(one.fate.what for one in voyage.lane.passed)
        if found:
            broken += 1
            (folder / f"{voyage.seed}.told").write_text(voyage.told())
            print(
                f"{voyage.seed} at {voyage.kind} by {voyage.way}, {voyage.calls}: {'; '.join(found)}",
                flush=True,
            )
    return broken, kinds


if __name__ == "__main__":
    raise SystemExit(main())
