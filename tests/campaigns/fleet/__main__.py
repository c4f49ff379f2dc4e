"""``python -m tests.campaigns.fleet``: disturbs a fleet, and says what became of its tasks.

Exits with 1 if something broke, and keeps the logs then.
"""

from __future__ import annotations

from functools import partial

from ..outcome import arguments, told
from .run import run


def main() -> int:
    given = arguments(__doc__, tasks=2000, disturbances=60, calm=800).parse_args()
    play = partial(run, seed=given.seed, tasks=given.tasks, disturbances=given.disturbances, calm=given.calm)
    return told("fleet", given.seed, play)


if __name__ == "__main__":
    raise SystemExit(main())
