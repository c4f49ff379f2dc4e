"""``python -m tests.campaigns.bridges``: kills bridges and hosts, and says what became of their calls.

Exits with 1 if something broke, and keeps the journal and the logs then.
"""

from __future__ import annotations

from functools import partial

from ..outcome import arguments, told
from ..torture.server import ENDPOINTS
from .run import run


def main() -> int:
    parser = arguments(__doc__, kills=200)
    parser.add_argument("--endpoint", choices=ENDPOINTS, default="fastmcp", help="the server")
    given = parser.parse_args()
    play = partial(run, seed=given.seed, kills=given.kills, endpoint=given.endpoint)
    return told("bridges", given.seed, play)


if __name__ == "__main__":
    raise SystemExit(main())
