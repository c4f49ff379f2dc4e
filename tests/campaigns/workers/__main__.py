"""``python -m tests.campaigns.workers``: kills workers, and says what became of their tasks.

Only a ``TasksClient`` adopts; ``host`` says why. With ``--through``, calls are made by a host's own client,
with one of the other ways in, and left as soon as they are tasks. A ``TasksClient`` over such a client adopts
them.

Exits with 1 if something broke, and keeps the journal and the logs then.
"""

from __future__ import annotations

from functools import partial

from ..outcome import arguments, told
from .host import WAYS
from .run import run


def main() -> int:
    parser = arguments(__doc__, kills=200, tasks=300)
    parser.add_argument("--longest", type=float, default=0.6, help="seconds for which a worker lives at most")
    parser.add_argument("--through", choices=[*WAYS, "each"], default="client", help="how calls are made")
    given = parser.parse_args()
    play = partial(
        run,
        seed=given.seed,
        kills=given.kills,
        tasks=given.tasks,
        pause_s=(0.0, given.longest),
        through=given.through,
    )
    return told("workers", given.seed, play)


if __name__ == "__main__":
    raise SystemExit(main())
