"""``python -m tests.simulation``: play histories, and tell of those in which something broke."""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from .journal import empty_journal
from .world import play


@contextmanager
def files() -> Iterator[Path]:
    """A folder where files cost least: in memory, if there is such a place."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as name:
        yield Path(name)


async def histories(first: int, count: int, where: Path, *, stop: bool = True) -> list[tuple[int, list[str]]]:
    """Play many; the seeds of those that broke something, and what."""
    empty = empty_journal(where)
    broken: list[tuple[int, list[str]]] = []
    for seed in range(first, first + count):
        world = await play(seed, where, empty)
        if world.broken:
            broken.append((seed, world.broken))
            if stop:
                break
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one, and tell all of it")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--histories", type=int, default=1000)
    given = parser.parse_args()
    logging.getLogger("mcp_tasks_client").setLevel(logging.CRITICAL)
    with files() as where:
        if given.seed is not None:
            world = anyio.run(play, given.seed, where, empty_journal(where))
            print(world.plan)
            for at, what in world.log:
                print(f"{at:10.3f}  {what}")
            raise SystemExit(bool(world.broken))
        began = time.monotonic()
        broken = anyio.run(lambda: histories(given.first, given.histories, where, stop=False))
        for seed, what in broken[:40]:
            print(f"seed {seed}: {what[:3]}")
        print(f"{given.histories} histories, {len(broken)} broken, {time.monotonic() - began:.1f} s")
        raise SystemExit(bool(broken))


if __name__ == "__main__":
    main()
