"""``python -m tests.campaigns.fleet``: disturbs a fleet, and says what became of its tasks.

Exits with 1 if something broke, and keeps the logs then.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from pathlib import Path

from .run import run


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--disturbances", type=int, default=40)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    print(f"seed {given.seed}", flush=True)
    campaign = run(folder, given.seed, tasks=given.tasks, disturbances=given.disturbances)
    print("\n".join(f"{name}: {number:g}" for name, number in campaign.figures.items()))
    print("\n".join([f"{len(campaign.broken)} broken", *campaign.broken[:40]]))
    if campaign.broken:
        print(f"the evidence is in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
