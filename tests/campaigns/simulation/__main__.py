"""``python -m tests.campaigns.simulation``: play histories, and tell of those in which something broke."""

from __future__ import annotations

import argparse
import logging
import time
from functools import partial

import anyio

from .history import play

__all__ = ["play_many"]


async def play_many(first: int, count: int, *, stop: bool = True) -> list[tuple[int, list[str]]]:
    """Play histories; the seeds of those that broke something, and what."""
    broken: list[tuple[int, list[str]]] = []
    for seed in range(first, first + count):
        history = await play(seed)
        if history.broken:
            broken.append((seed, history.broken))
            if stop:
                break
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one, and tell all of it")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--histories", type=int, default=10_000)
    given = parser.parse_args()
    logging.getLogger("mcp_tasks_client").setLevel(logging.CRITICAL)
    if given.seed is not None:
        history = anyio.run(play, given.seed)
        print(history.plan)
        for at, what in history.log:
            print(f"{at:10.3f}  {what}")
        raise SystemExit(bool(history.broken))
    began = time.monotonic()
    broken = anyio.run(partial(play_many, given.first, given.histories, stop=False))
    for seed, sentences in broken[:40]:
        print(f"seed {seed}: {sentences[:3]}")
    print(f"{given.histories} histories, {len(broken)} broken, {time.monotonic() - began:.1f} s")
    raise SystemExit(bool(broken))


if __name__ == "__main__":
    main()
