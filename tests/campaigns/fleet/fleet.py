"""The replicas of a campaign, what is done to them, and the times of that."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.postgres import PostgresServer

from ..answering import answering
from ..lives import LIMIT_S, Lives
from .dropped_in import Through
from .evidence import Disturbance
from .host import Place
from .ways import Way, Ways

__all__ = ["REPLICAS", "Fleet"]

REPLICAS: Final = 4
TWIN: Final = "twin:0242ac110002"
"""The host, and its network card, of replicas that only their boot ID tells apart: the first container of
each machine, or a machine that was cloned."""

OUTAGE_S: Final = 30.0
CLOSING_S: Final = 10.0
STEP_S: Final = 0.05


class Fleet(Lives):
    """The replicas of a campaign, and what was done to them.

    Args:
        url: The server of their calls.
        shared: Where their journal is: a file, or a database.
        folder: For logs.
        lease_s: The length of their leases.
        ways: Lead to the database. Each replica is on a host of its own then.
        has_twins: Every other replica is a twin; see :data:`TWIN`.

    Attributes:
        disturbances: What was done, as it began.
        twins: The lives of replicas on equal hosts.
        ended_at: When a replica was killed, or had stopped as it was told.
        late_to_stop: Replicas that were told to stop, and had not after three times ``outage_s``.
    """

    def __init__(
        self,
        url: str,
        shared: Path | PostgresServer,
        folder: Path,
        *,
        lease_s: float,
        ways: Ways | None = None,
        has_twins: bool = False,
    ) -> None:
        super().__init__(folder)
        self.url, self.lease_s = url, lease_s
        self._shared = shared
        self.disturbances: list[Disturbance] = []
        self.twins: set[int] = set()
        self.ended_at: dict[int, float] = {}
        self.late_to_stop: list[int] = []
        self.way: dict[int, Way] = {}
        self._ways = ways
        self._has_twins = has_twins
        self._hindered: set[int] = set()
        self._lock = threading.RLock()  # of what runs, and what hinders it
        self._threads = ThreadPoolExecutor(REPLICAS * 4)
        self._under_way: list[Future[None]] = []
        self._of_database: Future[None] | None = None

    @property
    def database(self) -> PostgresServer:
        """The database that they share."""
        assert isinstance(self._shared, PostgresServer)
        return self._shared

    @property
    def journal(self) -> str:
        """The file, or what connects to the database."""
        return str(self._shared) if isinstance(self._shared, Path) else self._shared.dsn

    @property
    def replicas(self) -> list[int]:
        """Those that run, disturbed or not."""
        with self._lock:
            return sorted(self.running.keys() & self.way.keys())

    # ── replicas ──────────────────────────────────────────────────────────────────────────────

    def replica(self, limit: int | None, through: Through = "client") -> int:
        """Begin one more, which sees to so many calls at once."""
        with self._lock:
            life, log = self.next_life()
            if self._ways is None:
                place = Place(life=life, lease_s=self.lease_s, limit=limit, through=through)
                journal = self.journal
            else:
                place = self._place_elsewhere(life, limit)
                self.way[life] = self._ways.new()
                journal = self.way[life].dsn
            return self.begin(["-m", f"{__package__}.host", place.as_json(), self.url, journal, log])

    def _place_elsewhere(self, life: int, limit: int | None) -> Place:
        is_twin = self._has_twins and life % 2 == 0
        if is_twin:
            self.twins.add(life)
        return Place(
            life=life,
            host=TWIN if is_twin else f"host-{life}:{life:012x}",
            boot=f"boot-{life}",
            lease_s=self.lease_s,
            # Of every third one it is shorter than the lease.
            outage_s=OUTAGE_S if life % 3 else self.lease_s / 2,
            limit=limit,
        )

    def answer(self, share: float = 1.0, longest_s: float = 0.0) -> int:
        """Begin a process that answers a share of the questions from outside, at once or within seconds."""
        with self._lock:
            life, log = self.next_life()
            return self.begin(answering(self.journal, log, life, share=share, patience_s=(0.0, longest_s)))

    def kill(self, life: int) -> None:
        with self._lock:
            if life not in self.running:
                return
            at = time.monotonic()
            super().kill(life)
            self.ended_at[life] = at
            if life in self.way:
                self.way[life].close()

    def stop(self, life: int) -> None:
        """Tell a replica to stop, and wait until it has handed over. It is killed if that takes too long."""
        with self._lock:
            process = self.running.pop(life)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(3 * OUTAGE_S + CLOSING_S)
        except subprocess.TimeoutExpired:
            self.late_to_stop.append(life)
            process.kill()
            process.wait(LIMIT_S)
        self.ended_at[life] = time.monotonic()
        self.way[life].close()

    def signal(self, life: int, number: signal.Signals) -> None:
        """Send a signal to a replica that runs."""
        with self._lock:
            if life in self.running:
                os.kill(self.running[life].pid, number)

    def runs(self, life: int) -> bool:
        """Whether a replica was neither killed nor told to stop."""
        return life in self.running

    # ── disturbances ──────────────────────────────────────────────────────────────────────────

    @contextmanager
    def disturbing(self, what: str, *lives: int) -> Iterator[None]:
        """Note a disturbance of these replicas, or of all, for the length of the block."""
        disturbance = Disturbance(what=what, lives=list(lives), at=time.monotonic())
        self.disturbances.append(disturbance)
        try:
            yield
        finally:
            disturbance.until = time.monotonic()

    def last(self, seconds: float, life: int | None = None) -> None:
        """Let time pass, as long as a replica runs."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and (life is None or life in self.running):
            time.sleep(STEP_S)

    def begin_disturbing(self, life: int | None, disturb: Callable[[], None]) -> None:
        """Disturb a replica, or the database, while the campaign goes on."""
        if life is None:
            self._of_database = self._threads.submit(disturb)
            self._under_way.append(self._of_database)
            return
        self._hindered.add(life)
        of_replica = self._threads.submit(disturb)
        of_replica.add_done_callback(lambda _: self._hindered.discard(life))
        self._under_way.append(of_replica)

    def wait_for_database(self) -> None:
        """Return once nothing disturbs the database."""
        if self._of_database is not None:
            self._of_database.result()

    def choose(self, chance: random.Random, *, disturbed: bool = False) -> int:
        """A replica that is ready: one that has calls, if any has.

        Unless ``disturbed``, it is an undisturbed one, once most of them are: somebody has to work.
        """
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            free = [life for life in self.replicas if disturbed or life not in self._hindered]
            ready = [life for life in free if self.count(life, "ready")]
            if ready and len(free) > REPLICAS // 2:
                busy = [life for life in ready if self.count(life, "resumed") > self.count(life, "delivered")]
                return chance.choice(busy or ready)
            time.sleep(STEP_S)
        raise RuntimeError("the replicas are disturbed for too long")

    def wait_for_calm(self) -> None:
        """Return once nothing disturbs the fleet."""
        under_way, self._under_way = self._under_way, []
        for one in under_way:
            one.result()

    def close(self) -> None:
        """Kill all that run."""
        self.end()
        self._threads.shutdown()
