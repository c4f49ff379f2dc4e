"""``python -m tests.campaigns.fleet``: disturbs a fleet, and says what became of its tasks.

``--without NAME`` leaves a disturbance out, to see which one a breach has to do with. ``--again FOLDER``
judges the evidence of an earlier run once more.

Exits with 1 if something broke, and keeps the logs and the evidence then.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..outcome import Campaign, arguments, told
from .disturbances import EACH_ROUND, TWINS
from .evidence import Evidence
from .run import EVIDENCE, run
from .verdict import judge


def main() -> int:
    parser = arguments(__doc__, tasks=2000, disturbances=60, calm=800)
    parser.add_argument("--lease", type=float, default=8.0, help="seconds that a lease lasts")
    parser.add_argument("--without", action="append", default=[], choices=[*EACH_ROUND, TWINS])
    parser.add_argument("--again", type=Path, help="the folder of an earlier run")
    given = parser.parse_args()

    def play_again(folder: Path) -> Campaign:
        evidence = Evidence.load(given.again / EVIDENCE)
        evidence.save(folder / EVIDENCE)
        return judge(evidence)

    play = partial(
        run,
        seed=given.seed,
        tasks=given.tasks,
        disturbances=given.disturbances,
        calm=given.calm,
        lease_s=given.lease,
        without=given.without,
    )
    return told("fleet", given.seed, play_again if given.again else play)


if __name__ == "__main__":
    raise SystemExit(main())
