"""``python -m tests.campaigns.workers``: kills workers, and says what became of their tasks.

Only a ``TasksClient`` adopts; ``host`` says why. With ``--through``, calls are made by a host's own client,
with one of the other ways in, and left as soon as they are tasks. A ``TasksClient`` over such a client adopts
them.

Exits with 1 if something broke, and keeps the journal and the logs then.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from pathlib import Path

from .host import WAYS
from .run import run


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--longest", type=float, default=0.6, help="seconds for which a worker lives at most")
    parser.add_argument("--through", choices=[*WAYS, "each"], default="client", help="how calls are made")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="workers-"))
    print(f"seed {given.seed}", flush=True)
    pause_s = (0.0, given.longest)
    campaign = run(
        folder, given.seed, kills=given.kills, tasks=given.tasks, pause_s=pause_s, through=given.through
    )
    print("\n".join(f"{name}: {number:g}" for name, number in campaign.figures.items()))
    print("\n".join([f"{len(campaign.broken)} broken", *campaign.broken[:40]]))
    if campaign.broken:
        print(f"the evidence is in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
