"""Has hosts call through bridges on one journal, kills both at random moments, and has that judged."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..answering import answering
from ..lives import LIMIT_S, Lives
from ..outcome import Campaign
from ..torture.evidence import What
from ..torture.run import servers
from .host import CURRENT, Order
from .verdict import Evidence, judge

__all__ = ["run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of host, each of which has a place: when one is killed, another takes its calls over."""

    name: str
    version: str
    has_person: bool
    answer_within_s: float
    limit_s: float
    share_keyed: float = 0.0


KINDS: Final = (
    Kind(name="alpha", version="2025-11-25", has_person=False, answer_within_s=0.5, limit_s=20.0),
    Kind(name="alpha", version="2025-06-18", has_person=True, answer_within_s=0.8, limit_s=20.0),
    Kind(name="beta", version=CURRENT, has_person=True, answer_within_s=0.4, limit_s=20.0),
    Kind(name="gamma", version="2025-11-25", has_person=True, answer_within_s=0.0, limit_s=0.9),
    Kind(name="delta", version=CURRENT, has_person=False, answer_within_s=0.5, limit_s=1.0, share_keyed=0.5),
)
"""Two hosts of one name, of different versions; one that gives up, since its bridge never answers in between;
and one that does both, and has keys."""

MOMENTS: Final[tuple[What, ...]] = ("bridge", "begun", "promised", "given up", "answered", "delivered")
"""A kill falls soon after a line of the host's log, or anywhere."""

MOMENT_LIMIT_S: Final = 1.5
SOON_S: Final = 0.05
PAUSE_S: Final = 1.2
AT_WORK: Final = 0.8
"""Of the kills, which share waits for a host to make a call."""

WORK_LIMIT_S: Final = 20.0
BY_BRIDGE: Final = 0.6
"""Of the kills, which share hits a bridge alone."""


class Hosts(Lives):
    """The processes of the campaign: a host of each kind, and somebody who answers from outside."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        super().__init__(folder)
        self.url = url
        self.seed = seed
        self.journal = folder / "journal.sqlite3"
        self.lives_of: dict[Kind, list[int]] = {kind: [] for kind in KINDS}
        self.bridges_killed_at: dict[int, float] = {}

    def answer(self) -> int:
        """Begin a process that answers."""
        life, log = self.next_life()
        return self.begin(answering(self.journal, log, life, patience_s=(0.2, 1.0)))

    def host(self, kind: Kind) -> int:
        """Begin a host, with what those before it have read."""
        life, _ = self.next_life()
        order = Order(
            url=self.url,
            journal=str(self.journal),
            folder=str(self.folder),
            life=life,
            earlier=[*self.lives_of[kind]],
            name=kind.name,
            version=kind.version,
            has_person=kind.has_person,
            answer_within_s=kind.answer_within_s,
            limit_s=kind.limit_s,
            share_keyed=kind.share_keyed,
            seed=self.seed,
        )
        self.lives_of[kind].append(life)
        return self.begin(order.command())

    def kill_bridge(self, life: int) -> bool:
        """End the bridge of a host by SIGKILL. Returns whether it had one."""
        started = [line.text for of, line in self.lines() if of == life and line.what == "bridge"]
        if not started:
            return False
        number, pid = map(int, started[-1].split())
        if number in self.bridges_killed_at:
            return False
        self.bridges_killed_at[number] = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True

    def finish(self) -> None:
        """Have each host bring home what it has begun, and wait for its end."""
        for lives in self.lives_of.values():
            self.running[lives[-1]].stdin.write(b"\n")
            self.running[lives[-1]].stdin.flush()
        for lives in self.lives_of.values():
            self.wait_for_word(lives[-1], "done", 1, LIMIT_S)


def run(folder: Path, seed: int, *, kills: int, endpoint: str = "fastmcp") -> Campaign:
    """Kill hosts and bridges, and judge.

    Args:
        folder: For the journal and the logs.
        seed: Decides about calls and instants.
        kills: Of hosts and of bridges, in all.
        endpoint: Of the servers of ``torture``, which one.
    """
    chance = random.Random(seed)
    with servers(seed, folder) as server, ExitStack() as stack:
        hosts = Hosts(server.endpoint(endpoint), folder, seed)
        stack.callback(hosts.end)
        hosts.wait_for(hosts.answer())
        for kind in KINDS:
            hosts.host(kind)
        for _ in range(kills):
            _kill_one(hosts, chance)
        hosts.finish()
        evidence = Evidence(
            lines=hosts.lines(),
            requests=server.ledger(),
            kind_of={
                life: (number, kind.name)
                for number, kind in enumerate(KINDS)
                for life in hosts.lives_of[kind]
            },
            hosts_killed_at=dict(hosts.killed_at),
            bridges_killed_at=hosts.bridges_killed_at,
        )
        return judge(evidence, complaints=server.complaints())


def _kill_one(hosts: Hosts, chance: random.Random) -> None:
    kind = chance.choice(KINDS)
    life = hosts.lives_of[kind][-1]
    hosts.wait_for(life)
    if chance.random() < AT_WORK:  # or most would be killed while they start, on a machine that is busy
        hosts.wait_for_word(life, "begun", hosts.count(life, "begun") + 1, WORK_LIMIT_S)
    moment = chance.choice((None, *MOMENTS))
    if moment is None:
        time.sleep(chance.uniform(0.0, PAUSE_S))
    else:
        hosts.wait_for_word(life, moment, hosts.count(life, moment) + 1, MOMENT_LIMIT_S)
        time.sleep(chance.uniform(0.0, SOON_S))
    if chance.random() < BY_BRIDGE:
        while not hosts.kill_bridge(life):
            time.sleep(0.05)
    else:
        hosts.kill(life)
        hosts.host(kind)
