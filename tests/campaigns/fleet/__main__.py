"""``python -m tests.campaigns.fleet``: disturbs a fleet, and says what became of its tasks.

``--without NAME`` leaves a disturbance out, to see which one a breach has to do with. ``--again FOLDER``
judges the evidence of an earlier run once more.

With ``--kills N`` the fleet is on one machine, over a file of SQLite, and that many replicas are killed while
other processes answer. ``--through`` has the calls made by a host's own client, with one of the other ways
in, and left as soon as they are tasks; a ``TasksClient`` over such a client adopts them.

Exits with 1 if something broke, and keeps the logs and the evidence then.
"""

from __future__ import annotations

from pathlib import Path

from ..outcome import Campaign, arguments, told
from .disturbances import EACH_ROUND, TWINS
from .dropped_in import WAYS
from .evidence import EVIDENCE, Evidence
from .machine import run_on_one_machine
from .run import run
from .verdict import judge


def main() -> int:
    parser = arguments(__doc__, tasks=2000, disturbances=60, calm=800, kills=0)
    parser.add_argument("--lease", type=float, default=8.0, help="seconds that a lease lasts")
    parser.add_argument("--without", action="append", default=[], choices=[*EACH_ROUND, TWINS])
    parser.add_argument("--again", type=Path, help="the folder of an earlier run")
    parser.add_argument(
        "--longest", type=float, default=0.6, help="with --kills: seconds that a replica lives"
    )
    parser.add_argument("--through", choices=[*WAYS, "each"], default="client", help="with --kills")
    given = parser.parse_args()

    def play(folder: Path) -> Campaign:
        if given.again:
            evidence = Evidence.load(given.again / EVIDENCE)
            evidence.save(folder / EVIDENCE)
            return judge(evidence)
        if given.kills:
            return run_on_one_machine(
                folder,
                given.seed,
                kills=given.kills,
                tasks=given.tasks,
                pause_s=(0.0, given.longest),
                through=given.through,
            )
        return run(
            folder,
            given.seed,
            tasks=given.tasks,
            disturbances=given.disturbances,
            calm=given.calm,
            lease_s=given.lease,
            without=given.without,
        )

    return told("fleet", given.seed, play)


if __name__ == "__main__":
    raise SystemExit(main())
