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
from .evidence import Disturbance
from .host import Place
from .ways import Way, Ways

__all__ = ["REPLICAS", "Fleet"]

REPLICAS: Final = 4
TWIN: Final = "twin:0242ac110002"
"""The host, and its network card, of replicas that only their boot ID tells apart: the first container of
each machine, or a machine that was cloned."""

FROM_OUTSIDE: Final = 0.3
"""The share of questions that are answered from outside, should no person be faster."""

OUTAGE_S: Final = 30.0
CLOSING_S: Final = 10.0
STEP_S: Final = 0.05


class Fleet(Lives):
    """The replicas of a campaign, and what was done to them.

    Args:
        url: The server of their calls.
        database: Where their journal is.
        ways: Lead there.
        folder: For logs.
        lease_s: The length of their leases.
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
        database: PostgresServer,
        ways: Ways,
        folder: Path,
        *,
        lease_s: float,
        has_twins: bool,
    ) -> None:
        super().__init__(folder)
        self.url, self.database, self.lease_s = url, database, lease_s
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
    def replicas(self) -> list[int]:
        """Those that run, disturbed or not."""
        with self._lock:
            return sorted(self.running.keys() & self.way.keys())

    # ── replicas ──────────────────────────────────────────────────────────────────────────────

    def replica(self, limit: int) -> int:
        """Begin one more, which sees to so many calls at once."""
        with self._lock:
            life, log = self.next_life()
            is_twin = self._has_twins and life % 2 == 0
            place = Place(
                life=life,
                host=TWIN if is_twin else f"host-{life}:{life:012x}",
                boot=f"boot-{life}",
                lease_s=self.lease_s,
                # Of every third one it is shorter than the lease.
                outage_s=OUTAGE_S if life % 3 else self.lease_s / 2,
                limit=limit,
            )
            if is_twin:
                self.twins.add(life)
            self.way[life] = self._ways.new()
            return self.begin(
                ["-m", f"{__package__}.host", place.as_json(), self.url, self.way[life].dsn, log]
            )

    def answer(self) -> int:
        """Begin a process that answers a share of the questions from outside, as late as persons may."""
        with self._lock:
            life, log = self.next_life()
            patience_s = 0.0, 2 * self.lease_s
            command = answering(self.database.dsn, log, life, share=FROM_OUTSIDE, patience_s=patience_s)
            return self.begin(command)

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
